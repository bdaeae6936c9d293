"""Square weights that one product takes as they are and another one transposed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.passes.infra import Namer, attr, constant, is_op
from edgeinfer.types import Array

_STEPS = ("Cast", "DequantizeLinear", "Identity", "Mul", "Sub", "Transpose")
"""Operators between a constant and the product that reads it, by its first operand."""

_Path = tuple[ir.Node, ...]
"""From the reader of a constant to the product."""


def part_transposed(model: ir.Model) -> int:
    """Give products of transposed square weights their own constant, in place; return how many.

    Given::

        y = MatMul(x, w)
        z = Gemm<transB=1>(y, w)

    Result::

        y = MatMul(x, w)
        z = Gemm<transB=1>(y, Transpose(w_transposed))

    OpenVINO packs weights once and finds them by their place in memory, their size and the packed
    form, which are the same for both: the second product gets the first one's. It does so where the
    file has two equal constants, too, as they are written once (2026.4.1).
    """
    namer, count = Namer(model), 0
    for graph in list(model.graphs()):
        for value in list(graph.initializers.values()):
            tensor = constant(value)
            if tensor is None or len(tensor.shape) < 2 or tensor.shape[0] != tensor.shape[1]:
                continue
            paths = list(_paths(value))
            transposed = [p for p in paths if _is_transposed(p)]
            if not transposed or len(transposed) == len(paths):
                continue
            own = _transposed_back(graph, namer, value, tensor)
            for path in transposed:
                _follow(path, own, namer)
            count += len(transposed)
    return count


def _paths(value: ir.Value, before: _Path = ()) -> Iterator[_Path]:
    for node, index in list(value.uses()):
        if index == 1 and is_op(
            node, "MatMul", "MatMulInteger", "Gemm", "Conv", "ConvInteger", "ConvTranspose"
        ):
            yield (*before, node)
        elif index == 0 and is_op(node, *_STEPS) and len(node.outputs) == 1:
            yield from _paths(node.outputs[0], (*before, node))


def _is_transposed(path: _Path) -> bool:
    *steps, product = path
    turns = sum(is_op(n, "Transpose") and (attr(n, "perm") or (1, 0))[:2] == (1, 0) for n in steps)
    turns += int(is_op(product, "ConvTranspose") or attr(product, "transB", 0))
    return bool(turns % 2)


def _transposed_back(
    graph: ir.Graph, namer: Namer, value: ir.Value, tensor: ir.TensorProtocol
) -> ir.Value:
    """Make a constant of the transposed weights, and transpose it back for those who read it."""
    perm = (1, 0, *range(2, len(tensor.shape)))

    def data() -> ir.TensorProtocol:
        array: Array = np.ascontiguousarray(np.asarray(tensor.numpy()).transpose(perm))
        return ir.Tensor(array, dtype=tensor.dtype)

    name = namer.fresh(f"{value.name}.transposed")
    held = ir.LazyTensor(
        data, dtype=tensor.dtype, shape=ir.Shape([int(str(d)) for d in tensor.shape]), name=name
    )
    own = ir.Value(name=name, shape=value.shape, type=value.type, const_value=held)
    graph.initializers[name] = own
    node = ir.node("Transpose", [own], {"perm": [*perm]})
    node.name = node.outputs[0].name = namer.fresh(f"{value.name}.back")
    node.outputs[0].shape, node.outputs[0].type = value.shape, value.type
    graph.insert_before(graph[0], node)
    return node.outputs[0]


def _follow(path: _Path, value: ir.Value, namer: Namer) -> None:
    """Repeat the steps of a path on another value, and give the product what comes out."""
    *steps, product = path
    for step in steps:
        again = ir.node(
            step.op_type, [value, *step.inputs[1:]], dict(step.attributes), domain=step.domain
        )
        old, value = step.outputs[0], again.outputs[0]
        again.name = value.name = namer.fresh(f"{old.name}.transposed")
        value.shape, value.type = old.shape, old.type
        step.append(again)
    product.replace_input_with(1, value)
