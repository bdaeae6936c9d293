"""Fold ``Pad`` into the convolution or pooling that follows it."""

from __future__ import annotations

import math

import onnx_ir as ir

from edgeinfer.convert.passes.infra import (
    Namer,
    PassOutcome,
    all_nodes,
    attr,
    input_at,
    ints,
    is_op,
    outcome,
    small,
)
from edgeinfer.convert.passes.rewrite import ReplacementBuilder, sweep


class FoldPad(ir.passes.InPlacePass):
    """Fold a constant ``Pad`` of the spatial axes into the node that reads it.

    Zeros go into ``Conv``, and into ``AveragePool`` where all of its padding counts; minus infinity
    goes into ``MaxPool``. Other values, negative pads, automatic pads and windows that round up are
    left alone. A pool's pads must stay smaller than its window, or it would average nothing.

    Given::

        p = Pad(x, [0,0,1,1,0,0,1,1])       y = Conv<pads=[0,0,0,0]>(p, w)

    Result::

        y = Conv<pads=[1,1,1,1]>(x, w)
    """

    def call(self, model: ir.Model) -> PassOutcome:
        """Fold every pad that has one reader of a kind that takes it."""
        namer, count = Namer(model), 0
        for node in all_nodes(model):
            value = input_at(node, 0)
            pad = None if value is None else value.producer()
            if node.graph is None or value is None or pad is None or not is_op(pad, "Pad"):
                continue
            pads = _joined(pad, node) if pad.graph is node.graph else None
            if pads is None or len(value.uses()) != 1 or value.is_graph_output():
                continue
            build = ReplacementBuilder(namer, node.outputs[0].name or node.op_type)
            kept = {name: a.value for name, a in node.attributes.items()} | {"pads": pads}
            if is_op(node, "AveragePool"):
                kept["count_include_pad"] = 1
            build.op(node.op_type, pad.inputs[0], *node.inputs[1:], **kept)
            build.commit(model.graph, node)
            sweep([pad])
            count += 1
        return outcome(model, count)


def _joined(pad: ir.Node, node: ir.Node) -> list[int] | None:
    """Return the pads of both together, or None where they do not add up to the same numbers."""
    if not is_op(node, "Conv", "AveragePool", "MaxPool") or len(node.outputs) != 1:
        return None
    x = input_at(pad, 0)
    added = None if x is None or x.shape is None else _pads(pad, len(x.shape))
    if added is None or attr(node, "auto_pad", "NOTSET") != "NOTSET" or attr(node, "ceil_mode", 0):
        return None
    rank = len(added) // 2
    spatial = [*added[2:rank], *added[rank + 2 :]]
    if any(added[:2]) or any(added[rank : rank + 2]) or any(p < 0 for p in spatial):
        return None
    old = list(attr(node, "pads", [0] * len(spatial)))
    wanted = -math.inf if is_op(node, "MaxPool") else 0.0
    if _fill(pad) != wanted or len(old) != len(spatial):
        return None
    if is_op(node, "AveragePool") and any(old) and not attr(node, "count_include_pad", 0):
        return None
    total = [a + b for a, b in zip(old, spatial, strict=True)]
    return total if is_op(node, "Conv") or _inside_window(node, total) else None


def _inside_window(node: ir.Node, pads: list[int]) -> bool:
    kernel = attr(node, "kernel_shape", ())
    both = len(kernel) * 2 == len(pads)
    return both and all(p < k for p, k in zip(pads, kernel * 2, strict=True))


def _pads(pad: ir.Node, rank: int) -> list[int] | None:
    """Return begins and ends for every axis."""
    if attr(pad, "mode", "constant") != "constant":
        return None
    pads, axes = ints(input_at(pad, 1)), list(range(rank))
    if input_at(pad, 3) is not None:
        found = ints(input_at(pad, 3))
        if found is None:
            return None
        axes = [a % rank for a in found]
    if pads is None or len(pads) != 2 * len(axes):
        return None
    full = [0] * (2 * rank)
    for at, axis in enumerate(axes):
        full[axis], full[rank + axis] = pads[at], pads[len(axes) + at]
    return full


def _fill(pad: ir.Node) -> float | None:
    value = input_at(pad, 2)
    if value is None:
        return 0.0
    data = small(value)
    return None if data is None or data.size != 1 else float(data.reshape(()).item())
