"""Channels last: spatial operators in the order that TFLite computes in, with few transposes.

Every operator of ``SPATIAL`` becomes the same operator in the domain ``NHWC``, whose data operand
and result are channels last (``N, spatial..., C``); attributes and weights stay as ONNX has them.
Everything between them may be stored either way. Which way is cheapest over the whole graph is a
minimum cut: a transpose costs the elements it moves, nothing is guessed from shapes.
"""

from __future__ import annotations

import onnx_ir as ir

from edgeinfer.convert.passes.infra import Namer, attr, dims_of, is_op, outcome, rank, walk
from edgeinfer.convert.passes.layout_apply import Applier
from edgeinfer.convert.passes.layout_check import check_axes
from edgeinfer.convert.passes.layout_moves import Editor, Move, Perm, identity
from edgeinfer.convert.passes.layout_plan import LayoutLabels
from edgeinfer.convert.passes.layout_rules import resize

NHWC = "edgeinfer.nhwc"

SPATIAL = frozenset(
    {
        "AveragePool",
        "BatchNormalization",
        "Conv",
        "ConvTranspose",
        "DepthToSpace",
        "GlobalAveragePool",
        "GlobalMaxPool",
        "GridSample",
        "GroupNormalization",
        "InstanceNormalization",
        "MaxPool",
        "Resize",
        "RoiAlign",
        "SpaceToDepth",
    }
)
"""Operators whose first operand and first result have channels. ``Resize`` gets ``axes`` in the new
order; the grid of ``GridSample`` and the regions of ``RoiAlign`` stay as they are. ``PRelu`` is
elementwise and stays in the default domain."""


def to_last(rank: int) -> Perm:
    """The order ``N, spatial..., C`` of what ONNX has as ``N, C, spatial...``."""
    return (0, *range(2, rank), 1)


class PlanLayout(ir.passes.InPlacePass):
    """Make spatial operators channels last.

    Given::

        a = Conv(x, w); b = Relu(a); y = MaxPool(b)

    Result::

        t = Transpose<perm=[0, 2, 3, 1]>(x)
        a = nhwc.Conv(t, w); b = Relu(a); c = nhwc.MaxPool(b)
        y = Transpose<perm=[0, 3, 1, 2]>(c)

    Args:
        inputs: names of the inputs that the caller will hand over channels last; their shapes
            change.
        outputs: likewise, outputs.
    """

    def __init__(
        self, inputs: frozenset[str] = frozenset(), outputs: frozenset[str] = frozenset()
    ) -> None:
        super().__init__()
        self._inputs, self._outputs = inputs, outputs

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Plan and rewrite the main graph, and each body by itself.

        Raises:
            SourceError: an operator names axes that its operand does not have.
        """
        namer = Namer(model)
        count = 0
        for graph in reversed(list(walk(model.graph))):
            check_axes(graph)
            main = graph is model.graph
            seeds = {n: move for n in graph if (move := _spatial(n)) is not None}
            ends = self._ends(graph) if main else {}
            if seeds or ends or any(is_op(n, "Transpose") for n in graph):
                count += len(seeds)
                labels = LayoutLabels(graph, seeds, ends)
                Applier(graph, namer).run(labels)
        if count:
            model.opset_imports[NHWC] = model.opset_imports.get("", 1)
        moves = [n for g in walk(model.graph) for n in g if _moves(n)]
        first = sum(v.is_graph_input() for n in moves for v in n.inputs if v is not None)
        last = sum(v.is_graph_output() for n in moves for v in n.outputs)
        note = (
            f"layout: {count} operators channels last; transposes left: {len(moves)}, "
            f"{first} at inputs, {last} at outputs"
        )
        return outcome(model, count, note)

    def _ends(self, graph: ir.Graph) -> dict[ir.Value, Perm]:
        """Inputs and outputs of the model that are channels last."""
        wanted = [v for v in graph.inputs if v.name in self._inputs]
        wanted += [v for v in graph.outputs if v.name in self._outputs]
        return {v: to_last(len(dims_of(v))) for v in wanted if (rank(v) or 0) >= 3}


def _spatial(node: ir.Node) -> Move | None:
    """How a spatial operator is made channels last; None for all others."""
    if not is_op(node, *SPATIAL):
        return None
    size = rank(node.inputs[0])
    if size is None or size < 2 or (node.op_type == "MaxPool" and len(node.outputs) > 1):
        return None
    perm = to_last(size)
    axes = resize(node, perm, False) if node.op_type == "Resize" else None

    def edit(editor: Editor, node: ir.Node) -> None:
        if axes is not None and axes.edit is not None:
            axes.edit(editor, node)
        node.domain = NHWC

    return Move({0: perm}, perm, edit)


def _moves(node: ir.Node) -> bool:
    """Whether a node is a Transpose that moves anything."""
    if not is_op(node, "Transpose") or node.inputs[0] is None:
        return False
    dims = dims_of(node.inputs[0])
    perm = attr(node, "perm") or tuple(reversed(range(len(dims))))
    if not dims:
        return not identity(tuple(perm))
    kept = [p for p in perm if dims[p] != 1]
    return kept != sorted(kept)
