"""What a Scan states, and shapes inside loops that general inference cannot see."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.single import walk
from edgeinfer.convert.passes.control_flow import connect
from edgeinfer.convert.passes.inference import infer
from edgeinfer.convert.passes.infra import Namer, add_initializer, replace_value
from edgeinfer.convert.passes.rewrite import ReplacementBuilder


class ScanForm:
    """Attributes of a Scan, with what counts where they are left out."""

    def __init__(self, node: ir.Node) -> None:
        body = node.attributes["body"].as_graph()
        scanned = node.attributes["num_scan_inputs"].as_int()
        self.states = len(node.inputs) - scanned
        made = len(body.outputs) - self.states

        def option(name: str, length: int) -> list[int]:
            found = node.attributes.get(name)
            return list(found.as_ints()) if found is not None else [0] * length

        self.axes = option("scan_input_axes", scanned)
        self.back = option("scan_input_directions", scanned)
        self.out_axes = option("scan_output_axes", made)
        self.out_back = option("scan_output_directions", made)


def as_loop(model: ir.Model, node: ir.Node) -> bool:
    """Write a Scan, in place, as a Loop that reads a row in each turn; False where it has no form.

    Given::

        s, y = Scan<num_scan_inputs=1>(s0, x) <body = (v, row) => (w, o)>

    Result::

        s, y = Loop(Gather(Shape(x), 0), true, s0)
            <body = (i, on, v) => (on, w, o) { row = Gather(x, i) }>
    """
    body, scan = node.attributes["body"].as_graph(), ScanForm(node)
    given = [v for v in node.inputs if v is not None]
    rows, made = given[scan.states :], body.outputs[scan.states :]
    ranks = [_rank(v) for v in (*rows, *made)]
    if node.graph is None or len(given) != len(body.inputs) or None in ranks:
        return False
    namer = Namer(model)
    build = ReplacementBuilder(namer, node.name or "scan")
    axes = [a % (r or 1) for a, r in zip(scan.axes, ranks, strict=False)]
    length = build.op("Shape", rows[0], start=axes[0], end=axes[0] + 1)
    count = build.op("Reshape", length, build.const(np.zeros(0, np.int64), "scalar"))
    last = build.op("Sub", count, build.const(np.asarray(1), "one"))
    _read_rows(body, rows, axes, [last if back else None for back in scan.back], namer)
    node.attributes.pop("body")
    on = build.const(np.asarray(True), "on")
    inputs = [count, on, *given[: scan.states]]
    loop = ir.node("Loop", inputs, {"body": body}, num_outputs=len(node.outputs))
    build.nodes.append(loop)
    results = list(loop.outputs)
    for index, (axis, back) in enumerate(zip(scan.out_axes, scan.out_back, strict=True)):
        rank = (ranks[len(rows) + index] or 0) + 1
        place = scan.states + index
        results[place] = _laid(build, results[place], axis % rank, rank, back=bool(back))
    build.insert(model.graph, node)
    connect(node, results, namer)
    return True


def _rank(value: ir.Value) -> int | None:
    return None if value.shape is None else len(value.shape)


def _read_rows(
    body: ir.Graph,
    rows: Sequence[ir.Value],
    axes: Sequence[int],
    last: Sequence[ir.Value | None],
    namer: Namer,
) -> None:
    """Make a body of rows one of turns, which reads them; backwards where a last one is given."""
    index = ir.Value(name=namer.fresh("turn"), type=ir.TensorType(ir.DataType.INT64))
    going = ir.Value(name=namer.fresh("going"), type=ir.TensorType(ir.DataType.BOOL))
    index.shape, going.shape = ir.Shape([]), ir.Shape([])
    states = len(body.inputs) - len(rows)
    for number, value in enumerate(body.outputs):
        if value in list(body.inputs)[states:]:
            same = ir.node("Identity", [value])
            same.outputs[0].name, same.outputs[0].type = namer.fresh("row"), value.type
            body.append(same)
            body.outputs[number] = same.outputs[0]
    nodes = []
    for old, x, axis, end in zip(list(body.inputs)[states:], rows, axes, last, strict=True):
        place = index
        if end is not None:
            nodes.append(ir.node("Sub", [end, index]))
            place = nodes[-1].outputs[0]
            place.name = namer.fresh("place")
        nodes.append(ir.node("Gather", [x, place], {"axis": axis}))
        row = nodes[-1].outputs[0]
        row.name, row.type, row.shape = namer.fresh(old.name or "row"), old.type, old.shape
        replace_value(old, row)
    again = ir.node("Identity", [going])
    again.outputs[0].name, again.outputs[0].type = namer.fresh("again"), going.type
    nodes.append(again)
    kept = list(body.inputs)[:states]
    body.inputs.clear()
    body.inputs.extend([index, going, *kept])
    body.outputs.insert(0, again.outputs[0])
    if len(body):
        body.insert_before(body[0], nodes)
    else:
        body.extend(nodes)


def _laid(
    build: ReplacementBuilder, stack: ir.Value, axis: int, rank: int, *, back: bool
) -> ir.Value:
    """Give a stack of rows the order and the axis that a Scan states."""
    if back:
        ends = (np.asarray([v], np.int64) for v in (-1, np.iinfo(np.int64).min, 0, -1))
        stack = build.op("Slice", stack, *(build.const(v, "end") for v in ends))
    if not axis:
        return stack
    order = list(range(1, rank))
    order.insert(axis, 0)
    return build.op("Transpose", stack, perm=order)


def settle_loops(model: ir.Model) -> None:
    """Set, in place, what is known of the inputs of loop bodies.

    The iteration number and the condition are scalars by definition. A carried value keeps the
    shape it starts with if one step keeps it: that is assumed, inferred through the body, and taken
    back where the step gives another shape. In a turn the condition is true, a
    constant for loops within: OpenVINO 2026.4.1 does not hand it on to them.
    """
    loops = [node for _, node in walk(model) if node.op_type == "Loop" and not node.domain]
    if not loops:
        return
    assumed: list[tuple[ir.Graph, ir.Value, ir.Value]] = []
    for node in loops:
        body = node.attributes["body"].as_graph()
        _tell_condition(model, body)
        for value, dtype in zip(body.inputs, (ir.DataType.INT64, ir.DataType.BOOL), strict=False):
            value.type = ir.TensorType(dtype)
            if value.shape is None:
                value.shape = ir.Shape([])
        for start, value, after in zip(
            node.inputs[2:], body.inputs[2:], body.outputs[1:], strict=False
        ):
            if value.shape is not None or start is None or start.shape is None:
                continue
            if value.type is not None:
                value.shape = ir.Shape(start.shape)
                assumed.append((body, value, after))
    infer(model)
    wrong = {body for body, value, after in assumed if not _same(value.shape, after.shape)}
    if not wrong:
        return
    for body, value, _ in assumed:
        if body in wrong:
            value.shape = None
    for body in wrong:
        _forget(body)
    infer(model)


def _tell_condition(model: ir.Model, body: ir.Graph) -> None:
    inside = [(n, i) for n, i in body.inputs[1].uses() if n.op_type == "Loop" and not n.domain]
    if inside:
        name = Namer(model).fresh("in_a_turn")
        true = add_initializer(model.graph, name, np.asarray(True))
        for node, index in inside:
            node.replace_input_with(index, true)


def _same(before: ir.Shape | None, after: ir.Shape | None) -> bool:
    return before is not None and after is not None and tuple(before) == tuple(after)


def _forget(body: ir.Graph) -> None:
    """Drop the shapes that followed from an assumption."""
    for node in body.all_nodes():
        for value in node.outputs:
            value.shape = None
