"""Remove and merge operators that only change the shape."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.families import VIEWS
from edgeinfer.convert.passes.infra import (
    Namer,
    PassOutcome,
    add_initializer,
    all_nodes,
    attr,
    dims_of,
    input_at,
    ints,
    is_op,
    outcome,
    remove_node,
    replace_value,
    same_shape,
)

_REDUCTIONS = ("ReduceMean", "ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin")


class CleanReshape(ir.passes.InPlacePass):
    """Cut chains of Reshape, Flatten, Squeeze and Unsqueeze, none of which moves data.

    Given: ``a = Unsqueeze(x, [0]); b = Reshape(a, [6]); y = Reshape(b, [2,3])``
    Result: ``y = Reshape(x, [2,3])``, or ``x`` itself where that is its shape

    A mean, sum, product or extreme over axes of size 1 is such a node too.
    """

    def call(self, model: ir.Model) -> PassOutcome:
        """Look back from every such node."""
        namer, count = Namer(model), 0
        for node in all_nodes(model):
            count += _of_one(node)
            if not is_op(node, *VIEWS):
                continue
            if _cancel(node):
                count += 1
            elif is_op(node, "Reshape"):
                count += _merge(node, namer)
        return outcome(model, count)


def _of_one(node: ir.Node) -> int:
    """Let a reduction that finds one element each time be what it then is."""
    x, y = input_at(node, 0), node.outputs[0] if node.outputs else None
    if not is_op(node, *_REDUCTIONS) or x is None or x.shape is None or y is None:
        return 0
    axes = input_at(node, 1)
    dims = range(len(x.shape)) if axes is None else ints(axes)
    if not dims:
        # None at all, or those known only at run time.
        return 0
    if axes is None and attr(node, "noop_with_empty_axes", 0):
        return 0
    if any(not -len(x.shape) <= p < len(x.shape) or x.shape[p] != 1 for p in dims):
        return 0
    node.op_type = "Identity" if attr(node, "keepdims", 1) else "Squeeze"
    node.attributes.clear()
    if node.op_type == "Identity":
        node.resize_inputs(1)
    return 1


def _cancel(node: ir.Node) -> bool:
    """Use an earlier value of the chain that has the same shape."""
    y = node.outputs[0]
    for source in _chain(node):
        if same_shape(source, y) and replace_value(y, source):
            remove_node(node)
            return True
    return False


def _chain(node: ir.Node) -> list[ir.Value]:
    """Values the node is a view of, the oldest first."""
    found: list[ir.Value] = []
    current: ir.Node | None = node
    while current is not None and is_op(current, *VIEWS):
        x = current.inputs[0]
        if x is None:
            break
        found.append(x)
        current = x.producer() if current.graph is node.graph else None
    return found[::-1]


def _merge(node: ir.Node, namer: Namer) -> int:
    """Read the oldest value of the chain; a 0 in the target is first made a number."""
    chain = _chain(node)
    if len(chain) < 2 or node.graph is None:
        return 0
    target = ints(input_at(node, 1))
    if target is None or attr(node, "allowzero", 0):
        return 0
    x = node.inputs[0]
    if 0 in target:
        sizes = None if x is None or x.shape is None else dims_of(x)
        resolved: list[int] = []
        for axis, wanted in enumerate(target):
            if wanted:
                resolved.append(wanted)
                continue
            size = None if sizes is None or axis >= len(sizes) else sizes[axis]
            if isinstance(size, int) and size > 0:
                resolved.append(size)
            elif size is not None and _same_axis(chain[0], axis, size):
                resolved.append(0)
            else:
                return 0
        if resolved != target:
            name = namer.fresh(f"{node.outputs[0].name}_shape")
            array = np.asarray(resolved, np.int64)
            node.replace_input_with(1, add_initializer(node.graph, name, array))
    node.replace_input_with(0, chain[0])
    return 1


def _same_axis(source: ir.Value, axis: int, size: int | ir.SymbolicDim) -> bool:
    """Whether the oldest value has the same unknown size on the same axis."""
    if source.shape is None or axis >= len(source.shape):
        return False
    mine = source.shape[axis]
    return (
        isinstance(mine, ir.SymbolicDim)
        and isinstance(size, ir.SymbolicDim)
        and mine.value is not None
        and mine.value == size.value
    )
