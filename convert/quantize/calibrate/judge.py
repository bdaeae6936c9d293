"""Is this data fit to calibrate with? Asked before calibrating, answered with numbers."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, Literal

import numpy as np

from edgeinfer.convert.quantize.calibrate.histogram import ChannelStats, Histogram
from edgeinfer.errors import UsageError
from edgeinfer.media.samples import Sample, SampleSet
from edgeinfer.records import dataclass
from edgeinfer.types import Array, Feeds, ImageInput, Preprocessing, TensorSpec

Level = Literal["refused", "weak", "note"]

FEWEST = 16
"""Distinct samples below which ranges are chance: a tensor's extremes are still growing."""

ENOUGH = 64
"""Distinct samples from which one more hardly moves a range."""

_DUPLICATES = 0.5
_FLAT = 0.5
_NOISE = 0.15
"""Correlation of neighbours below which an image or a recording is taken for noise: white noise has
0. A choice, not a measurement."""

_COVERED = 0.9
_MANY = 10_000
"""Fingerprints that are remembered; beyond, further samples count as distinct."""


@dataclass(frozen=True, slots=True)
class DataFinding:
    """One thing that was noticed.

    Attributes:
        level: ``refused`` asks for ``--force``; ``weak`` is worth a look; ``note`` is not.
        about: short name of the check.
        text: one sentence with its numbers.
    """

    level: Level
    about: str
    text: str


@dataclass(frozen=True, slots=True)
class DataVerdict:
    """The judge's answer.

    Attributes:
        findings: what was noticed, the worst first.
        numbers: what was counted, for the report.
        forced: whether a refusal was overruled; the report says so.
    """

    findings: tuple[DataFinding, ...]
    numbers: dict[str, Any] = field(default_factory=dict)
    forced: bool = False

    @property
    def level(self) -> str:
        """``good``, ``weak`` or ``refused``."""
        levels = {f.level for f in self.findings}
        return next((level for level in ("refused", "weak") if level in levels), "good")

    def lines(self) -> list[str]:
        """Return the report's lines."""
        head = f"calibration data is {self.level}"
        if self.forced and self.level == "refused":
            head = "calibration data was REFUSED and used by --force: the numbers prove little"
        return [head, *(f"{f.about}: {f.text}" for f in self.findings)]

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {
            "level": self.level,
            "forced": self.forced,
            "findings": [
                {"level": f.level, "about": f.about, "text": f.text} for f in self.findings
            ],
            "numbers": self.numbers,
        }

    def check(self) -> None:
        """Refuse bad data unless that was overruled.

        Raises:
            UsageError: with every reason.
        """
        if self.level != "refused" or self.forced:
            return
        reasons = "; ".join(f.text for f in self.findings if f.level == "refused")
        raise UsageError(f"calibration data refused: {reasons}; use better data, or --force")


@dataclass(slots=True)
class _Seen:
    """What is remembered of one input."""

    histogram: Histogram = field(default_factory=Histogram)
    channels: ChannelStats | None = None
    spread: Array | None = None
    first: Array | None = None
    flat: int = 0
    noisy: list[float] = field(default_factory=list)
    is_float: bool = True


