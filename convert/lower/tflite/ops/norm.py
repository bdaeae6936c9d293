"""Normalisations.

Variances are taken of what is left after the mean: the difference of two large numbers would lose
the digits that matter.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.lower.tflite.builder import Builder, Extent
from edgeinfer.convert.lower.tflite.graph import Tensor
from edgeinfer.convert.lower.tflite.registry import FLOATS, NHWC, OPS
from edgeinfer.convert.lower.tflite.widen import REALS, widened

_EPSILON = 9.999999747378752e-06


@OPS.lower("LayerNormalization", since=17, dtypes=REALS)
def layer_normalization(
    g: Builder,
    x: Tensor,
    scale: Tensor,
    b: Tensor | None = None,
    *,
    axis: int = -1,
    epsilon: float = _EPSILON,
    stash_type: int = 1,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise over the last axes; the mean and the inverse deviation are results too."""
    if stash_type != 1:
        raise Refusal(f"stash_type={stash_type}: computes in float32 only")
    wide = g.cast(x, np.float32)
    axes = range(axis % x.rank, x.rank)
    average, rest = _centred(g, wide, axes)
    inverse = _inverse_deviation(g, rest, axes, epsilon)
    y = g.binary("MUL", g.binary("MUL", rest, inverse), g.cast(scale, np.float32))
    if b is not None:
        y = g.binary("ADD", y, g.cast(b, np.float32))
    return g.cast(y, x.dtype), average, inverse


@OPS.lower("RMSNormalization", since=23, dtypes=REALS)
@widened
def rms_normalization(
    g: Builder,
    x: Tensor,
    scale: Tensor,
    *,
    axis: int = -1,
    epsilon: float = _EPSILON,
    stash_type: int = 1,
) -> Tensor:
    """Divide by the root of the mean square."""
    if stash_type != 1:
        raise Refusal(f"stash_type={stash_type}: computes in float32 only")
    inverse = _inverse_deviation(g, x, range(axis % x.rank, x.rank), epsilon)
    return g.binary("MUL", g.binary("MUL", x, inverse), scale)


def _centred(g: Builder, x: Tensor, axes: Sequence[int]) -> tuple[Tensor, Tensor]:
    average = g.reduce("MEAN", x, list(axes), True)
    return average, g.binary("SUB", x, average)


def _inverse_deviation(g: Builder, rest: Tensor, axes: Sequence[int], epsilon: float) -> Tensor:
    variance = g.reduce("MEAN", g.binary("MUL", rest, rest), list(axes), True)
    if epsilon == 0:
        # XNNPACK's RSQRT makes NaN of zero.
        return g.binary("DIV", 1, g.unary("SQRT", variance))
    return g.unary("RSQRT", g.binary("ADD", variance, epsilon))


def _channels(g: Builder, values: Tensor, rank: int, axis: int) -> Tensor:
    """One value for each channel, shaped to broadcast along an axis."""
    if values.rank != 1 or axis == rank - 1:
        return values
    return g.reshape(values, [g.extent(values, 0), *[1] * (rank - 1 - axis)])


def _instance(
    g: Builder, x: Tensor, scale: Tensor, bias: Tensor, epsilon: float, axis: int
) -> Tensor:
    axes = [i for i in range(1, x.rank) if i != axis]
    _, rest = _centred(g, x, axes)
    y = g.binary("MUL", rest, _inverse_deviation(g, rest, axes, epsilon))
    y = g.binary("MUL", y, _channels(g, scale, x.rank, axis))
    return g.binary("ADD", y, _channels(g, bias, x.rank, axis))


@OPS.lower("InstanceNormalization", since=22, dtypes=REALS)
@widened
def instance_normalization(
    g: Builder, input: Tensor, scale: Tensor, b: Tensor, *, epsilon: float = _EPSILON
) -> Tensor:
    """Normalise each channel; channels second."""
    return _instance(g, input, scale, b, epsilon, 1)


