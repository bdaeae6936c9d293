"""From what was seen of a value to the range its integers cover: the calibrators."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from edgeinfer.convert.quantize.calibrate.histogram import BINS, Histogram
from edgeinfer.convert.quantize.recipe import Method
from edgeinfer.errors import UsageError
from edgeinfer.profiles.schema import FLOAT8
from edgeinfer.records import dataclass

LARGEST_FLOAT8 = 448
"""Of E4M3 without infinities (ONNX, "Float stored in 8 bits")."""

KEPT_SHARE = 0.99999
"""Share of the elements that the percentile calibrator keeps on each side."""

_SHRINKS = np.linspace(1.0, 0.2, 41)
_LEVELS = 255


@dataclass(frozen=True, slots=True)
class Range:
    """Smallest and largest value that integers reach; it always has zero in it."""

    low: float
    high: float

    @property
    def width(self) -> float:
        """Distance of the ends."""
        return self.high - self.low

    def joined(self, other: Range) -> Range:
        """Return the range that covers both."""
        return Range(min(self.low, other.low), max(self.high, other.high))


@dataclass(frozen=True, slots=True)
class Scale:
    """One scale and zero point for a tensor: value = (integer - zero) * scale."""

    scale: float
    zero: int
    dtype: str

    @property
    def ends(self) -> tuple[int, int]:
        """Smallest and largest number that is stored."""
        if self.dtype == FLOAT8:
            return -LARGEST_FLOAT8, LARGEST_FLOAT8
        info = np.iinfo(self.dtype)
        return int(info.min), int(info.max)


SMALLEST = 1e-30
"""Below this a scale, or its product with another one, may be flushed to zero by an engine."""


def scale_of(span: Range, dtype: str, *, symmetric: bool = False) -> Scale:
    """Choose scale and zero point so that zero is exact and the range is covered.

    Zero is the middle of the integers where they are symmetric.

    The float32 scale is rounded down by its last bit where it would reach beyond the range: a clip
    to that range then has nothing left to do, which is how engines see that they may drop it.
    """
    if dtype == FLOAT8:
        largest = max(-span.low, span.high)
        return Scale(half_float8(largest / LARGEST_FLOAT8) if largest > 0 else 1.0, 0, dtype)
    info = np.iinfo(dtype)
    if symmetric or dtype == "int16":
        largest, middle = max(-span.low, span.high), _middle(dtype)
        scale = _single(largest / (info.max - middle)) if largest > 0 else 1.0
        return Scale(scale, middle, dtype)
    if span.width <= 0:
        return Scale(1.0, 0 if info.min == 0 else int(info.min), dtype)
    scale = _single(span.width / _LEVELS)
    zero = int(np.clip(np.rint(-span.low / scale), 0, _LEVELS)) + int(info.min)
    return Scale(scale, zero, dtype)


def half_float8(scale: float) -> float:
    """Return the next larger number that half precision holds without loss of digits.

    Floats of 8 bits span fifteen binary orders, so that a scale up to 256 times larger costs none
    of their digits, and half precision then has one that is exact.
    """
    half = np.float16(max(scale, 2.0**-14))
    return float(half if float(half) >= scale else np.nextafter(half, np.float16(np.inf)))


def _middle(dtype: str) -> int:
    return 128 if dtype == "uint8" else 0


def _single(scale: float) -> float:
    rounded = np.float32(max(scale, SMALLEST))
    if float(rounded) > scale > SMALLEST:
        rounded = np.nextafter(rounded, np.float32(0))
    return float(rounded)


def choose(seen: Histogram, method: Method, *, symmetric: bool = False) -> Range:
    """Choose the range of a value.

    ``minmax`` covers everything; ``percentile`` leaves out the outermost elements; ``mse`` weighs
    what is clipped against finer steps by their squares; ``entropy`` by the information lost.

    Raises:
        UsageError: the method is unknown, or the value had NaN or infinities in it.
    """
    if seen.nonfinite:
        raise UsageError(
            f"{seen.nonfinite} of {seen.seen} elements are NaN or infinite: no scale fits them"
        )
    if not math.isfinite(seen.low):
        return Range(0.0, 0.0)
    whole = Range(min(0.0, seen.low), max(0.0, seen.high))
    if method == "minmax" or whole.width == 0.0:
        return whole
    if method == "percentile":
        return _percentile(seen, whole)
    if method == "mse":
        return _mse(seen, whole, symmetric)
    if method == "entropy":
        return _entropy(seen, whole)
    raise UsageError(f"calibrator {method!r} is unknown")


def _percentile(seen: Histogram, whole: Range) -> Range:
    below = np.cumsum(seen.counts) + np.where(np.arange(BINS) >= BINS // 2, seen.zeros, 0)
    total = int(seen.counts.sum()) + seen.zeros
    edge = (1.0 - KEPT_SHARE) * total
    width = 2 * seen.reach / BINS
    first = int(np.searchsorted(below, edge, side="right"))
    last = int(np.searchsorted(below, total - edge, side="left"))
    low = -seen.reach + width * min(first, BINS - 1)
    high = -seen.reach + width * (min(last, BINS - 1) + 1)
    return Range(min(0.0, max(whole.low, low)), max(0.0, min(whole.high, high)))


def _error(seen: Histogram, low: float, high: float, symmetric: bool) -> float:
    """Return the squared error of rounding and clipping, summed over the elements."""
    filled = np.flatnonzero(seen.counts)
    values = seen.centres[filled]
    if symmetric:
        largest = max(-low, high)
        low, high, levels = -largest, largest, _LEVELS - 1
    else:
        levels = _LEVELS
    step = (high - low) / levels
    if step <= 0:
        return math.inf
    shift = np.rint(-low / step)
    stored = np.clip(np.rint(values / step) + shift, 0, levels)
    # Inside a bin the elements lie anywhere, so each adds at least what plain rounding costs.
    error = np.maximum(np.abs((stored - shift) * step - values), 0.0) ** 2
    clipped = (values < low) | (values > high)
    error = np.where(clipped, error, step * step / 12.0)
    return float(np.sum(error * seen.counts[filled]))


def _mse(seen: Histogram, whole: Range, symmetric: bool) -> Range:
    def cost(span: Range) -> float:
        return _error(seen, span.low, span.high, symmetric)

    best = min((Range(whole.low * s, whole.high * s) for s in _SHRINKS), key=cost)
    best = min((Range(whole.low * s, best.high) for s in _SHRINKS), key=cost)
    return min((Range(best.low, whole.high * s) for s in _SHRINKS), key=cost)


def _entropy(seen: Histogram, whole: Range) -> Range:
    """Clip magnitudes where the quantized distribution is nearest to the clipped one.

    Source: Migacz, "8-bit inference with TensorRT", GTC 2017.
    """
    half = BINS // 2
    magnitudes = (seen.counts[half:] + seen.counts[:half][::-1]).astype(np.float64)
    levels = 128 if whole.low < 0 < whole.high else 256
    width = seen.reach / half
    last = int(np.flatnonzero(magnitudes)[-1]) + 1 if magnitudes.any() else half
    best, least = last, math.inf
    for end in np.unique(np.linspace(min(levels, last), last, 96).astype(int)):
        lost = _divergence(magnitudes, int(end), levels)
        if lost < least:
            best, least = int(end), lost
    limit = best * width
    return Range(max(whole.low, -limit), min(whole.high, limit))


def _divergence(counts: npt.NDArray[np.float64], end: int, levels: int) -> float:
    """Return the Kullback-Leibler divergence of the clipped and the quantized distribution."""
    clipped = counts[:end].copy()
    inside = clipped.copy()
    clipped[-1] += counts[end:].sum()
    groups = np.minimum((np.arange(end) * levels) // end, levels - 1)
    filled = inside > 0
    sums = np.bincount(groups, inside, minlength=levels)
    sizes = np.bincount(groups, filled, minlength=levels)
    spread = np.where(filled, (sums / np.maximum(sizes, 1))[groups], 0.0)
    if clipped.sum() == 0 or spread.sum() == 0:
        return math.inf
    p, q = clipped / clipped.sum(), spread / spread.sum()
    both = p > 0
    return float(np.sum(p[both] * np.log(p[both] / np.maximum(q[both], 1e-12))))