class Judge:
    """Goes through a data set once; its memory does not grow with it."""

    def __init__(
        self,
        inputs: Sequence[TensorSpec],
        preprocessing: Mapping[str, Preprocessing] | None = None,
        media: Collection[str] | None = None,
    ) -> None:
        """Store the inputs.

        Args:
            inputs: Inputs of the model.
            preprocessing: how images were prepared, by input name.
            media: names of inputs that are images or recordings, whose neighbours are alike; None
                takes all for such. A state or an embedding has no neighbours.
        """
        self._media = {s.name for s in inputs} if media is None else set(media)
        self._inputs = tuple(inputs)
        self._records = dict(preprocessing or {})
        self._seen = {s.name: _Seen() for s in inputs}
        self._prints: set[bytes] = set()
        self._labels: Counter[str] = Counter()
        self.rows = 0
        self.duplicates = 0

    def take(self, sample: Sample) -> None:
        """Look at one run."""
        self._labels.update(str(x) for x in sample.labels)
        for row in _rows(sample.feeds, self._inputs):
            self.rows += 1
            mark = _fingerprint(row)
            if mark in self._prints:
                self.duplicates += 1
            elif len(self._prints) < _MANY:
                self._prints.add(mark)
            for name, array in row.items():
                self._look(self._seen[name], array, name in self._media)

    def verdict(
        self,
        *,
        vectors: Iterable[Feeds] = (),
        force: bool = False,
        extra: Sequence[DataFinding] = (),
    ) -> DataVerdict:
        """Say whether the data will do.

        Args:
            vectors: real inputs that the result is to be right for; how many the data covers.
            force: overrule a refusal.
            extra: findings of others, such as statistics the net remembers of its training.
        """
        found = [*self._amount(), *extra]
        for spec in self._inputs:
            seen = self._seen[spec.name]
            if seen.is_float:
                found += self._floats(spec, seen)
        found += self._balance()
        found += self._coverage(list(vectors))
        order = {"refused": 0, "weak": 1, "note": 2}
        found.sort(key=lambda f: order[f.level])
        numbers: dict[str, Any] = {
            "samples": self.rows,
            "distinct": self.rows - self.duplicates,
            "classes": dict(self._labels),
            "inputs": {n: _numbers(s) for n, s in self._seen.items() if s.is_float},
        }
        return DataVerdict(tuple(found), numbers, force)

    def _look(self, seen: _Seen, array: Array, is_media: bool) -> None:
        if array.dtype.kind != "f":
            seen.is_float = False
            return
        seen.histogram.add(array)
        finite = array[np.isfinite(array)]
        seen.flat += bool(finite.size > 1 and np.ptp(finite) == 0)
        grid = _grid(array) if is_media else None
        if grid is not None and np.isfinite(grid).all():
            seen.noisy.append(_neighbours(grid))
            seen.noisy = seen.noisy[-_MANY:]
        if array.ndim > 1 and array.shape[0] <= 4096:
            if seen.channels is None:
                seen.channels = ChannelStats.of(array.shape[0])
                seen.first = np.asarray(array.reshape(array.shape[0], -1)[:, 0], np.float32)
                seen.spread = np.zeros(array.shape[0], bool)
            if len(seen.channels.largest) == array.shape[0] and seen.first is not None:
                seen.channels.add(array, 0)
                rows = array.reshape(array.shape[0], -1)
                seen.spread = seen.spread | (rows != seen.first[:, None]).any(axis=1)

    def _amount(self) -> list[DataFinding]:
        distinct = self.rows - self.duplicates
        found = []
        if distinct < FEWEST:
            text = f"{distinct} distinct samples, at least {FEWEST} needed ({ENOUGH} are good)"
            found.append(DataFinding("refused", "samples", text))
        elif distinct < ENOUGH:
            text = f"{distinct} distinct samples; {ENOUGH} or more give steadier ranges"
            found.append(DataFinding("weak", "samples", text))
        if self.duplicates:
            share = self.duplicates / self.rows
            level: Level = "weak" if share > _DUPLICATES else "note"
            text = f"{self.duplicates} of {self.rows} samples are repeated"
            found.append(DataFinding(level, "duplicates", text))
        return found

    def _floats(self, spec: TensorSpec, seen: _Seen) -> list[DataFinding]:
        found, histogram = [], seen.histogram
        name = repr(spec.name)
        if histogram.nonfinite:
            text = f"input {name}: {histogram.nonfinite} elements are NaN or infinite"
            found.append(DataFinding("refused", "nonfinite", text))
        if seen.flat > _FLAT * self.rows:
            text = f"input {name}: {seen.flat} of {self.rows} samples hold one single value"
            found.append(DataFinding("refused", "constant", text))
        if seen.spread is not None and not seen.spread.all() and seen.spread.any():
            still = int((~seen.spread).sum())
            text = f"input {name}: {still} of {seen.spread.size} channels never change"
            found.append(DataFinding("weak", "channels", text))
        if seen.noisy and abs(float(np.median(seen.noisy))) < _NOISE:
            text = (
                f"input {name}: neighbouring elements correlate by "
                f"{float(np.median(seen.noisy)):.2f}: this is noise"
            )
            found.append(DataFinding("refused", "noise", text))
        share = _at_ends(histogram)
        if share > 0.6:
            text = f"input {name}: {share:.0%} of the elements are at the ends of the range"
            found.append(DataFinding("weak", "saturation", text))
        return found + self._prepared(spec, seen)

    def _prepared(self, spec: TensorSpec, seen: _Seen) -> list[DataFinding]:
        """Compare the range with what the recorded preparation of an image gives."""
        record = self._records.get(spec.name)
        low, high = seen.histogram.low, seen.histogram.high
        if not isinstance(record, ImageInput) or not math.isfinite(low):
            return []
        mean, std = np.asarray(record.mean), np.asarray(record.std)
        first = float(((0.0 - mean) / std).min())
        last = float(((255.0 * record.scale - mean) / std).max())
        slack = 0.02 * (last - first)
        inside = first - slack <= low and high <= last + slack
        if inside and high - low >= 0.6 * (last - first):
            return []
        text = (
            f"input {spec.name!r} lies in {low:.3g}..{high:.3g}, but images prepared as recorded "
            f"lie in {first:.3g}..{last:.3g}: it was prepared in another way"
        )
        return [DataFinding("refused", "preparation", text)]

    def _balance(self) -> list[DataFinding]:
        if len(self._labels) < 2:
            return []
        most, least = max(self._labels.values()), min(self._labels.values())
        text = f"{len(self._labels)} classes with {least} to {most} samples each"
        return [DataFinding("weak" if most > 10 * least else "note", "balance", text)]

    def _coverage(self, vectors: list[Feeds]) -> list[DataFinding]:
        """Compare with the inputs that the result is judged on."""
        found = []
        for spec in self._inputs:
            seen = self._seen[spec.name].histogram
            arrays = [np.asarray(v[spec.name], np.float64) for v in vectors if spec.name in v]
            arrays = [a for a in arrays if a.size]
            if not arrays or not self._seen[spec.name].is_float or not math.isfinite(seen.low):
                continue
            low = min(float(a.min()) for a in arrays)
            high = max(float(a.max()) for a in arrays)
            width = high - low
            shared = min(high, seen.high) - max(low, seen.low)
            share = max(0.0, shared) / width if width > 0 else 1.0
            excess = (seen.high - seen.low) / width if width > 0 else 1.0
            if share < _COVERED or excess > 4.0:
                text = (
                    f"input {spec.name!r} lies in {seen.low:.3g}..{seen.high:.3g}, the given test "
                    f"inputs in {low:.3g}..{high:.3g} ({share:.0%} covered): prepared otherwise"
                )
                level: Level = "refused" if share < 0.6 or excess > 4.0 else "weak"
                found.append(DataFinding(level, "coverage", text))
        return found


