"""Fold what is computed from shapes, also where only some sizes are known."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.passes.infra import (
    Namer,
    PassOutcome,
    add_initializer,
    all_nodes,
    attr,
    constant,
    input_at,
    is_op,
    outcome,
    remove_node,
    static_shape,
)
from edgeinfer.convert.passes.symbols import Element, Elements, Symbols, known
from edgeinfer.types import Array

_NUMPY = {ir.DataType.INT64: np.int64, ir.DataType.INT32: np.int32, ir.DataType.BOOL: np.bool_}


class FoldShapes(ir.passes.InPlacePass):
    """Make shape arithmetic constant.

    Given: ``s = Shape(x); n = Gather(s, 0); q = Concat(n, 3, -1); y = Reshape(x, q)`` with
        ``float[N,3,H,W] x``
    Result: ``y = Reshape(x, q)`` with the initializer ``q = [0, 3, -1]``

    A 0 copies the size of the input's axis and one -1 takes what is left, so a Reshape is
    constant when every other size is known. Expand, whose 1 keeps a size, likewise.
    """

    def call(self, model: ir.Model) -> PassOutcome:
        """Fold all integer values whose elements are certain, then partly known targets."""
        symbols, namer, count = Symbols(model), Namer(model), 0
        for node in all_nodes(model):
            if is_op(node, "Reshape"):
                count += _fold_reshape(node, symbols, namer)
            elif is_op(node, "Expand"):
                count += _fold_expand(node, symbols, namer)
        for node in all_nodes(model):
            for value in node.outputs:
                count += _fold_value(value, symbols, namer)
        return outcome(model, count)


def _fold_value(value: ir.Value, symbols: Symbols, namer: Namer) -> int:
    """Turn a fully known integer value into an initializer."""
    node = value.producer()
    if not value.uses() or value.is_graph_output() or value.dtype not in _NUMPY:
        return 0
    if node is None or node.graph is None or is_op(node, "Constant"):
        return 0
    elements = symbols.of(value)
    if elements is None or any(not isinstance(e, int) for e in elements.ravel()):
        return 0
    shape = static_shape(value)
    if shape is not None and shape != elements.shape:
        return 0
    array: Array = elements.astype(_NUMPY[value.dtype])
    name, value.name = value.name or namer.fresh("shape"), None
    value.replace_all_uses_with(add_initializer(node.graph, name, np.asarray(array)))
    remove_node(node)
    return 1


def _fold_reshape(node: ir.Node, symbols: Symbols, namer: Namer) -> int:
    x, target = node.inputs[0], input_at(node, 1)
    elements = symbols.of(target)
    if x is None or elements is None or elements.ndim != 1 or constant(target) is not None:
        return 0
    if attr(node, "allowzero", 0) or node.graph is None:
        return 0
    shape = _reshape_target(x, elements)
    if shape is None:
        return 0
    name = namer.fresh(f"{node.outputs[0].name}_shape")
    new = add_initializer(node.graph, name, np.asarray(shape, np.int64))
    node.replace_input_with(1, new)
    return 1


def _reshape_target(x: ir.Value, elements: Elements) -> list[int] | None:
    """The same target with 0 for sizes of the input's own axis and -1 for one other size.

    Zeros that the model writes itself are left alone, and so is a second unknown size.
    """
    target: list[int] = []
    holes = 0
    for axis, wanted in enumerate(elements):
        if known(wanted):
            if wanted == 0:
                return None
            holes += wanted == -1
            target.append(wanted)
        elif _is_axis(x, axis, wanted):
            target.append(0)
        else:
            holes += 1
            target.append(-1)
    return target if holes <= 1 else None


def _is_axis(x: ir.Value, axis: int, wanted: Element) -> bool:
    if wanted is None or x.shape is None or axis >= len(x.shape):
        return False
    size = x.shape[axis]
    return (
        isinstance(size, ir.SymbolicDim)
        and isinstance(wanted, ir.SymbolicDim)
        and size.value is not None
        and size.value == wanted.value
    )


def _fold_expand(node: ir.Node, symbols: Symbols, namer: Namer) -> int:
    x, target = node.inputs[0], input_at(node, 1)
    elements = symbols.of(target)
    if x is None or elements is None or elements.ndim != 1 or constant(target) is not None:
        return 0
    if x.shape is None or node.graph is None:
        return 0
    shape: list[int] = []
    offset = len(x.shape) - len(elements)
    for i, wanted in enumerate(elements):
        axis = i + offset
        if known(wanted):
            shape.append(int(wanted))
        elif axis >= 0 and _is_axis(x, axis, wanted):
            shape.append(1)
        else:
            return 0
    name = namer.fresh(f"{node.outputs[0].name}_shape")
    node.replace_input_with(1, add_initializer(node.graph, name, np.asarray(shape, np.int64)))
    return 1
