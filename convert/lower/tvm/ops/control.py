"""What is left of control flow: branches and turns that a run decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir
from tvm import relax, te, tirx

from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.lower.tvm import functions, sizes
from edgeinfer.convert.lower.tvm.builder import Builder, Size, Tensor, same
from edgeinfer.convert.lower.tvm.ops.matrix import reshape
from edgeinfer.convert.lower.tvm.registry import ALL, OPS

_GPU = "branches and turns that a run decides, which were never run on a GPU"

_DOUBLED = 62
"""Times that turns are doubled where nothing bounds them: more than any run makes."""


@OPS.lower("If", dtypes=ALL)
def if_(g: Builder, cond: Tensor, *, else_branch: Any, then_branch: Any) -> tuple[Tensor, ...]:
    """Compute one branch; those that may both be computed are gone by now."""
    if not g.on_cpu:
        raise Refusal(_GPU, "unsupported_op")
    graphs = (then_branch, else_branch)
    names = list(dict.fromkeys(v for graph in graphs for v in functions.outside(graph)))
    known, given = _split(g, names)
    like = [given[v] for v in given]

    def branch(graph: ir.Graph) -> functions.Function:
        def body(params: list[Tensor]) -> Sequence[Tensor]:
            return g.lower_body(graph, {**known, **dict(zip(given, params, strict=True))})

        return functions.write(g, "branch", like, body)

    then, other = map(branch, graphs)
    condition = reshape(g, cond, ())
    for (a, x), (b, y) in zip(then.results, other.results, strict=True):
        if a != b or len(x) != len(y):
            raise Refusal(f"its branches give {a} of {len(x)} axes and {b} of {len(y)}")
    choice = functions.write_plain(
        g, "choice", [condition, *like],
        lambda p: relax.If(
            p[0], functions.call(then.where, p[1:]), functions.call(other.where, p[1:])
        ),
    )  # fmt: skip
    made = g.block.emit(functions.call(choice, [g.expr(t) for t in (condition, *like)]))
    kinds = enumerate(zip(then.results, other.results, strict=True))
    return tuple(
        functions.item(g, made, i, list(map(_alike, x, y))) for i, ((_, x), (_, y)) in kinds
    )


def _alike(a: Size | None, b: Size | None) -> Size | None:
    """The size that two branches give; None where a run has to count."""
    return a if a is not None and b is not None and same(a, b) else None


def _split(
    g: Builder, values: Sequence[ir.Value]
) -> tuple[dict[ir.Value, Tensor], dict[ir.Value, Tensor]]:
    """Part what bodies read into what is known, and what they must be given."""
    found = {v: g.value(v) for v in values}
    known = {v: g.const(t.data) for v, t in found.items() if t.data is not None}
    return known, {v: t for v, t in found.items() if v not in known}


@OPS.lower("Loop", dtypes=ALL)
def loop(
    g: Builder, M: Tensor | None = None, cond: Tensor | None = None, *v_initial: Tensor, body: Any
) -> tuple[Tensor, ...]:
    """Make turns until the condition or the trip count ends them."""
    if not g.on_cpu:
        raise Refusal(_GPU, "unsupported_op")
    known, given = _split(g, functions.outside(body))
    most = np.iinfo(np.int64).max
    limit = g.const(np.asarray(most)) if M is None else reshape(g, M, ())
    start = g.const(np.asarray(0, np.int64))
    going = g.map(lambda stop: stop > tirx.const(0, "int64"), limit, dtype="bool")
    if cond is not None:
        going = g.map(tirx.And, going, reshape(g, cond, ()))
    fixed, states = [limit, *given.values()], list(v_initial)

    def turn(params: list[Tensor]) -> Sequence[Tensor]:
        index, stop = params[0], params[1]
        rest = dict(zip(given, params[2 : 1 + len(fixed)], strict=True))
        now = params[1 + len(fixed) :]
        first = map(partial(_as_declared, g), body.inputs, (index, g.const(np.asarray(True))))
        values = dict(zip(body.inputs, [*first, *now], strict=True))
        again, *made = g.lower_body(body, {**known, **rest, **values})
        one = tirx.const(1, "int64")
        after = g.map(lambda i: i + one, index)
        more = g.map(tirx.And, g.map(tirx.LT, after, stop, dtype="bool"), reshape(g, again, ()))
        rows = [reshape(g, row, (1, *row.shape)) for row in made[len(states) :]]
        return [after, more, *made[: len(states)], *rows]

    step, like, free = _settled(g, [start, *fixed], states, turn)
    turns = _Turns(g, [start, going, *fixed], like, step, free)
    count = None if M is None or M.data is None else int(M.data.item())
    return turns.results(states, _DOUBLED if count is None else max(count, 1).bit_length())


def _settled(
    g: Builder,
    head: list[Tensor],
    states: list[Tensor],
    turn: Callable[[list[Tensor]], Sequence[Tensor]],
) -> tuple[functions.Function, list[Tensor], list[Size]]:
    """Write a turn in which the sizes that it changes are open.

    Returns:
        The turn, what its states are like, and which sizes of them are open.
    """
    like, free = list(states), list[Size]()
    while True:
        step = functions.write(g, "turn", [*head, *like], turn)
        changed = False
        for index, state in enumerate(like):
            dtype, shape = step.results[2 + index]
            if dtype != state.dtype or len(shape) != state.rank:
                raise Refusal("a state changes its type or rank from turn to turn", "dynamic_shape")
            own = list(state.shape)
            for axis, (before, after) in enumerate(zip(state.shape, shape, strict=True)):
                if not _is_in(before, free) and (after is None or not same(before, after)):
                    own[axis] = g.count()
                    free.append(own[axis])
                    changed = True
            like[index] = Tensor(state.dtype, tuple(own))
        if not changed:
            return step, like, free


def _is_in(size: Size, sizes: Sequence[Size]) -> bool:
    return any(size is other for other in sizes)


def _nothing(g: Builder, dtype: str, shape: Sequence[Size | None]) -> Tensor:
    """Return no rows; of sizes that only a turn tells there are none either."""
    full = (0, *(0 if s is None else s for s in shape[1:]))
    if all(isinstance(s, int) for s in full):
        return g.const(np.zeros(full, dtype))
    zero = tirx.const(0, dtype)
    return g.te(lambda: te.compute(full, lambda *i: zero, name="nothing"), name="nothing")


def _as_declared(g: Builder, value: ir.Value, number: Tensor) -> Tensor:
    """Give a body's number and condition the one axis that they may have there."""
    return reshape(g, number, (1,)) if value.shape is not None and len(value.shape) else number


