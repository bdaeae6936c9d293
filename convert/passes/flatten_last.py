"""Flatten channels-last images as they are: the weights behind take the order instead."""

from __future__ import annotations

import math

import onnx_ir as ir

from edgeinfer.convert.passes.infra import (
    Namer,
    PassOutcome,
    add_initializer,
    attr,
    constant,
    dims_of,
    input_at,
    is_op,
    outcome,
    rank,
)
from edgeinfer.types import Array

_POINTWISE = (
    *("Abs", "Cast", "Clip", "Elu", "Exp", "Gelu", "HardSigmoid", "HardSwish", "Identity"),
    *("LeakyRelu", "Mish", "Neg", "Relu", "Selu", "Sigmoid", "Softplus", "Sqrt", "Swish", "Tanh"),
    *("Add", "Div", "Mul", "Sub", "PRelu", "Concat", "QuantizeLinear", "DequantizeLinear"),
)

_ROUNDINGS = ("QuantizeLinear", "DequantizeLinear")


class FlattenLast(ir.passes.InPlacePass):
    """Reorder the rows of a weight, not the image that is flattened for it.

    Given: ``float[N,C,H,W] a = Conv(...); f = Flatten(a); y = Gemm(f, w)``
    Result: ``t = Transpose<perm=[0,2,3,1]>(a); f = Flatten(t); y = Gemm(f, v)``

    ``v`` is ``w`` with its rows in the new order. Where the convolution computes channels last,
    nothing of the transpose is left in the end.
    """

    def __init__(self, spatial: frozenset[str]) -> None:
        """Take the operators that compute channels last."""
        self._spatial = spatial

    def call(self, model: ir.Model) -> PassOutcome:
        """Rewrite each in the main graph."""
        namer, count = Namer(model), 0
        for node in list(model.graph):
            picture = _flattened(node)
            if picture is None or not self._is_spatial(picture):
                continue
            sizes = [d for d in dims_of(picture)[1:] if isinstance(d, int)]
            if not _reorder(model.graph, node.outputs[0], sizes, namer):
                continue
            order = [0, *range(2, len(sizes) + 1), 1]
            moved = ir.node("Transpose", [picture], {"perm": order}, name=namer.fresh("to_last"))
            result = moved.outputs[0]
            result.name, result.type = namer.fresh(f"{picture.name}_last"), picture.type
            result.shape = ir.Shape([dims_of(picture)[axis] for axis in order])
            model.graph.insert_before(node, moved)
            node.replace_input_with(0, result)
            count += 1
        return outcome(model, count)

    def _is_spatial(self, value: ir.Value) -> bool:
        """Whether an image comes from an operator that computes channels last."""
        seen = value.producer()
        while seen is not None and is_op(seen, *_POINTWISE):
            computed = [v for v in seen.inputs if v is not None and rank(v) == rank(value)]
            seen = next((p for v in computed if (p := v.producer()) is not None), None)
        return seen is not None and is_op(seen, *self._spatial)


def _flattened(node: ir.Node) -> ir.Value | None:
    """The image whose axes but the first become one; None for anything else."""
    if not is_op(node, "Flatten", "Reshape"):
        return None
    x, y = node.inputs[0], node.outputs[0]
    if x is None or (rank(x) or 0) < 3 or rank(y) != 2 or y.is_graph_output():
        return None
    sizes = [d for d in dims_of(x)[1:] if isinstance(d, int)]
    if len(sizes) != (rank(x) or 0) - 1 or dims_of(y)[1] != math.prod(sizes):
        return None
    # Sizes of 1 are moved by a new shape alone.
    return x if sizes[0] > 1 and math.prod(sizes[1:]) > 1 else None


def _reorder(graph: ir.Graph, flat: ir.Value, sizes: list[int], namer: Namer) -> bool:
    """Give the only product that reads the values weights in the new order."""
    product = _reader(flat)
    if product is None or not is_op(product, "Gemm", "MatMul") or attr(product, "transA", 0):
        return False
    weights, place = input_at(product, 1), (product, 1)
    if (stored := _stored(weights, product)) is not None:
        place = stored, 0
        weights = input_at(stored, 0)
    tensor = constant(weights)
    if weights is None or tensor is None or len(tensor.shape) != 2 or product.graph is not graph:
        return False
    is_transposed = is_op(product, "Gemm") and bool(attr(product, "transB", 0))
    name = namer.fresh(f"{weights.name}_last")

    def reordered() -> ir.TensorProtocol:
        return ir.tensor(_rows_last(tensor.numpy(), sizes, is_transposed), name=name)

    shape = ir.Shape(tensor.shape.numpy())
    lazy = ir.LazyTensor(reordered, dtype=tensor.dtype, shape=shape, name=name)
    place[0].replace_input_with(place[1], add_initializer(graph, name, lazy))
    return True


def _reader(value: ir.Value) -> ir.Node | None:
    """Return the only node that computes with a value, seen through roundings of the whole."""
    while True:
        uses = list(value.uses())
        if len(uses) != 1 or uses[0][1] != 0:
            return None
        node = uses[0][0]
        if not is_op(node, *_ROUNDINGS):
            return node
        if rank(input_at(node, 1)) != 0 or node.outputs[0].is_graph_output():
            return None
        value = node.outputs[0]


def _stored(weights: ir.Value | None, product: ir.Node) -> ir.Node | None:
    """Return the node that makes floats of integer weights with a scale for each output."""
    node = weights.producer() if weights is not None else None
    if node is None or not is_op(node, "DequantizeLinear") or len(node.outputs[0].uses()) != 1:
        return None
    outputs = 0 if is_op(product, "Gemm") and attr(product, "transB", 0) else 1
    each = rank(input_at(node, 1)) == 1 and attr(node, "axis", 1) == outputs
    blocked = attr(node, "block_size", 0)
    return node if not blocked and (each or rank(input_at(node, 1)) == 0) else None


def _rows_last(weights: Array, sizes: list[int], is_transposed: bool) -> Array:
    """Reorder the axis of a matrix that counts channels first, then positions."""
    rows = weights.T if is_transposed else weights
    channels = sizes[0]
    split = rows.reshape(channels, -1, rows.shape[1]).swapaxes(0, 1).reshape(rows.shape)
    return split.T if is_transposed else split
