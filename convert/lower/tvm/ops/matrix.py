"""Products of matrices."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from edgeinfer.convert.lower.equation import parse
from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.lower.tvm.builder import Builder, Tensor, broadcast
from edgeinfer.convert.lower.tvm.fuse import Loops, waiting
from edgeinfer.convert.lower.tvm.narrow import fits, multiplied
from edgeinfer.convert.lower.tvm.ops.arith import convert
from edgeinfer.convert.lower.tvm.registry import FLOATS, NUMBERS, OPS
from edgeinfer.convert.lower.tvm.sizes import alike, spread
from edgeinfer.convert.lower.tvm.tuned import title_of
from edgeinfer.kernels.defs import gemm


@OPS.lower("MatMul", dtypes=NUMBERS)
def matmul(g: Builder, A: Tensor, B: Tensor) -> Tensor:
    """NumPy's ``matmul``."""
    return numpy_product(g, A, B)


def numpy_product(g: Builder, A: Tensor, B: Tensor) -> Tensor:
    """A product of which either operand may have one axis."""
    if not A.rank or not B.rank:
        raise Refusal("a scalar operand")
    a = _with_shape(g, A, (1, *A.shape)) if A.rank == 1 else A
    b = _with_shape(g, B, (*B.shape, 1)) if B.rank == 1 else B
    result = product(g, a, b)
    if A.rank == 1 or B.rank == 1:
        shape = list(result.shape)
        if B.rank == 1:
            del shape[-1]
        if A.rank == 1:
            del shape[-1 if B.rank == 1 else -2]
        return reshape(g, result, tuple(shape))
    return result


def reshape(g: Builder, x: Tensor, shape: tuple[Any, ...]) -> Tensor:
    """The same elements in other sizes."""
    if x.is_static and all(isinstance(s, int) for s in shape) and prod(x.shape) != prod(shape):
        raise Refusal(f"{x.shape} has other elements than {shape}")
    if x.is_static and 0 in shape:
        # A zero in Relax's reshape means the size that was there.
        return g.const(np.zeros(shape, x.dtype))
    if x.data is not None and all(isinstance(s, int) for s in shape):
        return g.const(x.data.reshape(shape))
    return x if x.shape == shape else g.emit(relax.op.reshape(g.expr(x), list(shape)))


def _with_shape(g: Builder, x: Tensor, shape: tuple[Any, ...]) -> Tensor:
    return reshape(g, x, shape)


def product(g: Builder, a: Tensor, b: Tensor) -> Tensor:
    """Multiply (..., M, K) by (..., K, N)."""
    b = alike(g, b, [None] * (b.rank - 2) + [a.shape[-1], None])
    usable = a.is_static and b.is_static and prod(a.shape) and prod(b.shape)
    w, count = b.blocks, prod(a.shape[:-1]) if usable else 0
    if w is not None and w.transposed and a.dtype == "float32" and fits(g, w, count):
        flat = g.expr(reshape(g, a, (count, a.shape[-1])))
        return reshape(g, g.wrap(multiplied(g, flat, w, count)), (*a.shape[:-1], b.shape[-1]))
    if a.dtype == "float32" and usable:
        return _own(g, a, b)
    if a.dtype in ("float32", "float64") and g.machine.cuda:
        return g.op(relax.op.matmul, a, b)
    if a.dtype == "float16":
        return convert(g, _plain(g, convert(g, a, "float32"), convert(g, b, "float32")), "float16")
    return _plain(g, a, b)


def _own(g: Builder, a: Tensor, b: Tensor) -> Tensor:
    batch = tuple(map(int, broadcast([a.shape[:-2], b.shape[:-2]])))
    (m, k), n = a.shape[-2:], b.shape[-1]
    shape = (*batch, m, n)
    shared = prod(b.shape[:-2]) == 1
    cpu = g.cpu
    if shared:
        if tuple(a.shape[:-2]) != batch:
            a = _spread(g, a, (*batch, m, k))
        left, sizes = (1, prod(batch) * m, k), (1, prod(batch) * m, k, n)
        packed = b.data is not None
    else:
        a, b = _spread(g, a, (*batch, m, k)), _spread(g, b, (*batch, k, n))
        left, sizes, packed = (prod(batch), m, k), (prod(batch), m, k, n), False
    is_narrow = packed and gemm.is_narrow(cpu, sizes)
    if is_narrow:
        right = g.const(np.ascontiguousarray(np.asarray(b.data).reshape(k, n).T))
    elif packed:
        width = gemm.panel_width(cpu, sizes[1], n)
        right = g.const(gemm.pack_columns(np.asarray(b.data).reshape(k, n), width))
    else:
        right = b

    def operands() -> list[Any]:
        flat = reshape(g, right, (sizes[0], k, n)) if not packed else right
        return [g.expr(reshape(g, a, left)), g.expr(flat)]

    operands_made = operands()
    rank = len(shape)
    return waiting(
        g,
        shape,
        (tuple(range(rank - 1)), (rank - 1,)),
        (sizes[0], sizes[1], n),
        lambda: operands_made,
        lambda extra, finish: (
            gemm.narrow(cpu, sizes, extra=extra, finish=finish)
            if is_narrow
            else gemm.matmul(cpu, sizes, packed=packed, shared=shared, extra=extra, finish=finish)
        ),
        loops=_loops(g, a, b, shared),
    )


