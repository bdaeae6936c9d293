"""How products read weights fastest: a table, and what is measured where code is made for here."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, field, replace
from pathlib import Path

import numpy as np

from edgeinfer.backends.llm.backend import open_native
from edgeinfer.backends.llm.sizes import ExecutorSizes
from edgeinfer.bounded import read_bounded
from edgeinfer.bundle.cache import writable_folder
from edgeinfer.kernels.defs.gemv import Dot
from edgeinfer.llm.step import StepBatch
from edgeinfer.machine.cpu import read_cpu
from edgeinfer.records import dataclass


@dataclass(frozen=True, slots=True)
class Reading:
    """How a machine reads weights fastest, by tokens at once: streams, and bytes prefetched.

    Attributes:
        widths: tokens that kernels take at once.
        streams: Streams of each width.
        ahead: Ahead of each width, in bytes.
        chosen: streams and bytes ahead of kernels that read faster otherwise, by name.
    """

    widths: tuple[int, ...]
    streams: tuple[int, ...]
    ahead: tuple[int, ...]
    chosen: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def of(self, width: int, kernel: str = "") -> tuple[int, int]:
        """Streams and bytes ahead."""
        at = self.widths.index(width)
        return self.chosen.get(kernel, (self.streams[at], self.ahead[at]))

    def trial(self, number: int) -> Reading:
        """Take the choice of that number for every width that has so many; none is chosen."""
        pairs = []
        for width in self.widths:
            choices = CHOICES.get(width, ())
            pairs.append(choices[number] if number < len(choices) else self.of(width))
        streams, ahead = zip(*pairs, strict=True)
        return Reading(self.widths, streams, ahead)

    def choosing(self, kernels: Sequence[str], taken: Sequence[Mapping[str, float]]) -> Reading:
        """Take for each kernel what was fastest.

        Args:
            kernels: names of all products.
            taken: seconds by kernel: with this reading, then with each trial.
        """
        found: dict[str, tuple[int, int]] = {}
        for name in kernels:
            if name in taken[0]:
                width = _width(name)
                times = [seconds[name] for seconds in taken[: 1 + len(CHOICES[width])]]
                best = int(np.argmin(times))
                if times[best] <= _LEAST * times[0]:
                    found[name] = CHOICES[width][best - 1]
        for name in kernels:
            # What three tokens take is as near to what four take as to the table.
            wider = f"{name.rpartition('_w')[0]}_w4"
            if _width(name) == 3 and wider in found:
                found[name] = found[wider]
        return replace(self, chosen=found)

    def __str__(self) -> str:
        counts = Counter((_width(name), *pair) for name, pair in self.chosen.items())
        parts = []
        for width in sorted({width for width, _, _ in counts}):
            pairs = (f"{s} x {a} ({n})" for (w, s, a), n in sorted(counts.items()) if w == width)
            parts.append(f"width {width}: {', '.join(pairs)}")
        return "; ".join(parts) or "as usual"


def _width(kernel: str) -> int:
    return int(kernel.rpartition("_w")[2])


READING = {
    # Measured on Zen 3 (two cores of an EPYC): four streams read at 1.2 of plain reading.
    "avx2": Reading((1, 2, 3, 4, 6), (4, 4, 4, 4, 4), (1024, 1024, 1024, 1024, 1024)),
    # Measured on a Xeon with AVX-512 VNNI and AMX.
    "vnni512": Reading((1, 2, 3, 4, 8), (8, 4, 2, 2, 1), (1024, 1024, 3072, 3072, 3072)),
    # The same one; of sixteen tokens, where tiles multiply, other choices were not tried.
    "tiles": Reading((1, 2, 3, 4, 8, 16), (8, 4, 2, 2, 1, 1), (1024, 1024, 3072, 3072, 3072, 3072)),
    "vnni256": Reading((1, 2, 3, 4, 6), (4, 4, 4, 4, 4), (1024, 1024, 1024, 1024, 1024)),
    "sdot": Reading((1, 2, 3, 4, 8), (4, 4, 2, 2, 1), (1024, 1024, 1024, 1024, 1024)),
}
"""By the processor's way of multiplying, see ``reading_of``."""

CHOICES = {
    1: ((4, 1024), (2, 4096), (1, 4096), (8, 2048), (4, 2048), (8, 512)),
    2: ((2, 4096), (1, 4096), (4, 2048)),
    4: ((1, 4096), (4, 1024)),
}
"""Streams and bytes ahead that are tried besides the table's, by tokens at once."""


def reading_of(dot: Dot) -> Reading:
    """Return the row of ``READING`` for a processor."""
    return READING["tiles" if dot.tiles else dot.name]


_TURNS, _ROUNDS = 3, 5
_LEAST = 0.97
"""Of the table's time, at most, for another choice."""

_FOLDER = "llm-kernels"


def fastest(
    usual: Reading,
    kernels: Sequence[str],
    machine: str,
    write: Callable[[Sequence[Reading]], list[Path]],
) -> Reading:
    """Return how products read fastest on this processor; measured once and kept.

    Results do not depend on it.

    Args:
        usual: what the table says.
        kernels: names of all products.
        machine: what they are compiled for.
        write: writes a model's files for each of some choices into folders.
    """
    known = (read_cpu(Path("/"), "").name, machine, sorted(kernels), CHOICES, asdict(usual))
    digest = hashlib.sha256(repr(known).encode()).hexdigest()[:24]
    path = writable_folder(_FOLDER) / f"reading-{digest}.json"
    try:
        data = json.loads(read_bounded(path, 1 << 20))
        return replace(usual, chosen={str(k): (int(s), int(a)) for k, (s, a) in data.items()})
    except (OSError, ValueError, TypeError, AttributeError):
        pass
    trials = [usual.trial(number) for number in range(max(map(len, CHOICES.values())))]
    folders = write([usual, *trials])
    found = usual.choosing(kernels, measured(folders, [w for w in usual.widths if w in CHOICES]))
    made = path.with_suffix(".new")
    made.write_text(json.dumps(found.chosen), encoding="utf-8")
    made.replace(path)
    return found


def measured(folders: Sequence[Path], widths: Sequence[int]) -> list[dict[str, float]]:
    """Microseconds of each kernel with the files of each folder, in turns."""
    most = max(widths)
    room = ExecutorSizes(most, most, most, 16, threads=1)
    executors = [open_native(folder, room) for folder in folders]
    pages = np.arange(most, dtype=np.int32)
    found: list[dict[str, float]] = [{} for _ in executors]
    try:
        for _, width in itertools.product(range(_TURNS), widths):
            owner = pages[:width]
            first = np.zeros_like(owner)
            batch = StepBatch(first, first, owner, pages[:, None], owner)
            for executor, least in zip(executors, found, strict=True):
                for name, spent in executor.profile(batch, _ROUNDS).items():
                    least[name] = min(spent, least.get(name, math.inf))
    finally:
        for executor in executors:
            executor.close()
    return found
