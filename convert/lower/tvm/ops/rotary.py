"""Rotary positions."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from tvm import te, tirx

from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.lower.tvm.builder import Builder, Tensor
from edgeinfer.convert.lower.tvm.ops.arith import convert
from edgeinfer.convert.lower.tvm.ops.index import inside
from edgeinfer.convert.lower.tvm.ops.matrix import reshape
from edgeinfer.convert.lower.tvm.registry import FLOATS, OPS, SIGNED
from edgeinfer.kernels.defs import rows
from edgeinfer.kernels.defs.norms import PARALLEL_ABOVE

_I64 = "int64"


@OPS.lower("RotaryEmbedding", dtypes=FLOATS | SIGNED)
def rotary_embedding(
    g: Builder,
    X: Tensor,
    cos_cache: Tensor,
    sin_cache: Tensor,
    position_ids: Tensor | None = None,
    *,
    interleaved: int,
    num_heads: int,
    rotary_embedding_dim: int,
) -> Tensor:
    """Turn pairs of elements of each head by an angle that grows with the position."""
    if X.rank == 4:
        x, heads_first = X, True
    else:
        heads = num_heads
        width = X.shape[-1]
        if not heads or not isinstance(width, int) or width % heads:
            raise Refusal(f"{heads} heads in {width} elements")
        x, heads_first = reshape(g, X, (*X.shape[:2], heads, width // heads)), False
    size = x.shape[-1]
    if not isinstance(size, int):
        raise Refusal("an open size of heads", "dynamic_shape")
    rotated = rotary_embedding_dim or size
    if rotated % 2 or rotated > size or cos_cache.shape[-1] != rotated // 2:
        raise Refusal(f"{rotated} of {size} elements by {cos_cache.shape[-1]} angles")
    given = [x, cos_cache, sin_cache]
    if g.on_cpu and all(t.is_static and t.dtype == "float32" and prod(t.shape) for t in given):
        made = _own(g, given, position_ids, heads_first, (rotated, bool(interleaved)))
    else:
        made = _loops(g, given, position_ids, heads_first, (rotated, bool(interleaved)))
    return reshape(g, made, X.shape)


def _own(
    g: Builder,
    given: list[Tensor],
    ids: Tensor | None,
    heads_first: bool,
    how: tuple[int, bool],
) -> Tensor:
    """One kernel, which goes along each head by vectors."""
    x, cos, _ = given
    batch, length = x.shape[0], x.shape[2 if heads_first else 1]
    heads, size, half = x.shape[1 if heads_first else 2], x.shape[3], cos.shape[-1]
    limit = prod(cos.shape[:-1])
    if ids is None:
        positions = g.const(np.arange(batch * length, dtype=np.int32).reshape(batch, length))
    else:
        last = tirx.const(limit - 1, ids.dtype)
        zero = tirx.const(0, ids.dtype)
        held = g.map(lambda v: tirx.max(zero, tirx.min(v, last)), ids)
        positions = _spread(g, convert(g, held, "int32"), (batch, length))
    if heads_first:
        positions = _spread(g, reshape(g, positions, (batch, 1, length)), (batch, heads, length))
    tokens = batch * length * (heads if heads_first else 1)
    inner = 1 if heads_first else heads
    rotated, neighbours = how
    kernel = rows.rope(
        g.cpu,
        tokens,
        inner,
        size,
        limit,
        rotated=rotated,
        neighbours=neighbours,
        parallel=tokens > 1 and prod(x.shape) >= PARALLEL_ABOVE,
    )
    shapes = ((tokens, inner, size), (limit, half), (limit, half), (tokens,))
    operands = [reshape(g, t, s) for t, s in zip([*given, positions], shapes, strict=True)]
    made = g.wrap(g.tir(kernel, [g.expr(t) for t in operands], shapes[0]))
    return reshape(g, made, x.shape)


def _spread(g: Builder, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    if tuple(x.shape) == shape:
        return x
    if x.data is not None:
        return g.const(np.ascontiguousarray(np.broadcast_to(x.data, shape)))
    return g.map(lambda v, _: v, x, g.const(np.zeros(shape, x.dtype)))


def _loops(
    g: Builder,
    given: list[Tensor],
    ids: Tensor | None,
    heads_first: bool,
    how: tuple[int, bool],
) -> Tensor:
    """Element by element, for every type and open sizes."""
    x = given[0]
    rotated, neighbours = how
    half = rotated // 2

    def compute(data: Any, cos: Any, sin: Any, *positions: Any) -> Any:
        def element(*index: Any) -> Any:
            batch, at = index[0], index[3]
            token = index[2] if heads_first else index[1]
            pair = at // 2 if neighbours else at % half
            # Beyond what is rotated nothing of the tables is read.
            pair = tirx.min(pair, tirx.const(half - 1, _I64))
            if positions:
                one = tirx.const(0, _I64)
                row = one if positions[0].shape[0] == 1 else batch
                angle = [inside(positions[0](row, token), cos.shape[0]), pair]
            else:
                angle = [batch, token, pair]
            first = 2 * pair if neighbours else pair
            second = first + (1 if neighbours else half)
            one, two = data(*index[:3], first), data(*index[:3], second)
            c, s = cos(*angle), sin(*angle)
            is_first = at % 2 == 0 if neighbours else at < half
            value = tirx.Select(is_first, one * c - two * s, two * c + one * s)
            return (
                value if rotated == x.shape[3] else tirx.Select(at < rotated, value, data(*index))
            )

        return te.compute(x.shape, element, name="rotary")

    return g.te(compute, *given, *([] if ids is None else [ids]), name="rotary")
