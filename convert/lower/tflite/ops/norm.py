"""Normalisations.

Operators with channels have them last, as the layout pass leaves them. Variances are taken of what
is left after the mean: the difference of two large numbers would lose the digits that matter.
"""

from __future__ import annotations

import numpy as np

from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.lower.tflite.builder import Builder, Extent
from edgeinfer.convert.lower.tflite.graph import Tensor
from edgeinfer.convert.lower.tflite.registry import FLOATS, NHWC, OPS
from edgeinfer.convert.lower.tflite.widen import REALS, widened

_EPSILON = 9.999999747378752e-06


def _root_of(g: Builder, variance: Tensor, epsilon: float) -> Tensor:
    if epsilon == 0:
        # XNNPACK's RSQRT makes NaN of zero.
        return g.binary("DIV", 1, g.unary("SQRT", variance))
    return g.unary("RSQRT", g.binary("ADD", variance, epsilon))


@OPS.lower("GroupNormalization", domain=NHWC, dtypes=REALS)
@widened
def group_normalization(
    g: Builder, x: Tensor, scale: Tensor, bias: Tensor, *, num_groups: int, epsilon: float
) -> Tensor:
    """Normalise groups of channels."""
    channels = x.shape[-1]
    if channels is None:
        raise Refusal("the number of channels is not known", "dynamic_shape")
    sizes: list[Extent] = [g.extent(x, i) for i in range(x.rank)]
    grouped = g.reshape(x, [*sizes[:-1], num_groups, channels // num_groups])
    rest = g.binary("SUB", grouped, _group_mean(g, grouped))
    variance = _group_mean(g, g.binary("MUL", rest, rest))
    y = g.binary("MUL", rest, _root_of(g, variance, epsilon))
    return g.binary("ADD", g.binary("MUL", g.reshape(y, sizes), scale), bias)


def _group_mean(g: Builder, x: Tensor) -> Tensor:
    """Over the picture first, which leaves little to do across channels."""
    return g.reduce("MEAN", g.reduce("MEAN", x, range(1, x.rank - 2), True), [x.rank - 1], True)


@OPS.lower("BatchNormalization", domain=NHWC, dtypes=REALS)
@widened
def batch_normalization(
    g: Builder,
    x: Tensor,
    scale: Tensor,
    b: Tensor,
    input_mean: Tensor,
    input_var: Tensor,
    *,
    epsilon: float,
    training_mode: int,
) -> Tensor:
    """``x * factor + offset``, both known where the statistics are."""
    if training_mode:
        raise Refusal("training_mode updates the statistics")
    statistics = scale, b, input_mean, input_var
    if all(t.data is not None for t in statistics):
        wide = [t.value.astype(np.float64) for t in statistics]
        factor = wide[0] / np.sqrt(wide[3] + epsilon)
        scaled = g.binary("MUL", x, g.const(factor, np.float32))
        return g.binary("ADD", scaled, g.const(wide[1] - wide[2] * factor, np.float32))
    deviation = g.unary("SQRT", g.binary("ADD", input_var, epsilon))
    rest = g.binary("SUB", x, input_mean)
    return g.binary("ADD", g.binary("MUL", rest, g.binary("DIV", scale, deviation)), b)


@OPS.lower("LRN", domain=NHWC, dtypes=FLOATS)
def lrn(g: Builder, x: Tensor, *, size: int, alpha: float, beta: float, bias: float) -> Tensor:
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
