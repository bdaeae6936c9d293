"""Runs commands in copies of one process, each with one step at which a signal comes.

The copies share what was imported before the first, and end as any command does, with what is
registered for the end of the interpreter.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from tests.trust.injection import Kind, injected


class Commands:
    """A process that runs ``edgeinfer`` for each question, in a copy of its own.

    Args:
        folder: for what the copies write to the terminal.
        environment: of all of them.
    """

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._told, self._steps = folder / "told", folder / "steps"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.trust.killed"],
            cwd=Path(__file__).parents[2],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, words: Sequence[str], kind: Kind = "disk", at: int = 0) -> int:
        """Return the exit code; of one that a signal ended, its number below zero."""
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError
        asked = {"words": words, "kind": kind, "at": at}
        asked |= {"told": str(self._told), "steps": str(self._steps)}
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    @property
    def told(self) -> str:
        """What the last one wrote to the terminal."""
        return self._told.read_text()

    @property
    def steps(self) -> int:
        """How many the last one that came to its end has."""
        return int(self._steps.read_text())

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def _serve() -> None:
    is_first = True
    for line in sys.stdin:
        asked = json.loads(line)
        if is_first:
            # Once here: what is imported now is not imported again in every copy.
            _warm(asked)
            is_first = False
        process = os.fork()
        if not process:
            _be_the_command(asked)
        _, status = os.waitpid(process, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


def _warm(asked: dict[str, Any]) -> None:
    from edgeinfer.cli.failures import guarded
    from edgeinfer.cli.group import edgeinfer

    out = os.dup(1)
    _redirect(asked["told"])
    guarded(edgeinfer, asked["words"])
    sys.stdout.flush()
    os.dup2(out, 1)


def _redirect(told: str) -> None:
    place = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for stream in (1, 2):
        os.dup2(place, stream)
    os.close(place)


def _be_the_command(asked: dict[str, Any]) -> NoReturn:
    from edgeinfer.cli import main

    _redirect(asked["told"])
    sys.argv = ["edgeinfer", *asked["words"]]
    block = injected(asked["kind"], asked["at"])
    counted = block.__enter__()
    # Not at once left: what runs at the end of the interpreter is a step too.
    atexit.register(lambda: (Path(asked["steps"]).write_text(str(counted.steps)), block))
    main()
    raise SystemExit


if __name__ == "__main__":
    _serve()
