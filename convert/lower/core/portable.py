"""What a shared lowering writes with: arithmetic of elements, and moves of whole tensors.

A target hands in its own: ``Elements`` names the operators of its format, ``Tensors`` adds what
needs axes. Numbers may stand for operands; they take the other one's element type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

Value = Any
"""A tensor of the target, or one element of it where the target compiles loops."""


class Elements(Protocol):
    """Arithmetic element by element; operands broadcast."""

    def add(self, a: Value, b: Value) -> Value: ...  # noqa: D102
    def sub(self, a: Value, b: Value) -> Value: ...  # noqa: D102
    def mul(self, a: Value, b: Value) -> Value: ...  # noqa: D102
    def div(self, a: Value, b: Value) -> Value: ...  # noqa: D102
    def maximum(self, a: Value, b: Value) -> Value: ...  # noqa: D102
    def minimum(self, a: Value, b: Value) -> Value: ...  # noqa: D102
    def less(self, a: Value, b: Value) -> Value: ...  # noqa: D102
    def greater(self, a: Value, b: Value) -> Value: ...  # noqa: D102
    def select(self, condition: Value, a: Value, b: Value) -> Value: ...  # noqa: D102
    def abs(self, x: Value) -> Value: ...  # noqa: D102
    def neg(self, x: Value) -> Value: ...  # noqa: D102
    def sign(self, x: Value) -> Value: ...  # noqa: D102
    def exp(self, x: Value) -> Value: ...  # noqa: D102
    def log(self, x: Value) -> Value: ...  # noqa: D102
    def sqrt(self, x: Value) -> Value: ...  # noqa: D102
    def tanh(self, x: Value) -> Value: ...  # noqa: D102
    def sigmoid(self, x: Value) -> Value: ...  # noqa: D102
    def relu(self, x: Value) -> Value: ...  # noqa: D102

    def expm1(self, x: Value) -> Value:
        """``exp(min(x, 0)) - 1`` with all digits of small results."""
        ...

    def named(self, x: Value, use: Callable[[Value], Value]) -> Value:
        """Use a value several times that is computed once."""
        ...

    def is_half(self, x: Value) -> bool:
        """Whether the elements have half precision."""
        ...


class Tensors(Protocol):
    """Moves of whole tensors."""

    def rank(self, x: Value) -> int:
        """Number of axes."""
        ...

    def map(self, function: Callable[..., Value], *tensors: Value) -> Value:
        """Apply a function of ``Elements`` and one value a tensor to each element."""
        ...

    def reduce(self, kind: str, x: Value, axes: Sequence[int]) -> Value:
        """Reduce over axes, which stay with size 1; ``kind`` is max, sum or mean."""
        ...


class Emitted:
    """What formats share whose builders write an operator over whole tensors.

    Args:
        g: builder of the target; ``binary`` and ``unary`` write an operator by its name there.
    """

    def __init__(self, g: Any) -> None:
        self.g = g

    def named(self, x: Value, use: Callable[[Value], Value]) -> Value:
        """Use a tensor several times: each is computed once."""
        return use(x)

    def is_half(self, x: Value) -> bool:
        """Say whether elements have half precision."""
        return bool(x.dtype == np.float16)

    def rank(self, x: Value) -> int:
        """Return the number of axes."""
        return int(x.rank)

    def map(self, function: Callable[..., Value], *tensors: Value) -> Value:
        """Write the operators of a function."""
        return function(self, *tensors)


def binary(op: str) -> Callable[[Any, Any, Any], Value]:
    """Return a method of ``Emitted`` that writes an operator of two operands.

    Args:
        op: its name in the target's format.
    """

    def write(emitted: Emitted, a: Any, b: Any) -> Value:
        return emitted.g.binary(op, a, b)

    return write


def unary(op: str) -> Callable[[Any, Any], Value]:
    """Return a method of ``Emitted`` that writes an operator of one operand.

    Args:
        op: its name in the target's format.
    """

    def write(emitted: Emitted, x: Any) -> Value:
        return emitted.g.unary(op, x)

    return write
