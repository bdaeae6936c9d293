"""What was measured, in a file that outlives any end of the program.

One JSON object a line. A line is written with one ``write`` under a lock on the file and forced to
the disk before the next measurement starts, so that whatever ends the program costs the last line
at most. A line that was cut short is ended before the next is added, and left out when the file is
read. Several programs may add to one file at once.
"""

from __future__ import annotations

import errno
import json
import math
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, field, fields
from pathlib import Path
from types import NoneType
from typing import Any, BinaryIO

from edgeinfer.bounded import SPARE, TIMES, json_bytes, parse_json
from edgeinfer.bundle.held import try_lock
from edgeinfer.errors import EdgeInferError, OutputError
from edgeinfer.records import dataclass

VERSION = 1

_PATIENCE_S = 60.0
"""Seconds to wait for another program that adds a line."""

_LONGEST = 1 << 20
"""Bytes of a line; the longest order of a search has some ten thousand."""

TRIED, FINAL = "tried", "final"

WORTH = 1.03
"""How many times as fast a tuned kernel must have been to be used."""


@dataclass(frozen=True, slots=True)
class Record:
    """One line.

    Attributes:
        kind: ``tried`` is one measurement of a search, ``final`` the best one against what the
            converter would take otherwise, in turns.
        key: Key of the workload.
        machine: instruction set.
        cpu: name of the processor, or GPU, that it was measured on.
        threads: that parallel loops ran on.
        title: Title of the workload, for people.
        trace: how the loops are ordered, as TVM writes it; None is the converter's own kernel.
        us: microseconds of a call; None if there is no figure.
        spread: half the distance of the quartiles over the median.
        n: rounds that were measured.
        before_us: Microseconds before, of ``final``, what the converter would take otherwise.
        sure: Sure of ``final``, how many times as fast as that three rounds in four at least were,
            each against its neighbour; 0 if that was not kept.
        trials: Trials of ``final``, how many were measured for it.
        error: why there is no figure.
        tvm: version that ordered the loops.
        at: UTC.
    """

    kind: str
    key: str
    machine: str
    cpu: str
    threads: int
    title: str = ""
    trace: Any = None
    us: float | None = None
    spread: float = 0.0
    n: int = 0
    before_us: float | None = None
    trials: int = 0
    error: str = ""
    tvm: str = ""
    at: str = ""
    sure: float = 0.0

    @property
    def gain(self) -> float:
        """How many times as fast as before; 0 where that is not known."""
        if self.us is None or self.before_us is None or self.us <= 0:
            return 0.0
        return self.before_us / self.us

    @property
    def won(self) -> bool:
        """Whether this order is worth its place, and that is no noise."""
        return self.trace is not None and self.gain >= WORTH and self.sure > WORTH


_NEEDED = {
    "kind": str,
    "key": str,
    "machine": str,
    "cpu": str,
    "threads": int,
}
_OPTIONAL: dict[str, Any] = {
    "title": str,
    "spread": (int, float),
    "n": int,
    "trials": int,
    "error": str,
    "tvm": str,
    "at": str,
    "sure": (int, float),
    "us": (int, float, NoneType),
    "before_us": (int, float, NoneType),
}
_FIGURES = ("us", "before_us", "spread", "sure")
_NAMES = frozenset(f.name for f in fields(Record))


@dataclass(slots=True)
class Read:
    """What a file held."""

    records: list[Record] = field(default_factory=list)
    damaged: int = 0


