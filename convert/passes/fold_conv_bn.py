"""Fold what scales and shifts channels into the convolution or product before it."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.passes.cancellation import Affine, affine_of, cancels, is_taken_away
from edgeinfer.convert.passes.infra import (
    Namer,
    PassOutcome,
    all_nodes,
    attr,
    constant,
    input_at,
    is_op,
    outcome,
    used_outputs,
)
from edgeinfer.convert.passes.rewrite import FLOATS, ReplacementBuilder, sweep
from edgeinfer.types import Array

MAX_GAIN = 1e4
"""A channel multiplied by more than this is left alone: its variance is so small that the rounding
errors of the layer before it would be the signal."""
MAX_WEIGHT, MIN_WEIGHT = 1e30, 1e-30
"""Folded weights must stay far from where float32 overflows or loses bits."""


class FoldConvBn(ir.passes.InPlacePass):
    """Fold ``BatchNormalization`` and constant Mul, Div, Add, Sub into the layer before.

    The layer is ``Conv``, ``ConvTranspose``, ``Gemm`` or ``MatMul`` (two axes) with constant
    weights, and nothing else reads its output. Folded weights are computed in float64 and rounded
    once. A ``BatchNormalization`` in training mode or with computed parameters is left alone, as
    a constant is that is taken away again.

    Given::

        c = Conv(x, w, b)       y = BatchNormalization(c, gamma, beta, mean, var)

    Result::

        y = Conv(x, w * s, (b - mean) * s + beta)       with s = gamma / sqrt(var + epsilon)
    """

    def call(self, model: ir.Model) -> PassOutcome:
        """Fold from the inputs to the outputs, so that chains collapse."""
        namer, count = Namer(model), 0
        for node in all_nodes(model):
            if node.graph is not None and _fold(node, model.graph, namer):
                count += 1
        return outcome(model, count)


def _fold(node: ir.Node, main: ir.Graph, namer: Namer) -> bool:
    if not is_op(node, "BatchNormalization", "Mul", "Div", "Add", "Sub"):
        return False
    out = node.outputs[0]
    if out.dtype not in FLOATS or [o for o in used_outputs(node) if o is not out]:
        return False
    if is_taken_away(node):
        return False
    for index in (0, 1) if node.op_type in ("Mul", "Add") else (0,):
        value = input_at(node, index)
        layer = None if value is None else value.producer()
        if value is None or layer is None or layer.graph is not node.graph:
            continue
        if len(value.uses()) != 1 or value.is_graph_output():
            continue
        build = ReplacementBuilder(namer, out.name or node.op_type)
        if _into(layer, node, index, build):
            build.commit(main, node)
            sweep([layer])
            return True
    return False


def _into(layer: ir.Node, node: ir.Node, index: int, build: ReplacementBuilder) -> bool:
    """Build the layer anew with the affine map of ``node`` in its weights."""
    if not is_op(layer, "Conv", "ConvTranspose", "Gemm", "MatMul"):
        return False
    weight = constant(input_at(layer, 1))
    if weight is None or weight.dtype not in FLOATS:
        return False
    rank = len(weight.shape)
    if layer.op_type in ("Gemm", "MatMul") and not (rank == 2 and _two_axes(layer)):
        return False
    if node.op_type == "BatchNormalization":
        affine = batch_norm(node)
    else:
        affine = _constant_operand(node, 1 - index, rank)
    if affine is None or not _is_tame(affine):
        return False
    only_shift = bool(np.all(affine.scale == 1.0))
    if only_shift and is_op(layer, "MatMul"):
        return False  # it has no bias to shift; Add is what it would become again
    shape = tuple(int(d) for d in weight.shape.numpy())
    factor = _factor(layer, shape, affine.scale)
    bias = _new_bias(layer, affine, _channels(layer, shape))
    if factor is None or bias is None or (only_shift and cancels(affine.shift, bias)):
        return False
    dtype = weight.dtype.numpy()
    new = layer.inputs[1]
    if not only_shift:
        if not _fits(_scaled(weight, factor)):
            return False
        new = build.computed(lambda: _scaled(weight, factor).astype(dtype), weight, "weight")
    _emit(layer, new, bias.astype(dtype), build)
    return True


def _scaled(weight: ir.TensorProtocol, factor: Array) -> Array:
    """Return the folded weights in float64."""
    scaled: Array = weight.numpy().astype(np.float64)
    # In place: a second copy of the widest layer would be what conversions peak at.
    scaled *= factor
    return scaled


def batch_norm(node: ir.Node) -> Affine | None:
    """Return the affine map of an inference BatchNormalization with constant parameters."""
    tensors = [constant(input_at(node, i)) for i in range(1, 5)]
    if attr(node, "training_mode", 0) or any(t is None for t in tensors):
        return None
    gamma, beta, mean, var = (t.numpy().astype(np.float64) for t in tensors if t is not None)
    spread = var + attr(node, "epsilon", 1e-5)
    if not np.all(spread > 0):
        return None
    scale = gamma / np.sqrt(spread)
    return Affine(scale, beta - mean * scale)


def _constant_operand(node: ir.Node, index: int, rank: int) -> Affine | None:
    """Return the affine map of Mul, Div, Add or Sub by a constant of one number a channel."""
    tensor = constant(input_at(node, index))
    if tensor is None or len(tensor.shape) > rank:
        return None
    dims = [1] * (rank - len(tensor.shape)) + [int(d) for d in tensor.shape.numpy()]
    if any(d != 1 for axis, d in enumerate(dims) if axis != 1):
        return None
    found = affine_of(node, 1 - index)
    if (
        found is None
        or not np.all(np.isfinite(found.scale))
        or not np.all(np.isfinite(found.shift))
    ):
        return None
    return Affine(found.scale.reshape(-1), found.shift.reshape(-1))


def _two_axes(layer: ir.Node) -> bool:
    """Whether the layer's output has two axes, so that its last one is the channels."""
    shape = layer.outputs[0].shape
    return layer.op_type == "Gemm" or (shape is not None and len(shape) == 2)


