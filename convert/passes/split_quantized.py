"""Take quantized operators apart: dequantize, compute, quantize."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.passes.infra import Namer, Outcome, all_nodes, input_at, outcome, rank
from edgeinfer.convert.passes.rewrite import Builder
from edgeinfer.convert.passes.shapes import InferShapes

_MICROSOFT = "com.microsoft"

_EXACT = 1 << 24
"""Integers up to which float32 has every one."""


class SplitQuantized(ir.passes.InPlacePass):
    """Replace ``QLinearConv``, ``QLinearMatMul``, ``ConvInteger`` and ONNX Runtime's own.

    Those are ``QGemm``, ``QLinearAdd``, ``QLinearMul`` and ``QLinearSoftmax``.

    A target that computes with integers finds them again between ``DequantizeLinear`` and
    ``QuantizeLinear``. ``ConvInteger`` becomes a convolution of floats where no sum can leave the
    integers that float32 has; others are left alone.

    Given::

        y = QLinearMatMul(a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero)

    Result::

        p = DequantizeLinear(a, a_scale, a_zero)
        q = DequantizeLinear(b, b_scale, b_zero)
        r = MatMul(p, q)
        y = QuantizeLinear(r, y_scale, y_zero)
    """

    def call(self, model: ir.Model) -> Outcome:
        """Split every node of a known form."""
        namer, count = Namer(model), 0
        for node in all_nodes(model):
            split = _SPLITS.get((node.domain, node.op_type))
            if split is None or node.graph is None:
                continue
            build = Builder(namer, node.outputs[0].name or node.op_type)
            if split(node, build):
                build.commit(model.graph, node)
                count += 1
        if count:
            # Nothing is known of what came out of operators that ONNX does not define.
            InferShapes()(model)
        return outcome(model, count)


def _float(value: ir.Value, like: ir.Value | None) -> ir.Value:
    value.type = ir.TensorType(ir.DataType.FLOAT)
    if like is not None and like.shape is not None:
        value.shape = like.shape.copy()
    return value


def _dequantized(node: ir.Node, build: Builder, index: int, axis: int = 1) -> ir.Value:
    """Dequantize the operand at an index, by the scale and the zero point that follow it."""
    x, scale, zero = (input_at(node, index + i) for i in range(3))
    return _float(build.op("DequantizeLinear", x, _single(build, scale), zero, axis=axis), x)


def _single(build: Builder, scale: ir.Value | None) -> ir.Value | None:
    """A scale as float32, which holds every half."""
    if scale is None or scale.dtype not in {ir.DataType.FLOAT16, ir.DataType.BFLOAT16}:
        return scale
    if scale.const_value is not None:
        return build.const(scale.const_value.numpy().astype(np.float32), "scale")
    return _float(build.op("Cast", scale, to=int(ir.DataType.FLOAT)), scale)


def _quantized(node: ir.Node, build: Builder, y: ir.Value, index: int, axis: int = 1) -> bool:
    out = node.outputs[0]
    _float(y, out)
    scale, zero = input_at(node, index), input_at(node, index + 1)
    made = build.op("QuantizeLinear", y, _single(build, scale), zero, axis=axis)
    made.type, made.shape = out.type, out.shape
    return True


def _conv(node: ir.Node, build: Builder) -> bool:
    x, w = _dequantized(node, build, 0), _dequantized(node, build, 3, axis=0)
    operands = [x, w]
    bias = input_at(node, 8)
    if bias is not None:
        scale = _product(input_at(node, 1), input_at(node, 4), build)
        operands.append(_float(build.op("DequantizeLinear", bias, scale, axis=0), bias))
    return _quantized(node, build, build.op("Conv", *operands, **_attributes(node)), 6)


def _attributes(node: ir.Node) -> dict[str, Any]:
    return {name: a.value for name, a in node.attributes.items()}


def _product(a: ir.Value | None, b: ir.Value | None, build: Builder) -> ir.Value:
    if a is None or b is None:
        raise ValueError("a quantized operator without its scales")
    if a.const_value is None or b.const_value is None:
        return build.op("Mul", a, b)
    values = (a.const_value.numpy() * b.const_value.numpy()).astype(np.float32)
    return build.const(values, "scale")


def _matmul(node: ir.Node, build: Builder) -> bool:
    operands = []
    for index, from_end in ((0, 2), (3, 1)):
        scale, size = input_at(node, index + 1), rank(input_at(node, index))
        if size is None or (rank(scale) or 0) > 1:
            return False
        # One scale a row of the first operand, one a column of the second.
        operands.append(_dequantized(node, build, index, axis=max(size - from_end, 0)))
    if rank(input_at(node, 6)) or rank(node.outputs[0]) is None:
        size = rank(node.outputs[0])
        if size is None:
            return False
        return _quantized(node, build, build.op("MatMul", *operands), 6, axis=max(size - 2, 0))
    return _quantized(node, build, build.op("MatMul", *operands), 6)


def _gemm(node: ir.Node, build: Builder) -> bool:
    if input_at(node, 7) is None:
        return False
    flipped = _attributes(node).get("transB", 0)
    operands = [_dequantized(node, build, 0), _dequantized(node, build, 3, axis=1 - flipped)]
    bias = input_at(node, 6)
    if bias is not None:
        scale = _product(input_at(node, 1), input_at(node, 4), build)
        operands.append(_float(build.op("DequantizeLinear", bias, scale, axis=0), bias))
    return _quantized(node, build, build.op("Gemm", *operands, **_attributes(node)), 7)


def _softmax(node: ir.Node, build: Builder) -> bool:
    axis = _attributes(node).get("axis", -1)
    size = rank(node.outputs[0])
    # Before opset 13 all axes from this one on were one.
    last = axis == -1 or (size is not None and axis == size - 1)
    if _attributes(node).get("opset", 1) < 13 and not last:
        return False
    y = build.op("Softmax", _dequantized(node, build, 0), axis=axis)
    return _quantized(node, build, y, 3)


def _binary(op_type: str) -> Callable[[ir.Node, Builder], bool]:
    def split(node: ir.Node, build: Builder) -> bool:
        a, b = _dequantized(node, build, 0), _dequantized(node, build, 3)
        return _quantized(node, build, build.op(op_type, a, b), 6)

    return split


def _conv_integer(node: ir.Node, build: Builder) -> bool:
    x, w, x_zero, w_zero = (input_at(node, i) for i in range(4))
    if x is None or w is None or w.shape is None or not all(isinstance(d, int) for d in w.shape):
        return False
    terms = math.prod(d for d in w.shape[1:] if isinstance(d, int))
    if terms * 255 * 255 >= _EXACT:
        return False
    operands = [_centred(build, x, x_zero, 0), _centred(build, w, w_zero, len(w.shape) - 1)]
    total = _float(build.op("Conv", *operands, **_attributes(node)), node.outputs[0])
    made = build.op("Cast", total, to=ir.DataType.INT32)
    made.type, made.shape = node.outputs[0].type, node.outputs[0].shape
    return True


def _centred(build: Builder, x: ir.Value, zero: ir.Value | None, trailing: int) -> ir.Value:
    """Subtract the zero point, as floats; a vector of them belongs to the first axis."""
    values = _float(build.op("Cast", x, to=ir.DataType.FLOAT), x)
    if zero is None:
        return values
    shift = _float(build.op("Cast", zero, to=ir.DataType.FLOAT), zero)
    if rank(zero) == 1 and trailing and zero.shape is not None and zero.shape[0] != 1:
        wide = build.op("Unsqueeze", shift, build.const(np.arange(1, trailing + 1), "axes"))
        shift = _float(wide, None)
        shift.shape = ir.Shape([zero.shape[0], *[1] * trailing])
    return _float(build.op("Sub", values, shift), x)


_SPLITS: dict[tuple[str, str], Callable[[ir.Node, Builder], bool]] = {
    ("", "QLinearConv"): _conv,
    ("", "QLinearMatMul"): _matmul,
    ("", "ConvInteger"): _conv_integer,
    (_MICROSOFT, "QGemm"): _gemm,
    (_MICROSOFT, "QLinearSoftmax"): _softmax,
    (_MICROSOFT, "QLinearAdd"): _binary("Add"),
    (_MICROSOFT, "QLinearMul"): _binary("Mul"),
}
