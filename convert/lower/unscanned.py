"""Scans and recurrent layers over an axis that may have no rows at all."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.loops import ScanForm
from edgeinfer.convert.lower.single import ORIGIN, walk
from edgeinfer.convert.passes.control_flow import connect
from edgeinfer.convert.passes.inference import infer
from edgeinfer.convert.passes.infra import Namer, is_op, rank
from edgeinfer.convert.passes.rewrite import ReplacementBuilder
from edgeinfer.errors import Remarks


def scan_one_row(model: ir.Model, notes: Remarks) -> None:
    """Give a Scan, in place, a row of its own where it has none, and drop what comes of it.

    Given: ``s, y = Scan(s0, x)``
    Result::

        none = Shape(x)[0] == 0
        t, z = Scan(s0, Concat(x, Expand(0, none ? 1 : 0)))
        s = none ? s0 : t; y = Slice(z, 0, Shape(x)[0])

    ONNX Runtime's Scan (1.32) fails without rows, and ends the process where it transposes them.
    """
    changed = False
    for name, node in list(walk(model)):
        if is_op(node, "Scan") and _may_be_empty(node) and _pad(model, node):
            notes.add(f"{name}: of no rows it makes none, and leaves its states as they were")
            changed = True
    if changed:
        infer(model)


def keep_first_states(model: ir.Model, notes: Remarks, padded: Callable[[ir.Node], bool]) -> None:
    """Give the states of recurrent layers, in place, as they were where there is no step.

    Given: ``y, h = LSTM(x, w, r, b, , h0)``
    Result: ``y, t = LSTM(x, w, r, b, , h0); h = Where(Shape(x)[0] == 0, h0, t)``

    Without steps ONNX Runtime 1.32 gives zeros, or what lay in its memory, and the CPU plugin of
    OpenVINO 2026.4.1 the states of the run before.

    Args:
        model: normalised.
        notes: gets the names of the layers.
        padded: says which layers fail, or end the process, without steps: they get one, which is
            dropped afterwards.
    """
    changed = False
    for name, node in list(walk(model)):
        if is_op(node, *_RECURRENT) and _has_open_length(node):
            _keep_states(model, node, is_padded=padded(node))
            notes.add(f"{name}: of no steps it makes none, and leaves its states as they were")
            changed = True
    if changed:
        infer(model)


_RECURRENT = ("LSTM", "GRU", "RNN")


def _time_axis(node: ir.Node) -> int:
    layout = node.attributes.get("layout")
    return 1 if layout is not None and layout.as_int() else 0


def _has_open_length(node: ir.Node) -> bool:
    x = node.inputs[0]
    size = None if x is None or x.shape is None else x.shape[_time_axis(node)]
    return x is not None and not (isinstance(size, int) and size > 0)


def _keep_states(model: ir.Model, node: ir.Node, *, is_padded: bool) -> None:
    x, axis = node.inputs[0], _time_axis(node)
    if x is None:
        return
    namer = Namer(model)
    build = ReplacementBuilder(namer, node.name or node.op_type)
    length = build.op("Shape", x, start=axis, end=axis + 1)
    is_none = build.op("Equal", length, build.const(np.array([0]), "zero"))
    given = list(node.inputs)
    if is_padded:
        missing = build.op("Cast", is_none, to=ir.DataType.INT64.value)
        given[0] = _padded(build, x, axis, missing, 0)
    attributes = {k: a.value for k, a in node.attributes.items()}
    layer = ir.node(node.op_type, given, attributes, num_outputs=len(node.outputs))
    layer.metadata_props[ORIGIN] = node.metadata_props.get(ORIGIN) or node.name or ""
    build.nodes.append(layer)
    results = list(layer.outputs)
    unnamed = [made for old, made in zip(node.outputs, results, strict=True) if not old.name]
    if is_padded and node.outputs[0].name:
        start, side = (build.const(np.array([v]), "at") for v in (0, axis))
        results[0] = build.op("Slice", results[0], start, length, side)
    for index in range(1, len(results)):
        if node.outputs[index].name:
            first = given[4 + index] if len(given) > 4 + index else None
            results[index] = _state(build, results[index], first, is_none)
    build.insert(model.graph, node)
    connect(node, results, namer)
    for value in unnamed:
        value.name = ""


def _state(
    build: ReplacementBuilder, after: ir.Value, first: ir.Value | None, is_none: ir.Value
) -> ir.Value:
    """Return a state as it was where there is no step; zeros where nothing was given."""
    if first is None:
        first = build.op("CastLike", build.const(np.asarray(0.0, np.float32), "first"), after)
    return build.op("Where", is_none, first, after)


def _may_be_empty(node: ir.Node) -> bool:
    """Whether nothing says that there is a row."""
    form = ScanForm(node)
    rows = node.inputs[form.states :]
    sizes = [
        v.shape[axis] if v is not None and v.shape is not None else None
        for v, axis in zip(rows, form.axes, strict=True)
    ]
    return not any(isinstance(size, int) and size > 0 for size in sizes)


def _pad(model: ir.Model, node: ir.Node) -> bool:
    """Rewrite one; False where a rank or a type that it takes is not known."""
    form = ScanForm(node)
    given = [v for v in node.inputs if v is not None]
    rows = given[form.states :]
    ranks = [rank(v) for v in rows]
    axes = [a if a >= 0 else a + (r or 0) for a, r in zip(form.axes, ranks, strict=True)]
    bodies = node.attributes["body"].as_graph().outputs[form.states :]
    sides = [
        a if a >= 0 else a + (rank(v) or 0) + 1 for a, v in zip(form.out_axes, bodies, strict=True)
    ]
    is_known = min(*axes, *sides, 0) >= 0 and all(v.dtype is not None for v in rows)
    if not is_known or len(given) != len(node.inputs):
        return False
    namer = Namer(model)
    build = ReplacementBuilder(namer, node.name or "scan")
    length = build.op("Shape", rows[0], start=axes[0], end=axes[0] + 1)
    is_none = build.op("Equal", length, build.const(np.array([0]), "zero"))
    missing = build.op("Cast", is_none, to=ir.DataType.INT64.value)
    fill = 1 if _divides(node) else 0
    padded = [_padded(build, v, axis, missing, fill) for v, axis in zip(rows, axes, strict=True)]
    attributes = {k: a.value for k, a in node.attributes.items()}
    node.attributes.pop("body")
    states = given[: form.states]
    scan = ir.node("Scan", [*states, *padded], attributes, num_outputs=len(node.outputs))
    scan.metadata_props[ORIGIN] = node.metadata_props.get(ORIGIN) or node.name or ""
    build.nodes.append(scan)
    results = [_chosen(build, *pair, missing) for pair in zip(states, scan.outputs, strict=False)]
    start = build.const(np.array([0]), "start")
    for value, axis in zip(scan.outputs[form.states :], sides, strict=True):
        side = build.const(np.array([axis]), "axis")
        results.append(build.op("Slice", value, start, length, side))
    build.insert(model.graph, node)
    connect(node, results, namer)
    return True


def _divides(node: ir.Node) -> bool:
    """Whether a body divides integers, which a row of zeros might end the process by."""
    body = node.attributes["body"].as_graph()
    return any(
        is_op(n, "Div", "Mod") and not (n.outputs[0].dtype or ir.DataType.INT64).is_floating_point()
        for n in body.all_nodes()
    )


def _padded(
    build: ReplacementBuilder, row: ir.Value, axis: int, missing: ir.Value, fill: int
) -> ir.Value:
    """Add a row where one is missing."""
    sizes = [missing, build.op("Shape", row, start=axis + 1)]
    if axis:
        sizes.insert(0, build.op("Shape", row, start=0, end=axis))
    dtype = (row.dtype or ir.DataType.FLOAT).numpy()
    one = build.const(np.asarray(fill).astype(dtype), "row")
    extra = build.op("Expand", one, build.op("Concat", *sizes, axis=0))
    return build.op("Concat", row, extra, axis=axis)


def _chosen(
    build: ReplacementBuilder, before: ir.Value, after: ir.Value, missing: ir.Value
) -> ir.Value:
    """Return a state as it was where the row was missing; of any type that a Concat takes."""
    front = build.const(np.array([0]), "front")
    pair = build.op(
        "Concat", build.op("Unsqueeze", after, front), build.op("Unsqueeze", before, front), axis=0
    )
    return build.op("Squeeze", build.op("Gather", pair, missing, axis=0), front)
