"""If, Loop and Scan as IF and WHILE; what a body reads of the graph around it becomes an input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.core.loop import Scanned, loops
from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.lower.tflite.builder import Builder
from edgeinfer.convert.lower.tflite.graph import Shape, Tensor
from edgeinfer.convert.lower.tflite.registry import ANY, OPS
from edgeinfer.records import dataclass

if TYPE_CHECKING:
    from edgeinfer.convert.lower.tflite.scope import Scope

BUFFER = 1 << 16
"""Turns up to which memory for all results is set aside before a loop."""


@OPS.lower("If", dtypes=ANY)
def if_(
    g: Scope, cond: Tensor, *, else_branch: ir.Graph, then_branch: ir.Graph
) -> tuple[Tensor, ...]:
    """IF."""
    outer = list(dict.fromkeys([*g.captured(then_branch), *g.captured(else_branch)]))
    tensors = {v: g.tensor_of(v) for v in outer}
    passed = [t for t in tensors.values() if t.data is None]
    bodies: list[Scope] = []
    for name, branch in (("then", then_branch), ("else", else_branch)):
        inner = g.body(name)
        given = _inputs(inner, tensors)
        inner.finish(g.lower_body(branch, inner, given))
        bodies.append(inner)
    pairs = zip(bodies[0].outputs, bodies[1].outputs, strict=True)
    outputs = [g.tensor(_either(a, b), a.dtype) for a, b in pairs]
    op = g.add("IF", [cond, *passed], outputs)
    then, other = bodies
    op.bodies = {"then_subgraph_index": then, "else_subgraph_index": other}
    return tuple(outputs)


def _inputs(inner: Scope, tensors: dict[ir.Value, Tensor]) -> dict[ir.Value, Tensor]:
    """Give a body an input for each tensor it captures; constants it holds itself."""
    given: dict[ir.Value, Tensor] = {}
    for value, tensor in tensors.items():
        if tensor.data is None:
            given[value] = _like(inner, tensor)
            inner.inputs.append(given[value])
        else:
            given[value] = tensor
    return given


def _like(g: Builder, tensor: Tensor) -> Tensor:
    made = g.tensor(tensor.shape, tensor.dtype)
    made.quantization = tensor.quantization
    return made


def _either(a: Tensor, b: Tensor) -> Shape:
    if a.rank != b.rank:
        raise Refusal(f"its branches give ranks {a.rank} and {b.rank}", "dynamic_shape")
    if a.dtype != b.dtype:
        raise Refusal(f"its branches give {a.dtype} and {b.dtype}", "unsupported_dtype")
    return tuple(m if m == n else None for m, n in zip(a.shape, b.shape, strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class _Turn:
    """A lowered body.

    Attributes:
        inner: its graph.
        count: number of the turn.
        condition: whether it was to run.
        carried: values before the turn.
        limit: number of turns.
        fixed: inputs that every turn passes on: the limit, scanned and captured tensors.
        again: whether there is to be another turn.
        results: what is carried on, then one piece of each scan output.
    """

    inner: Scope
    count: Tensor
    condition: Tensor
    carried: list[Tensor]
    limit: Tensor | None
    fixed: list[Tensor]
    again: Tensor
    results: list[Tensor]


@dataclass(slots=True, eq=False)
class _Loop:
    """A WHILE in the making.

    Attributes:
        g: the graph around it.
        graph: the body.
        starts: what the loop carries.
        step_dtype: Element type of the counter.
        limit: number of turns; None for no limit.
        condition: before the first turn; None for true.
        scanned: inputs that are seen slice by slice.
        backwards: for each scan output, whether it is filled from the end.
        carried: stand for ``starts``, with the sizes that hold in every turn.
    """

    g: Scope
    graph: ir.Graph
    starts: list[Tensor]
    step_dtype: np.dtype[np.signedinteger]
    limit: Tensor | None = None
    condition: Tensor | None = None
    scanned: list[Scanned] = field(default_factory=list)
    backwards: list[bool] = field(default_factory=list)
    carried: list[Tensor] = field(default_factory=list)

    def lower(self, given: int) -> tuple[Tensor, ...]:
        """Write the loop.

        Args:
            given: inputs of the body before those it carries: 2 for the counter and the condition.
        """
        g, states = self.g, len(self.starts)
        tensors = {v: g.tensor_of(v) for v in g.captured(self.graph)}
        self.carried = list(self.starts)
        turn = self._turn(tensors, given)
        while not self._settled(turn.results[:states]):
            turn = self._turn(tensors, given)
        buffers = [self._buffer(piece) for piece in turn.results[states:]]
        self._close(turn, buffers)
        first = self.condition if self.condition is not None else g.const(True, np.bool_)
        operands = [g.const(0, self.step_dtype), first, *self.starts, *buffers]
        operands += [] if self.limit is None else [self.limit]
        operands += [s.tensor for s in self.scanned]
        operands += [t for t in tensors.values() if t.data is None]
        # The body's inputs have the sizes that hold in every turn.
        outputs = [_like(g, t) for t in turn.inner.inputs]
        op = g.add("WHILE", operands, outputs)
        test = self._test(turn.inner.inputs, 2 + states + len(buffers))
        op.bodies = {"cond_subgraph_index": test, "body_subgraph_index": turn.inner}
        stacked = outputs[2 + states : 2 + states + len(buffers)]
        if self._turns() is None or self._stops(turn):
            stacked = [self._cut(s, outputs[0]) for s in stacked]
        return (*outputs[2 : 2 + states], *stacked)

    def _turn(self, tensors: dict[ir.Value, Tensor], given: int) -> _Turn:
        """Lower the body, for what is known of the carried values so far."""
        inner = self.g.body("body")
        count, condition = inner.tensor((), self.step_dtype), inner.tensor((), np.bool_)
        carried = [_like(inner, s) for s in self.carried]
        whole = [_like(inner, s.tensor) for s in self.scanned]
        limit = None if self.limit is None else _like(inner, self.limit)
        values = _inputs(inner, tensors)
        fixed = [*([] if limit is None else [limit]), *whole, *inner.inputs]
        slices = [
            inner.gather(x, self._place(inner, count, limit, s.backwards), s.axis)
            for x, s in zip(whole, self.scanned, strict=True)
        ]
        heads = [count, condition][:given]
        values.update(zip(self.graph.inputs, [*heads, *carried, *slices], strict=True))
        results = self.g.lower_body(self.graph, inner, values)
        again = results.pop(0) if given else condition
        return _Turn(inner, count, condition, carried, limit, fixed, again, results)

    def _close(self, turn: _Turn, buffers: Sequence[Tensor]) -> None:
        """Set the body's inputs and outputs."""
        inner, states = turn.inner, len(self.starts)
        held = [_like(inner, b) for b in buffers]
        written = [
            self._write(turn, buffer, piece, index)
            for index, (buffer, piece) in enumerate(zip(held, turn.results[states:], strict=True))
        ]
        inner.inputs = [turn.count, turn.condition, *turn.carried, *held, *turn.fixed]
        again = inner.reshape(turn.again, [])
        following = inner.binary("ADD", turn.count, 1)
        inner.finish([following, again, *turn.results[:states], *written])
        # Passed on as they are; a copy at each turn would cost more than the turn.
        inner.outputs += turn.fixed

    def _stops(self, turn: _Turn) -> bool:
        """Whether there may be fewer turns than the limit."""
        constant = turn.again.data is not None and bool(turn.again.data.all())
        return self.condition is not None or not (turn.again is turn.condition or constant)

    def _place(self, inner: Builder, count: Tensor, limit: Tensor | None, back: bool) -> Tensor:
        """The slice of a turn, as an int32 scalar."""
        index = inner.cast(count, np.int32)
        if not back or limit is None:
            return index
        return inner.binary("SUB", inner.binary("SUB", inner.cast(limit, np.int32), 1), index)

    def _settled(self, after: Sequence[Tensor]) -> bool:
        """Open the sizes that a turn changes; whether there was none.

        Raises:
            Refusal: a turn changes a value's type or rank.
        """
        settled = True
        for index, (before, end) in enumerate(zip(self.carried, after, strict=True)):
            if before.dtype != end.dtype:
                raise Refusal(f"a carried value turns from {before.dtype} into {end.dtype}")
            if before.rank != end.rank:
                raise Refusal(
                    f"a carried value of shape {before.shape} comes back as {end.shape}",
                    "dynamic_shape",
                )
            pairs = zip(before.shape, end.shape, strict=True)
            shape = tuple(m if m == n else None for m, n in pairs)
            if shape != before.shape:
                settled = False
                self.carried[index] = Tensor(before.name, shape, before.dtype)
        return settled

    def _turns(self) -> int | None:
        """The number of turns, if it is known and a run may set memory aside for it."""
        limit = self.limit
        if limit is None or limit.data is None or not 0 < int(limit.data) <= BUFFER:
            return None
        return int(limit.data)

    def _grows(self) -> bool:
        """Whether there is no bound of the turns, so that results are appended."""
        limit = self.limit
        return limit is None or (limit.data is not None and self._turns() is None)

    def _buffer(self, piece: Tensor) -> Tensor:
        """Memory for the results of all turns, with a first row that is cut off where it grows.

        No row at all is more than LiteRT can carry.
        """
        g, limit, turns = self.g, self.limit, self._turns()
        if not piece.is_static:
            raise Refusal("a scan output has slices of dynamic size", "dynamic_shape")
        sizes = piece.static_shape
        if limit is None or self._grows():
            return g.const(np.zeros((1, *sizes), piece.dtype))
        if turns is not None:
            return g.const(np.zeros((turns, *sizes), piece.dtype))
        rows = g.binary("MAXIMUM", g.cast(limit, np.int32), 1)
        value = g.const(0, piece.dtype)
        size = g.shape_vector([rows, *sizes])
        return g.emit("FILL", [size, value], (None, *sizes), piece.dtype)

    def _write(self, turn: _Turn, buffer: Tensor, piece: Tensor, index: int) -> Tensor:
        """Add the piece of one turn to all of them."""
        inner = turn.inner
        row = inner.insert_axis(piece, 0)
        if self._grows():
            buffer.shape = (None, *buffer.shape[1:])
            return inner.concat([buffer, row], 0)
        back = bool(self.backwards and self.backwards[index])
        place = self._place(inner, turn.count, turn.limit, back)
        parts = [place, *[inner.const(0, np.int32)] * piece.rank]
        where = inner.emit("PACK", parts, (len(parts),), np.int32, values_count=len(parts), axis=0)
        return inner.emit("DYNAMIC_UPDATE_SLICE", [buffer, row, where], buffer.shape)

    def _test(self, operands: Sequence[Tensor], limit: int) -> Builder:
        """The subgraph that says whether there is another turn."""
        name = self.g.fresh_name("test")
        test = Builder(name, f"{name}/")
        test.inputs = [_like(test, t) for t in operands]
        result = test.copy(test.inputs[1])
        if self.limit is not None:
            less = test.binary("LESS", test.inputs[0], test.inputs[limit])
            result = test.binary("LOGICAL_AND", less, test.inputs[1])
        test.outputs = [result]
        test.drop_dead()
        return test

    def _cut(self, stacked: Tensor, count: Tensor) -> Tensor:
        """Keep the rows that were written."""
        g = self.g
        begin = g.const([int(self._grows())] + [0] * (stacked.rank - 1), np.int32)
        rest = [-1] * (stacked.rank - 1)
        size = g.shape_vector([g.cast(count, np.int32), *rest])
        return g.emit("SLICE", [stacked, begin, size], (None, *stacked.shape[1:]))


loops(OPS, _Loop, ANY)
