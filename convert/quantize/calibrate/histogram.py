"""What is remembered of a value over any number of samples: it does not grow with them."""

from __future__ import annotations

import math
from dataclasses import field

import numpy as np
import numpy.typing as npt

from edgeinfer.records import dataclass
from edgeinfer.types import Array

BINS = 8192
"""Over both signs. The range is a power of two, so that doubling it joins bins two by two and the
result does not depend on the order of the samples."""

_CHANNELS, _ENOUGH = 256, 16
"""Sizes up to which an axis is one of channels, and elements that tell what one varies by."""

_FEW_CHANNELS, _FEW = 16, 4
"""Among so few channels fewer elements tell it."""

MOST = 1 << 16
"""Elements of one value of one sample that are counted; the extremes are taken of all."""


@dataclass(slots=True)
class Histogram:
    """Extremes and distribution of one value.

    Attributes:
        low: smallest finite element; infinite before the first one.
        high: largest.
        reach: the bins lie evenly over ``-reach..reach``; 0 as long as all was zero.
        counts: elements in each bin.
        zeros: elements that are exactly zero; they are in no bin, as any scale keeps them.
        seen: elements looked at.
        nonfinite: elements that are NaN or infinite.
    """

    low: float = math.inf
    high: float = -math.inf
    reach: float = 0.0
    counts: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(BINS, np.int64))
    zeros: int = 0
    seen: int = 0
    nonfinite: int = 0

    def add(self, array: Array) -> None:
        """Take in the elements of one sample."""
        flat = np.asarray(array, np.float32).ravel()
        self.seen += flat.size
        if flat.size == 0:
            return
        low, high = float(flat.min()), float(flat.max())
        if not (math.isfinite(low) and math.isfinite(high)):
            good = flat[np.isfinite(flat)]
            self.nonfinite += flat.size - good.size
            if good.size == 0:
                return
            flat, low, high = good, float(good.min()), float(good.max())
        self.low, self.high = min(self.low, low), max(self.high, high)
        # An odd stride, so that no row length is a multiple of it and every column is met.
        stride = -(-flat.size // MOST) | 1
        self._count(flat[::stride] if flat.size > MOST else flat, max(-low, high))

    def _count(self, flat: npt.NDArray[np.float32], largest: float) -> None:
        if largest > 0:
            self._grow(largest)
        some = flat[flat != 0]
        self.zeros += flat.size - some.size
        if some.size == 0:
            return
        bins = (some.astype(np.float64) + self.reach) * (BINS / (2 * self.reach))
        index = np.clip(bins.astype(np.int64), 0, BINS - 1)
        self.counts += np.bincount(index, minlength=BINS)

    def _grow(self, largest: float) -> None:
        needed = 2.0 ** math.ceil(math.log2(largest))
        if needed < largest:
            needed *= 2.0
        if self.reach == 0.0:
            self.reach = needed
        while self.reach < needed:
            half = BINS // 2
            joined = self.counts.reshape(half, 2).sum(axis=1)
            self.counts = np.zeros(BINS, np.int64)
            self.counts[half // 2 : half // 2 + half] = joined
            self.reach *= 2.0

    @property
    def usual(self) -> float:
        """Root of the mean square."""
        count = int(self.counts.sum()) + self.zeros
        return math.sqrt(float(self.counts @ np.square(self.centres)) / max(1, count))

    @property
    def centres(self) -> npt.NDArray[np.float64]:
        """Middle of each bin."""
        width = 2 * self.reach / BINS
        return np.asarray(width * (np.arange(BINS) + 0.5) - self.reach, np.float64)


@dataclass(slots=True)
class ChannelStats:
    """Per channel of one value: largest magnitude and mean.

    Attributes:
        largest: per channel.
        total: sum of all elements, per channel.
        count: elements of one channel.
    """

    largest: npt.NDArray[np.float64]
    total: npt.NDArray[np.float64]
    count: int = 0

    @classmethod
    def of(cls, channels: int) -> ChannelStats:
        """Return stats that have seen nothing."""
        return cls(np.zeros(channels), np.zeros(channels))

    def add(self, array: Array, axis: int) -> None:
        """Take in one sample; elements that are not finite are left out of the magnitudes."""
        rows = np.moveaxis(np.asarray(array, np.float32), axis, 0).reshape(len(self.largest), -1)
        if rows.shape[1] == 0:
            return
        self.largest = np.maximum(self.largest, np.abs(rows).max(axis=1))
        self.total += rows.sum(axis=1, dtype=np.float64)
        self.count += rows.shape[1]

    @property
    def mean(self) -> npt.NDArray[np.float64]:
        """Mean of each channel; zero before the first sample."""
        return self.total / max(1, self.count)


@dataclass(slots=True)
class Spreads:
    """What each channel of one value varies by, along every axis of few elements.

    Attributes:
        sums: by axis, the number of elements of a channel, their sums and those of their squares,
            both of the distance from the first sample's mean.
        origins: by axis, that mean.
        largest: magnitude over all channels.
    """

    sums: dict[int, tuple[int, npt.NDArray[np.float64], npt.NDArray[np.float64]]] = field(
        default_factory=dict
    )
    origins: dict[int, npt.NDArray[np.float64]] = field(default_factory=dict)
    largest: float = 0.0

    def add(self, array: Array) -> None:
        """Take in one sample; one that is not finite is left out."""
        if not array.size or not np.isfinite(array).all():
            return
        self.largest = max(self.largest, float(np.abs(array).max()))
        for axis, size in enumerate(array.shape):
            if size > _CHANNELS:
                self.sums.pop(axis, None)
                continue
            rows = np.moveaxis(np.asarray(array, np.float64), axis, 0).reshape(size, -1)
            origin = self.origins.setdefault(axis, rows.mean(axis=1))
            if len(origin) != size:
                self.sums.pop(axis, None)
                continue
            off = rows - origin[:, None]
            zero = np.zeros(size)
            count, total, squares = self.sums.get(axis, (0, zero, zero))
            more = (total + off.sum(axis=1), squares + np.square(off).sum(axis=1))
            self.sums[axis] = (count + rows.shape[1], *more)

    def least(self) -> float:
        """Return the least deviation of a channel that varies; infinite where none is known."""
        found = [math.inf]
        for count, total, squares in self.sums.values():
            if count < (_ENOUGH if len(total) > _FEW_CHANNELS else _FEW):
                continue
            variance = squares / count - np.square(total / count)
            found += [math.sqrt(v) for v in variance if v > 0]
        return min(found)
