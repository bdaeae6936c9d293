"""Parts of tensors, and their surroundings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgeinfer.convert.lower.core.cut import (
    AxisPad,
    AxisSlice,
    PadPlan,
    mixed,
    pads,
    place,
    repeated,
    slices,
)
from edgeinfer.convert.lower.coreai.builder import LARGEST, Builder, Extent
from edgeinfer.convert.lower.coreai.registry import NUMBERS, OPS
from edgeinfer.convert.lower.coreai.tensor import Tensor
from edgeinfer.convert.lower.registry import Const, Refusal


@slices(OPS)
def slice_(
    g: Builder,
    x: Tensor,
    axes: Sequence[AxisSlice],
    starts: Tensor,
    ends: Tensor,
    steps: Tensor | None,
) -> Tensor:
    begin: list[Extent] = [0] * x.rank
    end: list[Extent] = [s if s is not None else LARGEST for s in x.shape]
    step = [1] * x.rank
    reversed_axes = []
    for axis, cut in enumerate(axes):
        if cut.step is None:
            raise Refusal("input 'steps' must be constant", "requires_constant")
        if not cut.is_whole:
            begin[axis], end[axis] = _bounds(g, x, axis, cut, (starts, ends))
            step[axis] = abs(cut.step)
            reversed_axes += [axis] if cut.step < 0 else []
    # A negative step ends before the first element, which has no number here.
    return g.slice(g.reverse(x, reversed_axes) if reversed_axes else x, begin, end, step)


def _bounds(
    g: Builder, x: Tensor, axis: int, cut: AxisSlice, bounds: tuple[Tensor, Tensor]
) -> tuple[Extent, Extent]:
    """Where a cut starts and ends; on the reversed axis where its step is negative."""
    taken, back = cut.taken, (cut.step or 1) < 0
    if taken is not None:
        start = cut.size - 1 - taken.start if back else taken.start
        return start, start + abs(taken.stop - taken.start) if len(taken) else start
    length = g.extent(x, axis)
    size = length if isinstance(length, Tensor) else g.const(np.int64(length))
    found = []
    for vector, is_stop in zip(bounds, (False, True), strict=True):
        bound = _entry(g, vector, cut.entry or 0)
        own = g.select(g.less(bound, 0), g.binary("add", bound, size), bound)
        at = place(g.binary, own, size, back=back, is_stop=is_stop)
        found.append(g.binary("sub", g.binary("sub", size, 1), at) if back else at)
    return found[0], g.binary("maximum", found[1], found[0])


def _entry(g: Builder, vector: Tensor, index: int) -> Tensor:
    if vector.data is not None:
        return g.const(np.int64(vector.data[index]))
    return g.reshape(g.cast(g.slice(vector, [index], [index + 1]), np.int64), [])


@OPS.lower("Split")
def split(
    g: Builder, input: Tensor, split: Const | None = None, *, axis: int, num_outputs: int | None
) -> tuple[Tensor, ...]:
    size = input.shape[axis]
    if split is not None:
        sizes = [int(s) for s in split.array]
    elif size is None or num_outputs is None:
        raise Refusal("the size of the axis is only known to a run", "dynamic_shape")
    else:
        each = -(-size // num_outputs)
        sizes = [min(each, size - each * i) for i in range(num_outputs)]
    return tuple(g.split(input, sizes, axis))


_MODES = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}


def _amounts(g: Builder, vector: Tensor) -> list[Tensor]:
    (count,) = vector.shape
    if count is None:
        raise Refusal("how many axes are padded is only known at run time", "dynamic_shape")
    return [_entry(g, vector, index) for index in range(count)]


@pads(OPS, entries=_amounts)
def pad(g: Builder, x: Tensor, plan: PadPlan) -> Tensor:
    op, mode = mixed(g.binary), plan.mode
    x = plan.cropped(g, x, op)
    grown = plan.grown(op)
    for axis, border in enumerate(plan.axes if mode != "constant" else ()):
        # The kernel reflects and goes round once only.
        if grown[axis] != (0, 0) and not border.is_short and mode != "edge":
            x = g.take(x, _sources(g, x, axis, border, mode), axis)
            grown[axis] = (0, 0)
    ahead, behind = ([both[side] for both in grown] for side in (0, 1))
    value = g.const(np.zeros((), x.dtype)) if plan.value is None else plan.value
    if x.dtype == np.bool_:
        wide = g.pad(g.cast(x, np.uint8), ahead, behind, g.cast(value, np.uint8), _MODES[mode])
        return g.cast(wide, np.bool_)
    return g.pad(x, ahead, behind, g.reshape(value, []), _MODES[mode])


def _sources(g: Builder, x: Tensor, axis: int, border: AxisPad, mode: str) -> Tensor:
    if not border.is_known:
        # Two such in one graph end a run of coreai-core 1.0.0b3 in an error of broadcast_to.
        raise Refusal(f"amounts of mode {mode!r} must be constant", "requires_constant")
    if isinstance(border.kept, int):
        return g.const(border.sources(mode))
    op = mixed(lambda name, a, b: _integers(g, name, a, b))
    size = g.extent(x, axis)
    before, after = border.grown()
    count = op("add", size, before + after)
    return g.cast(repeated(op, g.binary("sub", counted(g, count), before), size, mode), np.int64)


def _integers(g: Builder, name: str, a: Extent, b: Extent) -> Tensor:
    if name != "mod":
        return g.binary(name, a, b)
    # The remainder has the dividend's sign.
    return g.binary("modulo", g.binary("add", g.binary("modulo", a, b), b), b)


def counted(g: Builder, size: Extent) -> Tensor:
    """Return 0, 1, 2, ... up to before a size."""
    if isinstance(size, int):
        return g.const(np.arange(size, dtype=np.int64))
    return g.call("range_", np.int64(0), size, np.int64(1))


@OPS.lower("CumSum", dtypes=NUMBERS)
def cum_sum(g: Builder, x: Tensor, axis: Const, *, exclusive: int, reverse: int) -> Tensor:
    return _scanned(g, "sum", x, int(axis.array.reshape(())), (exclusive, reverse))


@OPS.lower("CumProd", dtypes=NUMBERS)
def cum_prod(g: Builder, x: Tensor, axis: Const, *, exclusive: int, reverse: int) -> Tensor:
    return _scanned(g, "product", x, int(axis.array.reshape(())), (exclusive, reverse))


def _scanned(g: Builder, op: str, x: Tensor, axis: int, how: tuple[int, int]) -> Tensor:
    exclusive, reverse = how
    axis %= x.rank
    made = g.call("scan", x, np.uint32(axis), np.bool_(reverse), op)
    if not exclusive:
        return made
    # Each element gets what came before it.
    size = g.extent(made, axis)
    if not isinstance(size, int):
        raise Refusal("exclusive over a dynamic size", "dynamic_shape")
    before, after = [0] * made.rank, [0] * made.rank
    (after if reverse else before)[axis] = 1
    part = g.part(made, axis, 1, size) if reverse else g.part(made, axis, 0, size - 1)
    return g.pad(part, before, after, 0 if op == "sum" else 1)
