"""Integers that OpenVINO's CPU plugin computes in float32, written in what it computes exactly.

The plugin has kernels of its own for sums, differences, products, extremes, bits, signs, choices
and running sums of int32. Comparisons, quotients, remainders, powers, products of matrices and
reductions go through float32, which holds every integer up to 2^24 only (openvino 2026.4.1, each
operator run alone on numbers near 1.79e9). Where the operands provably stay below, the operator is
left as it is; int64 is computed in 32 bits, and the backend refuses inputs that do not fit.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.faults import builder
from edgeinfer.convert.lower.rules import attribute, given
from edgeinfer.convert.lower.whole_spans import NARROW, Spans, leaves, span_of
from edgeinfer.convert.passes.infra import constant
from edgeinfer.convert.passes.rewrite import ReplacementBuilder

HELD = 1 << 24
"""float32 holds every integer up to here."""

SETTLED = "is part of an exact one"
"""Marks an operator of a repair that is right for what it is given there."""

FAULT = "integers beyond 2^24 are computed in float32"

_WIDE = frozenset({ir.DataType.INT32, ir.DataType.INT64, ir.DataType.UINT32, ir.DataType.UINT64})

SIXTEEN = 1 << 16


def is_wide(value: ir.Value | None) -> bool:
    """Whether it is of integers that float32 may not hold."""
    return value is not None and value.dtype in _WIDE


def is_held(value: ir.Value | None) -> bool:
    """Whether float32 surely holds what it is."""
    span = span_of(value)
    return span is not None and span[0] >= -HELD and span[1] <= HELD


def compared(node: ir.Node) -> str:
    """A comparison is right if one side is held: rounding never carries the other one across."""
    a, b = given(node, 0), given(node, 1)
    right = SETTLED in node.meta or not is_wide(a) or is_held(a) or is_held(b)
    return "" if right else FAULT


def divided(node: ir.Node) -> str:
    """A quotient or remainder of operands that are not both held."""
    a, b = given(node, 0), given(node, 1)
    right = SETTLED in node.meta or not is_wide(a) or (is_held(a) and is_held(b))
    return "" if right else FAULT


def reduced(node: ir.Node) -> str:
    """An extreme, or a sum that may not be held."""
    x = given(node, 0)
    if not is_wide(x) or x is None or SETTLED in node.meta:
        return ""
    if node.op_type in ("ReduceMax", "ReduceMin"):
        return "" if is_held(x) else FAULT
    span, count = span_of(x), _size(x)
    if span is None or count is None:
        return FAULT
    most = max(abs(span[0]), abs(span[1]))
    total = count * (most * most if node.op_type == "ReduceSumSquare" else most)
    return "" if total <= HELD else FAULT


def activated(node: ir.Node) -> str:
    """An activation of integers that are not held."""
    x = given(node, 0)
    if not is_wide(x):
        return ""
    held = is_held(x) and (node.op_type == "Relu" or is_held(given(node, 1)))
    return "" if held else FAULT


def made_bool(node: ir.Node) -> str:
    """The conversion to bool, which loses numbers near the ends of int32."""
    x = given(node, 0)
    to_bool = attribute(node, "to", 0) == ir.DataType.BOOL.value
    return FAULT if to_bool and is_wide(x) and not is_held(x) else ""


def raised(node: ir.Node) -> str:
    """A power that may not be held."""
    x, exponent = given(node, 0), given(node, 1)
    span, power = span_of(x), span_of(exponent)
    if not is_wide(x):
        return ""
    if span is None or power is None or power[1] > 64 or isinstance(power[1], float):
        return FAULT
    most = max(abs(span[0]), abs(span[1]), 1)
    return "" if most ** max(power[1], 0) <= HELD else FAULT


def multiplied(node: ir.Node) -> str:
    """Products of matrices whose sums may not be held."""
    operands = [v for v in node.inputs if v is not None]
    if not any(is_wide(v) for v in operands):
        return ""
    spans = [span_of(v) for v in operands]
    sizes = [_size(v) for v in operands]
    if None in spans or None in sizes:
        return FAULT
    most = math.prod(max(abs(s[0]), abs(s[1]), 1) for s in spans if s is not None)
    terms = max((n for n in sizes if n is not None), default=0)
    return "" if most * max(terms, 1) <= HELD else FAULT


def shifted(node: ir.Node) -> str:
    """A shift to the right of what is not held; signed ones have a rule of their own."""
    x = given(node, 0)
    right = attribute(node, "direction", "RIGHT") == "RIGHT"
    return FAULT if right and is_wide(x) and not (is_held(x) or SETTLED in node.meta) else ""


def _size(value: ir.Value) -> int | None:
    if value.shape is None or not all(isinstance(d, int) for d in value.shape):
        return None
    return math.prod(d for d in value.shape if isinstance(d, int))


def _number(build: ReplacementBuilder, like: ir.Value, number: int) -> ir.Value:
    kind = (like.dtype or ir.DataType.INT64).numpy()
    return build.const(np.asarray(number, kind), "whole")


def compare_difference(model: ir.Model, node: ir.Node) -> bool:
    """Compare a difference with zero, which no rounding makes zero or takes zero from.

    Given::

        e = Equal(a, b); l = Less(a, b)

    Result::

        e = Equal(Sub(a, b), 0); l = Not(Equal(Sub(Max(a, b), a), 0))
    """
    a, b = given(node, 0), given(node, 1)
    if a is None or b is None:
        return False
    build = builder(model, node)
    left, right = a, b
    if node.op_type != "Equal":
        left = _typed(build, build.op("Max", a, b), a)
        right = a if node.op_type in ("Less", "GreaterOrEqual") else b
    difference = _typed(build, build.op("Sub", left, right), a)
    equal = build.op("Equal", difference, _number(build, a, 0))
    if node.op_type in ("Less", "Greater"):
        _bool(equal)
        build.op("Not", equal)
    build.commit(model.graph, node)
    return True


def _typed(build: ReplacementBuilder, value: ir.Value, like: ir.Value) -> ir.Value:
    value.type = like.type
    return value


def _bool(value: ir.Value) -> ir.Value:
    value.type = ir.TensorType(ir.DataType.BOOL)
    return value


class Arithmetic:
    """Steps of int32 that are exact, with the types that later rules look at."""

    def __init__(self, build: ReplacementBuilder, like: ir.Value) -> None:
        """Add steps to a replacement, of the type of a value."""
        self.build, self.like = build, like

    def op(self, op_type: str, *values: ir.Value, **options: object) -> ir.Value:
        """Add an operator whose result has the operands' type."""
        return _typed(self.build, self.build.op(op_type, *values, **options), self.like)

    def number(self, number: int) -> ir.Value:
        """Return a constant of the operands' type."""
        return _number(self.build, self.like, number)

    def rough(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """The plugin's own quotient: of rounded operands, cut to an integer."""
        made = self.op("Div", a, b)
        self.build.nodes[-1].meta[SETTLED] = True
        return made

    def divide(self, a: ir.Value, b: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Return the quotient, cut toward zero, and what it leaves, with the sign of ``a``.

        The rough quotient is off by 2^-22 of itself, so what it leaves is at most 512 larger than
        the divisor; dividing that leaves less than the divisor, on one side of zero or the other.
        """
        quotient = self.rough(a, b)
        rest = self.op("Sub", a, self.op("Mul", quotient, b))
        more = self.rough(rest, b)
        quotient = self.op("Add", quotient, more)
        rest = self.op("Sub", rest, self.op("Mul", more, b))
        sides = self.op("Mul", self.op("Sign", rest), self.op("Sign", a))
        # One unit less, or more, where what is left has the other sign.
        wrong = self.op("Mul", self.op("Min", sides, self.number(0)), self.op("Sign", rest))
        step = self.op("Mul", wrong, self.op("Sign", b))
        quotient = self.op("Sub", quotient, step)
        return quotient, self.op("Add", rest, self.op("Mul", step, b))


def divide_exactly(model: ir.Model, node: ir.Node) -> bool:
    """Correct the plugin's quotient by what it leaves.

    Given::

        y = Div(a, b)

    Result::

        q = Div(a, b); r = Sub(a, Mul(q, b)); m = Div(r, b); p = Sub(r, Mul(m, b))
        s = Mul(Mul(Min(Mul(Sign(p), Sign(a)), 0), Sign(p)), Sign(b))
        y = Sub(Add(q, m), s)
    """
    a, b = given(node, 0), given(node, 1)
    if a is None or b is None:
        return False
    build, own = builder(model, node), a.dtype
    signed = own in (ir.DataType.INT32, ir.DataType.INT64)
    if not signed:
        # What is left may be less than zero on the way.
        a, b = (_as(build, v, ir.DataType.INT64) for v in (a, b))
    steps = Arithmetic(build, a)
    found, rest = steps.divide(a, b)
    if node.op_type == "Mod":
        found = rest
        if not attribute(node, "fmod", 0):
            sides = steps.op("Mul", steps.op("Sign", rest), steps.op("Sign", b))
            apart = steps.op("Min", sides, steps.number(0))
            found = steps.op("Sub", rest, steps.op("Mul", apart, b))
    # The last node takes the result's place.
    if signed or own is None:
        steps.op("Add", found, steps.number(0))
    else:
        _as(build, found, own)
    build.commit(model.graph, node)
    return True


def _as(build: ReplacementBuilder, value: ir.Value, dtype: ir.DataType) -> ir.Value:
    made = build.op("Cast", value, to=dtype.value)
    made.type = ir.TensorType(dtype)
    return made


_BYTES = frozenset({ir.DataType.INT8, ir.DataType.UINT8})


def saturated(node: ir.Node) -> str:
    """Arithmetic of bytes that may leave them: the plugin stops at the ends of the type."""
    x = given(node, 0)
    if x is None or x.dtype not in _BYTES:
        return ""
    if node.op_type == "Div" and (x.dtype != ir.DataType.INT8 or not _may_be(given(node, 1), -1)):
        return ""
    if node.op_type == "BitShift" and attribute(node, "direction", "") == "RIGHT":
        return ""
    low, high = np.iinfo(x.dtype.numpy()).min, np.iinfo(x.dtype.numpy()).max
    found = Spans().before_fitting(node)
    return "" if found is not None and low <= found[0] <= found[1] <= high else SATURATED


def _may_be(value: ir.Value | None, number: int) -> bool:
    known = constant(value)
    return known is None or bool(np.any(known.numpy() == number))


SATURATED = "bytes stop at the ends of their type"


def wrap_bytes(model: ir.Model, node: ir.Node) -> bool:
    """Compute in int32 and keep the last eight bits.

    Given::

        y = Add(a, b)

    Result, for int8::

        s = BitwiseAnd(Add(Cast<to=int32>(a), Cast<to=int32>(b)), 255)
        y = Cast<to=int8>(Sub(BitwiseXor(s, 128), 128))
    """
    values = [v for v in node.inputs if v is not None]
    if not values or values[0].dtype is None:
        return False
    own, build = values[0].dtype, builder(model, node)
    wide = [_as(build, v, ir.DataType.INT32) for v in values]
    steps = Arithmetic(build, wide[0])
    options = {k: a.value for k, a in node.attributes.items()}
    made = steps.op(node.op_type, *wide, **options)
    build.nodes[-1].meta[SETTLED] = True
    _last_bits(steps, made, own)
    build.commit(model.graph, node)
    return True


def _last_bits(steps: Arithmetic, value: ir.Value, dtype: ir.DataType) -> None:
    """Make a narrow integer of the last bits of an int32; its cast is the last node."""
    count = 1 << dtype.bitwidth
    bits = steps.op("BitwiseAnd", value, steps.number(count - 1))
    if dtype.is_signed():
        half = steps.number(count // 2)
        bits = steps.op("Sub", steps.op("BitwiseXor", bits, half), half)
    _as(steps.build, bits, dtype)


def narrowed(node: ir.Node) -> str:
    """Floats that become bytes or 16 bits and may leave them."""
    x, to = given(node, 0), ir.DataType(int(str(attribute(node, "to", 0))))
    if x is None or x.dtype is None or not x.dtype.is_floating_point() or to not in NARROW:
        return ""
    return "floats stop at the ends of narrow integers" if leaves(x, to) else ""


def narrow_by_bits(model: ir.Model, node: ir.Node) -> bool:
    """Keep the last bits of an int32, as other engines do.

    Given::

        y = Cast<to=uint8>(x)

    Result::

        y = Cast<to=uint8>(BitwiseAnd(Cast<to=int32>(x), 255))
    """
    x, build = given(node, 0), builder(model, node)
    if x is None:
        return False
    wide = _as(build, x, ir.DataType.INT32)
    _last_bits(Arithmetic(build, wide), wide, ir.DataType(int(str(attribute(node, "to", 0)))))
    build.commit(model.graph, node)
    return True


def reduce_exactly(model: ir.Model, node: ir.Node) -> bool:
    """Take the last of running sums, and the extreme of halves.

    Given::

        s = ReduceSum(x, [1]); m = ReduceMax(x, [1])

    Result::

        s = Gather(CumSum(Pad(x, one zero before axis 1), 1), -1)
        low = BitwiseAnd(x, 65535); high = Div(Sub(x, low), 65536); top = ReduceMax(high, [1])
        rest = ReduceMax(Where(Equal(high, top), low, 0), [1]); m = Add(Mul(top, 65536), rest)
    """
    x, axes = given(node, 0), given(node, 1)
    known = constant(axes)
    if x is None or x.shape is None or (axes is not None and known is None):
        return False
    rank = len(x.shape)
    over = [] if attribute(node, "noop_with_empty_axes", 0) else list(range(rank))
    if known is not None and known.size:
        over = sorted({int(a) % rank for a in known.numpy().ravel()})
    build = builder(model, node)
    steps = Arithmetic(build, x)
    if node.op_type in ("ReduceMax", "ReduceMin"):
        found = _extreme(steps, x, over, largest=node.op_type == "ReduceMax")
    else:
        found = x
        if node.op_type == "ReduceL1":
            found = steps.op("Abs", x)
        elif node.op_type == "ReduceSumSquare":
            found = steps.op("Mul", x, x)
        found = _sum(steps, found, rank, over)
    if not attribute(node, "keepdims", 1):
        found = steps.op("Squeeze", found, build.const(np.asarray(over, np.int64), "axes"))
    else:
        found = steps.op("Add", found, steps.number(0))
    build.commit(model.graph, node)
    return True


def _sum(steps: Arithmetic, x: ir.Value, rank: int, axes: list[int]) -> ir.Value:
    """Sum along one axis after the other, which stays with the size 1; without elements it is 0."""
    for axis in axes:
        pads = np.zeros(2 * rank, np.int64)
        pads[axis] = 1
        padded = steps.op("Pad", x, steps.build.const(pads, "pads"), steps.number(0))
        running = steps.op("CumSum", padded, steps.build.const(np.asarray(axis, np.int64), "axis"))
        last = steps.build.const(np.asarray([-1], np.int64), "last")
        x = steps.op("Gather", running, last, axis=axis)
    return x


def _extreme(steps: Arithmetic, x: ir.Value, axes: list[int], *, largest: bool) -> ir.Value:
    """The extreme of the upper halves, and of the lower ones next to it."""
    name = "ReduceMax" if largest else "ReduceMin"
    over = steps.build.const(np.asarray(axes, np.int64), "axes")
    low = steps.op("BitwiseAnd", x, steps.number(SIXTEEN - 1))
    high = steps.op("Div", steps.op("Sub", x, low), steps.number(SIXTEEN))
    # A multiple of 2^16 has 16 digits: float32 holds it, and its quotient.
    steps.build.nodes[-1].meta[SETTLED] = True
    top = steps.op(name, high, over, keepdims=1)
    steps.build.nodes[-1].meta[SETTLED] = True
    same = _bool(steps.build.op("Equal", high, top))
    steps.build.nodes[-1].meta[SETTLED] = True
    beside = steps.op("Where", same, low, steps.number(0 if largest else SIXTEEN))
    rest = steps.op(name, beside, over, keepdims=1)
    steps.build.nodes[-1].meta[SETTLED] = True
    return steps.op("Add", steps.op("Mul", top, steps.number(SIXTEEN)), rest)


def activate_exactly(model: ir.Model, node: ir.Node) -> bool:
    """Write activations of integers by extremes and products.

    Given::

        y = Relu(x); z = PRelu(x, s)

    Result::

        y = Max(x, 0); z = Add(Max(x, 0), Mul(Min(x, 0), s))
    """
    x, slope = given(node, 0), given(node, 1)
    if x is None:
        return False
    build = builder(model, node)
    steps = Arithmetic(build, x)
    positive = steps.op("Max", x, steps.number(0))
    if node.op_type == "PRelu" and slope is not None:
        steps.op("Add", positive, steps.op("Mul", steps.op("Min", x, steps.number(0)), slope))
    build.commit(model.graph, node)
    return True


def power_by_products(model: ir.Model, node: ir.Node) -> bool:
    """Multiply, for one known exponent.

    Given: ``y = Pow(x, 3)``
    Result: ``y = Mul(Mul(x, x), x)``
    """
    x, exponent = given(node, 0), given(node, 1)
    if x is None or exponent is None or exponent.const_value is None:
        return False
    values = exponent.const_value.numpy()
    if values.size != 1 or values.ndim > (0 if x.shape is None else len(x.shape)):
        return False
    power = float(values.ravel()[0])
    if power != int(power) or not 1 <= power <= 64:
        return False
    build = builder(model, node)
    steps = Arithmetic(build, x)
    found = steps.op("Mul", x, steps.number(1))
    for _ in range(int(power) - 1):
        found = steps.op("Mul", found, x)
    build.commit(model.graph, node)
    return True


def chosen(node: ir.Node) -> str:
    """A choice by a comparison: one kernel computes both, in float32."""
    a, b = given(node, 1), given(node, 2)
    if SETTLED in node.meta or not is_wide(a) or (is_held(a) and is_held(b)):
        return ""
    condition = given(node, 0)
    return FAULT if condition is not None and condition.producer() is not None else ""


def choose_apart(model: ir.Model, node: ir.Node) -> bool:
    """Keep a comparison out of the choice's kernel.

    Given: ``y = Where(c, a, b)``
    Result: ``y = Where(Cast<to=bool>(Cast<to=int32>(c)), a, b)``
    """
    condition, a, b = given(node, 0), given(node, 1), given(node, 2)
    if condition is None or a is None or b is None:
        return False
    build = builder(model, node)
    apart = _as(build, _as(build, condition, ir.DataType.INT32), ir.DataType.BOOL)
    _typed(build, build.op("Where", apart, a, b), a)
    build.nodes[-1].meta[SETTLED] = True
    build.commit(model.graph, node)
    return True


def clamped(node: ir.Node) -> str:
    """A clip, or the lesser of it and a constant, which the plugin makes a clip of."""
    operands = [v for v in node.inputs if v is not None]
    if not operands or not is_wide(operands[0]) or all(is_held(v) for v in operands):
        return ""
    fixed = any(v.const_value is not None for v in operands)
    return FAULT if node.op_type == "Clip" or (fixed and len(operands) == 2) else ""


def clamp_by_extremes(model: ir.Model, node: ir.Node) -> bool:
    """Take the greater one twice, the second time of complements, so that no clip is seen.

    Given::

        y = Clip(x, low, high); z = Min(x, high)

    Result::

        y = BitwiseNot(Max(BitwiseNot(Max(x, low)), BitwiseNot(high)))
        z = BitwiseNot(Max(BitwiseNot(x), BitwiseNot(high)))
    """
    x = given(node, 0)
    low = given(node, 1) if node.op_type == "Clip" else None
    high = given(node, 2 if node.op_type == "Clip" else 1)
    if x is None or x.dtype not in (ir.DataType.INT32, ir.DataType.INT64):
        return False
    build = builder(model, node)
    steps = Arithmetic(build, x)
    if high is None:
        steps.op("Max", x, steps.number(np.iinfo(np.int32).min) if low is None else low)
    else:
        found = x if low is None else steps.op("Max", x, low)
        ends = (steps.op("BitwiseNot", v) for v in (found, high))
        steps.op("BitwiseNot", steps.op("Max", *ends))
    build.commit(model.graph, node)
    return True


def difference_from_zero(model: ir.Model, node: ir.Node) -> bool:
    """Compare with zero, which float32 does right.

    Given: ``y = Cast<to=bool>(x)``
    Result: ``y = Not(Equal(x, 0))``
    """
    x = given(node, 0)
    if x is None:
        return False
    build = builder(model, node)
    equal = _bool(build.op("Equal", x, _number(build, x, 0)))
    build.op("Not", equal)
    build.commit(model.graph, node)
    return True
