"""Quotients and remainders of integers: by -1 the least one ends the process of ONNX Runtime.

Remainders with the sign of the dividend are computed in float64 before 1.32.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.faults import builder
from edgeinfer.convert.lower.rules import attribute, given

_WIDE = (ir.DataType.INT64, ir.DataType.UINT64)
_TRAPPED = (ir.DataType.INT32, ir.DataType.INT64)
_NEVER_MINUS_ONE = {"Shape", "Size", "Abs", "NonZero"}


def by_minus_one(node: ir.Node) -> str:
    """Say whether a divisor of integers may be -1."""
    divisor = given(node, 1)
    if divisor is None or divisor.dtype not in _TRAPPED or _is_guarded(divisor):
        return ""
    return "the least integer by -1 ends the process"


def _is_guarded(divisor: ir.Value) -> bool:
    if (known := ir.convenience.get_const_tensor(divisor)) is not None:
        return not np.any(known.numpy() == -1)
    maker = divisor.producer()
    if maker is None or maker.op_type != "Where":
        return maker is not None and maker.op_type in _NEVER_MINUS_ONE
    asked, taken = given(maker, 0), given(maker, 1)
    asks = None if asked is None else asked.producer()
    instead = None if taken is None else ir.convenience.get_const_tensor(taken)
    if instead is None or asks is None or asks.op_type != "Equal":
        return False
    known_sides = [ir.convenience.get_const_tensor(v) for v in asks.inputs if v is not None]
    asks_minus_one = any(v is not None and np.all(v.numpy() == -1) for v in known_sides)
    return asks_minus_one and not np.any(instead.numpy() == -1)


def guard_divisor(model: ir.Model, node: ir.Node) -> bool:
    """Divide by 1 in the place of -1, and turn the sign of a quotient there.

    Given::

        y = Div(a, b)

    Result::

        e = Equal(b, -1)
        y = Mul(Div(a, Where(e, 1, b)), Where(e, -1, 1))
    """
    a, b = given(node, 0), given(node, 1)
    if a is None or b is None or b.dtype is None:
        return False
    build, kind = builder(model, node), b.dtype.numpy()
    one, minus = (build.const(np.asarray(v, kind), n) for v, n in ((1, "one"), (-1, "minus_one")))
    equal = build.op("Equal", b, minus)
    stated = {name: each.value for name, each in node.attributes.items()}
    made = build.op(node.op_type, a, build.op("Where", equal, one, b), **stated)
    if node.op_type == "Div":
        build.op("Mul", made, build.op("Where", equal, minus, one))
    for each in build.nodes:
        is_answer = each.op_type == "Equal"
        each.outputs[0].type = ir.TensorType(ir.DataType.BOOL if is_answer else b.dtype)
    build.commit(model.graph, node)
    return True


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
