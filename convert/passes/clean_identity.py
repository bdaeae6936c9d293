"""Remove nodes that hand their input on unchanged."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.passes.infra import (
    PassOutcome,
    all_nodes,
    attr,
    constant,
    has_subgraph,
    input_at,
    ints,
    is_op,
    outcome,
    rank,
    remove_node,
    replace_value,
    same_shape,
    small,
    static_shape,
    used_outputs,
)


class RemoveIdentity(ir.passes.InPlacePass):
    """Remove operators that change nothing, bit for bit.

    Given: ``a = Identity(x); b = Mul(a, 1.0); y = Relu(b)``
    Result: ``y = Relu(x)``

    Adding +0.0 stays (it turns -0.0 into 0.0), a Clip without bounds stays (it makes infinities
    finite), and so does what would widen the shape. An Identity between a graph input and a graph
    output stays, because both names must.
    """

    def call(self, model: ir.Model) -> PassOutcome:
        """Remove in topological order, so chains vanish in one go."""
        count = 0
        for node in all_nodes(model):
            if not is_op(node, *_RULES) or node.outputs[0] not in used_outputs(node):
                continue
            source = _RULES[node.op_type](node)
            if source is None or len(used_outputs(node)) > 1:
                continue
            if replace_value(node.outputs[0], source):
                remove_node(node)
                count += 1
            elif node.op_type != "Identity":
                _become_identity(node, source)
                count += 1
        return outcome(model, count)


def _become_identity(node: ir.Node, source: ir.Value) -> None:
    """Where a graph output must keep its name, the plainest operator is left."""
    node.replace_input_with(0, source)
    node.resize_inputs(1)
    node.resize_outputs(1)
    node.attributes.clear()
    node.op_type = "Identity"


Rule = Callable[[ir.Node], ir.Value | None]


def _first(node: ir.Node) -> ir.Value | None:
    return input_at(node, 0)


def _dropout(node: ir.Node) -> ir.Value | None:
    training = small(input_at(node, 2)) if input_at(node, 2) is not None else np.False_
    return None if training is None or np.any(training) else _first(node)


def _single(node: ir.Node) -> ir.Value | None:
    return _first(node) if len(node.inputs) == 1 else None


def _pad(node: ir.Node) -> ir.Value | None:
    pads = ints(input_at(node, 1))
    return _first(node) if pads is not None and not any(pads) else None


def _slice(node: ir.Node) -> ir.Value | None:
    """A slice that takes everything, forwards."""
    x = _first(node)
    starts, ends = ints(input_at(node, 1)), ints(input_at(node, 2))
    steps = [1] if input_at(node, 4) is None else ints(input_at(node, 4))
    if starts is None or ends is None or steps is None or any(s != 1 for s in steps):
        return None
    if any(starts):
        return None
    if all(e >= 2**31 - 1 for e in ends):
        return x
    return x if _static_equal(x, node.outputs[0]) else None


def _static_equal(x: ir.Value | None, y: ir.Value) -> bool:
    shape = static_shape(x)
    return shape is not None and shape == static_shape(y)


def _expand(node: ir.Node) -> ir.Value | None:
    x, target = _first(node), ints(input_at(node, 1))
    if x is None:
        return None
    width = rank(x)
    if target is not None and width is not None and len(target) <= width:
        shape = list(x.shape or ())[width - len(target) :]
        if all(t in (1, d) for t, d in zip(target, shape, strict=True)):
            return x
    # What a run gives may not fit, whatever is declared of the result: that run is to fail.
    sizes = _of_sizes(input_at(node, 1)) and same_shape(x, node.outputs[0])
    return x if sizes else None


def _of_sizes(value: ir.Value | None) -> bool:
    """Whether integers are computed of constants and shapes alone."""
    waiting, seen = [value], set[ir.Value]()
    while waiting:
        value = waiting.pop()
        if value is None or value in seen or constant(value) is not None:
            continue
        seen.add(value)
        maker = value.producer()
        if maker is None or not maker.inputs or has_subgraph(maker):
            return False
        if not is_op(maker, "Shape", "Size"):
            waiting.extend(maker.inputs)
    return True


def _tile(node: ir.Node) -> ir.Value | None:
    repeats = ints(input_at(node, 1))
    return _first(node) if repeats is not None and all(r == 1 for r in repeats) else None


def _neutral(element: float, *, sign: bool | None = None, both_sides: bool) -> Rule:
    """Rule for an operand that leaves the other one as it is."""

    def rule(node: ir.Node) -> ir.Value | None:
        for index in (1, 0) if both_sides else (1,):
            other, x = node.inputs[index], node.inputs[1 - index]
            array = small(other)
            if array is None or x is None or array.size == 0 or np.any(array != element):
                continue
            if sign is not None and array.dtype.kind == "f" and np.any(np.signbit(array) != sign):
                continue
            if _keeps_shape(array.shape, x):
                return x
        return None

    return rule


def _keeps_shape(shape: tuple[int, ...], x: ir.Value) -> bool:
    """Whether broadcasting a constant against ``x`` gives the shape of ``x``."""
    width = rank(x)
    if width is None or len(shape) > width:
        return False
    dims = list(x.shape or ())[width - len(shape) :]
    return all(s == 1 or s == d for s, d in zip(shape, dims, strict=True))


def _resize(node: ir.Node) -> ir.Value | None:
    """Scales of one; cropping and the modes that look at sizes are left alone."""
    tensor = constant(input_at(node, 2))
    if tensor is None or tensor.size == 0 or input_at(node, 3) is not None:
        return None
    if attr(node, "coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize":
        return None
    nearest = attr(node, "mode", "nearest") == "nearest"
    return _first(node) if nearest and bool(np.all(tensor.numpy() == 1.0)) else None


_RULES: dict[str, Rule] = {
    "Identity": _first,
    "Dropout": _dropout,
    "Concat": _single,
    "Sum": _single,
    "Max": _single,
    "Min": _single,
    "Mean": _single,
    "Pad": _pad,
    "Slice": _slice,
    "Expand": _expand,
    "Tile": _tile,
    # x + -0.0 and x - 0.0 keep the sign of every zero; x + 0.0 does not.
    "Add": _neutral(0.0, sign=True, both_sides=True),
    "Sub": _neutral(0.0, sign=False, both_sides=False),
    "Mul": _neutral(1.0, both_sides=True),
    "Div": _neutral(1.0, both_sides=False),
    "Resize": _resize,
}