class _Turns:
    """Functions of many turns, from that of one.

    All take the index, whether it goes on, what stays the same, states and what was collected; they
    give those but what stays the same.
    """

    def __init__(
        self,
        g: Builder,
        head: list[Tensor],
        states: list[Tensor],
        step: functions.Function,
        free: Sequence[Size],
    ) -> None:
        self.g, self.head, self.step = g, head, step
        self.states = [[None if _is_in(s, free) else s for s in t.shape] for t in states]
        self.rows = [
            (dtype, [None if _is_in(s, free) else s for s in shape])
            for dtype, shape in step.results[2 + len(states) :]
        ]
        open_ = [
            Tensor(dtype, (g.count(), *(g.count() if s is None else s for s in shape[1:])))
            for dtype, shape in self.rows
        ]
        self.like = [*head, *states, *open_]
        self.moved = [0, 1, *range(len(head), len(self.like))]

    def results(self, states: Sequence[Tensor], doubled: int) -> tuple[Tensor, ...]:
        """Call the function of so many turns; return states and what was collected."""
        g = self.g
        turns = self._if_it_goes_on(self._next())
        for _ in range(doubled):
            turns = self._if_it_goes_on(self._twice(turns))
        whole = [*self.head, *states, *(_nothing(g, *row) for row in self.rows)]
        made = g.block.emit(functions.call(self._apart(turns), [g.expr(t) for t in whole]))
        shapes = [*self.states, *([None, *shape[1:]] for _, shape in self.rows)]
        return tuple(functions.item(g, made, 2 + i, shape) for i, shape in enumerate(shapes))

    def _next(self) -> Any:
        """One turn, and what it collects behind what was there."""
        g, first = self.g, len(self.head) + len(self.states)

        def body(p: list[Any]) -> Any:
            given = [p[0], *p[2:first]]
            made = g.block.emit(functions.call(self.step.where, given))
            kept = 2 + len(self.states)
            values = [g.block.emit(relax.TupleGetItem(made, i)) for i in range(kept)]
            for index, (before, (_, shape)) in enumerate(zip(p[first:], self.rows, strict=True)):
                expected = [s if isinstance(s, int) else None for s in shape]
                row = functions.item(g, made, kept + index, expected)
                values.append(g.expr(_joined(g, g.wrap(before), row)))
            return relax.Tuple(values)

        return functions.write_plain(g, "next", self.like, body)

    def _if_it_goes_on(self, turns: Any) -> Any:
        def body(p: list[Any]) -> Any:
            as_it_was = relax.Tuple([p[i] for i in self.moved])
            return relax.If(p[1], functions.call(turns, p), as_it_was)

        return functions.write_plain(self.g, "turns", self.like, body)

    def _twice(self, turns: Any) -> Any:
        def body(p: list[Any]) -> Any:
            made = self.g.block.emit(functions.call(turns, p))
            later = dict(enumerate(p))
            for index, place in enumerate(self.moved):
                later[place] = self.g.block.emit(relax.TupleGetItem(made, index))
            return functions.call(turns, [later[i] for i in range(len(p))])

        return functions.write_plain(self.g, "twice", self.like, body)

    def _apart(self, turns: Any) -> Any:
        """Without a turn a state is what it was, so all of them are copies."""
        g = self.g

        def body(p: list[Any]) -> Any:
            return functions.call(turns, [g.expr(functions.fresh(g, g.wrap(v))) for v in p])

        return functions.write_plain(g, "loop", self.like, body)


