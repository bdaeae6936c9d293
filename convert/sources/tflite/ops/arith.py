"""Arithmetic of two operands, broadcast as NumPy does."""

from __future__ import annotations

import math
from functools import reduce

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.sources.tflite.importer import Importer
from edgeinfer.convert.sources.tflite.operand import Operand, Options
from edgeinfer.convert.sources.tflite.registry import READERS

_SAME = {
    **{"ADD": "Add", "SUB": "Sub", "MUL": "Mul", "DIV": "Div", "POW": "Pow"},
    **{"MAXIMUM": "Max", "MINIMUM": "Min", "BITWISE_XOR": "BitwiseXor"},
    **{"STABLEHLO_ADD": "Add", "STABLEHLO_SUBTRACT": "Sub", "STABLEHLO_MULTIPLY": "Mul"},
    **{"STABLEHLO_MAXIMUM": "Max", "STABLEHLO_MINIMUM": "Min"},
}


@READERS.reader(*_SAME)
def same(g: Importer, o: Options, a: Operand, b: Operand) -> ir.Value:
    """The operator of the same name, with a fused activation."""
    y = g.emit(_SAME[o.code], a, b)
    return g.activate(y, o)


@READERS.reader("ADD_N")
def add_n(g: Importer, o: Options, *parts: Operand) -> ir.Value:
    """Sum."""
    return g.emit("Sum", *parts)


@READERS.reader("SQUARED_DIFFERENCE")
def squared_difference(g: Importer, o: Options, a: Operand, b: Operand) -> ir.Value:
    """The square of the difference."""
    difference = g.emit("Sub", a, b)
    return g.emit("Mul", difference, difference)


@READERS.reader("FLOOR_DIV")
def floor_div(g: Importer, o: Options, a: Operand, b: Operand) -> ir.Value:
    """The quotient, rounded down."""
    if a.is_float:
        # The kernel divides in double precision.
        wide = [g.emit("Cast", v, to=ir.DataType.DOUBLE) for v in (a, b)]
        return g.emit("Cast", g.emit("Floor", g.emit("Div", *wide)), to=ir.DataType.FLOAT)
    return _floored(g, a.real, b.real, a.dtype)


def _floored(g: Importer, a: ir.Value, b: ir.Value, dtype: ir.DataType) -> ir.Value:
    """Quotient of integers, rounded down; ONNX rounds towards zero."""
    if dtype not in (ir.DataType.INT32, ir.DataType.INT64):
        # Engines lack most of these operators for narrower types.
        c, d = (g.emit("Cast", v, to=ir.DataType.INT64) for v in (a, b))
        return g.emit("Cast", _floored(g, c, d, ir.DataType.INT64), to=dtype)
    zero, one = np.zeros((), dtype.numpy()), np.ones((), dtype.numpy())
    quotient = g.emit("Div", a, b)
    rest = g.emit("Sub", a, g.emit("Mul", quotient, b))
    apart = g.emit("Xor", g.emit("Less", rest, zero), g.emit("Less", b, zero))
    inexact = g.emit("Not", g.emit("Equal", rest, zero))
    down = g.emit("And", apart, inexact)
    return g.emit("Where", down, g.emit("Sub", quotient, one), quotient)


@READERS.reader("FLOOR_MOD")
def floor_mod(g: Importer, o: Options, a: Operand, b: Operand) -> ir.Value:
    """The rest with the sign of the divisor."""
    if not a.is_float:
        return g.emit("Mod", a, b, fmod=0)
    zero = np.zeros((), a.dtype.numpy() if not a.tensor.scale else np.float32)
    rest = g.emit("Mod", a, b, fmod=1)
    apart = g.emit("Xor", g.emit("Less", rest, zero), g.emit("Less", b, zero))
    inexact = g.emit("Not", g.emit("Equal", rest, zero))
    return g.emit("Where", g.emit("And", apart, inexact), g.emit("Add", rest, b), rest)


@READERS.reader("RIGHT_SHIFT")
def right_shift(g: Importer, o: Options, a: Operand, b: Operand) -> ir.Value:
    """Shift with the sign: a quotient by a power of two, rounded down."""
    if a.dtype == ir.DataType.UINT64:
        raise Refusal("elements of type UINT64", "unsupported_dtype")
    # The widest shift of 64 bits leaves the sign only.
    wide, bits = (g.emit("Cast", v, to=ir.DataType.INT64) for v in (a, b))
    bits = g.emit("Min", g.emit("Max", bits, np.int64(0)), np.int64(62))
    divisor = g.emit("Pow", np.int64(2), bits)
    return g.emit("Cast", _floored(g, wide, divisor, ir.DataType.INT64), to=a.dtype)


@READERS.reader("ATAN2")
def atan2(g: Importer, o: Options, y: Operand, x: Operand) -> ir.Value:
    """The angle of a point, from the angle of its slope and its quadrant."""
    dtype = y.dtype.numpy()
    zero, pi = np.zeros((), dtype), np.asarray(math.pi, dtype)
    low, left = g.emit("Less", y, zero), g.emit("Less", x, zero)
    turn = g.emit("Where", low, -pi, pi)
    angle = g.emit("Atan", g.emit("Div", y, x))
    angle = g.emit("Where", left, g.emit("Add", angle, turn), angle)
    origin = g.emit("And", g.emit("Equal", x, zero), g.emit("Equal", y, zero))
    return g.emit("Where", origin, zero, angle)


@READERS.reader("BROADCAST_ARGS")
def broadcast_args(g: Importer, o: Options, a: Operand, b: Operand) -> ir.Value:
    """The shape that two shapes broadcast to."""
    sizes = [a.shape[0], b.shape[0]]
    if None in sizes:
        raise Refusal("shapes of unknown rank", "dynamic_shape")
    rank = max(s or 0 for s in sizes)
    dtype = a.dtype.numpy()
    wide = [
        x.real if size == rank else g.emit("Concat", np.ones(rank - (size or 0), dtype), x, axis=0)
        for x, size in zip((a, b), sizes, strict=True)
    ]
    one = np.ones((), dtype)
    return reduce(lambda p, q: g.emit("Where", g.emit("Equal", p, one), q, p), wide)
