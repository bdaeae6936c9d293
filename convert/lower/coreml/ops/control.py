"""If, Loop and Scan as cond and while_loop."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.core.loop import Scanned, loops
from edgeinfer.convert.lower.coreml.builder import Extent
from edgeinfer.convert.lower.coreml.emitter import OVERFLOW, Overflow
from edgeinfer.convert.lower.coreml.integers import WiderError
from edgeinfer.convert.lower.coreml.ops.counters import Counter, counter_of
from edgeinfer.convert.lower.coreml.ops.loops import (
    buffer,
    piece_of,
    store,
    while_loop,
)
from edgeinfer.convert.lower.coreml.registry import ALL, OPS
from edgeinfer.convert.lower.coreml.tensor import WHOLE, Tensor
from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.records import dataclass

if TYPE_CHECKING:
    from edgeinfer.convert.lower.coreml.scope import Scope


@OPS.lower("If", dtypes=ALL)
def if_(
    g: Scope, cond: Tensor, *, else_branch: ir.Graph, then_branch: ir.Graph
) -> tuple[Tensor, ...]:
    """Cond."""
    results: dict[str, list[Tensor]] = {}
    pred = g.cast(g.reshape(cond, []), np.bool_)
    node = g.driver.node
    shapes = [v.shape for v in node.outputs] if node is not None else []
    differ = any(s is not None and not s.is_static() for s in shapes)
    none = g.binary("mul", g.cast(pred, np.int32), 0, (0, 0)) if differ else None

    def branch(name: str, body: ir.Graph) -> Any:
        def lowered() -> list[Any]:
            with g.inside():
                found = zip(g.lower_body(body, {}), shapes, strict=True)
                results[name] = [_opened(g, t, shape, none) for t, shape in found]
                return [g.fresh(t) for t in results[name]]

        return lowered

    made = g.call(
        "cond",
        {
            "pred": pred,
            "_true_fn": branch("then", then_branch),
            "_false_fn": branch("else", else_branch),
        },
    )
    made = made if isinstance(made, (list, tuple)) else [made]
    out = []
    for variable, a, b in zip(made, results["then"], results["else"], strict=True):
        if a.dtype != b.dtype:
            raise Refusal(f"its branches give {a.dtype} and {b.dtype}", "unsupported_dtype")
        if a.rank != b.rank:
            raise Refusal(f"its branches give ranks {a.rank} and {b.rank}", "dynamic_shape")
        tensor = g.wrap(variable, a.dtype)
        if a.is_integer:
            (low, high), (least, most) = a.bounds, b.bounds
            tensor.span = (min(low, least), max(high, most))
        out.append(tensor)
    return tuple(out)


def _opened(g: Scope, x: Tensor, shape: ir.Shape | None, none: Tensor | None) -> Tensor:
    """Let only a run know the sizes that another branch has otherwise: both have one type."""
    if none is None or shape is None or len(shape) != x.rank or not x.is_static:
        return x
    for axis, size in enumerate(shape):
        if not isinstance(size, int):
            x = g.part(x, axis, 0, g.plus(x.shape[axis], none))
    return x


@dataclass(slots=True, eq=False)
class _Loop:
    """A loop in the making.

    Attributes:
        g: the graph around it.
        body: Body of the node.
        starts: what the loop carries.
        limit: number of turns; None for no limit.
        condition: before the first turn; None for true.
        scanned: inputs that are seen slice by slice.
        backwards: for each scan output, whether it is filled from the end.
        counters: for each carried value, what it counts to; None for what is no counter.
    """

    g: Scope
    body: ir.Graph
    starts: list[Tensor]
    limit: Tensor | None = None
    condition: Tensor | None = None
    scanned: list[Scanned] = field(default_factory=list)
    backwards: list[bool] = field(default_factory=list)
    counters: list[Counter | None] = field(default_factory=list)

    @property
    def place(self) -> str:
        """The name of the loop, the same at every attempt."""
        node = self.g.driver.node
        return next((v.name for v in node.outputs if v.name), "") if node is not None else ""

    def lower(self, given: int) -> tuple[Tensor, ...]:
        """Write the loop; ``given`` inputs of the body come before those it carries."""
        g, states = self.g, len(self.starts)
        pieces = list(self.body.outputs)[states + (1 if given else 0) :]
        self.backwards = self.backwards or [False] * len(pieces)
        limit = None if self.limit is None else g.cast(self.limit, np.int32)
        if limit is None and pieces:
            raise Refusal("without a number of turns", "dynamic_shape")
        counter = g.const(0, np.int32)
        counter.span = (0, (1 << 31) - 2 if limit is None else max(limit.bounds[1] - 1, 0))
        going = self.condition or g.const(True, np.bool_)
        rooms = [self._room(v, limit) for v in pieces]
        # Without a limit the turns are counted only.
        turns = 1 << 62 if limit is None else counter.span[1] + 1
        first = len(self.body.inputs) - states - len(self.scanned)
        ends = list(self.body.outputs)[1 if given else 0 :]
        self.counters = [
            counter_of(g, self.body, before, after, t.bounds, turns) if t.is_integer else None
            for before, after, t in zip(
                self.body.inputs[first : first + states], ends, self.starts, strict=False
            )
        ]
        carried = [self._carried(i, t) for i, t in enumerate(self.starts)]
        kinds = [np.dtype(v.dtype.numpy()) for v in pieces if v.dtype is not None]

        def goes_on(now: list[Tensor]) -> Tensor:
            if limit is None:
                return now[1]
            return g.binary("logical_and", now[1], g.binary("less", now[0], limit))

        def turn(now: list[Tensor]) -> list[Tensor]:
            return self._turn(now, given, states, limit)

        end = while_loop(g, [counter, going, *carried, *rooms], goes_on, turn)
        for result, known in zip(end[2:], self.counters, strict=False):
            result.span = result.span if known is None else known.after
        found = [g.cast(r, k) for r, k in zip(end[2 + states :], kinds, strict=True)]
        if given and found and not self._runs_to_the_end():
            found = [self._filled(f, end[0]) for f in found]
        return (*end[2 : 2 + states], *found)

    def _runs_to_the_end(self) -> bool:
        """Whether the number of turns is known to be the limit."""
        again = self.body.outputs[0]
        constant = again.const_value
        passed = len(self.body.inputs) > 1 and again is self.body.inputs[1]
        producer = again.producer()
        if producer is not None and producer.op_type == "Identity":
            passed = passed or producer.inputs[0] is self.body.inputs[1]
        steady = passed or (constant is not None and bool(constant.numpy().all()))
        return steady and self.condition is None

    def _filled(self, pieces: Tensor, count: Tensor) -> Tensor:
        """Leave out the room of turns that did not happen."""
        g = self.g
        end = g.vector([count, *g.extents(pieces)[1:]])
        begin = g.const([0] * pieces.rank, np.int32)
        return g.emit("slice_by_index", x=pieces, begin=begin, end=end, span=pieces.span)

    def _carried(self, index: int, start: Tensor) -> Tensor:
        """What is known of a value before the first turn need not hold after it."""
        g = self.g
        made = Tensor(start.dtype, start.shape, g.var(start))
        if made.is_integer and _may_leave(made):
            known = self.counters[index]
            made.span = known.inside if known else g.proofs.carried.get((self.place, index))
            made.span = made.span or start.bounds
            low, high = made.span
            if low < WHOLE[0] or high > WHOLE[1]:
                words = f"{OVERFLOW} {low} and {high}, counted, may leave int32"
                raise Overflow(words, "unsupported_dtype")
        return made

    def _prove(self, index: int, before: Tensor, after: Tensor) -> None:
        """See to it that the next turn begins with no more than this one is taken to.

        Raises:
            WiderError: it does not; the next attempt will.
        """
        if not before.is_integer or not _may_leave(before) or self.counters[index]:
            return
        (low, high), (least, most) = before.bounds, after.bounds
        if least < low or most > high:
            wider = (min(low, least), max(high, most))
            raise WiderError((self.place, index), wider)

    def _room(self, value: ir.Value, limit: Tensor | None) -> Tensor:
        g = self.g
        if value.dtype is None or limit is None:
            raise Refusal(f"{value.name!r} has no known type", "dynamic_shape")
        piece = [g.named_size(d) for d in ([None] if value.shape is None else value.shape)]
        if None in piece:
            raise Refusal(f"{value.name!r} has dynamic sizes", "dynamic_shape")
        count: Extent = limit if limit.data is None else int(limit.data)
        dtype = np.dtype(value.dtype.numpy())
        return buffer(g, count, [p for p in piece if p is not None], dtype)

    def _turn(
        self, now: list[Tensor], given: int, states: int, limit: Tensor | None
    ) -> list[Tensor]:
        g = self.g
        index, going = now[0], now[1]
        values: dict[ir.Value, Tensor] = {}
        inputs = list(self.body.inputs)
        if given:
            counter = Tensor(np.dtype(np.int64), (), index.variable, span=index.span)
            values[inputs[0]], values[inputs[1]] = counter, going
        values.update(zip(inputs[given : given + states], now[2 : 2 + states], strict=True))
        for value, row in zip(inputs[given + states :], self.scanned, strict=True):
            place = self._place(index, limit, row.backwards)
            values[value] = piece_of(g, row.tensor, place, row.axis)
        results = g.lower_body(self.body, values)
        again = g.cast(g.reshape(results[0], []), np.bool_) if given else going
        results = results[1:] if given else results
        rooms = now[2 + states :]
        stored = []
        for room, piece, back in zip(rooms, results[states:], self.backwards, strict=True):
            stored.append(store(g, room, self._place(index, limit, back), piece))
        following = g.binary("add", index, 1)
        for number, result in enumerate(results[:states]):
            self._prove(number, now[2 + number], result)
        return [following, again, *results[:states], *stored]

    def _place(self, index: Tensor, limit: Tensor | None, back: bool) -> Tensor:
        if not back or limit is None:
            return index
        return self.g.binary("sub", self.g.binary("sub", limit, 1), index)


def _may_leave(x: Tensor) -> bool:
    """Whether an element type holds more than int32; what is int32 wraps as it should."""
    return x.dtype.itemsize > 4 or x.dtype == np.uint32


loops(OPS, lambda g, body, starts, _: _Loop(g, body, starts), ALL)
