"""Fusions that only exist in TFLite: activations and constants join the operator before them."""

from __future__ import annotations

import numpy as np

from edgeinfer.convert.lower.tflite.builder import ARITHMETIC, Builder
from edgeinfer.convert.lower.tflite.graph import Graph, Op, Tensor
from edgeinfer.convert.lower.tflite.pack_narrow_conv import widen_thin
from edgeinfer.convert.lower.tflite.pad_max_pool import pad_for_maxima
from edgeinfer.convert.lower.tflite.quantize import as_stored, quantize
from edgeinfer.convert.lower.tflite.simplify import Wiring, simplify
from edgeinfer.convert.lower.tflite.split_depthwise import split_taps
from edgeinfer.convert.lower.tflite.square_products import part_squares
from edgeinfer.convert.passes.cancellation import cancels
from edgeinfer.types import Array

NONE = 0

ACTIVATIONS = {"RELU": 1, "RELU_N1_TO_1": 2, "RELU6": 3}
"""The schema's numbers of the activations that XNNPACK takes inside another operator."""

_TAKES_ACTIVATION = frozenset(
    {
        *("ADD", "AVERAGE_POOL_2D", "CONV_2D", "DEPTHWISE_CONV_2D", "DIV", "FULLY_CONNECTED"),
        *("MAX_POOL_2D", "MUL", "SUB", "TRANSPOSE_CONV"),
    }
)

_OUTPUT_AXIS = {"CONV_2D": 0, "DEPTHWISE_CONV_2D": 3, "FULLY_CONNECTED": 0}
"""Operators with weights, and the weights' axis of output channels."""

_HANDED_ON = frozenset({"RELU", "RELU6", "RELU_N1_TO_1", "RESHAPE", "TRANSPOSE"})
"""Operators that leave what was added in its place, where it is one number."""

_MINUS_ONE = Tensor("-1", (), np.dtype(np.float32), np.array(-1, np.float32))


def fuse(graph: Graph) -> None:
    """Fuse what can be, in place, in bodies too."""
    for op in graph.ops:
        for body in op.bodies.values():
            fuse(body)
    graph.drop_dead()
    simplify(graph)
    while _join_constants(graph) or _join_activations(graph):
        graph.drop_dead()
    pad_for_maxima(graph)
    split_taps(graph)
    quantize(graph)
    widen_thin(graph)
    simplify(graph)
    part_squares(graph)


def _join_activations(graph: Graph) -> bool:
    """Let the operator before apply the activation."""
    wiring = Wiring(graph)
    kept: list[Op] = []
    for op in graph.ops:
        before = wiring.maker(op.inputs[0], *_TAKES_ACTIVATION) if op.inputs else None
        if op.code in ACTIVATIONS and before is not None and _can_take(wiring, before, op):
            before.options = {**before.options, "fused_activation_function": ACTIVATIONS[op.code]}
            before.outputs = op.outputs
            wiring.makers[id(op.outputs[0])] = before
        else:
            kept.append(op)
    changed = len(kept) < len(graph.ops)
    graph.ops = kept
    return changed


def _can_take(wiring: Wiring, before: Op, op: Op) -> bool:
    plain = before.options.get("fused_activation_function", NONE) == NONE
    floats = op.outputs[0].dtype == np.float32 and op.outputs[0].quantization is None
    return plain and floats and wiring.is_private(before.outputs[0])


def _join_constants(graph: Graph) -> bool:
    """Multiply constants into weights and add them to biases."""
    wiring = Wiring(graph)
    kept: list[Op] = []
    for op in graph.ops:
        before, other = _before_constant(wiring, op)
        if before is None or other is None or _is_taken_away(wiring, op, other):
            kept.append(op)
            continue
        if not _absorb(graph, op, before, other):
            kept.append(op)
            continue
        activation = op.options.get("fused_activation_function", NONE)
        before.options = {**before.options, "fused_activation_function": activation}
        before.outputs = op.outputs
        wiring.makers[id(op.outputs[0])] = before
    changed = len(kept) < len(graph.ops)
    graph.ops = kept
    return changed


