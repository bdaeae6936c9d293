"""What a shared lowering writes with: arithmetic of elements, and moves of whole tensors.

A target hands in its own: ``Elements`` names the operators of its format, ``Tensors`` adds what
needs axes. Numbers may stand for operands; they take the other one's element type.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, Protocol

import numpy as np

from edgeinfer.convert.lower.registry import Const, Refusal

Value = Any
"""A tensor of the target, or one element of it where the target compiles loops."""

Operator = Callable[..., Value]

Axes = Any
"""Numbers of axes, none negative; or a tensor where a target can reduce over those of a run."""


class Elements(Protocol):
    """Arithmetic element by element; operands broadcast."""

    def add(self, a: Value, b: Value) -> Value: ...  # noqa: D102
    def sub(self, a: Value, b: Value) -> Value: ...  # noqa: D102
    def mul(self, a: Value, b: Value) -> Value: ...  # noqa: D102
    def div(self, a: Value, b: Value) -> Value: ...  # noqa: D102
    def power(self, a: Value, b: Value) -> Value: ...  # noqa: D102
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
        """Return the axes that a reduction names; without any all of them, or none (``noop``)."""
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

    def const(self, value: Any, dtype: Any = None) -> Value:
        """Return a constant."""
        ...

    def single(self, x: Value) -> Value:
        """Convert narrower floats to single precision."""
        ...

    def like(self, x: Value, other: Value) -> Value:
        """Convert to the element type of another tensor."""
        ...

    def positions(self, x: Value) -> list[int]:
        """Return the axes besides those of the batch and of channels."""
        ...

    def channels(self, x: Value) -> int:
        """Return the axis of channels."""
        ...

    def by_channel(self, x: Value, vector: Value) -> Value:
        """Shape a vector so that it broadcasts along the channels of a tensor."""
        ...

    def sizes(self, x: Value) -> list[Any]:
        """Return the sizes; dynamic ones as the target holds them."""
        ...

    def reshape(self, x: Value, sizes: Sequence[Any]) -> Value:
        """Give another shape."""
        ...

    def standardised(self, x: Value, steps: Sequence[Sequence[int]], epsilon: float) -> Value:
        """Give zero mean and unit variance, of means over some axes after others."""
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

    def channels(self, x: Value) -> int:
        """Return the axis of channels: the second."""
        return 1

    def sizes(self, x: Value) -> list[Any]:
        """Return the sizes; dynamic ones are scalars."""
        return [self.g.extent(x, axis) for axis in range(x.rank)]

    def reshape(self, x: Value, sizes: Sequence[Any]) -> Value:
        """Give another shape."""
        return self.g.reshape(x, sizes)

    def by_channel(self, x: Value, vector: Value) -> Value:
        """Append an axis for each position."""
        return self.g.insert_axes(vector, list(range(1, x.rank - 1)))


def forwarded(name: str) -> Callable[..., Value]:
    """Return a method of ``Moved`` that the target's builder has."""

    def write(moved: Moved, *given: Any) -> Value:
        return getattr(moved.g, name)(*given)

    return write