@OPS.lower("InstanceNormalization", since=1, domain=NHWC, dtypes=REALS)
@widened
def instance_normalization_last(
    g: Builder, input: Tensor, scale: Tensor, b: Tensor, *, epsilon: float = _EPSILON
) -> Tensor:
    """Normalise each channel; channels last."""
    return _instance(g, input, scale, b, epsilon, input.rank - 1)


def _group(
    g: Builder,
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    epsilon: float,
    groups: int,
    axis: int,
) -> Tensor:
    channels = x.shape[axis]
    if channels is None:
        raise Refusal("the number of channels is not known", "dynamic_shape")
    sizes: list[Extent] = [g.extent(x, i) for i in range(x.rank)]
    split = [*sizes[:axis], groups, channels // groups, *sizes[axis + 1 :]]
    grouped = g.reshape(x, split)
    axes = [i for i in range(1, grouped.rank) if i != axis]
    _, rest = _centred(g, grouped, axes)
    y = g.binary("MUL", rest, _inverse_deviation(g, rest, axes, epsilon))
    y = g.reshape(y, sizes)
    y = g.binary("MUL", y, _channels(g, scale, x.rank, axis))
    return g.binary("ADD", y, _channels(g, bias, x.rank, axis))


@OPS.lower("GroupNormalization", since=21, dtypes=REALS)
@widened
def group_normalization(
    g: Builder,
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    *,
    num_groups: int,
    epsilon: float = _EPSILON,
    stash_type: int = 1,
) -> Tensor:
    """Normalise groups of channels; channels second."""
    return _group(g, x, scale, bias, epsilon, num_groups, 1)


@OPS.lower("GroupNormalization", since=1, domain=NHWC, dtypes=REALS)
@widened
def group_normalization_last(
    g: Builder,
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    *,
    num_groups: int,
    epsilon: float = _EPSILON,
    stash_type: int = 1,
) -> Tensor:
    """Normalise groups of channels; channels last."""
    return _group(g, x, scale, bias, epsilon, num_groups, x.rank - 1)


def _batch(
    g: Builder,
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    epsilon: float,
    axis: int,
) -> Tensor:
    """``x * factor + offset``, both known where the statistics are."""
    operands = (scale, bias, mean, variance)
    if all(t.data is not None for t in operands):
        wide = [t.value.astype(np.float64) for t in operands]
        factor = wide[0] / np.sqrt(wide[3] + epsilon)
        parts = [g.const(v, np.float32) for v in (factor, wide[1] - wide[2] * factor)]
        parts = [_channels(g, p, x.rank, axis) for p in parts]
        return g.binary("ADD", g.binary("MUL", x, parts[0]), parts[1])
    deviation = g.unary("SQRT", g.binary("ADD", variance, epsilon))
    slope = _channels(g, g.binary("DIV", scale, deviation), x.rank, axis)
    rest = g.binary("SUB", x, _channels(g, mean, x.rank, axis))
    return g.binary("ADD", g.binary("MUL", rest, slope), _channels(g, bias, x.rank, axis))


def _batch_or_training(
    g: Builder,
    x: Tensor,
    statistics: Sequence[Tensor],
    epsilon: float,
    momentum: float,
    training: int,
    axis: int,
) -> tuple[Tensor, ...]:
    scale, bias, mean, variance = statistics
    if x.rank < 2:
        raise Refusal("no channels", "unsupported_rank")
    if not training:
        return (_batch(g, x, scale, bias, mean, variance, epsilon, axis),)
    axes = [i for i in range(x.rank) if i != axis]
    own_mean = g.reduce("MEAN", x, axes, False)
    rest = g.binary("SUB", x, _channels(g, own_mean, x.rank, axis))
    own_variance = g.reduce("MEAN", g.binary("MUL", rest, rest), axes, False)
    y = _batch(g, x, scale, bias, own_mean, own_variance, epsilon, axis)
    running = [
        g.binary("ADD", g.binary("MUL", old, momentum), g.binary("MUL", own, 1 - momentum))
        for old, own in ((mean, own_mean), (variance, own_variance))
    ]
    return (y, *running)


@OPS.lower("BatchNormalization", since=15, dtypes=REALS)
@widened
def batch_normalization(
    g: Builder,
    x: Tensor,
    scale: Tensor,
    b: Tensor,
    input_mean: Tensor,
    input_var: Tensor,
    *,
    epsilon: float = _EPSILON,
    momentum: float = 0.8999999761581421,
    training_mode: int = 0,
) -> tuple[Tensor, ...]:
    """Scale and shift each channel; channels second."""
    statistics = (scale, b, input_mean, input_var)
    return _batch_or_training(g, x, statistics, epsilon, momentum, training_mode, 1)


@OPS.lower("BatchNormalization", since=1, domain=NHWC, dtypes=REALS)
@widened
def batch_normalization_last(
    g: Builder,
    x: Tensor,
    scale: Tensor,
    b: Tensor,
    input_mean: Tensor,
    input_var: Tensor,
    *,
    epsilon: float = _EPSILON,
    momentum: float = 0.8999999761581421,
    training_mode: int = 0,
) -> tuple[Tensor, ...]:
    """Scale and shift each channel; channels last."""
    statistics = (scale, b, input_mean, input_var)
    return _batch_or_training(g, x, statistics, epsilon, momentum, training_mode, x.rank - 1)


@OPS.lower("LpNormalization", since=22, dtypes=REALS)
@widened
def lp_normalization(g: Builder, input: Tensor, *, axis: int = -1, p: int = 2) -> Tensor:
    """Divide by the length along an axis."""
    if p == 1:
        length = g.reduce("SUM", g.unary("ABS", input), [axis], True)
    else:
        length = g.unary("SQRT", g.reduce("SUM", g.binary("MUL", input, input), [axis], True))
    # Vectors without length stay as they are.
    least = float(np.finfo(np.float32).tiny)
    return g.binary("DIV", input, g.binary("MAXIMUM", length, least))


@OPS.lower("MeanVarianceNormalization", since=13, dtypes=REALS)
@widened
def mean_variance_normalization(
    g: Builder, x: Tensor, *, axes: Sequence[int] = (0, 2, 3)
) -> Tensor:
    """Normalise over any axes."""
    over = [a % x.rank for a in axes]
    _, rest = _centred(g, x, over)
    variance = g.reduce("MEAN", g.binary("MUL", rest, rest), over, True)
    # The term is ONNX's: its function body adds it to the deviation.
    return g.binary("DIV", rest, g.binary("ADD", g.unary("SQRT", variance), 1e-9))


@OPS.lower("LRN", since=1, domain=NHWC, dtypes=FLOATS)
def lrn_last(
    g: Builder,
    x: Tensor,
    *,
    size: int,
    alpha: float = 9.999999747378752e-05,
    beta: float = 0.75,
    bias: float = 1.0,
) -> Tensor:
    """Divide by a power of the squares of neighbouring channels."""
    if size % 2 and x.rank == 4:
        options = {"radius": size // 2, "bias": bias, "alpha": alpha / size, "beta": beta}
        return g.emit("LOCAL_RESPONSE_NORMALIZATION", [x], x.shape, **options)
    total = _window_sum(g, g.binary("MUL", x, x), size)
    scaled = g.binary("ADD", g.binary("MUL", total, alpha / size), bias)
    return g.binary("DIV", x, g.binary("POW", scaled, beta))


def _window_sum(g: Builder, x: Tensor, size: int) -> Tensor:
    """Sum of neighbours along the last axis; an even window has more of the later ones."""
    channels = x.shape[-1]
    if channels is None:
        raise Refusal("the number of channels is not known", "dynamic_shape")
    before = [(0, 0)] * (x.rank - 1)
    padded = g.pad(x, [*before, ((size - 1) // 2, size // 2)])
    total: Tensor | None = None
    for start in range(size):
        begin = [0] * (x.rank - 1) + [start]
        end = [None] * (x.rank - 1) + [start + channels]
        part = g.slice(padded, begin, end, [1] * x.rank)
        total = part if total is None else g.binary("ADD", total, part)
    return x if total is None else total
