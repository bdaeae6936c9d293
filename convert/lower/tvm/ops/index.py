"""Elements by their place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from edgeinfer.convert.lower.registry import Const, Refusal
from edgeinfer.convert.lower.tvm import sizes
from edgeinfer.convert.lower.tvm.builder import Builder, Own, Tensor
from edgeinfer.convert.lower.tvm.ops.arith import convert, larger, smaller
from edgeinfer.convert.lower.tvm.ops.matrix import reshape, transpose
from edgeinfer.convert.lower.tvm.registry import NUMBERS, OPS
from edgeinfer.kernels.defs import chosen, running, scatter
from edgeinfer.kernels.defs.math import is_nan


def inside(place: Any, size: Any) -> Any:
    """A place from either end; one beyond the tensor becomes the nearest, never a stray read."""
    wide = place.astype("int64")
    wrapped = tirx.Select(wide < 0, wide + size, wide)
    return tirx.max(tirx.const(0, "int64"), tirx.min(wrapped, size - 1))


def _some(x: Tensor, axis: int) -> None:
    if isinstance(x.shape[axis], int) and x.shape[axis] == 0:
        raise Refusal("elements of nothing")


@OPS.lower("Gather")
def gather(g: Builder, data: Tensor, indices: Tensor, *, axis: int) -> Tensor:
    """Slices along an axis."""
    at = axis % data.rank
    _some(data, at)
    if data.data is not None and indices.data is not None:
        return g.const(np.take(data.data, indices.data, at))
    rank = indices.rank
    shape = (*data.shape[:at], *indices.shape, *data.shape[at + 1 :])

    def compute(source: Any, positions: Any) -> Any:
        def element(*index: Any) -> Any:
            place = inside(positions(*index[at : at + rank]), source.shape[at])
            return source(*index[:at], place, *index[at + rank :])

        return te.compute(shape, element, name="gather")

    return g.te(compute, data, indices, name="gather")


@OPS.lower("GatherElements")
def gather_elements(g: Builder, data: Tensor, indices: Tensor, *, axis: int) -> Tensor:
    """One element for each index."""
    at = axis % data.rank
    _some(data, at)

    def compute(source: Any, positions: Any) -> Any:
        def element(*index: Any) -> Any:
            place = inside(positions(*index), source.shape[at])
            return source(*index[:at], place, *index[at + 1 :])

        return te.compute(indices.shape, element, name="gather_elements")

    return g.te(compute, data, indices, name="gather_elements")


@OPS.lower("GatherND")
def gather_nd(g: Builder, data: Tensor, indices: Tensor, *, batch_dims: int) -> Tensor:
    """Slices at positions of several axes."""
    depth = indices.shape[-1]
    if not isinstance(depth, int):
        raise Refusal("an open number of axes", "dynamic_shape")
    outer = indices.shape[:-1]
    shape = (*outer, *data.shape[batch_dims + depth :])

    def compute(source: Any, positions: Any) -> Any:
        def element(*index: Any) -> Any:
            head = index[: len(outer)]
            at = [
                inside(positions(*head, tirx.const(i, "int64")), source.shape[batch_dims + i])
                for i in range(depth)
            ]
            return source(*head[:batch_dims], *at, *index[len(outer) :])

        return te.compute(shape, element, name="gather_nd")

    return g.te(compute, data, indices, name="gather_nd")


_REDUCTIONS = {"none": "update", "add": "add", "mul": "mul", "max": "max", "min": "min"}


@OPS.lower("ScatterElements")
def scatter_elements(
    g: Builder, data: Tensor, indices: Tensor, updates: Tensor, *, axis: int, reduction: str
) -> Tensor:
    """Elements put at positions along an axis."""
    if reduction not in _REDUCTIONS or (data.dtype == "bool" and reduction != "none"):
        raise Refusal(f"reduction {reduction!r} of {data.dtype}")
    if not g.on_cpu:
        return _gathered_updates(g, data, indices, updates, axis % data.rank, reduction)
    updates = sizes.alike(g, updates, indices.shape)
    # TVM's own puts updates of fewer rows than the data elsewhere, and loses NaN.
    own, at = Own(), axis % data.rank
    kernel = scatter.elements(
        tuple(map(own, data.shape)), tuple(map(own, indices.shape)), data.dtype, at, reduction
    )
    positions = _inside_axis(g, data, indices, at)
    given = [g.expr(t) for t in (data, positions, updates)]
    return g.wrap(g.tir(kernel, given, data.shape, data.dtype))


def _inside_axis(g: Builder, data: Tensor, indices: Tensor, at: int) -> Tensor:
    """Indices along an axis, none of them outside: TVM checks none."""

    def compute(source: Any, positions: Any) -> Any:
        def element(*index: Any) -> Any:
            return inside(positions(*index), source.shape[at])

        return te.compute(positions.shape, element, name="positions")

    _some(data, at)
    return g.te(compute, data, indices, name="positions")


def _gathered_updates(
    g: Builder, data: Tensor, indices: Tensor, updates: Tensor, at: int, reduction: str
) -> Tensor:
    """``ScatterElements`` with each element looking for what is put there, as threads can.

    TVM's own is a loop of the CPU's. Of updates of one place the last one stays.
    """
    count = indices.shape[at]
    if not isinstance(count, int) or not count:
        raise Refusal("an open number of updates, or none", "dynamic_shape")
    wide = "float32" if data.dtype == "float16" else data.dtype

    def hit(positions: Any, index: Sequence[Any], k: Any) -> tuple[Any, list[Any]]:
        """Whether an update is for an element, and a place at which there surely is one."""
        shape = positions.shape
        inside = [i < s for a, (i, s) in enumerate(zip(index, shape, strict=True)) if a != at]
        own = [tirx.min(i, s - 1) for i, s in zip(index, shape, strict=True)]
        own[at] = k
        place = positions(*own).astype("int64")
        size = data.shape[at]
        wrapped = tirx.Select(place < 0, place + size, place)
        return tirx.all(*inside, tirx.EQ(wrapped, index[at].astype("int64"))), own

    def last(positions: Any) -> Any:
        k = te.reduce_axis((0, count), "k")
        none = tirx.const(-1, "int64")

        def element(*index: Any) -> Any:
            found, _ = hit(positions, index, k)
            return te.max(tirx.Select(found, k.var.astype("int64"), none), axis=k)

        return te.compute(data.shape, element, name="last")

    def combined(positions: Any, values: Any) -> Any:
        k = te.reduce_axis((0, count), "k")
        reducer, nothing = _COMBINED[reduction]

        def element(*index: Any) -> Any:
            found, own = hit(positions, index, k)
            value = values(*own).astype(wide)
            return reducer(tirx.Select(found, value, nothing(wide)), axis=k)

        return te.compute(data.shape, element, name=reduction)

    if reduction == "none":
        chosen = g.te(last, indices, name="last")

        def put(x: Any, which: Any, values: Any) -> Any:
            def element(*index: Any) -> Any:
                own = [tirx.min(i, s - 1) for i, s in zip(index, values.shape, strict=True)]
                own[at] = tirx.max(which(*index), tirx.const(0, "int64"))
                return tirx.Select(which(*index) >= 0, values(*own), x(*index))

            return te.compute(x.shape, element, name="put")

        return g.te(put, data, chosen, updates, name="put")
    total = g.te(combined, indices, updates, name="updates")
    step = {"add": lambda a, b: a + b, "mul": lambda a, b: a * b}
    step |= {"max": larger, "min": smaller}
    return convert(g, g.map(step[reduction], convert(g, data, wide), total), data.dtype)


_COMBINED: dict[str, Any] = {
    "add": (te.sum, lambda kind: tirx.const(0, kind)),
    "mul": (
        te.comm_reducer(lambda a, b: a * b, lambda t: tirx.const(1, t), name="prod"),
        lambda kind: tirx.const(1, kind),
    ),
    "max": (te.max, lambda kind: tirx.min_value(kind)),
    "min": (te.min, lambda kind: tirx.max_value(kind)),
}


@OPS.lower("ScatterND")
def scatter_nd(
    g: Builder, data: Tensor, indices: Tensor, updates: Tensor, *, reduction: str
) -> Tensor:
    """Slices put at positions of several axes."""
    if reduction not in _REDUCTIONS or (data.dtype == "bool" and reduction != "none"):
        raise Refusal(f"reduction {reduction!r} of {data.dtype}")
    depth = indices.shape[-1]
    if not isinstance(depth, int):
        raise Refusal("an open number of axes", "dynamic_shape")
    lengths = sizes.values(g, data.shape[:depth])
    if indices.data is None or lengths.data is None:
        positions = g.map(inside, convert(g, indices, "int64"), lengths)
    else:
        known = np.asarray(indices.data)
        known = np.where(known < 0, known + lengths.data, known).astype(np.int64)
        if (known < 0).any() or (known >= lengths.data).any():
            raise Refusal("a place outside of the tensor")
        positions = g.const(known)
    updates = sizes.alike(g, updates, [*positions.shape[:-1], *data.shape[depth:]])
    return g.op(relax.op.scatter_nd, data, positions, updates, reduction=_REDUCTIONS[reduction])


@OPS.lower("TensorScatter")
def tensor_scatter(
    g: Builder,
    past_cache: Tensor,
    update: Tensor,
    write_indices: Tensor | None = None,
    *,
    axis: int,
    mode: str,
) -> Tensor:
    """New steps written into a cache; beyond its end nothing is written, or on from its start."""
    at = axis % past_cache.rank
    size, count = past_cache.shape[at], update.shape[at]

    def compute(past: Any, new: Any, *starts: Any) -> Any:
        def element(*index: Any) -> Any:
            start = starts[0](index[0]).astype("int64") if starts else tirx.const(0, "int64")
            step = index[at].astype("int64") - start
            if mode == "circular":
                step = tirx.floormod(step, size)
            own = list(index)
            own[at] = tirx.max(tirx.const(0, "int64"), tirx.min(step, count - 1))
            is_new = tirx.all(step >= 0, step < count)
            return tirx.Select(is_new, new(*own), past(*index))

        return te.compute(past.shape, element, name="tensor_scatter")

    given = [past_cache, update, *([] if write_indices is None else [write_indices])]
    return g.te(compute, *given, name="tensor_scatter")


@OPS.lower("CumSum", dtypes=NUMBERS)
def cum_sum(g: Builder, x: Tensor, axis: Const, *, exclusive: int, reverse: int) -> Tensor:
    """Running sums."""
    return _running(g, x, axis, bool(exclusive), bool(reverse), "sum")


@OPS.lower("CumProd", dtypes=NUMBERS)
def cum_prod(g: Builder, x: Tensor, axis: Const, *, exclusive: int, reverse: int) -> Tensor:
    """Running products."""
    return _running(g, x, axis, bool(exclusive), bool(reverse), "prod")


def _running(
    g: Builder, x: Tensor, axis: Const, exclusive: bool, reverse: bool, kind: str
) -> Tensor:
    at = int(axis.array.reshape(-1)[0]) % x.rank
    size = x.shape[at]
    if g.on_cpu:
        own = Own()
        shape = (prod(x.shape[:at]), size, prod(x.shape[at + 1 :]))
        kernel = running.running(
            (own(shape[0]), own(size), own(shape[2])), x.dtype,
            product=kind == "prod", exclusive=exclusive, reverse=reverse,
        )  # fmt: skip
        made = g.tir(kernel, [g.expr(reshape(g, x, shape))], shape, x.dtype)
        return reshape(g, g.wrap(made), x.shape)
    wide = "float32" if x.dtype == "float16" else x.dtype
    nothing = tirx.const(0 if kind == "sum" else 1, wide)
    reducer = te.sum if kind == "sum" else _COMBINED["mul"][0]
    if not isinstance(size, int) or size > 4096:
        raise Refusal("a long or open axis on a GPU", "dynamic_shape")

    def compute(data: Any) -> Any:
        k = te.reduce_axis((0, size), "k")

        def element(*index: Any) -> Any:
            i = index[at]
            before, after = (i, k) if reverse else (k, i)
            keep = before < after if exclusive else before <= after
            value = data(*index[:at], k, *index[at + 1 :]).astype(wide)
            return reducer(tirx.Select(keep, value, nothing), axis=k)

        return te.compute(data.shape, element, name="running")

    return convert(g, g.te(compute, x, name="running"), x.dtype)


@OPS.lower("ReverseSequence")
def reverse_sequence(
    g: Builder, input: Tensor, sequence_lens: Tensor, *, batch_axis: int, time_axis: int
) -> Tensor:
    """The first steps of each sequence reversed."""

    def compute(data: Any, lengths: Any) -> Any:
        def element(*index: Any) -> Any:
            length = lengths(index[batch_axis]).astype("int64")
            step = index[time_axis].astype("int64")
            reversed_step = tirx.Select(step < length, length - 1 - step, step)
            at = list(index)
            at[time_axis] = inside(reversed_step, data.shape[time_axis])
            return data(*at)

        return te.compute(data.shape, element, name="reverse_sequence")

    return g.te(compute, input, sequence_lens, name="reverse_sequence")


_COMPARED = 1024
"""Elements of an axis up to which each is compared with each, as threads can."""


def _best(g: Builder, x: Tensor, at: int, count: int, largest: bool) -> Tensor:
    """Find positions along a long axis by a heap for each row."""
    order = (*(a for a in range(x.rank) if a != at), at)
    outer = [x.shape[a] for a in order[:-1]]
    rows, size = prod(outer), x.shape[at]
    flat = reshape(g, transpose(g, x, order), (rows, size))
    kernel = chosen.best(rows, size, count, x.dtype, largest=largest)
    made = reshape(
        g, g.wrap(g.tir(kernel, [g.expr(flat)], (rows, count), "int64")), (*outer, count)
    )
    return transpose(g, made, tuple(order.index(a) for a in range(x.rank)))


def _wanted(g: Builder, x: Tensor, given: Tensor, at: int) -> Any:
    """How many elements are wanted of an axis, which has as many."""
    numbers, size = sizes.known(given), x.shape[at]
    if numbers is not None and isinstance(size, int):
        return numbers[0]

    def make(count: Callable[[int], Any], length: Callable[[int], Any]) -> sizes.Decision:
        return [count(0)], count(0) <= length(0)

    said = sizes.expected(g, x.rank)[at]
    return sizes.decided(g, [given, sizes.values(g, [size])], make, [said])[0]


@OPS.lower("TopK", dtypes=NUMBERS)
def top_k(g: Builder, X: Tensor, K: Tensor, *, axis: int, largest: int) -> tuple[Tensor, Tensor]:
    """The largest elements along an axis, by how many others go before each.

    NaN counts as more than infinity: positions need one order of all that there may be.
    """
    at, own = axis % X.rank, X
    if X.dtype == "float16":
        X = convert(g, X, "float32")  # noqa: N806
    size, count = X.shape[at], _wanted(g, X, K, at)
    if not g.on_cpu and (not isinstance(size, int) or size > _COMPARED):
        raise Refusal("an open or long axis on a GPU", "dynamic_shape")
    if isinstance(count, int) and count and X.is_static and size > _COMPARED:
        place = _best(g, X, at, count, bool(largest))
        return gather_elements(g, own, place, axis=at), place

    def ranks(data: Any) -> Any:
        k = te.reduce_axis((0, data.shape[at]), "k")

        def element(*index: Any) -> Any:
            mine, other = data(*index), data(*index[:at], k, *index[at + 1 :])
            more, less = (other, mine) if largest else (mine, other)
            better = more > less
            same = tirx.EQ(other, mine)
            if "float" in str(data.dtype):
                better = tirx.Or(better, tirx.And(is_nan(more), tirx.Not(is_nan(less))))
                same = tirx.Or(same, tirx.And(is_nan(other), is_nan(mine)))
            tie = tirx.And(same, k < index[at])
            one, zero = tirx.const(1, "int64"), tirx.const(0, "int64")
            return te.sum(tirx.Select(tirx.Or(better, tie), one, zero), axis=k)

        return te.compute(data.shape, element, name="ranks")

    rank = g.te(ranks, X, name="ranks")
    shape = (*X.shape[:at], count, *X.shape[at + 1 :])

    def inverse(order: Any) -> Any:
        k = te.reduce_axis((0, order.shape[at]), "k")
        zero = tirx.const(0, "int64")

        def element(*index: Any) -> Any:
            hit = tirx.EQ(order(*index[:at], k, *index[at + 1 :]), index[at].astype("int64"))
            return te.sum(tirx.Select(hit, k.var.astype("int64"), zero), axis=k)

        return te.compute(shape, element, name="positions")

    place = g.te(inverse, rank, name="positions")
    return gather_elements(g, own, place, axis=at), place