def _is_tame(affine: Affine) -> bool:
    finite = np.all(np.isfinite(affine.scale)) and np.all(np.isfinite(affine.shift))
    return bool(finite) and float(np.abs(affine.scale).max()) <= MAX_GAIN


def _fits(weights: Array) -> bool:
    size = np.abs(weights[weights != 0])
    return size.size == 0 or bool(size.max() <= MAX_WEIGHT and size.max() >= MIN_WEIGHT)


def _channels(layer: ir.Node, shape: tuple[int, ...]) -> int:
    if layer.op_type == "Conv" or (layer.op_type == "Gemm" and attr(layer, "transB", 0)):
        return shape[0]
    group: int = attr(layer, "group", 1) if layer.op_type == "ConvTranspose" else 1
    return shape[1] * group


def _factor(layer: ir.Node, shape: tuple[int, ...], scale: Array) -> Array | None:
    """Return what the weights are multiplied with: one number an output channel, in their axes."""
    channels = _channels(layer, shape)
    if scale.size not in (1, channels):
        return None
    scale = np.broadcast_to(scale, (channels,))
    ones = [1] * (len(shape) - 1)
    if layer.op_type == "Conv" or (layer.op_type == "Gemm" and attr(layer, "transB", 0)):
        return scale.reshape(-1, *ones)
    if layer.op_type in ("Gemm", "MatMul"):
        return scale
    group = attr(layer, "group", 1)
    parted = np.repeat(scale.reshape(group, 1, -1), shape[0] // group, axis=1)
    return parted.reshape(shape[0], -1, *ones[1:])


def _new_bias(layer: ir.Node, affine: Affine, channels: int) -> Array | None:
    """Return the bias after the fold, (channels,), in float64."""
    if affine.shift.size not in (1, channels) or affine.scale.size not in (1, channels):
        return None
    shift: Array = np.broadcast_to(affine.shift, (channels,))
    value = input_at(layer, 2)
    if value is None:
        return shift
    tensor = constant(value)
    if tensor is None or tensor.size not in (1, channels):
        return None
    if tensor.size == channels and channels > 1 and int(tensor.shape.numpy()[-1]) != channels:
        return None
    old = tensor.numpy().astype(np.float64).reshape(-1)
    if layer.op_type == "Gemm":
        old = old * attr(layer, "beta", 1.0)
    bias: Array = np.broadcast_to(old * affine.scale, (channels,)) + shift
    return bias


def _emit(layer: ir.Node, weight: ir.Value | None, bias: Array, build: ReplacementBuilder) -> None:
    kept = {name: a.value for name, a in layer.attributes.items() if name != "beta"}
    x = layer.inputs[0]
    if layer.op_type != "MatMul":
        build.op(layer.op_type, x, weight, build.const(bias, "bias"), **kept)
        return
    product = build.op("MatMul", x, weight)
    if np.any(bias):
        build.op("Add", product, build.const(bias, "bias"))
