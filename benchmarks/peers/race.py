"""One model in one precision with so many threads: engines in processes of their own, in turns."""

from __future__ import annotations

import json
import os
import random
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

from benchmarks.peers.environments import OURS, Engine
from benchmarks.peers.files import AbsentError, Files
from benchmarks.tflite_peers.pairs import difference
from benchmarks.tflite_peers.worker import FailedError

WRONG = {"fp32": 0.01, "int8": 0.3}
"""Largest error of an output, of its largest value, above which numbers are wrong."""

REDUCED_WRONG = 0.3
"""The same in fewer bits than was requested, or with consent."""

TIMEOUT_S = 300.0


class PeerError(RuntimeError):
    """An engine refused, or ended its process."""

    def __init__(self, said: str, missing: bool = False) -> None:
        super().__init__(said)
        self.missing = missing


class Peer:
    """A worker process.

    Args:
        python: interpreter of its environment.
        cores: it may run on.
    """

    def __init__(self, python: Path, cores: Sequence[int] = ()) -> None:
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        chosen = cores or sorted(os.sched_getaffinity(0))
        self._process = subprocess.Popen(
            [str(python), str(Path(__file__).with_name("worker.py")), ",".join(map(str, chosen))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def ask(self, what: str, **arguments: Any) -> dict[str, Any]:
        """Ask the worker.

        Raises:
            PeerError: it says why not, or has ended.
        """
        sent, answers = self._process.stdin, self._process.stdout
        if sent is None or answers is None:
            raise PeerError("no pipe")
        try:
            print(json.dumps({"what": what, **arguments}), file=sent, flush=True)
            line = answers.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self._log.seek(0)
            said = self._log.read().strip().splitlines() or [""]
            raise PeerError(f"ended with {self._process.wait()}: {said[-1][-160:]}")
        answer: dict[str, Any] = json.loads(line)
        if failed := answer.get("failed"):
            raise PeerError(failed, answer.get("missing", False))
        return answer

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(slots=True)
class Result:
    """What one engine did.

    Attributes:
        state: ``ran``, ``wrong``, ``failed``, ``not installed`` or ``absent``: there is no file.
        said: why it did not run.
        engine: what ran, where the engine chose.
        error: largest error of an output, of its largest value.
        load_s: import, opening and the first run; of ours with the choice remembered.
        first_load_s: likewise of ours with an empty history.
        load_cpu_s: Processor time of that.
        memory_mb: resident after it.
        ms: median of each round's turn.
    """

    state: str = "ran"
    said: str = ""
    engine: str = ""
    error: float = 0.0
    load_s: float = 0.0
    first_load_s: float = 0.0
    load_cpu_s: float = 0.0
    memory_mb: float = 0.0
    ms: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Row:
    """One model, precision and number of threads."""

    model: str
    kind: str
    threads: int
    results: dict[str, Result]
    convert_cpu_s: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return asdict(self)

    @classmethod
    def read(cls, text: Mapping[str, Any]) -> Row:
        """Make one of what ``to_json`` gave."""
        return cls(**{**text, "results": {k: Result(**r) for k, r in text["results"].items()}})


def race(
    files: Files,
    chosen: Mapping[str, Engine],
    pythons: Mapping[str, Path | str],
    cores: Sequence[int],
    threads: int,
    rounds: int,
) -> Row:
    """Open every engine, see that its numbers are right, and time those that are in turns."""
    row = Row(Path(files.folder).name, files.kind, threads, {})
    running: dict[str, Peer] = {}
    try:
        for name, engine in chosen.items():
            if files.kind not in engine.kinds:
                continue
            result = row.results[name] = Result()
            python = pythons[engine.environment]
            if isinstance(python, str):
                result.state, result.said = "not installed", python
                continue
            peer = _opened(result, files, engine, python, cores[:threads], threads)
            if peer is not None:
                running[name] = peer
        _take_turns(row, running, rounds)
    finally:
        for peer in running.values():
            peer.close()
    row.convert_cpu_s = files.convert_cpu_s()
    return row


def _opened(
    result: Result,
    files: Files,
    engine: Engine,
    python: Path,
    cores: Sequence[int],
    threads: int,
) -> Peer | None:
    """Open and judge an engine; one of ours a second time, when its choice is remembered."""
    peer: Peer | None = None
    try:
        path = files.path(engine.file, python)
        given = {
            "opens": engine.opens,
            "file": str(path),
            "feeds": str(files.given),
            "threads": threads,
            "options": dict(engine.options),
        }
        if engine.environment == OURS:
            with Peer(python, cores) as first:
                result.first_load_s = first.ask("open", **given)["load_s"]
        peer = Peer(python, cores)
        seen = peer.ask("open", **given)
        for key, value in seen.items():
            setattr(result, key, value)
        target = files.folder / "outputs.npz"
        peer.ask("outputs", target=str(target))
        with np.load(target) as stored:
            made = [stored[n] for n in stored.files]
        want = files.expected
        result.error = difference(_named(made, want), want)
    except AbsentError as e:
        result.state, result.said = "absent", str(e)
    except PeerError as e:
        result.state, result.said = ("not installed" if e.missing else "failed"), str(e)
    except FailedError as e:
        result.state, result.said = "wrong", str(e)
    else:
        is_reduced = engine.reduced or "allow" in engine.options
        if result.error > (REDUCED_WRONG if is_reduced else WRONG[files.kind]):
            result.state = "wrong"
            result.said = f"off by {result.error:.2g} of the largest value"
    if result.state != "ran" and peer is not None:
        peer.close()
        return None
    return peer


def _named(made: Sequence[Any], want: Mapping[str, Any]) -> dict[str, Any]:
    """Name outputs by their order where the shapes say so, else let the nearest one be found."""
    if [m.shape for m in made] == [np.shape(w) for w in want.values()]:
        return dict(zip(want, made, strict=True))
    return {str(index): value for index, value in enumerate(made)}


def _take_turns(row: Row, running: dict[str, Peer], rounds: int) -> None:
    """Ask for turns in random order; a round counts when every engine has had its turn in it."""
    order = list(running)
    shuffled = random.Random(0)
    for _ in range(rounds):
        shuffled.shuffle(order)
        for name in list(order):
            try:
                row.results[name].ms.append(running[name].ask("turn")["ms"])
            except PeerError as e:
                row.results[name].state, row.results[name].said = "failed", str(e)
                row.results[name].ms.clear()
                order.remove(name)
