"""Resize that names some axes only, or that keeps all sizes in some runs."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.expand import definition, expand
from edgeinfer.convert.lower.faults import builder
from edgeinfer.convert.lower.resizes import perhaps_copied_whole
from edgeinfer.convert.lower.rules import attribute, given
from edgeinfer.convert.passes.infra import Namer

_SCALES, _SIZES = 2, 3

_GUARDED = "edgeinfer.resize_guarded"
"""On a node that runs only where some size changes."""


def unguarded(node: ir.Node) -> str:
    """Say what goes wrong in runs in which all sizes are kept."""
    return "" if _GUARDED in node.meta else perhaps_copied_whole(node)


def guard_kept(model: ir.Model, node: ir.Node) -> bool:
    """Let the definition compute what keeps all sizes with other scales than 1.

    Given: ``y = Resize(x, , scales)``
    Result::

        after = Floor(Shape(x) * scales)
        y = If(after == Shape(x), definition of Resize(x, , scales), Resize(x, , scales))
    """
    x, scales, out = given(node, 0), given(node, _SCALES), node.outputs[0]
    if x is None or x.shape is None or scales is None:
        return False
    if definition(node, model.opset_imports.get("", 0)) is None:
        return False
    build = builder(model, node)
    before = build.op("Cast", build.op("Shape", x), to=ir.DataType.FLOAT.value)
    if (axes := attribute(node, "axes", None)) is not None:
        named = np.array([a % len(x.shape) for a in axes], np.int64)  # type: ignore[attr-defined]
        before = build.op("Gather", before, build.const(named, "axes"))
    apart = build.op("Sub", build.op("Floor", build.op("Mul", before, scales)), before)
    most = build.op("ReduceMax", build.op("Abs", apart), keepdims=0)
    branches, namer = [], Namer(model)
    for case in ("kept", "changed"):
        own = {k: a.value for k, a in node.attributes.items()}
        inner = ir.node("Resize", list(node.inputs), own, name=f"{node.name}/{case}")
        made = inner.outputs[0]
        made.name, made.type, made.shape = namer.fresh(f"{out.name}.{case}"), out.type, out.shape
        inner.meta[_GUARDED] = True
        branches.append(ir.Graph([], [made], nodes=[inner], name=case))
    still = build.op("Equal", most, build.const(np.zeros((), np.float32), "zero"))
    attributes = {"then_branch": branches[0], "else_branch": branches[1]}
    build.op("If", still, **attributes)
    build.commit(model.graph, node)
    expand(model, list(branches[0]))
    return True


def some_axes(node: ir.Node) -> str:
    """Say what goes wrong: transposes are moved through it as if it named all axes."""
    x = given(node, 0)
    if attribute(node, "axes", None) is None or x is None or x.shape is None:
        return ""
    regions = given(node, 1) is not None
    if regions or attribute(node, "keep_aspect_ratio_policy", "stretch") != "stretch":
        return ""
    return "sizes of some axes are lost where transposes are moved"


def name_all_axes(model: ir.Model, node: ir.Node) -> bool:
    """Give sizes or scales for all axes; the others keep theirs.

    Given::

        y = Resize<axes=[2, 3]>(x, , , sizes)

    Result::

        all = ScatterElements(Shape(x), [2, 3], sizes); y = Resize(x, , , all)
    """
    x, axes, graph = given(node, 0), node.attributes["axes"].as_ints(), node.graph
    if x is None or x.shape is None or graph is None:
        return False
    rank = len(x.shape)
    named = np.array([a % rank for a in axes], np.int64)
    which = _SIZES if given(node, _SIZES) is not None else _SCALES
    part = given(node, which)
    if part is None:
        return False
    build = builder(model, node)
    known = [d if isinstance(d, int) else 0 for d in x.shape]
    others = np.ones(rank, np.float32) if which == _SCALES else np.array(known, np.int64)
    open_sizes = which == _SIZES and any(not known[a] for a in {*range(rank)} - {*named.tolist()})
    if part.const_value is not None and not open_sizes:
        others[named] = part.const_value.numpy()
        whole = build.const(others, "all")
    else:
        base = build.op("Shape", x) if open_sizes else build.const(others, "all")
        whole = build.op("ScatterElements", base, build.const(named, "axes"), part, axis=0)
    for value in build.constants:
        model.graph.register_initializer(value)
    namer = Namer(model)
    for made in build.nodes:
        made.name = None
        made.outputs[0].name = namer.fresh(f"{node.outputs[0].name}.{made.op_type}")
        made.outputs[0].type, made.outputs[0].shape = part.type, ir.Shape([rank])
    graph.insert_before(node, build.nodes)
    node.replace_input_with(which, whole)
    node.attributes.pop("axes")
    return True
