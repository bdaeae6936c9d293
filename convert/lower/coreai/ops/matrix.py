"""Matrix products."""

from __future__ import annotations

from edgeinfer.convert.lower.coreai.builder import Builder
from edgeinfer.convert.lower.coreai.registry import NUMBERS, OPS
from edgeinfer.convert.lower.coreai.tensor import Tensor
from edgeinfer.convert.lower.equation import parse
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


@OPS.lower("MatMul", since=13, dtypes=NUMBERS)
def mat_mul(g: Builder, A: Tensor, B: Tensor) -> Tensor:
    return product(g, A, B)


@OPS.lower("Gemm", since=13, dtypes=NUMBERS)
def gemm(
    g: Builder,
    A: Tensor,
    B: Tensor,
    C: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
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


@OPS.lower("Einsum", since=12, dtypes=NUMBERS)
def einsum(g: Builder, *inputs: Tensor, equation: str) -> Tensor:
    terms, result = parse(equation, [t.rank for t in inputs])
    labels: list[str]
    for term in (*terms, result):
        if len(set(term)) != len(term):
            raise Refusal(f"a label twice in one term: {equation!r}")
    labels, tensor = list(terms[0]), inputs[0]
    for index, other in enumerate(inputs[1:], 1):
        later = {x for term in terms[index + 1 :] for x in term} | set(result)
        labels, tensor = _pair(g, tensor, labels, other, list(terms[index]), later)
    gone = [i for i, x in enumerate(labels) if x not in result]
    tensor = g.reduce("sum", tensor, gone, keepdims=False)
    labels = [x for x in labels if x in result]
    return g.transpose(tensor, [labels.index(x) for x in result])


def _pair(
    g: Builder, a: Tensor, left: list[str], b: Tensor, right: list[str], kept: set[str]
) -> tuple[list[str], Tensor]:
    """Multiply two terms; sums over what only they have."""
    shared = [x for x in left if x in right]
    batch = [x for x in shared if x in kept]
    summed = [x for x in shared if x not in kept]
    rows, columns = [x for x in left if x not in right], [x for x in right if x not in left]
    first = g.transpose(a, [left.index(x) for x in (*batch, *rows, *summed)])
    second = g.transpose(b, [right.index(x) for x in (*batch, *summed, *columns)])
    sizes = {x: g.extent(a, left.index(x)) for x in left}
    more = {x: g.extent(b, right.index(x)) for x in right}
    if any((sizes[x] == 1 and more[x] != 1) or (more[x] == 1 and sizes[x] != 1) for x in shared):
        raise Refusal("a label with size 1 in one term")
    sizes |= more

    def flat(t: Tensor, *groups: list[str]) -> Tensor:
        return g.reshape(
            t, [*(sizes[x] for x in batch), *(_total(g, [sizes[x] for x in q]) for q in groups)]
        )

    made = g.binary("batch_matmul", flat(first, rows, summed), flat(second, summed, columns))
    labels = [*batch, *rows, *columns]
    return labels, g.reshape(made, [sizes[x] for x in labels])


def _total(g: Builder, sizes: list[int | Tensor]) -> int | Tensor:
    total: int | Tensor = 1
    for size in sizes:
        if isinstance(total, int) and isinstance(size, int):
            total *= size
        elif isinstance(total, Tensor):
            total = g.binary("mul", total, size)
        else:
            total = g.binary("mul", size, total) if isinstance(size, Tensor) else size
    return total
