"""DFT and STFT: products with the waves."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir

from edgeinfer.convert.lower.definitions.body import Body, attribute, input_at
from edgeinfer.convert.lower.fourier import dft_plan, stft_plan
from edgeinfer.convert.lower.registry import Const, Refusal


def _are_known(node: ir.Node, *indices: int) -> bool:
    given = (input_at(node, index) for index in indices)
    return all(value is None or value.const_value is not None for value in given)


def _constant(node: ir.Node, index: int) -> Const | None:
    value = input_at(node, index)
    return (
        None if value is None or value.const_value is None else Const("", value.const_value.numpy())
    )


def dft(node: ir.Node) -> onnx.FunctionProto | None:
    """A product with the waves, over any axis; of a signal whose length is known."""
    x = node.inputs[0]
    if x is None or x.shape is None or x.dtype != ir.DataType.FLOAT or not _are_known(node, 1, 2):
        return None
    known = [_constant(node, index) for index in (1, 2)]
    inverse, onesided = (int(attribute(node, n, 0)) for n in ("inverse", "onesided"))
    try:
        made = dft_plan(list(x.shape), known[0], known[1], inverse, onesided)
    except Refusal:
        return None
    body = Body(node)
    others = [x.shape[a] for a in made.others]
    if sum(not isinstance(size, int) for size in others) > 1:
        return None
    lead = [size if isinstance(size, int) else -1 for size in others]
    transposed = body.op("Transpose", "i0", perm=made.order)
    flat = body.reshape(transposed, *lead, made.weights.shape[1])
    product = body.op("MatMul", flat, body.const(np.ascontiguousarray(made.weights.T)))
    parts = body.reshape(product, *lead, made.results, made.parts)
    body.give(0, body.op("Transpose", parts, perm=made.back))
    return body.function()


def stft(node: ir.Node) -> onnx.FunctionProto | None:
    """A convolution with the windowed waves, which moves on by the frame step."""
    x, step = node.inputs[0], _constant(node, 1)
    if x is None or x.shape is None or x.dtype != ir.DataType.FLOAT or not _are_known(node, 2, 3):
        return None
    parts = 1 if len(x.shape) == 2 else x.shape[2]
    onesided = int(attribute(node, "onesided", 1))
    try:
        waves = stft_plan(parts, _constant(node, 2), _constant(node, 3), onesided)
    except Refusal:
        return None
    if step is None:
        return None
    body = Body(node)
    line = "i0" if len(x.shape) == 3 else body.op("Unsqueeze", "i0", body.const([2]))
    line = body.op("Transpose", line, perm=[0, 2, 1])
    weights = np.ascontiguousarray(waves.transpose(0, 2, 1), np.float32)
    hop = int(step.array.reshape(-1)[0])
    made = body.op("Conv", line, body.const(weights), strides=[hop])
    frames = body.op("Transpose", made, perm=[0, 2, 1])
    body.give(0, body.reshape(frames, 0, 0, len(waves) // 2, 2))
    return body.function()


def mel_weight_matrix(node: ir.Node) -> onnx.FunctionProto | None:
    """Triangles between positions that are evenly spaced in mel: a constant."""
    given = [_constant(node, index) for index in range(5)]
    known = [c.array.reshape(-1)[0].item() for c in given if c is not None]
    if len(known) < len(given):
        return None
    bins, length, rate, low, high = known
    first, last = (2595 * np.log10(1 + edge / 700) for edge in (low, high))
    mels = np.arange(bins + 2) * ((last - first) / (bins + 2)) + first
    hertz = 700 * (10 ** (mels / 2595) - 1)
    positions = ((length + 1) * hertz // rate).astype(int)
    weights = np.zeros((length // 2 + 1, bins))
    for i, (left, middle, right) in enumerate(
        zip(positions, positions[1:], positions[2:], strict=False)
    ):
        if left == middle:
            weights[middle, i] = 1
        else:
            weights[left : middle + 1, i] = np.arange(middle - left + 1) / (middle - left)
        if right > middle:
            weights[middle:right, i] = np.arange(right - middle, 0, -1) / (right - middle)
    kind = ir.DataType(attribute(node, "output_datatype", ir.DataType.FLOAT.value))
    body = Body(node)
    body.give(0, body.const(weights.astype(kind.numpy())))
    return body.function()
