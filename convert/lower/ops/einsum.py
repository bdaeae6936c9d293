"""Einstein sums: transposes, reshapes and products of two operands at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgeinfer.convert.lower.core.portable import Moved, Value
from edgeinfer.convert.lower.core.table import moved
from edgeinfer.convert.lower.equation import Labels, parse
from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.records import dataclass


@dataclass(frozen=True, slots=True)
class _Term:
    """A tensor with a name for each axis."""

    tensor: Value
    labels: Labels

    def extent(self, g: Moved, label: str) -> Any:
        return g.extent(self.tensor, self.labels.index(label))

    def size(self, label: str) -> Any:
        return self.tensor.shape[self.labels.index(label)]

    def ordered(self, g: Moved, labels: Sequence[str]) -> Value:
        """The tensor with its axes in another order."""
        return g.transpose(self.tensor, [self.labels.index(n) for n in labels])


@moved("Einsum")
def einsum(g: Moved, *inputs: Value, equation: str) -> Value:
    """Sum of products, by the labels of the axes."""
    operands, output = parse(equation, [t.rank for t in inputs])
    terms = [_diagonal(g, _Term(t, n)) for t, n in zip(inputs, operands, strict=True)]
    found = terms[0]
    for index, term in enumerate(terms[1:], 1):
        later = {n for t in terms[index + 1 :] for n in t.labels}
        found = _contract(g, found, term, set(output) | later)
    found = _summed(g, found, set(output))
    present = [n for n in output if n in found.labels]
    if len(present) != len(output):
        raise Refusal(f"the result has axes {output} of which {present} are given")
    return found.ordered(g, present)


def _diagonal(g: Moved, term: _Term) -> _Term:
    """Take the diagonal of axes with the same label."""
    twice = next((n for n in term.labels if term.labels.count(n) > 1), None)
    if twice is None:
        return term
    first = term.labels.index(twice)
    second = term.labels.index(twice, first + 1)
    rest = [i for i in range(len(term.labels)) if i not in (first, second)]
    x = g.transpose(term.tensor, [*rest, first, second])
    if not all(isinstance(s, int) for s in x.shape) or x.shape[-1] != x.shape[-2]:
        raise Refusal(f"the diagonal of {term.tensor.shape}", "dynamic_shape")
    size = x.shape[-1]
    flat = g.reshape(x, [*x.shape[:-2], size * size])
    x = g.part(flat, len(rest), 0, size * size, size + 1)
    return _diagonal(g, _Term(x, (*(term.labels[i] for i in rest), twice)))


def _summed(g: Moved, term: _Term, keep: set[str]) -> _Term:
    axes = [i for i, n in enumerate(term.labels) if n not in keep]
    if not axes:
        return term
    labels = tuple(n for n in term.labels if n in keep)
    return _Term(g.reduce("sum", term.tensor, axes, False), labels)


def _contract(g: Moved, a: _Term, b: _Term, keep: set[str]) -> _Term:
    """Combine two terms; labels that are in neither ``keep`` nor both are summed first."""
    a, b = _summed(g, a, keep | set(b.labels)), _summed(g, b, keep | set(a.labels))
    shared = [n for n in a.labels if n in b.labels]
    inner = [n for n in shared if n not in keep]
    batch = [n for n in shared if n in keep]
    free_a = [n for n in a.labels if n not in shared]
    free_b = [n for n in b.labels if n not in shared]
    labels = (*batch, *free_a, *free_b)
    if not inner or any(n.isdigit() or 1 in {a.size(n), b.size(n)} for n in inner):
        order = (*labels, *inner)
        wide = g.mul(_spread(g, a, order), _spread(g, b, order))
        return _summed(g, _Term(wide, order), set(labels))
    left = _matrix(g, a, batch, free_a, inner)
    right = _matrix(g, b, batch, free_b, inner)
    found = g.product(left, right, transposed=True)
    if len(free_a) == len(free_b) == 1:
        return _Term(found, labels)
    sizes = [g.extent(found, i) for i in range(len(batch))]
    sizes += [*(a.extent(g, n) for n in free_a), *(b.extent(g, n) for n in free_b)]
    return _Term(g.reshape(found, sizes), labels)


def _spread(g: Moved, term: _Term, labels: Labels) -> Value:
    """Transpose to an order of labels, with axes of size one for those that are missing."""
    present = [n for n in labels if n in term.labels]
    x = term.ordered(g, present)
    if len(present) == len(labels):
        return x
    return g.reshape(x, [term.extent(g, n) if n in term.labels else 1 for n in labels])


def _matrix(
    g: Moved, term: _Term, batch: Sequence[str], free: Sequence[str], inner: Sequence[str]
) -> Value:
    """Transpose and join axes to ``(batch..., free, inner)``."""
    x = term.ordered(g, (*batch, *free, *inner))
    if len(free) == len(inner) == 1:
        return x
    sizes = [term.extent(g, n) for n in batch]
    joined = (g.count([term.extent(g, n) for n in labels]) for labels in (free, inner))
    return g.reshape(x, [*sizes, *joined])
