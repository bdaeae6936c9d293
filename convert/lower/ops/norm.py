"""Normalisations."""

from __future__ import annotations

from collections.abc import Sequence

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


def _last(g: Tensors, x: Value, axis: int, stash_type: int) -> list[int]:
    if stash_type != 1:
        raise Refusal(f"stash_type={stash_type}: computes in float32 only")
    return list(range(axis % g.rank(x), g.rank(x)))


def _centred(g: Tensors, x: Value, axes: Sequence[int]) -> tuple[Value, Value]:
    """Return the mean and what is left: the difference of squares would lose the digits."""
    mean = g.reduce("mean", x, axes)
    return mean, g.map(lambda e, v, m: e.sub(v, m), x, mean)


def standard(g: Tensors, x: Value, axes: Sequence[int], epsilon: float) -> Value:
    """Zero mean and unit variance over axes."""
    _, rest = _centred(g, x, axes)
    return g.map(lambda e, r, i: e.mul(r, i), rest, _inverse(g, rest, axes, epsilon))


def _inverse(g: Tensors, rest: Value, axes: Sequence[int], epsilon: float) -> Value:
    """One over the root of the mean square."""
    variance = g.reduce("mean", g.map(lambda e, v: e.mul(v, v), rest), axes)
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
