"""Dynamic sizes, and element types that travel as bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np

from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.lower.tflite.builder import Builder, Extent
from edgeinfer.convert.lower.tflite.graph import Shape, Size, Tensor

F = TypeVar("F", bound=Callable[..., Any])

INT_MAX = 2**31 - 1
INT_MIN = -(2**31)

# Kernels that only move values lack some of these; integers of the same width go everywhere.
_CARRIER: dict[str, np.dtype[Any]] = {
    "bfloat16": np.dtype(np.int16),
    "float16": np.dtype(np.int16),
    "float64": np.dtype(np.int64),
    "uint16": np.dtype(np.int16),
    "uint32": np.dtype(np.int32),
    "uint64": np.dtype(np.int64),
}


def carried(**more: Any) -> Callable[[F], F]:
    """Decorate a lowering that only moves values, to see integers in place of odd types.

    Args:
        **more: further element types and what carries them, e.g. ``bool=np.int8``.

    Of a tuple of results the first has values, further ones are positions and counts; of a list
    all have values.
    """
    known: dict[str, np.dtype[Any]] = {**_CARRIER}
    known.update((name, np.dtype(kind)) for name, kind in more.items())

    def decorate(lowering: F) -> F:
        @wraps(lowering)
        def moved(g: Builder, *operands: Any, **attributes: Any) -> Any:
            first = next(t for t in operands if isinstance(t, Tensor))
            own: np.dtype[Any] = first.dtype
            to = known.get(own.name)
            if to is None:
                plain = lowering(g, *operands, **attributes)
                return tuple(plain) if isinstance(plain, list) else plain
            inner = [
                as_bits(g, t, to) if isinstance(t, Tensor) and t.dtype == own else t
                for t in operands
            ]
            result = lowering(g, *inner, **attributes)
            if isinstance(result, tuple):
                return (as_bits(g, result[0], own), *result[1:])
            if isinstance(result, list):
                return tuple(as_bits(g, t, own) for t in result)
            return as_bits(g, result, own)

        return cast(F, moved)

    return decorate


def as_bits(g: Builder, x: Tensor, dtype: np.dtype[Any]) -> Tensor:
    """Read the same bits as another element type of the same width."""
    if x.dtype == dtype:
        return x
    if x.data is not None:
        return g.const(x.data.view(dtype))
    return g.emit("BITCAST", [x], x.shape, dtype)


def constant(x: Tensor | None, name: str) -> Any:
    """The values of an operand that must be known, as a flat list; None stays None.

    Raises:
        Refusal: it is computed.
    """
    if x is None:
        return None
    if x.data is None:
        raise Refusal(f"input {name!r} must be constant", "requires_constant")
    return x.data.ravel().tolist()


def axis_of(axis: int, rank: int) -> int:
    """Count an axis from the front.

    Raises:
        Refusal: the tensor has no such axis.
    """
    if not -rank <= axis < max(rank, 1):
        raise Refusal(f"axis {axis} of a tensor of rank {rank}")
    return axis % rank if rank else 0


def extents(g: Builder, x: Tensor) -> list[Extent]:
    """Every size of a tensor."""
    return [g.extent(x, axis) for axis in range(x.rank)]


def shape_tensor(g: Builder, x: Tensor, dtype: Any = np.int32) -> Tensor:
    """The shape as a vector; a constant where it is known."""
    if x.is_static:
        return g.const(list(x.static_shape), dtype)
    kind = np.dtype(dtype)
    return g.emit("SHAPE", [x], (x.rank,), kind, out_type=kind)


def scalar(g: Builder, size: Extent) -> Tensor:
    """An extent as an int32 scalar."""
    return size if isinstance(size, Tensor) else g.const(size, np.int32)


def compute(g: Builder, code: str, a: Extent, b: Extent) -> Extent:
    """Add, subtract, multiply, divide or compare two sizes."""
    if isinstance(a, int) and isinstance(b, int):
        return int(_PLAIN[code](a, b))
    return g.binary(code, scalar(g, a), scalar(g, b))


_PLAIN: dict[str, Callable[[int, int], int]] = {
    "ADD": lambda a, b: a + b,
    "SUB": lambda a, b: a - b,
    "MUL": lambda a, b: a * b,
    "FLOOR_DIV": lambda a, b: a // b,
    "MAXIMUM": max,
    "MINIMUM": min,
}


def product(g: Builder, sizes: Sequence[Extent]) -> Extent:
    """The number of elements."""
    total: Extent = 1
    for size in sizes:
        total = size if total == 1 else compute(g, "MUL", total, size)
    return total


def known(sizes: Sequence[Extent]) -> Shape:
    """Extents as a shape."""
    return tuple(s if isinstance(s, int) else None for s in sizes)


def known_product(sizes: Sequence[Size]) -> Size:
    """The number of elements, where known."""
    total = 1
    for size in sizes:
        if size is None:
            return None
        total *= size
    return total


def reform(g: Builder, x: Tensor, sizes: Sequence[Extent]) -> Tensor:
    """Reshape; one dynamic size is left to the engine."""
    unknown = [i for i, s in enumerate(sizes) if not isinstance(s, int)]
    if len(unknown) == 1 and 0 not in sizes:
        return g.reshape(x, [-1 if i in unknown else s for i, s in enumerate(sizes)])
    return g.reshape(x, sizes)


def merge(g: Builder, x: Tensor, groups: Sequence[Sequence[int]]) -> Tensor:
    """Join neighbouring axes; ``groups`` lists the axes of each new one."""
    sizes: list[Extent] = []
    unknown = [
        i for i, group in enumerate(groups) if known_product([x.shape[a] for a in group]) is None
    ]
    for i, group in enumerate(groups):
        one = len(unknown) == 1 and i in unknown
        sizes.append(-1 if one else product(g, [g.extent(x, a) for a in group]))
    if 0 in sizes and -1 in sizes:
        sizes = [product(g, [g.extent(x, a) for a in group]) for group in groups]
    return g.reshape(x, sizes)


def around(rank: int, axis: int) -> list[list[int]]:
    """Groups that leave one axis between all before it and all after it."""
    return [list(range(axis)), [axis], list(range(axis + 1, rank))]


def narrow(g: Builder, x: Tensor) -> Tensor:
    """Integers as int32, clipped to its range: for positions, where no tensor reaches further."""
    if x.dtype == np.int32:
        return x
    if x.data is not None:
        return g.const(np.clip(x.data, INT_MIN, INT_MAX).astype(np.int32))
    if x.dtype == np.int64:
        x = g.binary("MINIMUM", g.binary("MAXIMUM", x, INT_MIN), INT_MAX)
    return g.cast(x, np.int32)


def counting(g: Builder, size: Extent, start: Extent = 0) -> Tensor:
    """``start, start + 1, ...``: as many int32 numbers as ``size``."""
    if isinstance(size, int) and isinstance(start, int):
        return g.const(np.arange(start, start + size, dtype=np.int32))
    limit = compute(g, "ADD", start, size)
    operands = [scalar(g, start), scalar(g, limit), g.const(1, np.int32)]
    return g.emit("RANGE", operands, known([size]), np.int32)


def fold_binary(g: Builder, code: str, a: Tensor, b: Tensor) -> Tensor:
    """An operator on integers, computed here where both are constants."""
    if a.data is None or b.data is None:
        return g.binary(code, a, b)
    ufunc = {"ADD": np.add, "MUL": np.multiply, "SUB": np.subtract}[code]
    return g.const(ufunc(a.data, b.data).astype(a.dtype))


def non_negative(g: Builder, indices: Tensor, size: Extent | Tensor) -> Tensor:
    """Count negative indices from the end; those out of range stay so and fail at run time.

    Args:
        g: the graph.
        indices: int32 or int64.
        size: Size of the indexed axis, or a tensor that broadcasts against the indices.
    """
    kind = indices.dtype
    if indices.data is not None:
        if not (indices.data < 0).any():
            return indices
        if not isinstance(size, Tensor) or size.data is not None:
            length = size.data if isinstance(size, Tensor) else size
            return g.const(np.where(indices.data < 0, indices.data + length, indices.data), kind)
    count = g.cast(size, kind) if isinstance(size, Tensor) else g.const(size, kind)
    moved = g.binary("ADD", indices, count)
    below = g.binary("LESS", indices, 0)
    return g.emit("SELECT_V2", [below, moved, indices], moved.shape, kind)