def _joined(g: Builder, before: Tensor, row: Tensor) -> Tensor:
    """Append a row, which has the sizes of those that there are."""
    shape = (before.shape[0] + 1, *row.shape[1:])
    if not all(same(a, b) for a, b in zip(before.shape[1:], row.shape[1:], strict=True)):
        shape = _checked(g, before, row)

    def compute(a: Any, b: Any) -> Any:
        def element(index: Any, *rest: Any) -> Any:
            zero = tirx.const(0, "int64")
            old = tirx.Cast("int64", index) < tirx.Cast("int64", a.shape[0])
            return tirx.if_then_else(old, a(index, *rest), b(zero, *rest))

        return te.compute(shape, element, name="joined")

    return g.te(compute, before, row, name="joined")


def _checked(g: Builder, before: Tensor, row: Tensor) -> tuple[Size, ...]:
    """Sizes with one row more; before the first row there was nothing to compare it with."""
    count = row.rank - 1

    def make(size: Callable[[int], Any]) -> sizes.Decision:
        none = tirx.EQ(size(0), tirx.const(0, "int64"))
        alike = [tirx.EQ(size(1 + i), size(1 + count + i)) for i in range(count)]
        own = [size(1 + count + i) for i in range(count)]
        return [size(0) + 1, *own], tirx.Or(none, tirx.all(*alike))

    expected = sizes.values(g, [*before.shape, *row.shape[1:]])
    return sizes.decided(g, [expected], make, [None, *row.shape[1:]])
