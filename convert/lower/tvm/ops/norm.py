"""Normalisation."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from tvm import te, tirx

from edgeinfer.convert.lower.ops import norm as shared
from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.lower.tvm.builder import Builder, Tensor
from edgeinfer.convert.lower.tvm.ops.arith import convert
from edgeinfer.convert.lower.tvm.ops.matrix import reshape
from edgeinfer.convert.lower.tvm.ops.reduce import as_rows
from edgeinfer.convert.lower.tvm.registry import FLOATS, OPS
from edgeinfer.kernels.defs import norms
from edgeinfer.kernels.defs.math import constant


def _shared(g: Builder, body: Callable[..., Any], *operands: Any, **attributes: Any) -> Any:
    from edgeinfer.convert.lower.tvm.portable import Whole

    return body(Whole(g), *operands, **attributes)


def _own(
    g: Builder,
    x: Tensor,
    axes: tuple[int, ...],
    epsilon: float,
    factors: list[Tensor],
    kind: str,
    *,
    centred: bool = True,
) -> Tensor | None:
    """Normalise in one kernel where the axes are rows and the factors one for each of a kind."""
    lying = as_rows(g, x, axes)
    if lying is None:
        return None
    count = lying[1] if kind == "column" else lying[0]
    if any(t.dtype != "float32" or not t.is_static or prod(t.shape) != count for t in factors):
        return None
    kernel = norms.normalised(
        g.cpu, *lying, epsilon, centred=centred, factors=[kind] * len(factors)
    )
    operands = [reshape(g, x, lying), *(reshape(g, t, (count,)) for t in factors)]
    made = g.wrap(g.tir(kernel, [g.expr(t) for t in operands], lying))
    return reshape(g, made, x.shape)


def _each(g: Builder, channels: Tensor, batch: Any) -> Tensor:
    """Values of channels for each picture's channels."""
    if channels.data is None or not isinstance(batch, int):
        return channels
    return g.const(np.tile(channels.data, batch))


@OPS.lower("LayerNormalization", dtypes=FLOATS)
def layer_normalization(
    g: Builder,
    X: Tensor,
    Scale: Tensor,
    B: Tensor | None = None,
    *,
    axis: int,
    epsilon: float,
    stash_type: int,
) -> Tensor | tuple[Tensor, ...]:
    """Zero mean and unit variance over the last axes."""
    if not (g.wants(1) or g.wants(2)):
        axes = tuple(range(axis % X.rank, X.rank))
        own = _own(g, X, axes, epsilon, [t for t in (Scale, B) if t is not None], "column")
        if own is not None:
            return own
    given = {"axis": axis, "epsilon": epsilon, "stash_type": stash_type}
    made: tuple[Tensor, ...] = _shared(g, shared.layer_normalization, X, Scale, B, **given)
    return made


@OPS.lower("RMSNormalization", dtypes=FLOATS)
def rms_normalization(
    g: Builder, X: Tensor, scale: Tensor, *, axis: int, epsilon: float, stash_type: int
) -> Tensor:
    """Unit mean square over the last axes."""
    axes = tuple(range(axis % X.rank, X.rank))
    own = _own(g, X, axes, epsilon, [scale], "column", centred=False)
    if own is not None:
        return own
    given = {"axis": axis, "epsilon": epsilon, "stash_type": stash_type}
    made: Tensor = _shared(g, shared.rms_normalization, X, scale, **given)
    return made


@OPS.lower("InstanceNormalization", dtypes=FLOATS)
def instance_normalization(
    g: Builder, input: Tensor, scale: Tensor, B: Tensor, *, epsilon: float
) -> Tensor:
    """Zero mean and unit variance of each channel of each picture."""
    axes = tuple(range(2, input.rank))
    own = _own(g, input, axes, epsilon, [_each(g, t, input.shape[0]) for t in (scale, B)], "row")
    if own is not None:
        return own
    made: Tensor = _shared(g, shared.instance_normalization, input, scale, B, epsilon=epsilon)
    return made


def _per_channel(g: Builder, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    shape = (scale.shape[0], *(1,) * (x.rank - 2))
    wide = [reshape(g, t, shape) for t in (scale, bias)]
    return g.map(lambda v, s, b: v * s + b, x, *wide)


@OPS.lower("GroupNormalization", dtypes=FLOATS)
def group_normalization(
    g: Builder, X: Tensor, scale: Tensor, bias: Tensor, *, num_groups: int, epsilon: float
) -> Tensor:
    """Zero mean and unit variance of each group of channels."""
    channels = X.shape[1]
    if not isinstance(channels, int):
        raise Refusal("an open number of channels", "dynamic_shape")
    x = convert(g, X, "float32") if X.dtype == "float16" else X
    parted = reshape(g, x, (x.shape[0], num_groups, channels // num_groups, *x.shape[2:]))
    axes = tuple(range(2, parted.rank))
    own = _own(g, parted, axes, epsilon, [], "row")
    result = _shared(g, shared.standard, parted, axes, epsilon) if own is None else own
    return _per_channel(g, convert(g, reshape(g, result, X.shape), X.dtype), scale, bias)


@OPS.lower("BatchNormalization", dtypes=FLOATS)
def batch_normalization(
    g: Builder,
    X: Tensor,
    scale: Tensor,
    B: Tensor,
    input_mean: Tensor,
    input_var: Tensor,
    *,
    epsilon: float,
    training_mode: int,
) -> Tensor:
    """Normalise with stored statistics."""
    if training_mode or g.wants(1):
        raise Refusal("training")
    shape = (scale.shape[0], *(1,) * max(0, X.rank - 2))
    parts = [reshape(g, t, shape) for t in (scale, B, input_mean, input_var)]
    return g.map(
        lambda v, s, b, m, d: (v - m) / tirx.sqrt(d + constant(epsilon, d)) * s + b,
        X,
        *parts,
    )


@OPS.lower("LRN", dtypes=FLOATS)
def lrn(g: Builder, X: Tensor, *, size: int, alpha: float, beta: float, bias: float) -> Tensor:
    """Divide by the squares of neighbouring channels."""
    before = (size - 1) // 2

    def compute(data: Any) -> Any:
        k = te.reduce_axis((0, size), "k")
        zero = tirx.const(0, X.dtype)

        def total(n: Any, c: Any, *place: Any) -> Any:
            at = c + k - before
            inside = tirx.all(at >= 0, at < data.shape[1])
            value = data(n, at, *place)
            return te.sum(tirx.if_then_else(inside, value * value, zero), axis=k)

        sums = te.compute(data.shape, total, name="squares")

        def element(*i: Any) -> Any:
            base = sums(*i) * tirx.const(alpha / size, X.dtype) + tirx.const(bias, X.dtype)
            return data(*i) / tirx.pow(base, tirx.const(beta, X.dtype))

        return te.compute(data.shape, element, name="lrn")

    return g.te(compute, X, name="lrn")
