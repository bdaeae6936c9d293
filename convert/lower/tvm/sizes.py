"""Sizes that a run decides: written into small tensors of integers, and read from them.

What is read is held against what shape inference says of it, so that sizes which are one size have
one name; a run in which they differ ends in an error, and never reads beyond a tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
import onnx_ir as ir
from tvm import relax, te, tirx

from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.lower.tvm.builder import Builder, Size, Tensor, at, plain, same
from edgeinfer.kernels.defs import chosen as kernels

_GPU = "sizes that a run decides, which were never run on a GPU"

Decision = tuple[Sequence[Any], Any]
"""Sizes as expressions of int64, and a condition without which there are none (None: always)."""


def values(g: Builder, sizes: Sequence[Size]) -> Tensor:
    """Return sizes as a vector of int64."""
    if all(isinstance(s, int) for s in sizes):
        return g.const(np.asarray(sizes, np.int64))
    if not g.on_cpu:
        raise Refusal(_GPU, "dynamic_shape")
    # TVM would fuse its own operator with what reads it, and lose sight of a size.
    kernel = kernels.listed(len(sizes)).with_attr("op_pattern", 8)
    where = g.block.add_func(kernel, "sizes")
    kind = relax.TensorType([len(sizes)], "int64")
    return g.emit(relax.call_tir(where, [_number(size) for size in sizes], kind))


def known(tensor: Tensor | None) -> list[int] | None:
    """The integers that a tensor is known to hold."""
    if tensor is None or tensor.data is None:
        return None
    return [int(v) for v in np.asarray(tensor.data).reshape(-1)]


def count_of(tensor: Tensor) -> int:
    """How many elements a tensor of sizes has.

    Raises:
        Refusal: it is known only at run time.
    """
    if not tensor.is_static:
        raise Refusal("an open number of sizes", "dynamic_shape")
    return prod(tensor.shape)


def decided(
    g: Builder,
    operands: Sequence[Tensor],
    make: Callable[..., Decision],
    expected: Sequence[Size | str | None],
) -> tuple[Size, ...]:
    """Have a run compute sizes.

    Args:
        g: the graph.
        operands: vectors of integers.
        make: gets functions that read an operand's element, and gives as many sizes as are
            expected.
        expected: For each axis a size that it must be, or the name that it gets; None for a new
            one.

    Returns:
        Sizes that have no other use than the shapes of results: those become the expected ones.
    """
    if not g.on_cpu:
        raise Refusal(_GPU, "dynamic_shape")

    from edgeinfer.convert.lower.tvm.ops.matrix import reshape

    again = [i for i, s in enumerate(expected) if s is not None and not isinstance(s, str)]
    flat = [reshape(g, t, (count_of(t),)) for t in operands]
    # Fused with what it reads it would be written out anew for each of the sizes.
    kernel = kernels.decided([(t.shape[0], t.dtype) for t in flat], len(expected), again, make)
    length = 1 + len(expected) + len(again)
    found = g.wrap(g.tir(kernel, [g.expr(t) for t in flat], (length,), "int64"))
    # A name of its own: TVM drops what nobody reads, and with a known size nobody would.
    own = [g.count() for _ in expected]
    shaped = g.block.emit(relax.op.tensor_to_shape(g.expr(found)))
    sure = [1, *own, *(expected[i] for i in again)]
    g.block.match_cast(shaped, relax.ShapeType([_number(size) for size in sure]))
    for size, said in zip(own, expected, strict=True):
        if isinstance(said, str):
            g.sizes.setdefault(said, size)
        elif said is not None:
            g.known_sizes.append((size, said))
    return tuple(own)


def _number(size: Size) -> Any:
    return tirx.IntImm("int64", size) if isinstance(size, int) else size


def expected(g: Builder, rank: int, output: int = 0) -> list[Size | str | None]:
    """What shape inference says of a result's sizes."""
    node = g.current()
    value = None if node is None or output >= len(node.outputs) else node.outputs[output]
    if value is None or value.shape is None or len(value.shape) != rank:
        return [None] * rank
    return [_said(g, size) for size in value.shape]


def _said(g: Builder, size: int | ir.SymbolicDim) -> Size | str | None:
    if isinstance(size, int):
        return size
    return None if size.value is None else g.sizes.get(size.value, size.value)


