"""If, Loop and Scan as IF and WHILE; what a body reads of the graph around it becomes an input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.lower.tflite.builder import Builder, Extent
from edgeinfer.convert.lower.tflite.graph import Shape, Tensor
from edgeinfer.convert.lower.tflite.registry import ANY, OPS

if TYPE_CHECKING:
    from edgeinfer.convert.lower.tflite.scope import Scope

BUFFER = 1 << 16
"""Turns up to which memory for all results is set aside before a loop."""


@OPS.lower("If", since=24, dtypes=ANY)
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


@OPS.lower("Loop", since=24, dtypes=ANY)
def loop(
    g: Scope,
    m: Tensor | None = None,
    cond: Tensor | None = None,
    *v_initial: Tensor,
    body: ir.Graph,
) -> tuple[Tensor, ...]:
    """WHILE."""
    made = _Loop(g, body, list(v_initial), step_dtype=np.dtype(np.int64))
    if m is not None:
        made.limit = g.reshape(m, [])
    if cond is not None and not (cond.data is not None and cond.data.all()):
        made.condition = g.reshape(cond, [])
    return made.lower(given=2)


@OPS.lower("Scan", since=24, dtypes=ANY)
def scan(
    g: Scope,
    *initial_state_and_scan_inputs: Tensor,
    body: ir.Graph,
    num_scan_inputs: int,
    scan_input_axes: Sequence[int] | None = None,
    scan_input_directions: Sequence[int] | None = None,
    scan_output_axes: Sequence[int] | None = None,
    scan_output_directions: Sequence[int] | None = None,
) -> tuple[Tensor, ...]:
    """WHILE over the slices of the inputs."""
    states = list(initial_state_and_scan_inputs[:-num_scan_inputs])
    inputs = list(initial_state_and_scan_inputs[-num_scan_inputs:])
    axes = [a % x.rank for a, x in zip(scan_input_axes or [0] * len(inputs), inputs, strict=True)]
    made = _Loop(g, body, states, step_dtype=np.dtype(np.int32))
    size = next(
        (x.shape[a] for x, a in zip(inputs, axes, strict=True) if x.shape[a] is not None), None
    )
    extent: Extent = g.extent(inputs[0], axes[0]) if size is None else size
    made.limit = g.const(extent, np.int32) if isinstance(extent, int) else extent
    made.scanned = [
        _Scanned(x, axis, bool(back))
        for x, axis, back in zip(
            inputs, axes, scan_input_directions or [0] * len(inputs), strict=True
        )
    ]
    count = len(body.outputs) - len(states)
    made.backwards = [bool(d) for d in scan_output_directions or [0] * count]
    results = list(made.lower(given=0))
    for index, axis in enumerate(scan_output_axes or [0] * count):
        result = results[len(states) + index]
        perm = list(range(1, result.rank))
        perm.insert(axis % result.rank, 0)
        results[len(states) + index] = g.transpose(result, perm)
    return tuple(results)


@dataclass(frozen=True, slots=True, eq=False)
class _Scanned:
    """An input of which each turn sees one slice."""

    tensor: Tensor
    axis: int
    backwards: bool


@dataclass(slots=True, eq=False)
class _Loop:
    """A WHILE in the making.

    Attributes:
        g: the graph around it.
        graph: the body.
        starts: what the loop carries.
        step_dtype: of the counter.
        limit: number of turns; None for no limit.
        condition: before the first turn; None for true.
        scanned: inputs that are seen slice by slice.
        backwards: for each scan output, whether it is filled from the end.
    """

    g: Scope
    graph: ir.Graph
    starts: list[Tensor]
    step_dtype: np.dtype[np.signedinteger]
    limit: Tensor | None = None
    condition: Tensor | None = None
    scanned: list[_Scanned] = field(default_factory=list)
    backwards: list[bool] = field(default_factory=list)

    def lower(self, given: int) -> tuple[Tensor, ...]:
        """Write the loop.

        Args:
            given: inputs of the body before those it carries: 2 for the counter and the condition.
        """
        g, states = self.g, len(self.starts)
        tensors = {v: g.tensor_of(v) for v in g.captured(self.graph)}
        inner = g.body("body")
        count = inner.tensor((), self.step_dtype)
        condition = inner.tensor((), np.bool_)
        carried = [_like(inner, s) for s in self.starts]
        whole = [_like(inner, s.tensor) for s in self.scanned]
        limit = None if self.limit is None else _like(inner, self.limit)
        inner.inputs = [count, condition, *carried]
        values = _inputs(inner, tensors)
        slices = [
            inner.gather(x, self._place(inner, count, limit, s.backwards), s.axis)
            for x, s in zip(whole, self.scanned, strict=True)
        ]
        heads = [count, condition][:given]
        values.update(zip(self.graph.inputs, [*heads, *carried, *slices], strict=True))
        results = g.lower_body(self.graph, inner, values)
        again = results.pop(0) if given else None
        self._check(results[:states])
        stops = again is not None and again is not condition and not _is_true(again)
        if again is condition and self.condition is not None:
            stops = True
        pieces = results[states:]
        buffers = [self._buffer(p) for p in pieces]
        held = [_like(inner, b) for b in buffers]
        written = [
            self._write(inner, b, p, count, limit, index)
            for index, (b, p) in enumerate(zip(held, pieces, strict=True))
        ]
        fixed = [] if limit is None else [limit]
        captured = inner.inputs[2 + states :]
        inner.inputs = [count, condition, *carried, *held, *fixed, *whole, *captured]
        following = inner.binary("ADD", count, 1)
        cond_out = condition if again is None else inner.reshape(again, [])
        inner.finish([following, cond_out, *results[:states], *written])
        # Passed on as they are; a copy at each turn would cost more than the turn.
        inner.outputs += [*fixed, *whole, *captured]
        passed = [t for t in tensors.values() if t.data is None]
        first = self.condition if self.condition is not None else g.const(True, np.bool_)
        zero = g.const(0, self.step_dtype)
        limits = [] if self.limit is None else [self.limit]
        scanned = [s.tensor for s in self.scanned]
        operands = [zero, first, *self.starts, *buffers, *limits, *scanned, *passed]
        # The body's inputs have the sizes that hold in every turn.
        outputs = [_like(g, t) for t in inner.inputs]
        op = g.add("WHILE", operands, outputs)
        test = self._test(inner.inputs, 2 + states + len(buffers))
        op.bodies = {"cond_subgraph_index": test, "body_subgraph_index": inner}
        stacked = outputs[2 + states : 2 + states + len(buffers)]
        whole_run = not stops and self.condition is None and self._turns() is not None
        if not whole_run:
            stacked = [self._cut(s, outputs[0]) for s in stacked]
        return (*outputs[2 : 2 + states], *stacked)

    def _place(self, inner: Builder, count: Tensor, limit: Tensor | None, back: bool) -> Tensor:
        """The slice of a turn, as an int32 scalar."""
        index = inner.cast(count, np.int32)
        if not back or limit is None:
            return index
        return inner.binary("SUB", inner.binary("SUB", inner.cast(limit, np.int32), 1), index)

    def _check(self, after: Sequence[Tensor]) -> None:
        for before, end in zip(self.starts, after, strict=True):
            if before.dtype != end.dtype:
                raise Refusal(f"a carried value turns from {before.dtype} into {end.dtype}")
            changes = before.rank != end.rank or any(
                a != b for a, b in zip(before.shape, end.shape, strict=True) if a is not None
            )
            if changes:
                raise Refusal(
                    f"a carried value of shape {before.shape} comes back as {end.shape}",
                    "dynamic_shape",
                )

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
        """Memory for all pieces, with a first row that is cut off where it grows.

        No row at all is more than LiteRT can carry.
        """
        g, limit, turns = self.g, self.limit, self._turns()
        if not piece.is_static:
            raise Refusal("a scan output has pieces of open sizes", "dynamic_shape")
        sizes = piece.static_shape
        if limit is None or self._grows():
            return g.const(np.zeros((1, *sizes), piece.dtype))
        if turns is not None:
            return g.const(np.zeros((turns, *sizes), piece.dtype))
        rows = g.binary("MAXIMUM", g.cast(limit, np.int32), 1)
        value = g.const(0, piece.dtype)
        size = g.shape_vector([rows, *sizes])
        return g.emit("FILL", [size, value], (None, *sizes), piece.dtype)

    def _write(
        self,
        inner: Builder,
        buffer: Tensor,
        piece: Tensor,
        count: Tensor,
        limit: Tensor | None,
        index: int,
    ) -> Tensor:
        row = inner.insert_axis(piece, 0)
        if self._grows():
            buffer.shape = (None, *buffer.shape[1:])
            return inner.concat([buffer, row], 0)
        back = bool(self.backwards and self.backwards[index])
        place = self._place(inner, count, limit, back)
        zero = inner.const(0, np.int32)
        parts = [place, *[zero] * piece.rank]
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


def _is_true(tensor: Tensor) -> bool:
    return tensor.data is not None and bool(tensor.data.all())
