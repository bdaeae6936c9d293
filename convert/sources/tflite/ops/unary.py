"""Elementwise operators of one operand."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.sources.tflite.importer import Importer
from edgeinfer.convert.sources.tflite.operand import Operand, Options
from edgeinfer.convert.sources.tflite.registry import READERS

_SAME = {
    **{"ABS": "Abs", "CEIL": "Ceil", "COS": "Cos", "EXP": "Exp", "FLOOR": "Floor", "LOG": "Log"},
    **{"LOGICAL_NOT": "Not", "NEG": "Neg", "ROUND": "Round", "SIGN": "Sign", "SIN": "Sin"},
    "SQRT": "Sqrt",
}
"""Operators with one of the same meaning; both round halves to even."""


@READERS.reader(*_SAME)
def same(g: Importer, o: Options, x: Operand) -> ir.Value:
    """The operator of the same meaning."""
    return g.emit(_SAME[o.code], x)


@READERS.reader("RSQRT")
def rsqrt(g: Importer, o: Options, x: Operand) -> ir.Value:
    """Reciprocal of the root."""
    return g.emit("Reciprocal", g.emit("Sqrt", x))


@READERS.reader("SQUARE")
def square(g: Importer, o: Options, x: Operand) -> ir.Value:
    """The product with itself."""
    return g.emit("Mul", x, x)


@READERS.reader("ZEROS_LIKE")
def zeros_like(g: Importer, o: Options, x: Operand) -> ir.Value:
    """Zeros of the same shape."""
    zero = np.zeros((), o.dtype.numpy())
    return g.emit("Expand", zero, g.emit("Shape", x))


@READERS.reader("CAST")
def cast(g: Importer, o: Options, x: Operand) -> ir.Value:
    """Cast."""
    if x.dtype == o.dtype:
        return g.emit("Identity", x)
    return g.emit("Cast", x, to=o.dtype)


@READERS.reader("BITCAST")
def bitcast(g: Importer, o: Options, x: Operand) -> ir.Value:
    """The same bits as integers with or without a sign; ONNX has no other before opset 26."""
    pair = (x.dtype, o.dtype)
    if x.dtype == o.dtype:
        return g.emit("Identity", x)
    if any(not t.is_integer() for t in pair) or x.dtype.bitwidth != o.dtype.bitwidth:
        raise Refusal(f"bits of {x.dtype.name} as {o.dtype.name}", "unsupported_dtype")
    return g.emit("Cast", x, to=o.dtype)