def judge(
    data: SampleSet,
    inputs: Sequence[TensorSpec],
    preprocessing: Mapping[str, Preprocessing] | None = None,
    *,
    vectors: Iterable[Feeds] = (),
    force: bool = False,
    extra: Sequence[DataFinding] = (),
    media: Collection[str] | None = None,
) -> DataVerdict:
    """Go through a data set and say whether it will do."""
    judging = Judge(inputs, preprocessing, media)
    for sample in data.samples():
        judging.take(sample)
    return judging.verdict(vectors=vectors, force=force, extra=extra)


def _rows(feeds: Feeds, inputs: Sequence[TensorSpec]) -> Iterable[dict[str, Array]]:
    """Yield the samples of one run: rows of the batch axis where all inputs have one."""
    arrays = {s.name: np.asarray(feeds[s.name]) for s in inputs}
    counts = {a.shape[0] for a in arrays.values() if a.ndim}
    batched = all(a.ndim for a in arrays.values()) and len(counts) == 1
    free = all(s.shape is not None and s.shape and not isinstance(s.shape[0], int) for s in inputs)
    ones = counts == {1}
    if not batched or not (free or ones):
        yield arrays
        return
    for index in range(counts.pop()):
        yield {n: a[index] for n, a in arrays.items()}


def _fingerprint(row: Mapping[str, Array]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(row):
        digest.update(name.encode() + np.ascontiguousarray(row[name]).tobytes())
    return digest.digest()


def _grid(array: Array) -> Array | None:
    """Return rows along the axis in which neighbours of real data are alike; None without one."""
    if array.ndim == 3:
        # The last axis of an image with its channels last is short.
        return array if array.shape[-1] >= 8 else np.moveaxis(array, 0, -1)
    if array.ndim in (1, 2) and array.shape[-1] >= 256:
        return array
    return None


def _neighbours(grid: Array) -> float:
    """Return the correlation of each element with the next one."""
    a, b = grid[..., :-1].astype(np.float64).ravel(), grid[..., 1:].astype(np.float64).ravel()
    a, b = a - a.mean(), b - b.mean()
    norm = math.sqrt(float(a @ a) * float(b @ b))
    return float(a @ b) / norm if norm > 0 else 1.0


def _at_ends(seen: Histogram) -> float:
    if seen.reach == 0 or not math.isfinite(seen.low) or seen.low == seen.high:
        return 0.0
    width = 2 * seen.reach / len(seen.counts)
    bins = {min(len(seen.counts) - 1, int((e + seen.reach) / width)) for e in (seen.low, seen.high)}
    total = int(seen.counts.sum()) + seen.zeros
    at_zero = seen.zeros if seen.low == 0 or seen.high == 0 else 0
    return (sum(int(seen.counts[p]) for p in bins) + at_zero) / max(1, total)


def _numbers(seen: _Seen) -> dict[str, Any]:
    histogram = seen.histogram
    finite = math.isfinite(histogram.low)
    return {
        "low": histogram.low if finite else None,
        "high": histogram.high if finite else None,
        "nonfinite": histogram.nonfinite,
        "constant_samples": seen.flat,
        "at_ends": round(_at_ends(histogram), 4),
        "neighbours": round(float(np.median(seen.noisy)), 4) if seen.noisy else None,
    }
