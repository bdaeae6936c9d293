"""Reductions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgeinfer.convert.lower.coreai.builder import Builder
from edgeinfer.convert.lower.coreai.registry import NUMBERS, OPS
from edgeinfer.convert.lower.coreai.tensor import Tensor

_NAMES = {"prod": "product"}


def reduced(g: Builder, kind: str, x: Tensor, axes: Sequence[int], keep: bool) -> Tensor:
    """Reduce over axes; ``kind`` as in ``Tensors.reduce``."""
    if x.dtype != np.bool_:
        return g.reduce(_NAMES.get(kind, kind), x, axes, keep)
    found = g.reduce(kind, g.cast(x, np.uint8), axes, keep)
    # Of no element the least or the largest number is left.
    return g.binary("greater", found, 0)


def _arg(g: Builder, x: Tensor, axis: int, keepdims: int, last: int) -> Tensor:
    axis %= x.rank
    if x.dtype == np.float16:
        # Of half-precision values it was wrong on a Neural Engine at the end of a graph:
        # https://github.com/apple/coreai-torch/issues/116
        x = g.cast(x, np.float32)
    source = g.reverse(x, [axis]) if last else x
    place = g.cast(g.call("argmax", source, np.int32(axis)), np.int64)
    if last:
        top = g.extent(x, axis)
        top = g.const(np.int64(top)) if isinstance(top, int) else top
        place = g.binary("sub", g.binary("sub", top, 1), place)
    return place if keepdims else g.drop_axes(place, [axis])


@OPS.lower("ArgMax", dtypes=NUMBERS)
def arg_max(
    g: Builder, data: Tensor, *, axis: int, keepdims: int, select_last_index: int
) -> Tensor:
    return _arg(g, data, axis, keepdims, select_last_index)


@OPS.lower("ArgMin", dtypes=NUMBERS)
def arg_min(
    g: Builder, data: Tensor, *, axis: int, keepdims: int, select_last_index: int
) -> Tensor:
    if data.is_float:
        return _arg(g, g.neg(data), axis, keepdims, select_last_index)
    # The complement turns the order of integers around, also at the ends of the type.
    inverted = g.binary("bitwise_xor", data, data.dtype.type(np.array(-1).astype(data.dtype)))
    return _arg(g, inverted, axis, keepdims, select_last_index)