class Database:
    """A file of records."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, record: Record) -> None:
        """Add a line and have it on the disk when this returns.

        Raises:
            OutputError: it cannot be written; what was there before is as it was.
        """
        line = json.dumps({"v": VERSION, **asdict(record)}, separators=(",", ":")).encode() + b"\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self._locked() as file:
                start = os.lseek(file, 0, os.SEEK_END)
                if start and os.pread(file, 1, start - 1) != b"\n":
                    # Somebody was stopped within a line.
                    line = b"\n" + line
                try:
                    written = 0
                    while written < len(line):
                        written += os.write(file, line[written:])
                    os.fsync(file)
                except OSError:
                    os.ftruncate(file, start)
                    if not start:
                        # A file that says nothing would look like a beginning.
                        self.path.unlink(missing_ok=True)
                    raise
        except OSError as error:
            raise OutputError(
                f"{self.path}: cannot keep a measurement: {error.strerror or error}"
            ) from error

    def check(self) -> None:
        """Find out before anything is measured whether it can be kept.

        Raises:
            OutputError: the file, or one next to it, cannot be written.
        """
        try:
            if self.path.exists():
                self._check_kind()
                with self.path.open("ab"):
                    return
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.path.parent):
                return
        except OSError as error:
            raise OutputError(
                f"{self.path}: cannot keep a measurement: {error.strerror or error}"
            ) from error

    def _check_kind(self) -> None:
        """Refuse what has no end, or blocks: a device, a pipe."""
        if self.path.exists() and not self.path.is_file():
            raise OutputError(f"{self.path}: is no file")

    def read(self) -> Read:
        """Read all lines; those that are no records are counted.

        Raises:
            EdgeInferError: the file cannot be read.
        """
        found = Read()
        spare = SPARE
        self._check_kind()
        try:
            with self.path.open("rb") as file:
                for line in _lines(file):
                    text = line.decode(errors="replace")
                    # All lines share what one text may take beyond its size.
                    beyond = max(0, json_bytes(text) - TIMES * len(text))
                    record = _record(text, spare) if spare else None
                    spare = max(0, spare - beyond)
                    if record is not None:
                        found.records.append(record)
                    elif line.strip():
                        found.damaged += 1
        except FileNotFoundError:
            return found
        except OSError as error:
            raise EdgeInferError(
                f"{self.path}: cannot be read: {error.strerror or error}"
            ) from error
        return found

    @contextmanager
    def _locked(self) -> Iterator[int]:
        while True:
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            try:
                if os.name == "posix":
                    if not try_lock(file, _PATIENCE_S):
                        raise BlockingIOError(errno.EAGAIN, "another program keeps it locked")
                    if not self._is_there(file):
                        continue
                yield file
                return
            finally:
                os.close(file)

    def _is_there(self, file: int) -> bool:
        """Whether an open file still has its name; whoever held the lock may have removed it."""
        try:
            return os.path.samestat(os.fstat(file), os.stat(self.path))
        except FileNotFoundError:
            return False


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines; of one that is longer than any record its beginning, which is none."""
    is_rest = False
    while line := file.readline(_LONGEST):
        if not is_rest:
            yield line
        is_rest = not line.endswith(b"\n")


def _record(line: str, spare: int) -> Record | None:
    try:
        data = parse_json(line, spare)
    except ValueError:
        return None
    if not isinstance(data, dict) or data.get("v") != VERSION:
        return None
    if any(not isinstance(data.get(name), kind) for name, kind in _NEEDED.items()):
        return None
    if any(n in data and not isinstance(data[n], kind) for n, kind in _OPTIONAL.items()):
        return None
    numbers = [data[name] for name in _FIGURES if data.get(name) is not None]
    if any(not 0 <= number < math.inf for number in numbers):
        # Nor is what is no number.
        return None
    return Record(**{name: value for name, value in data.items() if name in _NAMES})


def best(records: Sequence[Record], machine: str, cpu: str = "") -> dict[str, Record]:
    """Return the last word on each workload of a machine: of this CPU where there is one.

    Several final records of one workload and CPU: the last one counts, also if it says that nothing
    was gained.
    """
    found: dict[str, Record] = {}
    for record in records:
        if record.kind != FINAL or record.machine != machine:
            continue
        known = found.get(record.key)
        if known is None or record.cpu == cpu or known.cpu != cpu:
            found[record.key] = record
    return found
