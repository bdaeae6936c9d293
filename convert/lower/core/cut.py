"""What ONNX's ``Slice`` and ``Pad`` mean along each axis, worked out once for all targets.

What a run decides stays a tensor of the target, for which the rules are written in its arithmetic.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np

from edgeinfer.convert.lower.core.named import named_axes
from edgeinfer.convert.lower.registry import Const, Refusal, Registry
from edgeinfer.convert.lower.signature import of_schema
from edgeinfer.records import dataclass
from edgeinfer.types import Array

Lowering = Callable[..., Any]
Arithmetic = Callable[[str, Any, Any], Any]
"""Writes add, sub, mul, minimum, maximum or mod (never negative) of two integers."""

Entries = Callable[[Any, Any], Sequence[Any]]
"""Reads a vector of integers with the builder: numbers, or what the target has of a run's."""

FAR = 2**31 - 1
"""No axis is longer, so that a bound beyond it means the end."""

_NUMBERS: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "minimum": min,
    "maximum": max,
    "mod": operator.mod,
}


def numbers(op: str, a: Any, b: Any) -> Any:
    """Compute with integers that are known."""
    return _NUMBERS[op](a, b)


def mixed(write: Arithmetic) -> Arithmetic:
    """Compute with integers that are known here, and write the rest."""

    def compute(op: str, a: Any, b: Any) -> Any:
        known = isinstance(a, int) and isinstance(b, int)
        return numbers(op, a, b) if known else write(op, a, b)

    return compute


def place(op: Arithmetic, bound: Any, size: Any, *, back: bool, is_stop: bool) -> Any:
    """Clamp a bound that is not negative as ONNX does, by the direction of the steps."""
    if not back:
        return op("minimum", op("maximum", bound, 0), size)
    last = op("sub", size, 1)
    return op("minimum", op("maximum", bound, -1 if is_stop else 0), last)


@dataclass(frozen=True, slots=True)
class AxisSlice:
    """One axis of a ``Slice``.

    Attributes:
        size: Size of the input: a number, or None or an expression of the target where it is
            dynamic.
        entry: Its place among the bounds; None where the node does not name it.
        start: Where it starts; None where a run decides, as for the others.
        stop: Where it stops.
        step: Elements from one to the next; a negative one goes back.
    """

    size: Any
    entry: int | None = None
    start: int | None = 0
    stop: int | None = FAR
    step: int | None = 1

    @property
    def taken(self) -> range | None:
        """The elements that are taken; None where a run decides."""
        if self.start is None or self.stop is None or self.step is None:
            return None
        if not isinstance(self.size, int):
            return None
        back = self.step < 0
        start, stop = (b + self.size if b < 0 else b for b in (self.start, self.stop))
        first = place(numbers, start, self.size, back=back, is_stop=False)
        return range(first, place(numbers, stop, self.size, back=back, is_stop=True), self.step)

    @property
    def is_whole(self) -> bool:
        """Whether the cut is known to keep every element in its order."""
        if isinstance(self.size, int):
            return self.taken == range(self.size)
        return (self.start, self.step) == (0, 1) and self.stop is not None and self.stop >= FAR


def slices(ops: Registry, **about: Any) -> Callable[[Lowering], Lowering]:
    """Register ``Slice``: it takes the builder, the tensor, its axes, starts, ends and steps."""

    def register(body: Lowering) -> Lowering:
        @wraps(body)
        def lowered(
            g: Any, data: Any, starts: Any, ends: Any, axes: Const | None = None, steps: Any = None
        ) -> Any:
            count = starts.shape[0]
            if not isinstance(count, int):
                raise Refusal("how many axes are cut is only known at run time", "dynamic_shape")
            named = _named(axes, data.rank, count)
            found = [AxisSlice(size) for size in data.shape]
            rows = zip(named, *(_bounds(t, count) for t in (starts, ends)), strict=True)
            by = [1] * count if steps is None else _bounds(steps, count)
            for entry, ((axis, start, stop), step) in enumerate(zip(rows, by, strict=True)):
                found[axis] = AxisSlice(data.shape[axis], entry, start, stop, step)
            return body(g, data, found, starts, ends, steps)

        ops.add("Slice", lowered, of_schema("Slice"), (), {"axes"}, **about)
        return body

    return register


def _named(axes: Const | None, rank: int, count: int) -> list[int]:
    return named_axes(range(count) if axes is None else axes.array.reshape(-1), rank)


def _bounds(vector: Any, count: int) -> list[int | None]:
    if vector.data is None:
        return [None] * count
    return [max(-FAR, min(int(v), FAR)) for v in np.asarray(vector.data).reshape(-1)]


