"""Faults that more than one engine has, and their repairs."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.rules import attribute, given
from edgeinfer.convert.passes.infra import Namer
from edgeinfer.convert.passes.rewrite import ReplacementBuilder
from edgeinfer.errors import Problem


def batchwise_recurrent(node: ir.Node) -> str:
    """``layout=1``: no engine here computes it (one refuses, one ignores the attribute)."""
    return "layout=1 is not computed" if attribute(node, "layout", 0) == 1 else ""


def move_batch(model: ir.Model, node: ir.Node) -> bool:
    """Transpose around a recurrent node so that the batch is the second axis.

    Given::

        Y, Y_h = GRU<layout=1>(X, W, R, B, lens, h)

    Result::

        Y', Y_h' = GRU(Transpose<perm=[1,0,2]>(X), W, R, B, lens, Transpose<perm=[1,0,2]>(h))
        Y = Transpose<perm=[2,0,1,3]>(Y'); Y_h = Transpose<perm=[1,0,2]>(Y_h')
    """
    graph = node.graph
    if graph is None:
        return False
    namer = Namer(model)
    base = node.outputs[0].name or node.outputs[1].name or "recurrent"
    for index in (0, 5, 6):
        value = given(node, index)
        if value is not None:
            transposed = ir.node("Transpose", [value], {"perm": [1, 0, 2]})
            transposed.outputs[0].name = namer.fresh(f"{base}.steps")
            transposed.outputs[0].type = value.type
            graph.insert_before(node, transposed)
            node.replace_input_with(index, transposed.outputs[0])
    for index, perm in enumerate(((2, 0, 1, 3), (1, 0, 2), (1, 0, 2))[: len(node.outputs)]):
        _turn_output(node, index, perm, namer)
    node.attributes.pop("layout", None)
    return True


def _turn_output(node: ir.Node, index: int, perm: tuple[int, ...], namer: Namer) -> None:
    old, graph = node.outputs[index], node.graph
    if graph is None or not old.name or not (old.uses() or old.is_graph_output()):
        return
    transposed = ir.node("Transpose", [old], {"perm": list(perm)})
    new = transposed.outputs[0]
    new.type, new.shape = old.type, old.shape
    graph.insert_after(node, transposed)
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    transposed.replace_input_with(0, old)
    name, old.shape = old.name, None
    old.name = namer.fresh(f"{name}.steps")
    new.name = name


def inverted_bernoulli(_: ir.Node) -> str:
    """No engine here has a kernel; they inline ONNX's definition, which inverts the probability."""
    return "is computed by a definition that says random > p"


def draw_below(model: ir.Model, node: ir.Node) -> bool:
    """Draw 1 with probability p, as the operator's text says.

    Given::

        y = Bernoulli(p)

    Result::

        y = Cast(Less(RandomUniformLike(p), p))
    """
    p = given(node, 0)
    if p is None or p.dtype is None:
        return False
    build = builder(model, node)
    seed = {"seed": node.attributes["seed"].as_float()} if "seed" in node.attributes else {}
    drawn = build.op("RandomUniformLike", p, dtype=p.dtype.value, **seed)
    to = node.attributes["dtype"].as_int() if "dtype" in node.attributes else p.dtype.value
    build.op("Cast", build.op("Less", drawn, p), to=to)
    build.commit(model.graph, node)
    return True


def refused_borders(model: ir.Model, dtypes: AbstractSet[ir.DataType]) -> list[Problem]:
    """List the model's inputs and outputs of element types that no caller can hand over."""
    sides = [("input", v) for v in model.graph.inputs]
    sides += [("output", v) for v in model.graph.outputs]
    return [
        Problem(
            value.name or "",
            f"model {side}",
            "unsupported_dtype",
            f"{value.dtype.name.lower()} cannot be exchanged with the engine",
            "cast it inside the model",
        )
        for side, value in sides
        if value.dtype is not None and value.dtype in dtypes
    ]


PACKED = frozenset(
    {
        ir.DataType.INT4,
        ir.DataType.UINT4,
        ir.DataType.FLOAT4E2M1,
        ir.DataType.INT2,
        ir.DataType.UINT2,
    }
)
"""Several elements in a byte: arrays have no such layout."""


def attention_scores_before_mask(node: ir.Node) -> str:
    """The optional fourth output, taken after the mask, together with ``is_causal``."""
    wanted = len(node.outputs) > 3 and node.outputs[3].name
    if wanted and attribute(node, "is_causal", 0) and attribute(node, "qk_matmul_output_mode", 0):
        return "the scores that are given out leave the causal mask out"
    return ""


def fractional_corners(node: ir.Node) -> str:
    """Corners of scales that give no whole size: engines disagree with the standard."""
    mode = attribute(node, "coordinate_transformation_mode", "half_pixel")
    if mode not in ("align_corners", "tf_crop_and_resize"):
        return ""
    value, x, y = given(node, 2), given(node, 0), node.outputs[0]
    if value is None or not value.name:
        return ""
    known = x is not None and x.shape is not None
    sizes = list(x.shape) if known and x is not None and x.shape is not None else []
    if value.const_value is None:
        after = list(y.shape) if y.shape is not None else []
        whole = sizes and len(sizes) == len(after)
        if whole and all(_multiple(a, b) for a, b in zip(sizes, after, strict=True)):
            return ""
        return f"{mode} with scales that are not known"
    scales = value.const_value.numpy().tolist()
    if all(_whole(d, s) for d, s in zip(sizes or [0] * len(scales), scales, strict=False)):
        return ""
    return f"{mode} with scales {np.round(scales, 4).tolist()} that give no whole size"


def _multiple(before: object, after: object) -> bool:
    if isinstance(before, int) and isinstance(after, int):
        return before > 0 and after % before == 0
    return before == after


def _whole(dim: object, scale: float) -> bool:
    size = dim * scale if isinstance(dim, int) else scale
    return abs(size - round(size)) < 1e-6


def builder(model: ir.Model, node: ir.Node) -> ReplacementBuilder:
    """Return a builder whose nodes take the place of this one."""
    return ReplacementBuilder(Namer(model), node.outputs[0].name or node.op_type)
