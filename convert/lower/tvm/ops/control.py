"""What is left of control flow: branches and turns that a run decides."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir
from tvm import relax, te, tirx

from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.lower.tvm import functions
from edgeinfer.convert.lower.tvm.builder import Builder, Size, Tensor, same
from edgeinfer.convert.lower.tvm.ops.matrix import reshape
from edgeinfer.convert.lower.tvm.registry import ALL, OPS

_GPU = "branches and turns that a run decides, which were never run on a GPU"

_DOUBLED = 62
"""Times that turns are doubled where nothing bounds them: more than any run makes."""


@OPS.lower("If", since=16, dtypes=ALL)
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


@OPS.lower("Loop", since=16, dtypes=ALL)
def loop(
    g: Builder,
    M: Tensor | None = None,  # noqa: N803
    cond: Tensor | None = None,
    *v_initial: Tensor,
    body: Any,
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

    step = functions.write(g, "turn", [start, *fixed, *states], turn)
    for index, state in enumerate(states):
        if not functions.is_result(step, 2 + index, state):
            raise Refusal("a state changes its type or size from turn to turn", "dynamic_shape")
    kept = 2 + len(states)
    if any(not isinstance(s, int) for _, shape in step.results[kept:] for s in shape):
        raise Refusal("what turns collect has open sizes", "dynamic_shape")
    kinds = ((kind, [int(s or 0) for s in shape[1:]]) for kind, shape in step.results[kept:])
    collected = [g.const(np.zeros((0, *row), kind)) for kind, row in kinds]
    turns = _Turns(g, [start, going, *fixed], states, collected, step)
    count = None if M is None or M.data is None else int(M.data.item())
    return turns.results(_DOUBLED if count is None else max(count, 1).bit_length())


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
        collected: list[Tensor],
        step: functions.Function,
    ) -> None:
        self.g, self.head, self.states, self.step = g, head, states, step
        self.collected = collected
        open_ = [Tensor(t.dtype, (g.count(), *t.shape[1:])) for t in collected]
        self.like = [*head, *states, *open_]
        self.moved = [0, 1, *range(len(head), len(self.like))]

    def results(self, doubled: int) -> tuple[Tensor, ...]:
        """Call the function of so many turns; return states and what was collected."""
        g = self.g
        turns = self._if_it_goes_on(self._next())
        for _ in range(doubled):
            turns = self._if_it_goes_on(self._twice(turns))
        whole = [*self.head, *self.states, *self.collected]
        made = g.block.emit(functions.call(self._apart(turns), [g.expr(t) for t in whole]))
        shapes = [list(t.shape) for t in self.states]
        shapes += [[None, *t.shape[1:]] for t in self.collected]
        return tuple(functions.item(g, made, 2 + i, shape) for i, shape in enumerate(shapes))

    def _next(self) -> Any:
        """One turn, and what it collects behind what was there."""
        g, first = self.g, len(self.head) + len(self.states)

        def body(p: list[Any]) -> Any:
            given = [p[0], *p[2:first]]
            made = g.block.emit(functions.call(self.step.where, given))
            values = [
                g.block.emit(relax.TupleGetItem(made, i)) for i in range(len(self.step.results))
            ]
            kept = 2 + len(self.states)
            for index, before in enumerate(p[first:], kept):
                values[index] = g.expr(_joined(g, g.wrap(before), g.wrap(values[index])))
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
    def compute(a: Any, b: Any) -> Any:
        def element(index: Any, *rest: Any) -> Any:
            zero = tirx.const(0, "int64")
            old = tirx.Cast("int64", index) < tirx.Cast("int64", a.shape[0])
            return tirx.if_then_else(old, a(index, *rest), b(zero, *rest))

        return te.compute((a.shape[0] + 1, *a.shape[1:]), element, name="joined")

    return g.te(compute, before, row, name="joined")
