"""Weights as integers: one scale a channel, or one for each block along the summed axis."""

from __future__ import annotations

from typing import Literal

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from edgeinfer.convert.lower.target import ARITHMETIC_KEY
from edgeinfer.convert.quantize.calibrate.ranges import LARGEST_FLOAT8, SMALLEST, half_float8
from edgeinfer.convert.quantize.rewrite.tie_free_scales import off_ties
from edgeinfer.errors import UsageError
from edgeinfer.records import dataclass
from edgeinfer.types import Array

LARGEST_BIAS = float(2**31 - 2**8)
"""Steps that a bias may have: below the largest int32 that float32 can tell from its neighbours."""

_LARGEST_STEP = 255
"""How far an activation of 8 bits may be from its zero point."""

_DIGITS = 16
"""Of an exact scale, binary: with eight of an integer they fill a float32."""

_NEGLIGIBLE = 2.0**-24
"""A channel this much smaller than the largest of its tensor adds nothing that float32 would keep;
its scale stays at a size that no engine flushes to zero."""


@dataclass(frozen=True, slots=True)
class StoredIntegers:
    """Integers and their scales.

    Attributes:
        values: the integers, or floats of 8 bits.
        scale: float32; a scalar, or one a channel.
        axis: Axis of the channels; None with one scale for all.
    """

    values: Array
    scale: npt.NDArray[np.float32]
    axis: int | None

    def floats(self) -> npt.NDArray[np.float32]:
        """Return what the integers stand for."""
        return self.values.astype(np.float32) * self.wide_scale()

    def wide_scale(self) -> npt.NDArray[np.float32]:
        """Return the scales shaped to broadcast over the integers."""
        return _wide(self.scale, self.values.ndim, self.axis)


def mark(value: ir.Value | None, arithmetic: Literal["float", "dynamic"]) -> None:
    """Say how the integers that weights are made of are multiplied, whatever stands around them."""
    maker = None if value is None else value.producer()
    if maker is not None:
        maker.metadata_props[ARITHMETIC_KEY] = arithmetic


def store_floats(weights: Array, axis: int | None, *, name: str = "") -> StoredIntegers:
    """Store weights as floats of 8 bits (E4M3), the largest of each channel at their end.

    Raises:
        UsageError: a weight is NaN or infinite.
    """
    if not np.isfinite(weights).all():
        raise UsageError(f"weights {name!r} have NaN or infinities: no scale fits them")
    others = None if axis is None else tuple(i for i in range(weights.ndim) if i != axis)
    largest = np.abs(weights).max(axis=others, initial=0.0).astype(np.float64)
    whole = float(np.max(largest, initial=0.0)) or 1.0
    scale = np.where(largest == 0.0, whole, largest) / LARGEST_FLOAT8
    single = np.asarray(np.maximum(scale, SMALLEST), np.float32)
    single = np.asarray([half_float8(float(s)) for s in single.ravel()], np.float32).reshape(
        single.shape
    )
    # A quotient rounded up past the end would become NaN.
    ends = np.float32(LARGEST_FLOAT8)
    steps = np.clip(weights / _wide(single, weights.ndim, axis), -ends, ends)
    return StoredIntegers(steps.astype(ml_dtypes.float8_e4m3fn), single, axis)


_LEAST_HALF = np.float32(2.0**-24)


def store(
    weights: Array,
    axis: int | None,
    *,
    bias_steps: Array | None = None,
    bits: int = 8,
    name: str = "",
    half: bool = False,
    per_step: float | None = None,
    exact: bool = False,
) -> StoredIntegers:
    """Quantize weights symmetrically.

    Args:
        weights: floats.
        axis: Axis of the output channels; None for one scale.
        bias_steps: bias over the scale of the activation, one for each channel: scales grow where
            a bias would not fit 32 bits.
        bits: Number of bits of an integer.
        name: for the message.
        half: scales are numbers that half precision holds too.
        per_step: scale of the input over that of the result, where both are integers: scales are
            shifted by what weights do not notice, so that no product is rounded from halfway.
        exact: scales have so few digits that every product with an integer is exact.

    Raises:
        UsageError: a weight is NaN or infinite.
    """
    if not np.isfinite(weights).all():
        raise UsageError(f"weights {name!r} have NaN or infinities: no scale fits them")
    top = 2 ** (bits - 1) - 1
    others = None if axis is None else tuple(i for i in range(weights.ndim) if i != axis)
    largest = np.abs(weights).max(axis=others, initial=0.0).astype(np.float64)
    whole = float(np.max(largest, initial=0.0)) or 1.0
    scale = np.maximum(largest / top, max(whole / top * _NEGLIGIBLE, SMALLEST))
    # A channel of zeros has no scale of its own; the others' keeps its bias as fine as theirs.
    scale = np.where(largest == 0.0, whole / top, scale)
    if per_step is not None:
        scale = off_ties(scale * per_step) / per_step
    if bias_steps is not None:
        needed = np.abs(bias_steps) / _largest_bias(weights, axis, top)
        scale = np.maximum(scale, needed if axis is not None else np.max(needed, initial=0.0))
    single = np.asarray(scale, np.float32)
    if half:
        single = np.maximum(single, _LEAST_HALF).astype(np.float16).astype(np.float32)
    if exact:
        single = exact_scale(single)
    # Rounding the scale down could push the largest weight one step past the end.
    wide = _wide(single, weights.ndim, axis)
    steps = np.clip(np.rint(weights / wide), -top, top)
    return StoredIntegers(steps.astype(np.int8), single, axis)


