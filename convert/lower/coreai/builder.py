"""The builder that lowerings write with: one operation of Core AI a call, and the shared moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from edgeinfer.backends.engines import import_coreai
from edgeinfer.convert.lower.coreai.tensor import Shape, Tensor
from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.types import Array

Extent = int | Tensor
"""A size that is known, or an int64 scalar that holds it when the model runs."""

Operand = Tensor | int | float | bool | np.generic

LARGEST = (1 << 31) - 1


class Builder:
    """Operations of one graph; its context must be active."""

    def __init__(self) -> None:
        self.dialect: Any = import_coreai().dialect
        self._ir: Any = import_coreai().ir
        self._tensor_type: Any = import_coreai().authoring.TensorType

    # Values ------------------------------------------------------------------------------------

    def wrap(self, value: Any) -> Tensor:
        """Describe a value of the library by its type."""
        kind = self._tensor_type._from_mlir(value.type)
        dtype = kind.dtype.numpy
        shape = tuple(None if s < 0 else int(s) for s in kind.shape)
        return Tensor(value, np.dtype(dtype), shape)

    def type_of(self, dtype: Any, shape: Shape) -> Any:
        """The library's type of such tensors."""
        return self._tensor_type(
            [-1 if s is None else s for s in shape], np.dtype(dtype)
        )._to_mlir()

    def const(self, value: Any, dtype: Any = None) -> Tensor:
        """Add a constant."""
        array = np.asarray(value, dtype)
        if not array.flags.c_contiguous:
            array = np.ascontiguousarray(array)
        return Tensor(self.dialect.constant(array), array.dtype, array.shape, array)

    def call(self, op: str, *operands: Any) -> Tensor:
        """Add an operation with one result; arrays become constants."""
        return self.wrap(self._raw(op, *operands))

    def call_all(self, op: str, *operands: Any) -> list[Tensor]:
        """Add an operation with several results."""
        made = self._raw(op, *operands)
        return [self.wrap(v) for v in ([made] if hasattr(made, "type") else made)]

    def _raw(self, op: str, *operands: Any) -> Any:
        return self._made(op, *(self._operand(x) for x in operands))

    def _made(self, op: str, *given: Any, **named: Any) -> Any:
        try:
            return getattr(self.dialect, op)(*given, **named)
        except ValueError as e:
            raise Refusal(f"Core AI's {op} refuses it: {str(e).splitlines()[0]}") from e

    def _operand(self, x: Any) -> Any:
        if isinstance(x, Tensor):
            return x.value
        if isinstance(x, (np.ndarray, np.generic)):
            return self.dialect.constant(np.asarray(x))
        return x

    @contextmanager
    def inside(self, block: Any) -> Iterator[list[Tensor]]:
        """Build the body of a conditional or a loop."""
        with block:
            yield [self.wrap(v) for v in block.arguments]

    def typed(self, x: Tensor, shape: Shape) -> Tensor:
        """Say more, or less, of a shape: types must agree to the letter where bodies meet."""
        if x.shape == shape:
            return x
        made = self._ir.Operation.create(
            "coreai.cast", results=[self.type_of(x.dtype, shape)], operands=[x.value]
        )
        return self.wrap(made.results[0])

    def _known(self, made: Tensor, sizes: Sequence[Extent]) -> Tensor:
        """Add what is known of a shape that was put together when the model runs."""
        known = [s if isinstance(s, int) and s >= 0 else None for s in sizes]
        pairs = zip(made.shape, known, strict=True)
        return self.typed(made, tuple(a if k is None else k for a, k in pairs))

    # Elementwise -------------------------------------------------------------------------------

    def like(self, x: Operand, other: Tensor) -> Tensor:
        """Return a tensor; a plain number takes the other one's type."""
        return x if isinstance(x, Tensor) else self.const(x, other.dtype)

    def binary(self, op: str, a: Operand, b: Operand) -> Tensor:
        """Add an elementwise operator that broadcasts."""
        if not isinstance(a, Tensor):
            if not isinstance(b, Tensor):
                raise TypeError("one operand must be a tensor")
            a = self.like(a, b)
        return self.call(f"broadcasting_{op}", a, self.like(b, a))

    def unary(self, op: str, x: Tensor) -> Tensor:
        """Add an elementwise operator of one operand."""
        return self.call(op, x)

    def less(self, a: Operand, b: Operand) -> Tensor:
        """Whether a < b."""
        return self.binary("greater", b, a)

    def select(self, condition: Tensor, a: Operand, b: Operand) -> Tensor:
        """Take ``a`` where the condition holds, else ``b``."""
        first = self.like(a, b) if isinstance(b, Tensor) else a
        if not isinstance(first, Tensor):
            raise TypeError("one choice must be a tensor")
        return self.call("broadcasting_where", condition, first, self.like(b, first))

    def neg(self, x: Tensor) -> Tensor:
        """Change the sign."""
        if x.dtype.kind in "iu":
            return self.binary("sub", 0, x)
        return self.binary("mul", x, -1)

    def floor(self, x: Tensor) -> Tensor:
        """Round down; floor_divide makes NaN of infinities."""
        if not x.is_float:
            return x
        bits = np.finfo(x.dtype).nmant
        whole = self.binary("greater", self.unary("abs_", x), float(2**bits) - 1)
        down = self.binary("floor_divide", x, 1)
        return self.select(whole, x, down)

    def clip(self, x: Tensor, low: Operand | None, high: Operand | None) -> Tensor:
        """Keep between two bounds."""
        if low is not None:
            x = self.binary("maximum", x, low)
        return x if high is None else self.binary("minimum", x, high)

    def cast(self, x: Tensor, dtype: Any) -> Tensor:
        """Convert the element type as ONNX does."""
        dtype = np.dtype(dtype)
        if x.dtype == dtype:
            return x
        if x.data is not None:
            with np.errstate(all="ignore"):
                return self.const(x.data.astype(dtype))
        if dtype == np.bool_:
            return self.binary("not_equal", x, 0)
        if x.is_float and dtype.kind in "iu" and dtype.itemsize < 4:
            # What a number beyond the type becomes is not defined; ONNX Runtime wraps it.
            x = self.call("cast", x, np.dtype(np.int32))
        return self.call("cast", x, dtype)

    # Shapes ------------------------------------------------------------------------------------

    def extent(self, x: Tensor, axis: int) -> Extent:
        """Return the size of an axis, read at run time where it is not known."""
        size = x.shape[axis]
        if size is not None:
            return size
        sizes = self.call("cast", self.call("get_shape", x), np.dtype(np.int64))
        one = self.slice(sizes, [axis % x.rank], [axis % x.rank + 1], [1])
        return self.reshape(one, [])

    def extents(self, x: Tensor) -> list[Extent]:
        """Return all sizes."""
        return [self.extent(x, axis) for axis in range(x.rank)]

    def vector(self, sizes: Sequence[Extent], dtype: Any = np.int32) -> Tensor:
        """Return sizes as one vector."""
        if all(isinstance(s, int) for s in sizes):
            held = [min(max(int(s), -LARGEST), LARGEST) for s in sizes if isinstance(s, int)]
            return self.const(np.array(held, dtype))
        parts = [
            self.cast(self.reshape(s, [1]), dtype)
            if isinstance(s, Tensor)
            else self.const(np.array([s], dtype))
            for s in sizes
        ]
        return self.concat(parts, 0)

    def reshape(self, x: Tensor, sizes: Sequence[Extent]) -> Tensor:
        """Give another shape; one size may be -1."""
        if x.sizes is not None and list(x.sizes) == list(sizes):
            return x
        plain = [s for s in sizes if isinstance(s, int)]
        if x.data is not None and len(plain) == len(sizes):
            return self.const(x.data.reshape(plain))
        wanted = list(sizes)
        unknown = [i for i, s in enumerate(wanted) if not isinstance(s, int)]
        if len(unknown) == 1 and -1 not in plain and 0 not in plain:
            wanted[unknown[0]] = -1
        return self._known(self.call("reshape", x, self.vector(wanted)), sizes)

    def insert_axes(self, x: Tensor, axes: Sequence[int]) -> Tensor:
        """Add axes of size 1 at these positions of the result."""
        rank = x.rank + len(axes)
        dims = sorted(a % rank for a in axes)
        if not dims:
            return x
        if x.data is not None:
            return self.const(np.expand_dims(x.data, tuple(dims)))
        return self.call("expand_dims", x, np.array(dims, np.int32))

    def drop_axes(self, x: Tensor, axes: Sequence[int]) -> Tensor:
        """Remove axes of size 1."""
        gone = sorted({a % x.rank for a in axes})
        if not gone:
            return x
        if x.data is not None:
            return self.const(np.squeeze(x.data, tuple(gone)))
        x = self.typed(x, tuple(1 if a in gone else s for a, s in enumerate(x.shape)))
        return self.call("shrink_dims", x, np.array(gone, np.int32))

    def transpose(self, x: Tensor, perm: Sequence[int]) -> Tensor:
        """Permute the axes; constants are permuted here."""
        perm = list(perm)
        if perm == list(range(x.rank)):
            return x
        if x.data is not None:
            return self.const(x.data.transpose(perm))
        return self.call("transpose", x, np.array(perm, np.uint32))

    def slice(
        self,
        x: Tensor,
        begin: Sequence[Extent],
        end: Sequence[Extent],
        step: Sequence[int] | None = None,
    ) -> Tensor:
        """Take a strided part; positions count from the start, steps are above 0."""
        steps = list(step or [1] * x.rank)
        if x.data is not None and all(isinstance(v, int) for v in (*begin, *end)):
            cut = [slice(b, e, s) for b, e, s in zip(begin, end, steps, strict=True)]
            return self.const(x.data[tuple(cut)])
        bounds = self.vector(begin), self.vector(end)
        return self.call("slice_", x, *bounds, np.array(steps, np.int32))

    def part(self, x: Tensor, axis: int, begin: Extent, end: Extent) -> Tensor:
        """Take a part along one axis."""
        axis %= x.rank
        starts: list[Extent] = [0] * x.rank
        ends: list[Extent] = [s if s is not None else LARGEST for s in x.shape]
        starts[axis], ends[axis] = begin, end
        return self.slice(x, starts, ends)

    def reverse(self, x: Tensor, axes: Sequence[int]) -> Tensor:
        """Turn axes around."""
        return self.call("reverse", x, np.array([a % x.rank for a in axes], np.int32))

    def split(self, x: Tensor, sizes: Sequence[int], axis: int) -> list[Tensor]:
        """Cut into parts of known sizes along an axis."""
        if len(sizes) == 1:
            return [x]
        return self.call_all("split", x, np.array(sizes, np.uint32), np.int32(axis % x.rank))

    def concat(self, parts: Sequence[Tensor], axis: int) -> Tensor:
        """Join along an axis."""
        if len(parts) == 1:
            return parts[0]
        if all(p.data is not None for p in parts):
            return self.const(np.concatenate([p.data for p in parts if p.data is not None], axis))
        axis %= parts[0].rank
        sizes = [next((s for s in along if s is not None), None)
                 for along in zip(*(p.shape for p in parts), strict=True)]  # fmt: skip
        values = [
            self.typed(p, tuple(p.shape[a] if a == axis else s for a, s in enumerate(sizes))).value
            for p in parts
        ]
        return self.wrap(self._made("concat", self._operand(np.int32(axis)), values))

    def expand(self, x: Tensor, shape: Sequence[Extent]) -> Tensor:
        """Repeat axes of size 1 up to a shape that the tensor broadcasts to."""
        if x.sizes is not None and list(x.sizes) == list(shape):
            return x
        return self._known(self.call("broadcast_to", x, self.vector(shape, np.uint32)), shape)

    def pad(
        self, x: Tensor, before: Sequence[Extent], after: Sequence[Extent], value: Operand = 0,
        mode: str = "constant",
    ) -> Tensor:  # fmt: skip
        """Add elements around; amounts are not negative."""
        if all(p == 0 for p in (*before, *after)):
            return x
        pairs = [p for pair in zip(before, after, strict=True) for p in pair]
        amounts, filler = self.vector(pairs, np.uint32), self.like(value, x)
        made = self._made("pad", x.value, amounts.value, filler.value, padding_mode=mode)
        return self.wrap(made)

    def reduce(self, op: str, x: Tensor, axes: Sequence[int], keepdims: bool = True) -> Tensor:
        """Reduce over axes; no axis leaves the tensor as it is."""
        dims = sorted({a % x.rank for a in axes}) if x.rank else []
        if not dims:
            return x
        if any(x.shape[p] == 0 for p in dims):
            made = self._of_nothing(op, x, dims)
        elif any(x.shape[p] is None for p in dims):
            made = self._of_anything(op, x, dims)
        else:
            made = self.call(f"reduce_{op}", x, np.array(dims, np.int32))
        return made if keepdims else self.drop_axes(made, dims)

    def _of_nothing(self, op: str, x: Tensor, axes: Sequence[int]) -> Tensor:
        """What a reduction over no element is; Core AI starts from the least finite number."""
        value = np.nan if op == "mean" else _neutral(op, x.dtype)
        sizes = [1 if a in axes else self.extent(x, a) for a in range(x.rank)]
        return self.expand(self.const(np.full([1] * x.rank, value, x.dtype)), sizes)

    def _of_anything(self, op: str, x: Tensor, reduced: Sequence[int]) -> Tensor:
        """Reduce over sizes that may be 0 in a run: Core AI leaves such results unwritten."""
        axes = np.array(reduced, np.int32)
        kind = "sum" if op == "mean" else op
        behind = [int(a in reduced and x.shape[a] is None) for a in range(x.rank)]
        wide = self.pad(x, [0] * x.rank, behind, _neutral(kind, x.dtype))
        made = self.call(f"reduce_{kind}", wide, axes)
        if op != "mean":
            return made
        count = self.call("reduce_product", self.vector([self.extent(x, p) for p in reduced]),
                          np.array([0], np.int32))  # fmt: skip
        return self.binary("divide", made, self.cast(self.reshape(count, []), x.dtype))

    def int32_indices(self, indices: Tensor) -> Tensor:
        """Indices in a type that gathering and scattering take."""
        return self.cast(indices, np.int32)

    def scatter(self, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
        """Replace slices at indices (..., axes), which count from the start."""
        return self.call("scatter_nd", x, self.int32_indices(indices), updates)

    def scatter_by(self, x: Tensor, positions: Tensor, updates: Tensor, mode: str) -> Tensor:
        """Combine a vector's elements at these positions with others: add, mul, max or min."""
        made = self.dialect.scatter_along_axis(
            self.type_of(x.dtype, x.shape),
            x.value,
            self.int32_indices(positions).value,
            updates.value,
            self._operand(np.int32(0)),
            scatter_mode=self._ir.Attribute.parse(f"#coreai.scatter_mode<{mode}>"),
        )
        return self.wrap(made)

    def take(self, x: Tensor, indices: Tensor, axis: int) -> Tensor:
        """Take slices along an axis by indices that may count from the end."""
        axis %= x.rank
        order = [axis, *(a for a in range(x.rank) if a != axis)]
        front = self.transpose(x, order)
        rows = self.call("gather_nd", front, self.insert_axes(self.int32_indices(indices), [-1]))
        count = indices.rank
        back = [*range(count, count + axis), *range(count), *range(count + axis, rows.rank)]
        return self.transpose(rows, back)

    # Loops -------------------------------------------------------------------------------------

    def loop(
        self,
        starts: Sequence[Tensor],
        more: Callable[[list[Tensor]], Tensor],
        step: Callable[[list[Tensor]], Sequence[Tensor]],
        kinds: Sequence[tuple[Any, Shape]] | None = None,
    ) -> list[Tensor]:
        """Repeat a step while a condition holds; returns the last values."""
        if kinds is None:
            kinds = [(t.dtype, t.shape) for t in starts]
        types = [self.type_of(d, s) for d, s in kinds]
        results, (before, after) = self.dialect.while_(types, [t.value for t in starts])
        with self.inside(before) as now:
            self.dialect.condition(more(now).value, *(t.value for t in now))
        with self.inside(after) as now:
            made = step(now)
            self.dialect.yield_([self._own(t, i, now).value for i, t in enumerate(made)])
        return [self.wrap(v) for v in ([results] if len(types) == 1 else results)]

    def _own(self, x: Tensor, place: int, now: Sequence[Tensor]) -> Tensor:
        """A copy of what a loop carries at another place: the runtime overwrites it on the way."""
        if not any(x.value == t.value for i, t in enumerate(now) if i != place):
            return x
        if x.dtype == np.bool_:
            return self.binary("or", x, x)
        return self.binary("maximum", x, x)


def _neutral(op: str, dtype: np.dtype[Any]) -> Any:
    """The element that a reduction starts from."""
    if op in ("sum", "product"):
        return dtype.type(op == "product")
    if dtype.kind == "f":
        return dtype.type(-np.inf if op == "max" else np.inf)
    limits = np.iinfo(dtype)
    return dtype.type(limits.min if op == "max" else limits.max)


def known(x: Tensor, why: str) -> Array:
    """The elements of a tensor that must be known.

    Raises:
        Refusal: they are not.
    """
    if x.data is None:
        raise Refusal(why, "requires_constant")
    return x.data
