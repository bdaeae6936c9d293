"""Remainders of 64-bit integers, which ONNX Runtime before 1.32 computes in float64."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.faults import builder
from edgeinfer.convert.lower.rules import attribute, given

_WIDE = (ir.DataType.INT64, ir.DataType.UINT64)


def inexact_remainder(node: ir.Node) -> str:
    """Say whether a remainder with the sign of the dividend is one of 64-bit integers."""
    a = given(node, 0)
    if a is None or a.dtype not in _WIDE or not attribute(node, "fmod", 0):
        return ""
    return "int64 is divided in float64"


def by_floor(model: ir.Model, node: ir.Node) -> bool:
    """Take the remainder that has the sign of the divisor, and move it where that is another.

    The divisor's own sign is of no account, and without it -1 is none: the least integer by that
    ends the process.

    Given::

        y = Mod<fmod=1>(a, b)

    Result::

        d = Abs(b); m = Mod(a, d)
        y = Add(m, Mul(Min(Mul(Sign(m), Sign(a)), 0), d))
    """
    a, b = given(node, 0), given(node, 1)
    if a is None or b is None or a.dtype is None:
        return False
    build, own = builder(model, node), ir.TensorType(a.dtype)
    if a.dtype == ir.DataType.UINT64:
        build.op("Mod", a, b)
    else:
        divisor = build.op("Abs", b)
        rest = build.op("Mod", a, divisor)
        sides = build.op("Mul", build.op("Sign", rest), build.op("Sign", a))
        apart = build.op("Min", sides, build.const(np.asarray(0, np.int64), "zero"))
        build.op("Add", rest, build.op("Mul", apart, divisor))
    for made in build.nodes:
        made.outputs[0].type = own
    build.commit(model.graph, node)
    return True
