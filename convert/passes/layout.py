"""Channels last: spatial operators in the order that TFLite computes in, with few transposes.

Every operator of ``SPATIAL`` becomes the same operator in the domain ``NHWC``, whose data operands
and results are channels last (``N, spatial..., C``); attributes and weights stay as ONNX has them.
"""

from __future__ import annotations

import onnx_ir as ir

from edgeinfer.convert.passes.infra import outcome, rank, walk

NHWC = "edgeinfer.nhwc"

SPATIAL: dict[str, tuple[int, ...]] = {
    "AveragePool": (0,),
    "BatchNormalization": (0,),
    "Conv": (0,),
    "ConvTranspose": (0,),
    "DepthToSpace": (0,),
    "GlobalAveragePool": (0,),
    "GlobalLpPool": (0,),
    "GlobalMaxPool": (0,),
    "GridSample": (0,),
    "GroupNormalization": (0,),
    "InstanceNormalization": (0,),
    "LRN": (0,),
    "LpPool": (0,),
    "MaxPool": (0,),
    "Resize": (0,),
    "SpaceToDepth": (0,),
}
"""Spatial operators and which of their operands have channels. ``Resize`` gets its ``axes`` in the
new order; of ``GridSample`` the grid stays as it is."""


def to_last(rank: int) -> list[int]:
    """The permutation from ``N, C, spatial...`` to ``N, spatial..., C``."""
    return [0, *range(2, rank), 1]


def to_first(rank: int) -> list[int]:
    """The inverse of ``to_last``."""
    return [0, rank - 1, *range(1, rank - 1)]


class PlanLayout(ir.passes.InPlacePass):
    """Make spatial operators channels last."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        count = 0
        for graph in walk(model.graph):
            for node in list(graph):
                size = rank(node.inputs[0]) if node.inputs else None
                if node.domain == "" and node.op_type in SPATIAL and size is not None:
                    if 3 <= size <= 5 and (node.op_type != "MaxPool" or len(node.outputs) == 1):
                        _convert(node, size)
                        count += 1
        if count:
            model.opset_imports[NHWC] = 1
        return outcome(model, count)


def _convert(node: ir.Node, size: int) -> None:
    graph = node.graph
    assert graph is not None
    for index in SPATIAL[node.op_type]:
        x = node.inputs[index]
        shape = None if x.shape is None else ir.Shape([x.shape[p] for p in to_last(size)])
        move = ir.node("Transpose", [x], {"perm": to_last(size)})
        move.outputs[0].name = f"{node.name}/nhwc"
        move.outputs[0].type, move.outputs[0].shape = x.type, shape
        graph.insert_before(node, move)
        node.replace_input_with(index, move.outputs[0])
    if node.op_type == "Resize":
        axes = node.attributes["axes"].value if "axes" in node.attributes else range(size)
        node.attributes["axes"] = ir.AttrInt64s(
            "axes", [to_last(size).index(a % size) for a in axes]
        )
    node.domain = NHWC
    y = node.outputs[0]
    inner = ir.Value(name=f"{y.name}/nhwc", type=y.type)
    if y.shape is not None:
        inner.shape = ir.Shape([y.shape[p] for p in to_last(size)])
    new = ir.Node(
        NHWC,
        node.op_type,
        node.inputs,
        list(node.attributes.values()),
        outputs=[inner, *[ir.Value(name=o.name) for o in node.outputs[1:]]],
        name=node.name,
    )
    back = ir.Node("", "Transpose", [inner], [ir.AttrInt64s("perm", to_first(size))], num_outputs=1)
    graph.insert_before(node, [new, back])
    out = back.outputs[0]
    out.type, out.shape = y.type, y.shape
    name = y.name
    y.replace_all_uses_with(out, replace_graph_outputs=True)
    y.name = None
    out.name = name
    graph.remove(node, safe=True)
