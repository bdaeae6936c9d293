"""Pools."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.core import window as sliding
from edgeinfer.convert.lower.core.window import Windows
from edgeinfer.convert.lower.coreai.builder import Builder
from edgeinfer.convert.lower.coreai.registry import FLOATS, OPS, in_single
from edgeinfer.convert.lower.coreai.tensor import Tensor
from edgeinfer.convert.lower.registry import Refusal

_BYTES = frozenset({ir.DataType.INT8, ir.DataType.UINT8})


def _padded(g: Builder, x: Tensor, at: Windows, fill: float = 0) -> Tensor:
    """What windows cover.

    Raises:
        Refusal: Core AI has no windows of this rank, or padding depends on a dynamic size.
    """
    if not 1 <= at.rank <= 3:
        raise Refusal(f"{at.rank} spatial axes", "unsupported_rank")
    at = at.explicit()
    return g.pad(x, [0, 0, *at.begin], [0, 0, *at.end], fill)


def _words(values: Sequence[int], fill: int) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    return np.array([fill, *values] if len(values) == 1 else list(values), np.uint32)


def _pool(g: Builder, op: str, x: Tensor, at: Windows) -> Tensor:
    spatial = x.rank - 2
    line = g.insert_axes(x, [2]) if spatial == 1 else x
    sizes = tuple(_words(v, 1) for v in (at.kernel, at.strides, at.dilations))
    suffix = "3d" if spatial == 3 else "2d"
    if op == "sum":
        made = g.call(f"sumpool{suffix}", line, *sizes)
    else:
        out: list[int | None] = list(line.shape[:2])
        for size, k, s, d in zip(line.shape[2:], *(v.tolist() for v in sizes), strict=True):
            out.append(None if size is None else (size - (k - 1) * d - 1) // s + 1)
        kind = g.type_of(x.dtype, tuple(out))
        made = g.call(f"maxpool{suffix}", kind, line, *sizes, np.bool_(False))
    return g.drop_axes(made, [2]) if spatial == 1 else made


@sliding.pool(OPS, "MaxPool", dtypes=FLOATS | _BYTES)
def max_pool(g: Builder, X: Tensor, asked: Windows, *, ceil_mode: int) -> Tensor:
    at = asked.reaching(ceil_mode)
    if not X.is_float:
        # Half precision holds every integer of 8 bits.
        return g.cast(_pool(g, "max", _padded(g, g.cast(X, np.float16), at, -128.0), at), X.dtype)
    return _pool(g, "max", _padded(g, X, at, float(np.finfo(X.dtype).min)), at)


@sliding.pool(OPS, "AveragePool", dtypes=FLOATS)
@in_single
def average_pool(
    g: Builder, X: Tensor, asked: Windows, *, ceil_mode: int, count_include_pad: int
) -> Tensor:
    at = asked.reaching(ceil_mode)
    total = _pool(g, "sum", _padded(g, X, at), at)
    extra = [max(w.end - a.end, 0) for w, a in zip(at, asked, strict=True)]
    if not any(extra) and (not asked.padded or count_include_pad):
        return g.binary("mul", total, 1 / int(np.prod(at.kernel)))
    sizes = [g.extent(X, a) for a in range(2, X.rank)]
    ones = g.expand(g.const(np.ones((1, 1, *[1] * len(sizes)), X.dtype)), [1, 1, *sizes])
    if count_include_pad:
        ends = [w.end - more for w, more in zip(at, extra, strict=True)]
        ones = g.pad(ones, [0, 0, *at.begin], [0, 0, *ends], 1)
        ones = g.pad(ones, [0] * X.rank, [0, 0, *extra])
    else:
        ones = _padded(g, ones, at)
    return g.binary("divide", total, _pool(g, "sum", ones, at))
