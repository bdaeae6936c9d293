"""Normalisations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgeinfer.convert.lower.core.portable import Elements, Tensors, Value
from edgeinfer.convert.lower.core.table import whole
from edgeinfer.convert.lower.registry import Refusal

_LEAST, _MOST = 1.1754943508222875e-38, 3.4028234663852886e38
_HALF = 6.103515625e-05, 65504.0
"""The least normal number, and the largest, of single and of half precision."""


def _held(e: Elements, largest: Value) -> Value:
    """Neither zero nor infinity, which would make NaN of what they divide."""
    low, high = _HALF if e.is_half(largest) else (_LEAST, _MOST)
    return e.maximum(e.minimum(largest, high), low)


def _one_for_zero(e: Elements, x: Value) -> Value:
    return e.select(e.greater(x, 0), x, e.add(x, 1))


def scaled(g: Tensors, x: Value, axes: Sequence[int]) -> tuple[Value, Value]:
    """Return elements over the largest of them, and that one: no square of these is lost."""
    size = g.map(lambda e, v: e.abs(v), x)
    largest = g.map(_held, g.reduce("max", size, axes))
    return g.map(lambda e, v, m: e.div(v, m), x, largest), largest


def length(g: Tensors, x: Value, axes: Sequence[int]) -> Value:
    """Root of the sum of squares, of tiny and huge elements too; the axes stay."""
    rest, largest = scaled(g, x, axes)
    total = g.reduce("sum", g.map(lambda e, v: e.mul(v, v), rest), axes)
    return g.map(lambda e, t, m: e.mul(e.sqrt(t), m), total, largest)


@whole("LpNormalization")
def lp_normalization(g: Tensors, x: Value, *, axis: int, p: int) -> Value:
    """Divide by the length along an axis; nothing is divided by zero."""
    rest, _ = scaled(g, x, [axis])
    if p == 1:
        total = g.reduce("sum", g.map(lambda e, v: e.abs(v), rest), [axis])
        return g.map(lambda e, v, t: e.div(v, _one_for_zero(e, t)), rest, total)
    total = g.reduce("sum", g.map(lambda e, v: e.mul(v, v), rest), [axis])
    return g.map(lambda e, v, t: e.div(v, e.sqrt(_one_for_zero(e, t))), rest, total)


@whole("LayerNormalization")
def layer_normalization(
    g: Tensors,
    x: Value,
    scale: Value,
    bias: Value | None = None,
    *,
    axis: int,
    epsilon: float,
    stash_type: int,
) -> tuple[Value, Value, Value]:
    """Normalise over the last axes; the mean and the inverse deviation are results too."""
    axes = _last(g, x, axis, stash_type)
    mean, rest = _centred(g, g.single(x), axes)
    inverse = _inverse(g, rest, axes, epsilon)
    return g.like(_scaled_by(g, rest, inverse, scale, bias), x), mean, inverse


@whole("RMSNormalization")
def rms_normalization(
    g: Tensors, x: Value, scale: Value, *, axis: int, epsilon: float, stash_type: int
) -> Value:
    """Divide by the root of the mean square over the last axes."""
    axes = _last(g, x, axis, stash_type)
    wide = g.single(x)
    return g.like(_scaled_by(g, wide, _inverse(g, wide, axes, epsilon), scale), x)


@whole("InstanceNormalization")
def instance_normalization(
    g: Tensors, x: Value, scale: Value, bias: Value, *, epsilon: float
) -> Value:
    """Normalise each channel over its positions."""
    axes = g.positions(x)
    _, rest = _centred(g, g.single(x), axes)
    factors = [g.by_channel(x, v) for v in (scale, bias)]
    return g.like(_scaled_by(g, rest, _inverse(g, rest, axes, epsilon), *factors), x)


@whole("GroupNormalization")
def group_normalization(
    g: Tensors,
    x: Value,
    scale: Value,
    bias: Value,
    *,
    num_groups: int,
    epsilon: float,
    stash_type: int,
) -> Value:
    """Normalise groups of channels; scale and bias are those of channels."""
    _check_stash(stash_type)
    sizes, at = g.sizes(x), g.channels(x)
    if not isinstance(sizes[at], int):
        raise Refusal("the number of channels is not known", "dynamic_shape")
    parted = [*sizes[:at], num_groups, sizes[at] // num_groups, *sizes[at + 1 :]]
    grouped = g.reshape(g.single(x), parted)
    # Over the positions first, which leaves little to do across channels.
    axes = [a + (a > at) for a in g.positions(x)], [at + 1]
    y = g.reshape(g.standardised(grouped, axes, epsilon), sizes)
    wide = [g.single(g.by_channel(x, v)) for v in (scale, bias)]
    return g.like(g.map(lambda e, v, s, b: e.add(e.mul(v, s), b), y, *wide), x)


@whole("BatchNormalization")
def batch_normalization(
    g: Tensors,
    x: Value,
    scale: Value,
    b: Value,
    input_mean: Value,
    input_var: Value,
    *,
    epsilon: float,
    training_mode: int,
) -> Value:
    """``x * factor + offset``, both known where the statistics are."""
    if training_mode:
        raise Refusal("training_mode updates the statistics")
    if g.rank(x) < 2:
        raise Refusal("no channels", "unsupported_rank")
    wide = g.single(x)
    known = [v.data for v in (scale, b, input_mean, input_var)]
    if all(v is not None for v in known):
        scales, shifts, means, variances = (np.asarray(v, np.float64).reshape(-1) for v in known)
        factor = scales / np.sqrt(variances + epsilon)
        kind = max(known[0].dtype, np.dtype(np.float32), key=lambda dtype: dtype.itemsize)
        vectors = [g.const(v.astype(kind)) for v in (factor, shifts - means * factor)]
        both = [g.by_channel(x, v) for v in vectors]
        return g.like(g.map(lambda e, v, f, o: e.add(e.mul(v, f), o), wide, *both), x)
    given = [g.like(g.by_channel(x, v), wide) for v in (scale, b, input_mean, input_var)]

    def normalised(e: Elements, v: Value, s: Value, o: Value, mean: Value, var: Value) -> Value:
        deviation = e.sqrt(e.add(var, epsilon))
        return e.add(e.mul(e.sub(v, mean), e.div(s, deviation)), o)

    return g.like(g.map(normalised, wide, *given), x)


def _check_stash(stash_type: int) -> None:
    if stash_type != 1:
        raise Refusal(f"stash_type={stash_type}: computes in float32 only")


def _last(g: Tensors, x: Value, axis: int, stash_type: int) -> list[int]:
    _check_stash(stash_type)
    return list(range(axis % g.rank(x), g.rank(x)))


def _centred(g: Tensors, x: Value, axes: Sequence[int]) -> tuple[Value, Value]:
    """Return the mean and what is left: the difference of squares would lose the digits."""
    mean = g.reduce("mean", x, axes)
    return mean, g.map(lambda e, v, m: e.sub(v, m), x, mean)


def standard(g: Tensors, x: Value, steps: Sequence[Sequence[int]], epsilon: float) -> Value:
    """Zero mean and unit variance, of means over some axes after others."""

    def mean(of: Value) -> Value:
        for axes in steps:
            of = g.reduce("mean", of, axes)
        return of

    rest = g.map(lambda e, v, m: e.sub(v, m), x, mean(x))
    variance = mean(g.map(lambda e, v: e.mul(v, v), rest))
    return g.map(lambda e, r, i: e.mul(r, i), rest, _root_of(g, variance, epsilon))


def _inverse(g: Tensors, rest: Value, axes: Sequence[int], epsilon: float) -> Value:
    """One over the root of the mean square."""
    return _root_of(g, g.reduce("mean", g.map(lambda e, v: e.mul(v, v), rest), axes), epsilon)


def _root_of(g: Tensors, variance: Value, epsilon: float) -> Value:
    """One over the root of a variance."""
    if epsilon == 0:
        # XNNPACK's reciprocal root makes NaN of zero.
        return g.map(lambda e, v: e.div(1, e.sqrt(v)), variance)
    return g.map(lambda e, v: e.rsqrt(e.add(v, epsilon)), variance)


def _scaled_by(
    g: Tensors, rest: Value, inverse: Value, scale: Value, bias: Value | None = None
) -> Value:
    y = g.map(lambda e, r, i, s: e.mul(e.mul(r, i), s), rest, inverse, g.single(scale))
    return y if bias is None else g.map(lambda e, v, b: e.add(v, b), y, g.single(bias))


@whole("MeanVarianceNormalization")
def mean_variance_normalization(g: Tensors, x: Value, *, axes: Sequence[int]) -> Value:
    """Subtract the mean, divide by the deviation of what is left and the definition's 1e-9."""
    over = [a % g.rank(x) for a in axes]
    rest = g.map(lambda e, v, m: e.sub(v, m), x, g.reduce("mean", x, over))
    variance = g.reduce("mean", g.map(lambda e, v: e.mul(v, v), rest), over)
    return g.map(lambda e, v, d: e.div(v, e.add(e.sqrt(d), 1e-9)), rest, variance)
