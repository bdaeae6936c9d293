"""Matrix products."""

from __future__ import annotations

from edgeinfer.convert.lower.coreai.builder import Builder
from edgeinfer.convert.lower.coreai.registry import NUMBERS, OPS
from edgeinfer.convert.lower.coreai.tensor import Tensor
from edgeinfer.convert.lower.registry import Refusal


def product(g: Builder, a: Tensor, b: Tensor) -> Tensor:
    """Multiply as numpy.matmul does."""
    left, right = a.rank == 1, b.rank == 1
    if left:
        a = g.insert_axes(a, [0])
    if right:
        b = g.insert_axes(b, [1])
    made = g.binary("batch_matmul", a, b)
    gone = [made.rank - 2] * left + [made.rank - 1] * right
    return g.drop_axes(made, gone)


@OPS.lower("MatMul", dtypes=NUMBERS)
def mat_mul(g: Builder, A: Tensor, B: Tensor) -> Tensor:
    return product(g, A, B)


@OPS.lower("Gemm", dtypes=NUMBERS)
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
    if not A.is_float and (alpha != 1 or beta != 1):
        raise Refusal("factors of integers")
    a = g.transpose(A, [1, 0]) if transA else A
    b = g.transpose(B, [1, 0]) if transB else B
    made = product(g, a, b)
    if alpha != 1:
        made = g.binary("mul", made, alpha)
    if C is None:
        return made
    return g.binary("add", made, C if beta == 1 else g.binary("mul", C, beta))
