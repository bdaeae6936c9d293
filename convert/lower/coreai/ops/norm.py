"""Normalisation, as the arithmetic it is."""

from __future__ import annotations

import onnx_ir as ir

from edgeinfer.convert.lower.coreai.builder import Builder
from edgeinfer.convert.lower.coreai.ops.conv import biased
from edgeinfer.convert.lower.coreai.registry import FLOATS, OPS, in_single
from edgeinfer.convert.lower.coreai.tensor import Tensor
from edgeinfer.convert.lower.ops import norm as shared
from edgeinfer.convert.lower.registry import Refusal


def _scaled(g: Builder, x: Tensor, factor: Tensor) -> Tensor:
    return g.binary("mul", x, g.insert_axes(factor, list(range(1, x.rank - 1))))


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
    if training_mode:
        raise Refusal("training_mode=1")
    if X.rank < 2:
        raise Refusal("no channels", "unsupported_rank")
    inverse = g.unary("rsqrt", g.binary("add", g.cast(input_var, X.dtype), epsilon))
    factor = g.binary("mul", g.cast(scale, X.dtype), inverse)
    shift = g.binary(
        "sub", g.cast(B, X.dtype), g.binary("mul", g.cast(input_mean, X.dtype), factor)
    )
    return biased(g, _scaled(g, X, factor), shift)


def _stashed(g: Builder, x: Tensor, stash_type: int) -> Tensor:
    """Sums are kept in this type."""
    wanted = ir.DataType(stash_type).numpy()
    return g.cast(x, wanted) if wanted.itemsize > x.dtype.itemsize else x


@OPS.lower("GroupNormalization", dtypes=FLOATS)
def group_normalization(
    g: Builder,
    X: Tensor,
    scale: Tensor,
    bias: Tensor,
    *,
    num_groups: int,
    epsilon: float,
    stash_type: int,
) -> Tensor:
    from edgeinfer.convert.lower.coreai.portable import Portable

    sizes = g.extents(X)
    channels = sizes[1]
    if not isinstance(channels, int):
        raise Refusal("channels are only known to a run", "dynamic_shape")
    wide = _stashed(g, X, stash_type)
    view = g.reshape(wide, [sizes[0], num_groups, channels // num_groups, *sizes[2:]])
    made = shared.standard(Portable(g), view, list(range(2, view.rank)), epsilon)
    made = g.reshape(g.cast(made, X.dtype), sizes)
    return biased(g, _scaled(g, made, scale), bias)


@OPS.lower("LRN", dtypes=FLOATS)
@in_single
def lrn(g: Builder, x: Tensor, *, size: int, alpha: float, beta: float, bias: float) -> Tensor:
    before = (size - 1) // 2
    around = [0] * x.rank, [0] * x.rank
    around[0][1], around[1][1] = before, size - 1 - before
    squares = g.pad(g.binary("mul", x, x), *around)
    channels = x.shape[1]
    if channels is None:
        raise Refusal("channels are only known to a run", "dynamic_shape")
    total = g.part(squares, 1, 0, channels)
    for shift in range(1, size):
        total = g.binary("add", total, g.part(squares, 1, shift, shift + channels))
    base = g.binary("add", g.binary("mul", total, alpha / size), bias)
    return g.binary("divide", x, g.binary("pow", base, beta))