def _loops(g: Builder, a: Tensor, b: Tensor, shared: bool) -> Loops:
    (m, k), n, batch = a.shape[-2:], b.shape[-1], a.shape[:-2]
    right = (k, n) if shared else tuple(b.shape)

    def multiplied(x: Any, y: Any) -> Any:
        r = te.reduce_axis((0, k), "k")

        def element(*index: Any) -> Any:
            *outer, i, j = index
            other = y(r, j) if shared else y(*outer, r, j)
            return te.sum(x(*outer, i, r) * other, axis=r)

        return te.compute((*batch, m, n), element, name="matmul")

    sizes = (tuple(a.shape), right)
    return Loops(
        title_of("matmul", sizes),
        sizes,
        multiplied,
        lambda: [g.expr(a), g.expr(reshape(g, b, right))],
    )


def _spread(g: Builder, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    if tuple(x.shape) == shape:
        return x
    if x.data is not None:
        return g.const(np.broadcast_to(x.data, shape))
    return g.emit(relax.op.broadcast_to(g.expr(x), list(shape)))


def _plain(g: Builder, a: Tensor, b: Tensor) -> Tensor:
    a, b = spread(g, [a, b], inner=2)
    batch = broadcast([a.shape[:-2], b.shape[:-2]])
    rank = len(batch)

    def compute(x: Any, y: Any) -> Any:
        k = te.reduce_axis((0, x.shape[-1]), "k")

        def element(*index: Any) -> Any:
            *outer, i, j = index
            return te.sum(
                x(*_outer(x, outer, rank), i, k) * y(*_outer(y, outer, rank), k, j), axis=k
            )

        return te.compute((*batch, x.shape[-2], y.shape[-1]), element, name="matmul")

    g.naive.append("matmul")
    return g.te(compute, a, b, name="matmul")


def _outer(x: Any, index: list[Any], rank: int) -> list[Any]:
    own = len(x.shape) - 2
    zero = tirx.const(0, "int64")
    sizes = x.shape[:own]
    return [
        zero if isinstance(s, tirx.IntImm) and s.value == 1 else i
        for s, i in zip(sizes, index[rank - own :], strict=True)
    ]


@OPS.lower("Gemm", dtypes=NUMBERS)
def gemm_(
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
    """``alpha * A @ B + beta * C``."""
    a = transpose(g, A, (1, 0)) if transA else A
    b = transpose(g, B, (1, 0)) if transB else B
    result = product(g, a, b)
    if alpha != 1:
        scale = g.const(np.asarray(alpha, np.float64).astype(result.dtype))
        result = g.map(lambda v, s: v * s, result, scale)
    if C is None or beta == 0:
        return result
    added = C
    if beta != 1:
        scale = g.const(np.asarray(beta, np.float64).astype(C.dtype))
        if C.data is not None:
            added = g.const(C.data * np.asarray(scale.data))
        else:
            added = g.map(lambda v, s: v * s, C, scale)
    return g.map(lambda v, c: v + c, result, added)


def transpose(g: Builder, x: Tensor, perm: tuple[int, ...]) -> Tensor:
    """Axes in another order."""
    if x.data is not None:
        made = g.const(np.ascontiguousarray(x.data.transpose(perm)))
        if x.blocks is not None and perm == (1, 0):
            made.blocks = x.blocks.swapped()
        return made
    return g.emit(relax.op.permute_dims(g.expr(x), list(perm)))


@OPS.lower("Einsum", dtypes=FLOATS)
def einsum(g: Builder, *Inputs: Tensor, equation: str) -> Tensor:
    """A sum of products over named axes."""
    labels, out = parse(equation, [t.rank for t in Inputs])
    full: dict[str, Any] = {}
    for names, tensor in zip(labels, Inputs, strict=True):
        for name, size in zip(names, tensor.shape, strict=True):
            if full.get(name, 1) == 1:
                full[name] = size
    summed = [n for n in full if n not in out]
    given = [
        alike(g, t, [s if s == 1 else full[n] for n, s in zip(names, t.shape, strict=True)])
        for names, t in zip(labels, Inputs, strict=True)
    ]

    def compute(*tensors: Any) -> Any:
        # An open size is known to the function by the tensors that it reads.
        sizes = dict.fromkeys(full, 1)
        for names, tensor, source in zip(labels, tensors, given, strict=True):
            rows = zip(names, tensor.shape, source.shape, strict=True)
            sizes |= {n: own for n, own, size in rows if size != 1}
        axes = {n: te.reduce_axis((0, sizes[n]), f"r{i}") for i, n in enumerate(summed)}

        def element(*index: Any) -> Any:
            at = {**axes, **dict(zip(out, index, strict=True))}
            value = None
            for names, tensor, source in zip(labels, tensors, given, strict=True):
                own = [
                    tirx.const(0, "int64") if s == 1 and full[n] != 1 else at[n]
                    for n, s in zip(names, source.shape, strict=True)
                ]
                one = tensor(*own)
                value = one if value is None else value * one
            return te.sum(value, axis=list(axes.values())) if axes else value

        return te.compute(tuple(full[n] for n in out), element, name="einsum")

    g.naive.append("einsum")
    return g.te(compute, *given, name="einsum")
