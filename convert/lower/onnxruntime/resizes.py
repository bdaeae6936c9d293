"""Resize that names some axes only."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.faults import builder
from edgeinfer.convert.lower.rules import attribute, given
from edgeinfer.convert.passes.infra import Namer

_SCALES, _SIZES = 2, 3


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