class Moved(Emitted):
    """What lowerings of several steps write with: shapes, moves and products too.

    Sizes that are not known are scalars of the target; tensors know their ``shape``, ``dtype`` and,
    if they are constant, ``data``.
    """

    # Targets name the operators.
    add: Operator
    sub: Operator
    mul: Operator
    div: Operator
    tanh: Operator
    rsqrt: Operator
    select: Operator
    abs: Operator
    minimum: Operator
    maximum: Operator
    greater_equal: Operator
    less_equal: Operator
    logical_and: Operator

    extent = forwarded("extent")
    transpose, concat, cast = forwarded("transpose"), forwarded("concat"), forwarded("cast")

    def folded(self, function: Callable[..., Value], *operands: Value) -> Value:
        """Apply a function of ``Elements``: here, where all that it takes is known."""
        known = [v if isinstance(v, int) else v.data for v in operands]
        if any(v is None for v in known):
            return self.map(function, *operands)
        return self.const(function(KnownElements, *known))

    def const(self, value: Any, dtype: Any = None) -> Value:
        """Return a constant."""
        array = np.asarray(value, dtype)
        return self.g.const(array, array.dtype)

    def standardised(self, x: Value, steps: Sequence[Sequence[int]], epsilon: float) -> Value:
        """Write it as arithmetic."""
        from edgeinfer.convert.lower.ops.norm import standard

        return standard(self, x, steps, epsilon)

    def count(self, sizes: Sequence[Any]) -> Any:
        """Multiply sizes."""
        known = math.prod(s for s in sizes if isinstance(s, int))
        rest = [s for s in sizes if not isinstance(s, int)]
        if not rest:
            return known
        return reduce(self.mul, [*rest, *([known] if known != 1 else [])])

    def expand_dims(self, x: Value, axis: int) -> Value:
        """Add an axis of size 1."""
        return self.g.insert_axes(x, [axis])

    def part(self, x: Value, axis: int, start: int, stop: int, step: int = 1) -> Value:
        """Take elements of an axis."""
        if (start, stop, step) == (0, x.shape[axis], 1):
            return x
        begin, end, steps = [0] * x.rank, list(self.ends(x)), [1] * x.rank
        begin[axis], end[axis], steps[axis] = start, stop, step
        return self.g.slice(x, begin, end, steps)

    def ends(self, x: Value) -> Sequence[Any]:
        """Return what a slice of whole axes ends with."""
        return [None] * int(x.rank)

    def steps(self, x: Value, axis: int) -> Value:
        """Return 0, 1, 2, ... along an axis: int32."""
        raise NotImplementedError

    def take(self, x: Value, indices: Value, axis: int) -> Value:
        """Take slices along an axis."""
        raise NotImplementedError

    def product(self, a: Value, b: Value, *, transposed: bool = False) -> Value:
        """Multiply matrices, the second one transposed if requested."""
        raise NotImplementedError

    def softmax(self, x: Value) -> Value:
        """Exponentials over their sum, along the last axis."""
        raise NotImplementedError

    def split(self, x: Value, sizes: Sequence[int], axis: int) -> list[Value]:
        """Cut into parts along an axis."""
        if x.data is None:
            return list(self.g.split(x, list(sizes), axis))
        edges = np.cumsum(sizes)[:-1]
        return [self.const(part, x.dtype) for part in np.split(x.data, edges, axis)]

    def joined(self, parts: Sequence[Value], axis: int) -> Value:
        """Put parts together along an axis: here, where all are known."""
        if any(p.data is None for p in parts):
            return self.concat(parts, axis)
        return self.const(np.concatenate([p.data for p in parts], axis), parts[0].dtype)

    def row(self, x: Value, index: int) -> Value:
        """Take one element of the first axis."""
        if x.data is not None:
            return self.const(x.data[index], x.dtype)
        part = x if x.shape[0] == 1 else self.part(x, 0, index, index + 1)
        return self.drop(part, [0])

    def zeros(self, sizes: Sequence[Any], dtype: Any) -> Value:
        """Return zeros of sizes that may be known only at run time."""
        raise NotImplementedError

    def linear(self, x: Value, weights: Value, bias: Value | None = None) -> Value:
        """Multiply the last axis with that of the weights, and add a bias."""
        made = self.product(x, weights, transposed=True)
        return made if bias is None else self.add(made, bias)

    def run(self, direction: Any) -> tuple[Value, Sequence[Value]]:
        """Repeat the step of a recurrent layer's direction.

        Args:
            direction: a ``Direction`` of ``lower.ops.recurrent``.

        Returns:
            (steps, batch, hidden): the hidden states in the order of the input's steps; and the
            state after the last one that was run.
        """
        raise NotImplementedError

    def fused(self, directions: Sequence[Any]) -> tuple[Value, ...] | None:
        """Write a whole recurrent layer as an operator of the format; None if it has none."""
        return None

    def any_last(self, x: Value, dtype: Any) -> Value:
        """Whether a truth value holds anywhere along the last axis: one or zero."""
        return self.reduce("max", self.cast(x, dtype), [x.rank - 1])

    def pad_last(self, x: Value, size: Any, value: Any) -> Value:
        """Append a value until the last axis has a size."""
        missing = size - x.shape[-1] if isinstance(size, int) else size
        shape = [*x.shape[:-1], missing]
        if not all(isinstance(s, int) for s in (*shape, x.shape[-1])):
            raise Refusal("a mask of unknown sizes is shorter than the keys", "dynamic_shape")
        return self.concat([x, self.const(np.full(shape, value), x.dtype)], x.rank - 1)

    def reduce(self, kind: str, x: Value, axes: Axes, keep: bool = True) -> Value:
        """Reduce over axes."""
        raise NotImplementedError


class KnownElements:
    """Elements of constants."""

    add, sub, mul = np.add, np.subtract, np.multiply
    maximum, minimum, logical_and = np.maximum, np.minimum, np.logical_and
    less, less_equal, greater_equal = np.less, np.less_equal, np.greater_equal
    greater = np.greater


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
