"""Queries of half precision are scaled before their products with keys."""

from __future__ import annotations

import onnx_ir as ir

from edgeinfer.convert.passes.infra import PassOutcome, is_op, outcome, remove_node, walk
from edgeinfer.convert.passes.match import scalar
from edgeinfer.convert.verify.beyond_half import beyond_half, is_product

_HALF = ir.DataType.FLOAT16


class ScaleScores(ir.passes.InPlacePass):
    """Scale queries, not scores, where half precision would not hold the scores before.

    Products of queries and keys may leave half precision though what is left after the scale is
    ordinary; computing them in single precision would cost the speed of half precision.

    Given: ``p = Softmax(Add(Div(MatMul(q, k), 8), mask))``
    Result: ``p = Softmax(Add(MatMul(Div(q, 8), k), mask))``
    """

    def call(self, model: ir.Model) -> PassOutcome:
        """Move factors that make scores smaller, in every graph."""
        count = 0
        for graph in list(walk(model.graph)):
            found = beyond_half(graph)
            count += sum(_moved(node) for node in list(graph) if node in found)
        note = f"{count} products of queries and keys are scaled first" if count else ""
        return outcome(model, count, *filter(None, [note]))


def _moved(node: ir.Node) -> bool:
    """Scale the first operand of a product in place of the product."""
    if not is_op(node, "Mul", "Div") or node.outputs[0].dtype != _HALF:
        return False
    places = (0,) if node.op_type == "Div" else (0, 1)
    for place in places:
        scores, factor = node.inputs[place], node.inputs[1 - place]
        number = scalar(factor, scores)
        product = None if scores is None else scores.producer()
        if number is None or product is None or scores is None or not is_product(product):
            continue
        shrinks = abs(number) > 1 if node.op_type == "Div" else 0 < abs(number) < 1
        alone = len(scores.uses()) == 1 and not scores.is_graph_output()
        query = product.inputs[0]
        if shrinks and alone and query is not None and is_op(product, "MatMul"):
            _scale_query(node, product, query, factor)
            return True
    return False


def _scale_query(node: ir.Node, product: ir.Node, query: ir.Value, factor: ir.Value | None) -> None:
    graph, out = node.graph, node.outputs[0]
    if graph is None:
        raise ValueError(f"node {node.name!r} is in no graph")
    scaled = ir.node(node.op_type, [query, factor], name=f"{node.name}.first")
    made = scaled.outputs[0]
    made.name, made.type, made.shape = f"{out.name}.first", query.type, query.shape
    graph.insert_before(product, scaled)
    product.replace_input_with(0, made)
    scores = product.outputs[0]
    scores.shape = out.shape
    scores.name = f"{out.name}.scores" if out.is_graph_output() else scores.name
    out.replace_all_uses_with(scores, replace_graph_outputs=True)
    remove_node(node)
