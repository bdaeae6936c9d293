"""Systems of equations of a known size, which PyTorch's exporter has no form for: step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from edgeinfer.convert.sources.torch_script import like, opset, whole

_MOST = 16
"""Equations in a system: each of them is a step of some ten operators."""


def forms() -> Mapping[Any, Callable[..., Any]]:
    """Return functions of ``onnxscript`` by PyTorch's operator."""
    import torch

    aten = torch.ops.aten
    return {
        # These whole: what they consist of looks at errors, which nothing but PyTorch can.
        aten.linalg_inv.default: _inverse,
        aten.inverse.default: _inverse,
        aten.linalg_solve.default: _solve,
        aten.linalg_cholesky.default: _cholesky,
    }


def _count(a: Any) -> int:
    count = a.shape[-1]
    if not isinstance(count, int) or count > _MOST:
        raise NotImplementedError(f"a system of {count} equations; {_MOST} at most have a form")
    return count


def _cut(value: Any, first: int, end: int, axis: int) -> Any:
    return opset().Slice(value, whole(first), whole(end), whole(axis))


def _rows(count: int) -> Any:
    """Numbers of the rows, of (n, 1)."""
    return opset().Reshape(whole(*range(count)), whole(count, 1))


def _solved(a: Any, b: Any, count: int, width: int) -> Any:
    """Gauss's and Jordan's elimination: each step divides by the largest element left of a column.

    Given: ``a`` of (..., n, n) and ``b`` of (..., n, m)
    Result: ``x`` of (..., n, m) with a x = b
    """
    op = opset()
    both, rows, zero = op.Concat(a, b, axis=-1), _rows(count), like(0.0, a)
    for step in range(count):
        sizes = op.Abs(_cut(_cut(both, step, step + 1, -1), step, count, -2))
        chosen = op.Add(op.ArgMax(sizes, axis=-2, keepdims=1), whole(step))
        is_chosen, is_here = op.Equal(rows, chosen), op.Equal(rows, whole(step))
        row = op.ReduceSum(op.Where(is_chosen, both, zero), whole(-2), keepdims=1)
        both = op.Where(is_chosen, _cut(both, step, step + 1, -2), both)
        row = op.Div(row, _cut(row, step, step + 1, -1))
        factors = _cut(both, step, step + 1, -1)
        both = op.Where(is_here, row, op.Sub(both, op.Mul(factors, row)))
    return _cut(both, count, count + width, -1)


def _inverse(a: Any) -> Any:
    op, count = opset(), _count(a)
    one = op.EyeLike(op.Expand(like(0.0, a), whole(count, count)))
    return _solved(a, op.Expand(one, op.Shape(a)), count, count)


def _solve(a: Any, b: Any, *, left: bool = True) -> Any:
    op, count = opset(), _count(a)
    is_vector = len(b.shape) == 1 or list(b.shape) == list(a.shape)[:-1]
    if not left or (not is_vector and len(a.shape) != len(b.shape)):
        raise NotImplementedError("linalg.solve from the right, or of other batches")
    width = 1 if is_vector else b.shape[-1]
    if not isinstance(width, int):
        raise NotImplementedError("linalg.solve for an open count of right sides")
    found = _solved(a, op.Unsqueeze(b, whole(-1)) if is_vector else b, count, width)
    return op.Squeeze(found, whole(-1)) if is_vector else found


def _cholesky(self: Any, *, upper: bool = False) -> Any:
    """Column by column, each of which leaves a smaller matrix."""
    op, count = opset(), _count(self)
    rest, rows, zero, columns = self, _rows(count), like(0.0, self), []
    rank = len(self.shape)
    transposed = [*range(rank - 2), rank - 1, rank - 2]
    for step in range(count):
        column = _cut(rest, step, step + 1, -1)
        column = op.Div(column, op.Sqrt(_cut(column, step, step + 1, -2)))
        column = op.Where(op.Less(rows, whole(step)), zero, column)
        rest = op.Sub(rest, op.Mul(column, op.Transpose(column, perm=transposed)))
        columns.append(column)
    made = op.Concat(*columns, axis=-1)
    return op.Transpose(made, perm=transposed) if upper else made