def asked(g: Builder, tensor: Tensor, output: int = 0) -> tuple[Size, ...]:
    """Return the sizes that a tensor holds, none of them negative."""
    numbers = known(tensor)
    if numbers is not None:
        return tuple(numbers)
    count = count_of(tensor)

    def make(read: Callable[[int], Any]) -> Decision:
        return [read(i) for i in range(count)], None

    return decided(g, [tensor], make, expected(g, count, output))


# ---- sizes that must fit


def alike(g: Builder, x: Tensor, shape: Sequence[Size | None]) -> Tensor:
    """Return a tensor as one of other sizes, where they may be the same; a run checks it.

    Raises:
        Refusal: they differ.
    """
    wanted = [own if size is None else size for own, size in zip(x.shape, shape, strict=True)]
    if all(same(own, size) for own, size in zip(x.shape, wanted, strict=True)):
        return x
    pairs = zip(x.shape, wanted, strict=True)
    if any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs):
        raise Refusal(f"sizes {x.shape} and {tuple(wanted)} do not fit", "dynamic_shape")
    if not g.on_cpu:
        raise Refusal(_GPU, "dynamic_shape")
    return g.wrap(g.block.match_cast(g.expr(x), relax.TensorType(wanted, x.dtype)))


def spread(g: Builder, tensors: Sequence[Tensor], *, inner: int = 0) -> list[Tensor]:
    """Repeat tensors along axes that may have one element, which is known only at run time.

    Args:
        g: the graph.
        tensors: which are broadcast together.
        inner: last axes of each that are not.
    """
    full = common(g, [t.shape[: t.rank - inner] for t in tensors])
    return [repeated(g, t, full, inner=inner) for t in tensors]


def common(
    g: Builder, shapes: Sequence[Sequence[Size]], said: Sequence[Size | str | None] = ()
) -> dict[int, Size]:
    """Return, by the place from the end, dynamic sizes of shapes broadcast together.

    Args:
        g: the graph.
        shapes: all of them.
        said: what the sizes must be, or their names, where that is known.

    Raises:
        Refusal: they do not fit.
    """
    rank = max(map(len, shapes))
    given = {-a: found for a in range(1, rank + 1) if len(found := _different(shapes, -a)) > 1}
    if not given:
        return {}

    def make(read: Callable[[int], Any]) -> Decision:
        one, start = tirx.const(1, "int64"), 0
        results, tests = [], []
        for sizes in given.values():
            own = [read(start + i) for i in range(len(sizes))]
            start += len(sizes)
            result = own[-1]
            for size in reversed(own[:-1]):
                result = tirx.Select(tirx.EQ(size, one), result, size)
            tests += [tirx.Or(tirx.EQ(size, one), tirx.EQ(size, result)) for size in own]
            results.append(result)
        return results, tirx.all(*tests)

    wanted = [
        next((s for s in sizes if isinstance(s, int)), said[axis] if said else None)
        for axis, sizes in given.items()
    ]
    flat = [size for sizes in given.values() for size in sizes]
    return dict(zip(given, decided(g, [values(g, flat)], make, wanted), strict=True))


def _different(shapes: Sequence[Sequence[Size]], axis: int) -> list[Size]:
    """The sizes of an axis that are not surely one or the same."""
    found: list[Size] = []
    for shape in shapes:
        size = shape[axis] if len(shape) >= -axis else 1
        is_one = isinstance(size, int) and size == 1
        if not is_one and not any(same(size, other) for other in found):
            found.append(size)
    numbers = [size for size in found if isinstance(size, int)]
    if len(numbers) > 1:
        raise Refusal(f"sizes {numbers[0]} and {numbers[1]} do not fit", "dynamic_shape")
    return found


def repeated(g: Builder, x: Tensor, full: dict[int, Size], *, inner: int = 0) -> Tensor:
    """Repeat a tensor along axes that may have one element, counted from the end."""
    shape = list(x.shape)
    for place, size in full.items():
        axis = x.rank - inner + place
        if axis >= 0 and not (isinstance(shape[axis], int) and shape[axis] == 1):
            shape[axis] = size
    if all(same(a, b) for a, b in zip(shape, x.shape, strict=True)):
        return x

    def compute(source: Any) -> Any:
        def element(*index: Any) -> Any:
            zero, there = tirx.const(0, "int64"), []
            for i, own, size in zip(index, source.shape, shape, strict=True):
                kept = same(plain(own), plain(size))
                there.append(i if kept else tirx.Select(own == 1, zero, i.astype("int64")))
            return at(source, there)

        return te.compute(tuple(shape), element, name="spread")

    return g.te(compute, x, name="spread")
