"""Matrix products."""

from __future__ import annotations

import numpy as np

from edgeinfer.convert.lower.coreml.builder import Builder
from edgeinfer.convert.lower.coreml.registry import FLOATS, NUMBERS, OPS
from edgeinfer.convert.lower.coreml.tensor import EXACT, MAX_RANK, Tensor
from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.types import Array

_LINEAR_RANKS = (2, 3)
"""Of the operand that linear takes (coremltools 9.0)."""


@OPS.lower("MatMul", dtypes=NUMBERS)
def matmul(g: Builder, A: Tensor, B: Tensor) -> Tensor:
    """Linear by a known matrix, else matmul; of integers whose sums float32 holds, in float32."""
    if A.is_integer:
        most = max(map(abs, A.bounds)) * max(map(abs, B.bounds)) * g.most(A.shape[-1])
        if most > EXACT:
            raise Refusal("sums may leave what float32 holds exactly", "unsupported_dtype")
        made = matmul(g, g.cast(A, np.float32), g.cast(B, np.float32))
        return g.cast(made, A.dtype, (-most, most))
    if B.data is not None and B.rank == 2 and A.rank in _LINEAR_RANKS:
        return g.emit("linear", x=A, weight=_transposed(g, B))
    a = g.insert_axes(A, [0]) if A.rank == 1 else A
    b = g.insert_axes(B, [-1]) if B.rank == 1 else B
    out = batched(g, a, b)
    gone = [-2] if A.rank == 1 else []
    gone += [-1] if B.rank == 1 else []
    return g.drop_axes(out, gone)


def batched(g: Builder, a: Tensor, b: Tensor, *, transpose_b: bool = False) -> Tensor:
    """Multiply matrices; leading axes broadcast, beyond five they are joined."""
    if max(a.rank, b.rank) <= MAX_RANK:
        return g.emit("matmul", x=a, y=b, transpose_y=transpose_b)
    if not (a.is_static and b.is_static):
        return _late_batched(g, a, b, transpose_b)
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    count = int(np.prod(lead))
    flat = [g.reshape(g.expand(t, (*lead, *t.shape[-2:])), [count, *t.shape[-2:]]) for t in (a, b)]
    out = g.emit("matmul", x=flat[0], y=flat[1], transpose_y=transpose_b)
    return g.reshape(out, [*lead, *out.shape[-2:]])


def _late_batched(g: Builder, a: Tensor, b: Tensor, transpose_b: bool) -> Tensor:
    """Join leading axes of open sizes, which both operands have, or the first one alone."""
    sizes = g.extents(a)
    if b.rank == 2:
        rows = g.reshape(a, [g.product(sizes[:-1]), sizes[-1]])
        out = g.emit("matmul", x=rows, y=b, transpose_y=transpose_b)
        return g.reshape(out, [*sizes[:-1], g.extent(out, 1)])
    alone = [s == 1 for s in a.shape[:-2]] != [s == 1 for s in b.shape[:-2]]
    if a.rank != b.rank or alone:
        raise Refusal("repeats one of more than five axes of unknown sizes", "unsupported_rank")
    joined = []
    for operand in (a, b):
        own = g.extents(operand)
        joined.append(g.reshape(operand, [g.product(own[:-2]), *own[-2:]]))
    out = g.emit("matmul", x=joined[0], y=joined[1], transpose_y=transpose_b)
    return g.reshape(out, [*sizes[:-2], *g.extents(out)[1:]])


def _transposed(g: Builder, x: Tensor) -> Tensor:
    return g.transpose(x, [1, 0])


@OPS.lower("Gemm", dtypes=FLOATS)
def gemm(
    g: Builder,
    A: Tensor,
    B: Tensor,
    C: Tensor | None = None,
    *,
    alpha: float,
    beta: float,
    transA: int,
    transB: int,
) -> Tensor:
    """Linear by a known matrix, with a known bias; else matmul and additions."""
    a = g.transpose(A, [1, 0]) if transA else A
    added = None if C is None or beta == 0 else _scaled(g, C, beta)
    if B.data is None:
        out = _scaled(g, g.emit("matmul", x=a, y=B, transpose_y=bool(transB)), alpha)
    else:
        weight = _scaled(g, B if transB else _transposed(g, B), alpha)
        bias = _bias(added, int(weight.shape[0]))
        out = g.emit("linear", x=a, weight=weight, bias=bias)
        if bias is not None:
            return out
    return out if added is None else g.binary("add", out, added)


def _scaled(g: Builder, x: Tensor, factor: float) -> Tensor:
    if factor == 1.0:
        return x
    if x.data is not None:
        return g.const(x.data * x.dtype.type(factor), x.dtype)
    return g.binary("mul", x, float(factor))


def _bias(added: Tensor | None, size: int) -> Array | None:
    """The addend as a vector, where every row gets the same."""
    if added is None or added.data is None:
        return None
    array = added.data
    if array.ndim == 2 and array.shape[0] != 1:
        return None
    return np.ascontiguousarray(np.broadcast_to(array.reshape(-1), (size,)))
