"""Rounding to eight bits by a range that a run finds."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from edgeinfer.convert.lower.definitions.body import Body

_SPLIT = 4097.0
"""What a float32 times it, less the difference to itself, has half of its digits left of."""


def dynamic_quantize_linear(node: ir.Node) -> onnx.FunctionProto:
    """Divide by the scale, and round before the zero point is added: it may be odd.

    For engines that multiply by reciprocals and are then the last bit off. A 255th is a 256th and
    the 255th of that. A quotient is a whole number next to it and what that leaves of the dividend,
    exactly, over the divisor.
    """
    body = Body(node)
    none, most = body.const(0.0), body.const(255.0)
    low = body.op("Min", body.op("ReduceMin", "i0", keepdims=0), none)
    high = body.op("Max", body.op("ReduceMax", "i0", keepdims=0), none)
    span = body.op("Sub", high, low)
    part, rest = (body.op("Mul", span, body.const(1 / n)) for n in (256, 65280))
    scale = body.op("Add", part, rest)
    zero = body.op("Round", body.op("Neg", body.op("Div", low, scale)))
    zero = body.op("Clip", zero, none, most)
    steps = body.op("Add", body.op("Round", _quotient(body, "i0", scale)), zero)
    kind = ir.DataType.UINT8.value
    body.give(0, body.op("Cast", body.op("Clip", steps, none, most), to=kind))
    body.give(1, scale)
    body.give(2, body.op("Cast", zero, to=kind))
    return body.function()


def _quotient(body: Body, a: str, b: str) -> str:
    """Divide by a number, to the nearest float32 where the quotient has up to twelve bits whole."""
    inverse = body.op("Reciprocal", b)
    scaled = body.op("Mul", b, body.const(_SPLIT))
    upper = body.op("Sub", scaled, body.op("Sub", scaled, b))
    whole = body.op("Round", body.op("Mul", a, inverse))
    left = body.op("Sub", a, body.op("Mul", whole, upper))
    left = body.op("Sub", left, body.op("Mul", whole, body.op("Sub", b, upper)))
    return body.op("Add", whole, body.op("Mul", left, inverse))