def _before_constant(wiring: Wiring, op: Op) -> tuple[Op | None, Tensor | None]:
    """The operator with weights before an operator with a constant, and the constant."""
    if op.code == "NEG" and op.inputs[0] is not None and op.outputs[0].dtype == np.float32:
        before = wiring.maker(op.inputs[0], *_OUTPUT_AXIS)
        return (before, _MINUS_ONE) if before and wiring.is_private(op.inputs[0]) else (None, None)
    if op.code not in ARITHMETIC:
        return None, None
    for index in (0, 1):
        x, other = op.inputs[index], op.inputs[1 - index]
        if x is None or other is None or other.data is None:
            continue
        if index == 1 and op.code in {"SUB", "DIV"}:
            continue
        before = wiring.maker(x, *_OUTPUT_AXIS)
        if before is not None and wiring.is_private(x):
            return before, other
    return None, None


def _is_taken_away(wiring: Wiring, op: Op, other: Tensor) -> bool:
    """Whether nearly all of the constant that is added is subtracted again behind it."""
    if op.code not in {"ADD", "SUB"}:
        return False
    value, before = op.outputs[0], other.value.astype(np.float64)
    before = before if op.code == "ADD" else -before
    while wiring.is_private(value):
        (reader,) = wiring.readers[id(value)]
        known = [t.value for t in reader.inputs if t is not None and t.data is not None]
        if reader.code in {"ADD", "SUB"} and known:
            is_first = reader.inputs[0] is value
            sign = 1 if reader.code == "ADD" else -1
            scaled = before if is_first else sign * before
            after = scaled + (sign * known[0] if is_first else known[0])
            if cancels(scaled, after):
                return True
        elif reader.code in {"MUL", "DIV"} and known and reader.inputs[0] is value:
            after = before * known[0] if reader.code == "MUL" else before / known[0]
        elif reader.code == "NEG":
            after = -before
        elif reader.code in _HANDED_ON and before.size == 1:
            after = before
        else:
            return reader.code == "BITCAST"
        value, before = reader.outputs[0], after
    return False


def _absorb(graph: Graph, op: Op, before: Op, other: Tensor) -> bool:
    weights, channels = before.inputs[1], before.outputs[0].shape[-1]
    bias = before.inputs[2] if len(before.inputs) > 2 else None
    plain = before.options.get("fused_activation_function", NONE) == NONE
    if weights is None or weights.data is None or channels is None or not plain:
        return False
    if other.dtype != np.float32 or weights.dtype != np.float32:
        return False
    if before.outputs[0].shape != op.outputs[0].shape or not _is_per_channel(other, channels):
        return False
    if bias is not None and bias.data is None:
        return False
    value = np.broadcast_to(other.value.reshape(-1).astype(np.float64), channels)
    old = np.zeros(channels) if bias is None else bias.value.astype(np.float64)
    scale = {"MUL": value, "NEG": value, "DIV": 1.0 / np.where(value == 0, np.nan, value)}.get(
        op.code
    )
    if scale is None:
        shifted = old + value if op.code == "ADD" else old - value
        if cancels(old, shifted):
            return False
    else:
        scale = 1.0 / np.where(value == 0, np.nan, value) if op.code == "DIV" else value
        scaled = _scaled(graph, weights, scale, _OUTPUT_AXIS[before.code])
        if not np.all(np.isfinite(scaled)):
            return False
        before.inputs[1] = graph.const(scaled)
        shifted = old * scale
    before.inputs[2:] = [graph.const(shifted, np.float32)]
    return True


def _is_per_channel(tensor: Tensor, channels: int) -> bool:
    size = tensor.value.size
    return size == 1 or (size == channels and tensor.shape[-1] == channels)


def _scaled(graph: Graph, weights: Tensor, scale: Array, axis: int) -> Array:
    """Weights times a factor a channel; what was stored in integers can be stored so again."""
    values = weights.value
    shape = [1] * values.ndim
    shape[axis] = -1
    stored = as_stored(graph, weights, axis)
    if not isinstance(graph, Builder) or stored is None or stored.quantization is None:
        return np.asarray((values * scale.reshape(shape)).astype(np.float32))
    # Where the factor is zero, so are the integers, whatever their scale is.
    size = np.where(scale == 0, 1.0, np.abs(scale))
    scales = (stored.quantization.scale * size).astype(np.float32)
    steps = stored.value.astype(np.float32) * np.sign(scale).astype(np.float32).reshape(shape)
    graph.scales.append(scales)
    return np.asarray(steps * scales.reshape(shape))