def exact_scale(scale: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return the next larger scales of so few digits that products with an integer are exact."""
    digits, exponents = np.frexp(scale)
    rounded = np.ldexp(np.ceil(digits * 2.0**_DIGITS) / 2.0**_DIGITS, exponents)
    return np.asarray(rounded, np.float32)


def _largest_bias(weights: Array, axis: int | None, top: int) -> float:
    """Return the steps that a bias may have, so that its sum with all products fits 32 bits.

    Engines add in 32 bits and do not look for an overflow: a sum beyond has the other sign.
    """
    channels = 1 if axis is None else weights.shape[axis]
    products = _LARGEST_STEP * top * weights.size / max(1, channels)
    return max(LARGEST_BIAS - products, LARGEST_BIAS / 2)


def store_bias(bias: Array, activation_scale: float, weights_scale: Array) -> StoredIntegers:
    """Quantize a bias to the steps of the products it is added to."""
    scale = (np.float32(activation_scale) * weights_scale).astype(np.float32)
    limits = np.iinfo(np.int32)
    steps = np.rint(bias.astype(np.float64) / scale.astype(np.float64))
    steps = np.clip(steps, limits.min, limits.max)
    return StoredIntegers(steps.astype(np.int32), scale, None if scale.ndim == 0 else 0)


def _wide(scale: Array, ndim: int, axis: int | None) -> npt.NDArray[np.float32]:
    if axis is None or scale.ndim == 0:
        return np.asarray(scale, np.float32)
    shape = [1] * ndim
    shape[axis] = scale.size
    return np.asarray(scale, np.float32).reshape(shape)


@dataclass(frozen=True, slots=True)
class BlockedWeights:
    """Weights (K, N) in blocks along K.

    Attributes:
        values: (K padded to whole blocks, N) signed integers; the padding is zero.
        scale: (blocks, N) float32.
        block: rows of a block.
        rows: K.
    """

    values: npt.NDArray[np.int8]
    scale: npt.NDArray[np.float32]
    block: int
    rows: int

    def floats(self) -> npt.NDArray[np.float32]:
        """Return what the integers stand for, (K, N)."""
        wide = np.repeat(self.scale, self.block, axis=0)
        return (self.values.astype(np.float32) * wide)[: self.rows]


def store_blocks(
    weights: Array, block: int, *, name: str = "", positive: bool = False, half: bool = False
) -> BlockedWeights:
    """Quantize (K, N) weights to 4 bits, ``-8..7``, with one scale for each block of K.

    The largest magnitude of a block becomes -8, whichever its sign: all 16 steps are used, the
    error is half a step at most, save at the opposite end, where the scale is widened for it.
    Scales that are ``positive`` are rounded to bfloat16 before anything is divided by them; those
    of ``half`` are positive too, and rounded up to float16.

    Raises:
        UsageError: a weight is NaN or infinite, or the weights are no matrix.
    """
    if weights.ndim != 2:
        raise UsageError(f"weights {name!r} have {weights.ndim} axes; blocks need a matrix")
    if not np.isfinite(weights).all():
        raise UsageError(f"weights {name!r} have NaN or infinities: no scale fits them")
    rows, columns = weights.shape
    count = -(-rows // block)
    padded = np.zeros((count * block, columns), np.float64)
    padded[:rows] = weights
    parts = padded.reshape(count, block, columns)
    low, high = parts.min(axis=1), parts.max(axis=1)
    if half:
        scale = _half_scale(low, high)
    else:
        scale = _positive_scale(low, high) if positive else _block_scale(low, high)
    steps = np.rint(parts / scale[:, None, :])
    values = np.clip(steps, -8, 7).astype(np.int8).reshape(count * block, columns)
    return BlockedWeights(values, scale.astype(np.float32), block, rows)


def _positive_scale(low: Array, high: Array) -> npt.NDArray[np.float32]:
    """Return positive bfloat16 scales by which every weight is within -8.5..7.6 steps."""
    size = np.maximum(-low / 8.0, high / 7.5)
    size = np.where(size < SMALLEST, 1.0, size)
    rounded: npt.NDArray[np.float32] = size.astype(ml_dtypes.bfloat16).astype(np.float32)
    return rounded


def _half_scale(low: Array, high: Array) -> npt.NDArray[np.float32]:
    """Return positive float16 scales by which every weight is within -8.5..7.5 steps."""
    size = np.maximum(np.maximum(-low / 8.5, high / 7.5), _LEAST_HALF)
    rounded = size.astype(np.float16)
    rounded = np.where(rounded < size, np.nextafter(rounded, np.float16(np.inf)), rounded)
    return rounded.astype(np.float32)


def _block_scale(low: Array, high: Array) -> npt.NDArray[np.float32]:
    """Return signed float32 scales by which every weight is within -8.5..7.5 steps."""
    negative_first = np.abs(low) >= np.abs(high)
    extreme = np.where(negative_first, low, high)
    opposite = np.where(negative_first, high, low)
    # extreme / scale = -8; the opposite end may reach 7.5 steps before rounding leaves the range.
    size = np.maximum(np.abs(extreme) / 8.0, np.abs(opposite) / 7.5)
    scale = np.where(negative_first, size, -size)
    scale = np.where(np.abs(scale) < SMALLEST, 1.0, scale)
    single = scale.astype(np.float32)
    short = np.abs(single) * 7.5 < np.abs(opposite)
    return np.where(short, np.nextafter(single, np.copysign(np.float32(np.inf), single)), single)
