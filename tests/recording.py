"""Recordings of a terminal: a program's output with its times, as asciinema keeps them.

Source: the asciicast v2 format, one JSON a line: a header, then ``[seconds, "o", text]``.
"""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

WIDTH, HEIGHT = 110, 24


def record(
    command: Sequence[str], shown: str, folder: Path, env: Mapping[str, str] | None = None
) -> str:
    """Run a program in a terminal of its own, and return the recording.

    Args:
        command: what runs.
        shown: the line that a user would have typed for it.
        folder: where it runs.
        env: variables next to those of this process.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    parent, child = os.openpty()
    variables = {**os.environ, "COLUMNS": str(WIDTH), "TERM": "xterm-256color", **(env or {})}
    size = {"width": WIDTH, "height": HEIGHT}
    header = {"version": 2, **size, "title": shown.split(" --")[0], "env": {"TERM": "xterm"}}
    lines = [json.dumps(header), json.dumps([0.0, "o", f"$ {shown}\r\n"])]
    start = time.monotonic()
    with subprocess.Popen(
        command, cwd=folder, env=variables, stdin=subprocess.DEVNULL, stdout=child, stderr=child
    ) as program:
        os.close(child)
        lines += (
            json.dumps([round(time.monotonic() - start, 3), "o", said]) for said in _pieces(parent)
        )
    os.close(parent)
    if program.returncode:
        raise subprocess.CalledProcessError(program.returncode, command, "\n".join(lines))
    return "\n".join(lines) + "\n"


def _pieces(terminal: int) -> Iterator[str]:
    """Yield what a terminal shows, until its program has ended."""
    while True:
        try:
            said = os.read(terminal, 1 << 16)
        except OSError as e:
            # What Linux says where nobody has the other end any more.
            if e.errno != errno.EIO:
                raise
            return
        if not said:
            return
        yield said.decode("utf-8", "replace")


def events(recording: str) -> list[tuple[float, str]]:
    """Return the times and texts of a recording.

    Raises:
        ValueError: it is none.
    """
    header, *rest = map(json.loads, recording.splitlines())
    if header["version"] != 2 or any(kind != "o" for _, kind, _ in rest):
        raise ValueError("no recording of version 2")
    return [(at, text) for at, _, text in rest]


def text(recording: str) -> list[str]:
    """Return the lines that a recording shows, without their numbers: times are never the same."""
    shown = "".join(said for _, said in events(recording))
    return [re.sub(r"\d+(?:[.,]\d+)*", "#", line) for line in shown.replace("\r", "").split("\n")]
