"""The builder that lowerings write with: operators, and the moves every family needs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from edgeinfer.convert.lower.coreml.emitter import OVERFLOW, Emitter, Overflow, held
from edgeinfer.convert.lower.coreml.ranks import merge_axes, merge_perm, merge_reduced, steps_of
from edgeinfer.convert.lower.coreml.reach import kept
from edgeinfer.convert.lower.coreml.tensor import MAX_RANK, WHOLE, Reach, Shape, Size, Span, Tensor
from edgeinfer.convert.lower.registry import Refusal

Extent = int | Tensor
"""A size that is known, or an int32 scalar that holds it when the model runs."""

_COMPARE = frozenset(
    {
        *("equal", "not_equal", "greater", "greater_equal", "less", "less_equal"),
        *("logical_and", "logical_or", "logical_xor"),
    }
)


def broadcast(*shapes: Shape) -> Shape:
    """Broadcast shapes; a known size wins over one known only at run time."""
    rank = max(map(len, shapes), default=0)
    padded = [(1,) * (rank - len(s)) + tuple(s) for s in shapes]
    return tuple(_join(sizes) for sizes in zip(*padded, strict=True))


def _equal(a: Shape, b: Shape) -> bool:
    return len(a) == len(b) and all(x == y for x, y in zip(a, b, strict=True))


def _join(sizes: tuple[Size, ...]) -> Size:
    known = {s for s in sizes if isinstance(s, int) and s != 1}
    if len(known) > 1:
        raise Refusal(f"sizes {sorted(known)} do not broadcast")
    if known:
        return known.pop()
    return next((s for s in sizes if not isinstance(s, int)), 1)


class Builder(Emitter):
    """Operators of the program, and the moves that lowerings share."""

    def wants(self, output: int) -> bool:
        """Whether anyone reads an output of the node that is being lowered."""
        return output == 0

    def given(self, output: int) -> Shape | None:
        """The shape that ONNX's inference gives an output, where it is known in full."""
        return None

    def keeps(self, axis: int) -> bool:
        """Whether an axis is known to have one size before the node and after it."""
        return False

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Build the body of a conditional or a loop, whose constants others do not see."""
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1

    def fresh(self, x: Tensor) -> Any:
        """Return a variable that the current block makes itself, as its results must be."""
        return self.physical(self.same(x))

    def unary(self, op: str, x: Tensor, dtype: Any = None, **options: Any) -> Tensor:
        """Add an elementwise operator of one operand, of any rank."""
        span = options.pop("span", None)
        if x.rank <= MAX_RANK:
            return self.emit(op, dtype, x=x, span=span, **options)
        flat = self.emit(op, dtype, x=self._flat(x), span=span, **options)
        return self._shaped(flat, x.shape, x.extents)

    def binary(
        self, op: str, a: Tensor | Any, b: Tensor | Any, span: Span | None = None, dtype: Any = None
    ) -> Tensor:
        """Add an elementwise operator of two; a plain number takes the other one's type."""
        if not isinstance(a, Tensor):
            a = self.const(a, b.dtype)
        if not isinstance(b, Tensor):
            b = self.const(b, a.dtype)
        dtype = np.bool_ if op in _COMPARE else (a.dtype if dtype is None else dtype)
        return self.elementwise(op, {"x": a, "y": b}, dtype, span)

    def select(self, condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """Take ``a`` where the condition holds, else ``b``."""
        span = _union(a, b) if a.is_integer else None
        return self.elementwise("select", {"cond": condition, "a": a, "b": b}, a.dtype, span)

    def elementwise(
        self, op: str, operands: Mapping[str, Tensor], dtype: Any, span: Span | None = None
    ) -> Tensor:
        """Add an operator that broadcasts, also above five axes where axes can be joined."""
        shapes = [t.shape for t in operands.values()]
        shape = broadcast(*shapes)
        if len(shape) <= MAX_RANK:
            if op == "select":
                operands = self._spread_choices(operands, shape)
            return self.emit(op, dtype, span=span, **operands)
        groups, rank = merge_axes(shapes), len(shape)
        sizes: list[list[Extent]] = [
            [*(1 for _ in range(rank - t.rank)), *self.extents(t)] for t in operands.values()
        ]
        views = {
            name: self.reshape(x, [self.product([own[a] for a in axes]) for axes in groups])
            for (name, x), own in zip(operands.items(), sizes, strict=True)
        }
        made = self.emit(op, dtype, span=span, **views)
        every = [
            size if isinstance(size, int) else next(own[a] for own in sizes if own[a] != 1)
            for a, size in enumerate(shape)
        ]
        return self.reshape(made, every)

    def _spread_choices(self, operands: Mapping[str, Tensor], shape: Shape) -> dict[str, Tensor]:
        """Let the choices have the result's shape, which select takes from them alone."""
        condition, a, b = operands["cond"], operands["a"], operands["b"]
        if _equal(broadcast(a.shape, b.shape), shape):
            return dict(operands)
        if all(isinstance(s, int) for s in shape):
            return {"cond": condition, "a": self.expand(a, shape), "b": b}
        if a.dtype == np.bool_:
            zeros = self.binary("logical_xor", condition, condition)
            return {"cond": condition, "a": self.binary("logical_or", a, zeros), "b": b}
        zeros = self.binary("mul", self.cast(condition, a.dtype), 0)
        return {"cond": condition, "a": self.binary("add", a, zeros, a.span), "b": b}

    def cast(self, x: Tensor, dtype: Any, span: Span | None = None) -> Tensor:
        """Convert the element type as ONNX does.

        Args:
            x: any tensor.
            dtype: wanted.
            span: what integers made of floats lie between, where the caller knows it.
        """
        dtype = np.dtype(dtype)
        if x.dtype == dtype:
            return x
        if x.data is not None:
            with np.errstate(all="ignore"):
                return self.const(x.data.astype(dtype), dtype)
        if dtype == np.bool_:
            return self.binary("not_equal", x, 0)
        if x.is_integer and dtype.kind in "iu":
            variable = self.physical(x)
            return self.fitted(Tensor(dtype, x.shape, variable, span=x.bounds, extents=x.extents))
        return self._converted(x, dtype, span)

    def _converted(self, x: Tensor, dtype: np.dtype[Any], known: Span | None) -> Tensor:
        source = self._flat(x) if x.rank > MAX_RANK else x
        span = (0, 1) if x.dtype == np.bool_ else None
        if x.is_float and dtype.kind in "iu":
            span = known or _whole_numbers(x, dtype)
        variable = self.call("cast", {"x": source, "dtype": held(dtype)})
        if dtype.kind in "iu" and dtype.itemsize <= 2 and x.is_float:
            # What a number beyond the type becomes is not defined; ONNX Runtime wraps it.
            wide = Tensor(dtype, source.shape, variable, span=span or WHOLE)
            return self._shaped(self.fitted(wide), x.shape)
        made = self._shaped(self.wrap(variable, dtype, span), x.shape, x.extents)
        if made.is_float:
            made.reach = _as_floats(x, dtype)
        return made

    def same(self, x: Tensor) -> Tensor:
        """Return another variable of the same values."""
        return self.unary("identity", x, span=x.span)

    def extent(self, x: Tensor, axis: int) -> Extent:
        """Return the size of an axis, read at run time where it is not known."""
        size = x.shape[axis]
        if isinstance(size, int):
            return size
        if x.extents is not None:
            found: Extent = x.extents[axis]
            return found
        sizes = self.emit("shape", np.int32, x=x)
        one = self.slice(sizes, [axis], [axis + 1])
        return self.reshape(one, [])

    def extents(self, x: Tensor) -> list[Extent]:
        """Return all sizes."""
        return [self.extent(x, axis) for axis in range(x.rank)]

    def product(self, sizes: Sequence[Extent]) -> Extent:
        """Multiply sizes; what they count exists, so that int32 holds it."""
        known = math.prod(s for s in sizes if isinstance(s, int))
        open_ = [s for s in sizes if isinstance(s, Tensor)]
        if not open_ or not known:
            return known
        total = open_[0]
        for size in (*open_[1:], *([known] if known != 1 else [])):
            total = self.binary("mul", total, size, (0, WHOLE[1]))
        return total

    def plus(self, a: Extent, b: Extent) -> Extent:
        """Add sizes."""
        if isinstance(a, int) and isinstance(b, int):
            return a + b
        return self.binary("add", a, b)

    def minus(self, a: Extent, b: Extent) -> Extent:
        """Subtract sizes."""
        if isinstance(a, int) and isinstance(b, int):
            return a - b
        return self.binary("sub", a, b)

    def around(self, x: Tensor, axis: int) -> list[Extent]:
        """Return the sizes of the axes before one, of itself, and of those behind."""
        sizes = self.extents(x)
        return [self.product(sizes[:axis]), sizes[axis], self.product(sizes[axis + 1 :])]

    def positions(self, x: Tensor, axis: int) -> Tensor:
        """Return a vector that counts along an axis from 0: int32."""
        made = self.counted(self.extent(x, axis))
        self.know_shape(made, [x.shape[axis]])
        return made

    def counted(self, count: Extent) -> Tensor:
        """Return a vector that counts from 0 up to before a number: int32."""
        if isinstance(count, int):
            return self.const(np.arange(count), np.int32)
        made = self.emit("range_1d", np.int32, start=0, end=count, step=1)
        made.span = (0, max(count.bounds[1] - 1, 0))
        return made

    def filled(self, sizes: Sequence[Extent], value: int) -> Tensor:
        """Return a tensor of these sizes with the same int32 everywhere."""
        if all(isinstance(s, int) for s in sizes):
            return self.const(np.full([s for s in sizes if isinstance(s, int)], value), np.int32)
        made = self.emit("fill", np.int32, shape=self.vector(sizes), value=value)
        made.span = (value, value)
        return made

    def part(self, x: Tensor, axis: int, start: Extent, end: Extent) -> Tensor:
        """Take the elements of an axis from one place up to before another, both within it."""
        if isinstance(start, int) and isinstance(end, int):
            begin, stop = [0] * x.rank, [None] * x.rank
            begin[axis], stop[axis] = start, end  # type: ignore[call-overload]
            return self.slice(x, begin, stop)
        begins, ends = ([0] * x.rank for _ in range(2))
        made = self._moved(
            x,
            "slice_by_index",
            begin=self.vector([*begins[:axis], start, *begins[axis + 1 :]]),
            end=self.vector([*ends[:axis], end, *ends[axis + 1 :]]),
            end_mask=[a != axis for a in range(x.rank)],
        )
        self.know_shape(made, [*x.shape[:axis], made.shape[axis], *x.shape[axis + 1 :]])
        return made

    def vector(self, sizes: Sequence[Extent]) -> Tensor:
        """Return sizes as one int32 vector."""
        if all(isinstance(s, int) for s in sizes):
            return self.const(list(sizes), np.int32)
        parts = [
            self.reshape(s, [1]) if isinstance(s, Tensor) else self.const([s], np.int32)
            for s in sizes
        ]
        return self.concat(parts, 0)

    def reshape(self, x: Tensor, sizes: Sequence[Extent]) -> Tensor:
        """Give another shape.

        Args:
            x: any tensor.
            sizes: one may be -1; those only known at run time are scalars.
        """
        sizes = [int(s) if isinstance(s, np.integer) else s for s in sizes]
        if x.is_static:
            sizes = _without_minus_one(x.shape, sizes)
        if x.is_static and list(x.shape) == sizes:
            return x
        plain = [s for s in sizes if isinstance(s, int)]
        if x.data is not None and len(plain) == len(sizes):
            return self.const(x.data.reshape(plain), x.dtype)
        unknown = [i for i, s in enumerate(sizes) if not isinstance(s, int) or s < 0]
        if len(unknown) == 1 and 0 not in [s for s in sizes if isinstance(s, int)]:
            sizes[unknown[0]] = -1
        if len(sizes) > MAX_RANK:
            return self._high(x, sizes) if unknown else self._shaped(self._flat(x), tuple(sizes))
        source = self._flat(x)
        if not sizes:
            return self._dropped(source, x)
        shape = self.vector(sizes) if any(isinstance(s, Tensor) for s in sizes) else list(sizes)
        made = self.emit("reshape", x=source, shape=shape)
        made.span = x.span
        return made

    def _high(self, x: Tensor, sizes: Sequence[Extent]) -> Tensor:
        """See elements as more than five axes, some of whose sizes are known only at run time."""
        from coremltools.converters.mil.mil import get_new_symbol

        extents = list(sizes)
        if -1 in [s for s in extents if isinstance(s, int)]:
            at = extents.index(-1)
            total = self.product(self.extents(x))
            rest = self.product([s for i, s in enumerate(extents) if i != at])
            total = total if isinstance(total, Tensor) else self.const(total, np.int32)
            extents[at] = self.binary("floor_div", total, rest, (0, WHOLE[1]))
        shape = tuple(s if isinstance(s, int) else get_new_symbol() for s in extents)
        flat = self.reshape(x, [-1])
        return Tensor(x.dtype, shape, self.physical(flat), span=x.span, extents=tuple(extents))

    def _dropped(self, source: Tensor, x: Tensor) -> Tensor:
        """Make a scalar of the only element."""
        flat = source if source.rank == 1 else self.emit("reshape", x=source, shape=[1])
        made = self.emit("squeeze", x=flat, axes=[0])
        made.span = x.span
        return made

    def insert_axes(self, x: Tensor, axes: Sequence[int]) -> Tensor:
        """Add axes of size 1 at these positions of the result."""
        rank = x.rank + len(axes)
        dims = sorted(a % rank for a in axes)
        if not dims:
            return x
        if x.is_static or rank > MAX_RANK or x.rank == 0:
            rest = iter(self.extents(x))
            return self.reshape(x, [1 if a in dims else next(rest) for a in range(rank)])
        return self._moved(x, "expand_dims", axes=dims)

    def drop_axes(self, x: Tensor, axes: Sequence[int]) -> Tensor:
        """Remove axes of size 1."""
        gone = {a % x.rank for a in axes}
        if not gone:
            return x
        kept = [s for a, s in enumerate(x.shape) if a not in gone]
        if x.is_static or not kept or x.rank > MAX_RANK:
            return self.reshape(x, [self.extent(x, a) for a in range(x.rank) if a not in gone])
        if all(isinstance(x.shape[a], int) for a in gone):
            return self._moved(x, "squeeze", axes=sorted(gone))
        if sum(not isinstance(s, int) for s in kept) < 2:
            return self.reshape(x, [s if isinstance(s, int) else -1 for s in kept])
        # squeeze keeps an axis of dynamic size (coremltools 9.0).
        return self._moved(
            x,
            "slice_by_index",
            begin=[0] * x.rank,
            end=[int(a in gone) for a in range(x.rank)],
            end_mask=[a not in gone for a in range(x.rank)],
            squeeze_mask=[a in gone for a in range(x.rank)],
        )

    def transpose(self, x: Tensor, perm: Sequence[int]) -> Tensor:
        """Permute the axes; constants are permuted here."""
        perm = list(perm)
        if perm == list(range(x.rank)):
            return x
        if x.data is not None:
            return self.const(np.ascontiguousarray(x.data.transpose(perm)), x.dtype)
        kept = [p for p in perm if x.shape[p] != 1]
        if x.is_static and kept == sorted(kept):
            # Only axes of size 1 move.
            return self.reshape(x, [x.shape[p] for p in perm])
        if x.rank <= MAX_RANK:
            return self._moved(x, "transpose", perm=perm)
        sizes, flat = self.extents(x), self._flat(x)
        for view, step in steps_of(*merge_perm(x.shape, perm), MAX_RANK):
            seen = self.reshape(flat, [self.product([sizes[a] for a in axes]) for axes in view])
            flat = self._moved(seen, "transpose", perm=step)
        return self.reshape(flat, [sizes[p] for p in perm])

    def slice(
        self,
        x: Tensor,
        begin: Sequence[int],
        end: Sequence[int | None],
        step: Sequence[int] | None = None,
    ) -> Tensor:
        """Take a strided part; ``end`` None runs to the end of the axis in the step's direction."""
        if x.data is not None:
            cut = tuple(
                slice(b, e, s) for b, e, s in zip(begin, end, step or [1] * len(begin), strict=True)
            )
            return self.const(x.data[cut], x.dtype)
        steps = list(step or [1] * len(begin))
        out = self._moved(
            x,
            "slice_by_index",
            begin=list(begin),
            end=[0 if e is None else e for e in end],
            end_mask=[e is None for e in end],
            stride=steps,
        )
        whole = [(b, e, s) == (0, None, 1) for b, e, s in zip(begin, end, steps, strict=True)]
        kept = [s if w else o for s, o, w in zip(x.shape, out.shape, whole, strict=True)]
        self.know_shape(out, kept)
        return out

    def split(self, x: Tensor, sizes: Sequence[int], axis: int) -> list[Tensor]:
        """Cut into parts of known sizes along an axis."""
        if len(sizes) == 1:
            return [x]
        parts = self.emit_all(
            "split", [x.dtype] * len(sizes), x=x, split_sizes=list(sizes), axis=axis
        )
        for part in parts:
            part.span = x.span
        return parts

    def concat(self, parts: Sequence[Tensor], axis: int) -> Tensor:
        """Join along an axis; parts without elements are left out."""
        full = [p for p in parts if 0 not in [s for s in p.shape if isinstance(s, int)]]
        if len(full) == 1:
            return full[0]
        if full and all(p.data is not None for p in full):
            arrays = [p.data for p in full if p.data is not None]
            return self.const(np.concatenate(arrays, axis), full[0].dtype)
        if not full:
            raise Refusal("tensors without elements do not exist", "dynamic_shape")
        made = self.emit("concat", values=list(full), axis=axis)
        size = made.shape[axis]
        if not isinstance(size, int):
            most = sum(self.most(p.shape[axis]) for p in full)
            self.largest[size] = min(self.most(size), most)
        if made.is_integer:
            made.span = _union(*full)
        return made

    def expand(self, x: Tensor, shape: Shape) -> Tensor:
        """Repeat axes of size 1 up to a shape that the tensor broadcasts to."""
        if x.rank < len(shape):
            x = self.insert_axes(x, list(range(len(shape) - x.rank)))
        if all(a is b or a == b for a, b in zip(x.shape, shape, strict=True)):
            return x
        if x.data is not None and all(isinstance(s, int) for s in shape):
            return self.const(np.broadcast_to(x.data, shape), x.dtype)
        reps = [b if a == 1 else 1 for a, b in zip(x.shape, shape, strict=True)]
        if not all(isinstance(r, int) for r in reps):
            raise Refusal("repeats up to a dynamic size", "dynamic_shape")
        return self._moved(x, "tile", reps=reps)

    def reduce(self, op: str, x: Tensor, axes: Sequence[int], keepdims: bool) -> Tensor:
        """Reduce over axes; no axis leaves the tensor as it is."""
        dims = sorted({a % x.rank for a in axes}) if x.rank else []
        if not dims:
            return x
        if x.rank <= MAX_RANK:
            return self.emit(op, x=x, axes=dims, keep_dims=keepdims)
        sizes = self.extents(x)
        groups, merged = merge_reduced(x.rank, dims)
        seen = self.reshape(x, [self.product([sizes[a] for a in axes]) for axes in groups])
        out = self.emit(op, x=seen, axes=merged, keep_dims=True)
        kept = [(1 if a in dims else s) for a, s in enumerate(sizes) if keepdims or a not in dims]
        return self.reshape(out, kept)

    def _moved(self, x: Tensor, op: str, **operands: Any) -> Tensor:
        """Add an operator that moves values without changing them."""
        made = self.emit(op, x=x, **operands)
        made.span = x.span
        return made

    def _flat(self, x: Tensor) -> Tensor:
        """The elements above five axes as a vector; others as they are."""
        if x.rank <= MAX_RANK:
            return x
        return Tensor(x.dtype, (math.prod(x.shape),), self.physical(x), span=x.span)

    def _shaped(
        self, flat: Tensor, shape: Shape, extents: tuple[Extent, ...] | None = None
    ) -> Tensor:
        """Call elements by a shape; above five axes the variable stays a vector."""
        if len(shape) <= MAX_RANK:
            return flat if tuple(flat.shape) == tuple(shape) else self.reshape(flat, list(shape))
        if flat.rank != 1:
            flat = self.reshape(flat, [math.prod(shape)])
        variable = self.physical(flat)
        return Tensor(flat.dtype, tuple(shape), variable, span=flat.span, extents=extents)


def _as_floats(x: Tensor, dtype: np.dtype[Any]) -> Reach | None:
    """What floats lie between that are made of another type, rounded as they are."""
    if x.dtype == np.bool_:
        return 0.0, 1.0
    found = x.between if x.is_float else x.bounds
    if found is None:
        return None
    with np.errstate(over="ignore"):
        return kept(dtype, (float(dtype.type(found[0])), float(dtype.type(found[1]))))


def _whole_numbers(x: Tensor, dtype: np.dtype[Any]) -> Span | None:
    """What integers become of floats; None where the type itself says that int32 is enough.

    Raises:
        Refusal: they may be beyond int32, where Core ML would stop at its ends.
    """
    found = x.between
    low, high = found if found is not None else (-math.inf, math.inf)
    if WHOLE[0] - 1 < low and high < WHOLE[1] + 1:
        # Negative numbers have no meaning in unsigned types.
        least = 0 if dtype.kind == "u" and dtype.itemsize > 2 else WHOLE[0]
        return max(math.trunc(low), least), max(math.trunc(high), least)
    if dtype.itemsize <= 2 or dtype == np.int32:
        return None
    if math.isinf(low) or math.isinf(high):
        raise Refusal(
            f"{dtype} of floats that nothing bounds: Core ML has int32 and stops at its ends",
            "unsupported_dtype",
            "clip the floats before, or cast them to int32",
        )
    raise Overflow(
        f"{OVERFLOW} {low:.0f} and {high:.0f} may leave int32, the widest that Core ML has",
        "unsupported_dtype",
    )


def _union(*tensors: Tensor) -> Span:
    spans = [t.bounds for t in tensors]
    return min(s[0] for s in spans), max(s[1] for s in spans)


def _without_minus_one(source: Shape, sizes: list[Extent]) -> list[Extent]:
    """Fill in the one size that follows from the others."""
    if not all(isinstance(s, int) for s in sizes) or -1 not in sizes:
        return sizes
    known = [s for s in sizes if isinstance(s, int) and s != -1]
    rest = math.prod(known)
    if rest == 0 or math.prod(source) % rest:
        return sizes
    return [math.prod(source) // rest if s == -1 else s for s in sizes]
