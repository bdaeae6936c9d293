"""What a shared lowering writes with: arithmetic of elements, and moves of whole tensors.

A target hands in its own: ``Elements`` names the operators of its format, ``Tensors`` adds what
needs axes. Numbers may stand for operands; they take the other one's element type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from edgeinfer.convert.lower.registry import Const

Value = Any
"""A tensor of the target, or one element of it where the target compiles loops."""

Axes = Any
"""Numbers of axes, none negative; or a tensor where a target can reduce over those of a run."""


class Elements(Protocol):
    """Arithmetic element by element; operands broadcast."""

    def add(self, a: Value, b: Value) -> Value: ...  # noqa: D102
    def sub(self, a: Value, b: Value) -> Value: ...  # noqa: D102
    def mul(self, a: Value, b: Value) -> Value: ...  # noqa: D102
    def div(self, a: Value, b: Value) -> Value: ...  # noqa: D102
    def maximum(self, a: Value, b: Value) -> Value: ...  # noqa: D102
    def minimum(self, a: Value, b: Value) -> Value: ...  # noqa: D102
    def equal(self, a: Value, b: Value) -> Value: ...  # noqa: D102
    def less(self, a: Value, b: Value) -> Value: ...  # noqa: D102
    def less_equal(self, a: Value, b: Value) -> Value: ...  # noqa: D102
    def greater_equal(self, a: Value, b: Value) -> Value: ...  # noqa: D102
    def logical_and(self, a: Value, b: Value) -> Value: ...  # noqa: D102
    def logical_or(self, a: Value, b: Value) -> Value: ...  # noqa: D102
    def logical_xor(self, a: Value, b: Value) -> Value: ...  # noqa: D102
    def logical_not(self, x: Value) -> Value: ...  # noqa: D102
    def greater(self, a: Value, b: Value) -> Value: ...  # noqa: D102
    def select(self, condition: Value, a: Value, b: Value) -> Value: ...  # noqa: D102
    def abs(self, x: Value) -> Value: ...  # noqa: D102
    def neg(self, x: Value) -> Value: ...  # noqa: D102
    def sign(self, x: Value) -> Value: ...  # noqa: D102
    def exp(self, x: Value) -> Value: ...  # noqa: D102
    def log(self, x: Value) -> Value: ...  # noqa: D102
    def sqrt(self, x: Value) -> Value: ...  # noqa: D102
    def rsqrt(self, x: Value) -> Value: ...  # noqa: D102
    def tanh(self, x: Value) -> Value: ...  # noqa: D102
    def sigmoid(self, x: Value) -> Value: ...  # noqa: D102
    def relu(self, x: Value) -> Value: ...  # noqa: D102
    def erf(self, x: Value) -> Value: ...  # noqa: D102
    def sin(self, x: Value) -> Value: ...  # noqa: D102
    def cos(self, x: Value) -> Value: ...  # noqa: D102
    def tan(self, x: Value) -> Value: ...  # noqa: D102
    def asin(self, x: Value) -> Value: ...  # noqa: D102
    def acos(self, x: Value) -> Value: ...  # noqa: D102
    def atan(self, x: Value) -> Value: ...  # noqa: D102
    def sinh(self, x: Value) -> Value: ...  # noqa: D102
    def cosh(self, x: Value) -> Value: ...  # noqa: D102
    def floor(self, x: Value) -> Value: ...  # noqa: D102
    def ceil(self, x: Value) -> Value: ...  # noqa: D102
    def round(self, x: Value) -> Value: ...  # noqa: D102

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

    def axes(self, x: Value, given: Any, noop: int) -> Axes:
        """Return the axes that a reduction names; all of them where it names none, unless told."""
        ...

    def reduce(self, kind: str, x: Value, axes: Axes, keep: bool = True) -> Value:
        """Reduce over axes; ``kind`` is max, min, sum, mean or prod. Kept axes have size 1."""
        ...

    def drop(self, x: Value, axes: Axes) -> Value:
        """Leave out axes of size 1."""
        ...

    def has_largest(self, x: Value, axes: Axes) -> bool:
        """Whether each result of a reduction is certain to have an element, which can be found."""
        ...

    def single(self, x: Value) -> Value:
        """Convert narrower floats to single precision."""
        ...

    def like(self, x: Value, other: Value) -> Value:
        """Convert to the element type of another tensor."""
        ...

    def positions(self, x: Value) -> list[int]:
        """Return the axes beside those of the batch and of channels."""
        ...

    def by_channel(self, x: Value, vector: Value) -> Value:
        """Shape a vector so that it broadcasts along the channels of a tensor."""
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

    def axes(self, x: Value, given: Const | None, noop: int) -> Axes:
        """Return known axes."""
        return known_axes(x.rank, given, noop)

    def drop(self, x: Value, axes: Axes) -> Value:
        """Leave out axes of size 1."""
        return self.g.drop_axes(x, axes)

    def has_largest(self, x: Value, axes: Axes) -> bool:
        """Say whether there are axes, and none of them is empty."""
        return have_elements(x.shape, axes)

    def single(self, x: Value) -> Value:
        """Convert narrower floats to single precision."""
        return x if x.dtype.itemsize > 2 else self.g.cast(x, np.float32)

    def like(self, x: Value, other: Value) -> Value:
        """Convert to the element type of another tensor."""
        return self.g.cast(x, other.dtype)

    def positions(self, x: Value) -> list[int]:
        """Return the axes after the batch and the channels."""
        return list(range(2, x.rank))

    def by_channel(self, x: Value, vector: Value) -> Value:
        """Append an axis for each position."""
        return self.g.insert_axes(vector, list(range(1, x.rank - 1)))


def known_axes(rank: int, given: Const | None, noop: int) -> list[int]:
    """Return the axes that a reduction names, in order; without any it takes all or none."""
    named = () if given is None or not rank else given.array.reshape(-1)
    found = sorted({int(a) % rank for a in named})
    return found if found or noop else list(range(rank))


def have_elements(shape: Sequence[Any], axes: Sequence[int]) -> bool:
    """Whether there are axes, and none of them is empty."""
    return bool(axes) and all(shape[a] != 0 for a in axes)


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
