"""How products read weights fastest: a table, and what is measured where code is made for here."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from edgeinfer.backends.llm.backend import open_executor
from edgeinfer.backends.llm.executor import Sizes
from edgeinfer.bounded import read_bounded
from edgeinfer.bundle.cache import writable_folder
from edgeinfer.llm.step import StepBatch
from edgeinfer.machine.cpu import read_cpu


@dataclass(frozen=True, slots=True)
class Reading:
    """How a machine reads weights fastest, by tokens at once: streams, and bytes asked for ahead.

    Attributes:
        widths: tokens that kernels take at once.
        streams: Streams of each width.
        ahead: Ahead of each width, in bytes.
    """

    widths: tuple[int, ...]
    streams: tuple[int, ...]
    ahead: tuple[int, ...]

    def of(self, width: int) -> tuple[int, int]:
        """Streams and bytes ahead."""
        at = self.widths.index(width)
        return self.streams[at], self.ahead[at]

    def alone(self, streams: int, ahead: int) -> Reading:
        """Another choice for one token."""
        return Reading(self.widths, (streams, *self.streams[1:]), (ahead, *self.ahead[1:]))

    def following(self) -> Reading:
        """Let no width read from more places than one token does."""
        most, ahead = self.of(1)
        fewer = tuple(min(each, most) for each in self.streams)
        far = zip(self.streams, self.ahead, strict=True)
        return Reading(self.widths, fewer, tuple(max(a, ahead) if s > most else a for s, a in far))


READING = {
    # Measured on Zen 3 (two cores of an EPYC): four streams read at 1.2 of plain reading.
    "avx2": Reading((1, 2, 3, 4, 6), (4, 4, 4, 4, 4), (1024, 1024, 1024, 1024, 1024)),
    # Measured on a Xeon with AVX-512 VNNI and AMX.
    "vnni512": Reading((1, 2, 3, 4, 8), (8, 4, 2, 2, 1), (1024, 1024, 3072, 3072, 3072)),
    "vnni256": Reading((1, 2, 3, 4, 6), (4, 4, 4, 4, 4), (1024, 1024, 1024, 1024, 1024)),
    "sdot": Reading((1, 2, 3, 4, 8), (4, 4, 2, 2, 1), (1024, 1024, 1024, 1024, 1024)),
}
"""By the processor's way of multiplying."""

CHOICES = ((4, 1024), (2, 4096), (1, 4096))
"""Streams and bytes ahead for one token that are tried besides the table's."""

_ROUNDS = 9
_LEAST = 0.97
"""Of the table's time, at most, for another choice."""

_FOLDER = "llm-kernels"


def fastest(usual: Reading, key: str, write: Callable[[Reading], Path]) -> Reading:
    """Return how steps of one token are fastest on this processor; measured once and kept.

    Results do not depend on it.

    Args:
        usual: what the table says.
        key: Key of the kernels.
        write: writes a model's files for a choice into a folder of its own.
    """
    known = f"{read_cpu(Path('/'), '').name} {key} {CHOICES} {asdict(usual)}"
    digest = hashlib.sha256(known.encode()).hexdigest()[:24]
    path = writable_folder(_FOLDER) / f"reading-{digest}.json"
    try:
        data = json.loads(read_bounded(path, 1 << 16))
        return Reading(**{name: tuple(values) for name, values in data.items()})
    except (OSError, ValueError, TypeError):
        pass
    tried = [usual, *(usual.alone(*choice) for choice in CHOICES if choice != usual.of(1))]
    times = measured([write(each) for each in tried])
    best = int(np.argmin(times))
    found = usual if times[best] > _LEAST * times[0] else tried[best].following()
    made = path.with_suffix(".new")
    made.write_text(json.dumps(asdict(found)), encoding="utf-8")
    made.replace(path)
    return found


def measured(folders: Sequence[Path]) -> list[float]:
    """Seconds that a token takes with the files of each folder, in turns."""
    executors = [open_executor(folder, Sizes(4, 1, 1, 64, threads=1)) for folder in folders]
    table, none = np.arange(4, dtype=np.int32)[None], np.zeros(1, np.int32)
    times: list[list[float]] = [[] for _ in executors]
    try:
        for position in range(_ROUNDS + 1):
            at = np.array([position], np.int32)
            batch = StepBatch(none, at, none, table, none)
            for executor, taken in zip(executors, times, strict=True):
                # Of the thread's own time what else the machine does takes little.
                begun = time.thread_time()
                executor.step(batch)
                taken.append(time.thread_time() - begun)
    finally:
        for executor in executors:
            executor.close()
    return [float(np.median(taken[1:])) for taken in times]