@dataclass(frozen=True, slots=True)
class AxisPad:
    """One axis of a ``Pad``: negative amounts are cut off before anything is added.

    Attributes:
        size: Size of the input, as an ``AxisSlice`` has it.
        entry: Its place among the amounts; None where the node does not name it.
        before: Elements added before the first: a number, or what the target has of a run's.
        after: Elements added behind the last, likewise.
    """

    size: Any
    entry: int | None = None
    before: Any = 0
    after: Any = 0

    @property
    def is_known(self) -> bool:
        """Whether both amounts are known at conversion."""
        return isinstance(self.before, int) and isinstance(self.after, int)

    def lost(self, op: Arithmetic = numbers) -> tuple[Any, Any]:
        """What negative amounts cut off on both sides."""
        before, after = (op("maximum", op("sub", 0, a), 0) for a in (self.before, self.after))
        return before, after

    def grown(self, op: Arithmetic = numbers) -> tuple[Any, Any]:
        """What is added on both sides."""
        return op("maximum", self.before, 0), op("maximum", self.after, 0)

    @property
    def kept(self) -> Any:
        """How many elements known amounts leave; what ``size`` is where that is dynamic."""
        return max(self.size - sum(self.lost()), 0) if isinstance(self.size, int) else self.size

    def sources(self, mode: str) -> Array:
        """Which of the elements left stand in the padded axis, by a mode that repeats them.

        Raises:
            Refusal: there are none.
        """
        if not self.kept:
            raise Refusal(f"mode {mode!r} of an axis without elements")
        before, after = self.grown()
        at = np.arange(-before, self.kept + after)
        return np.asarray(repeated(_by_ufunc, at, self.kept, mode), np.int64)

    @property
    def is_short(self) -> bool:
        """Whether both borders are known to be shorter than what is left."""
        known = self.is_known and isinstance(self.kept, int)
        return known and max(self.grown()) < self.kept


@dataclass(frozen=True, slots=True)
class PadPlan:
    """A ``Pad``.

    Attributes:
        mode: ``constant``, ``reflect``, ``edge`` or ``wrap``.
        axes: By axis of the tensor.
        value: What is added in mode ``constant``; None is zero.
        amounts: The operand, of which those axes tell the known part.
        count: How many axes it has amounts for: those before come first.
    """

    mode: str
    axes: tuple[AxisPad, ...]
    value: Any
    amounts: Any
    count: int

    @property
    def is_known(self) -> bool:
        """Whether all amounts are numbers."""
        return all(axis.is_known for axis in self.axes)

    def grown(self, op: Arithmetic = numbers) -> list[tuple[Any, Any]]:
        """What is added, by axis."""
        return [axis.grown(op) for axis in self.axes]

    def cropped(self, g: Any, x: Any, op: Arithmetic) -> Any:
        """Cut off what negative amounts take away, with a builder that has ``part``."""
        for axis, border in enumerate(self.axes):
            first, behind = border.lost(op)
            if (first, behind) != (0, 0):
                x = g.part(x, axis, first, op("sub", g.extent(x, axis), behind))
        return x


def _by_ufunc(op: str, a: Any, b: Any) -> Any:
    return getattr(np, {"sub": "subtract", "mul": "multiply"}.get(op, op))(a, b)


def repeated(op: Arithmetic, at: Any, size: Any, mode: str) -> Any:
    """Which element of an axis stands at a place that may lie beyond it.

    Args:
        op: Arithmetic of the target.
        at: The place, from 0 for the first element.
        size: Size of the axis.
        mode: ``reflect``, ``edge`` or ``wrap``.
    """
    if mode == "edge":
        return op("minimum", op("maximum", at, 0), op("sub", size, 1))
    if mode == "wrap":
        return op("mod", at, size)
    period = op("maximum", op("mul", op("sub", size, 1), 2), 1)
    there = op("mod", at, period)
    return op("minimum", there, op("sub", period, there))


def pads(
    ops: Registry,
    *,
    entries: Entries | None = None,
    around: Callable[[Lowering], Lowering] | None = None,
    **about: Any,
) -> Callable[[Lowering], Lowering]:
    """Register ``Pad``: it takes the builder, the tensor and its padding.

    Args:
        ops: The target's table.
        entries: Reads amounts of a run; without it they stay None.
        around: What the lowering is wrapped in.
        **about: Element types of the entry.
    """

    def register(body: Lowering) -> Lowering:
        @wraps(body)
        def lowered(
            g: Any, data: Any, pads: Any, value: Any = None, axes: Any = None, *, mode: str
        ) -> Any:
            if mode not in ("constant", "reflect", "edge", "wrap"):
                raise Refusal(f"mode {mode!r}")
            given = _amounts(g, pads, entries)
            half = len(given) // 2
            found = [AxisPad(size) for size in data.shape]
            rows = zip(_named(axes, data.rank, half), given[:half], given[half:], strict=True)
            for entry, (axis, *both) in enumerate(rows):
                found[axis] = AxisPad(data.shape[axis], entry, *both)
            return body(g, data, PadPlan(mode, tuple(found), value, pads, half))

        whole = lowered if around is None else around(lowered)
        ops.add("Pad", whole, of_schema("Pad"), ["mode"], {"axes"}, **about)
        return body

    return register


def _amounts(g: Any, vector: Any, entries: Entries | None) -> Sequence[Any]:
    if vector.data is not None:
        return [int(v) for v in np.asarray(vector.data).reshape(-1)]
    if entries is not None:
        return entries(g, vector)
    (count,) = vector.shape
    if not isinstance(count, int):
        raise Refusal("how many axes are padded is only known at run time", "dynamic_shape")
    return [None] * count
