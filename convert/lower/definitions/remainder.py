"""Mod of floats: what is left of a dividend, exact whatever the quotient is.

A quotient in floats has 24 bits, so ``a - floor(a / b) * b`` is nothing but rounding from 2^24 on.
Every step here subtracts a multiple of the divisor that floats hold, from what is less than twice
as large, or leaves a difference that they hold too.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir

from edgeinfer.convert.lower.definitions.body import Body, attribute
from edgeinfer.types import Array

_WIDE = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE})
_HALVES = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})

_DIGIT = 10
"""Bits of the quotient that a step finds: times 12 bits of a divisor they are below 2^24."""

_TOP = 2.0**126
"""Dividends are at most so large in the steps, after two halvings."""

_LEAST = 2.0**-100
"""Constant divisors below go the longer way: their reciprocals are not all floats."""

_BITS = {4: 300, 8: 2200}
"""More than any quotient has, by the bytes of a float."""


def mod(node: ir.Node) -> onnx.FunctionProto | None:
    """Take digits of the quotient by a constant divisor, bits of it by another one."""
    kind = node.inputs[0].dtype if node.inputs[0] is not None else None
    if kind not in _WIDE | _HALVES:
        return None
    steps = _Steps(Body(node, whole=True), kind)
    body = steps.body
    a, b = (steps.widened(name) for name in ("i0", "i1"))
    size, width = body.op("Abs", a), body.op("Abs", b)
    some, bounded = body.op("Greater", width, steps.const(0)), steps.below(size, math.inf)
    divisor = _constant(node)
    if divisor is not None and steps.dtype == np.float32:
        rest = steps.by_digits(size, divisor)
    else:
        usual = body.op("And", some, steps.below(width, math.inf))
        ends = steps.where(bounded, size, 1), steps.where(usual, width, 1)
        rest = steps.by_bits(*ends, _shape(node))
    rest = steps.where(steps.below(a, 0), body.op("Neg", rest), rest)
    # A smaller dividend is its own remainder, next to an infinite divisor too.
    rest = body.op("Where", body.op("Less", size, width), a, rest)
    rest = steps.where(body.op("And", some, bounded), rest, math.nan)
    if not attribute(node, "fmod", 0):
        sides = body.op("Mul", body.op("Sign", rest), body.op("Sign", b))
        rest = body.op("Where", steps.below(sides, 0), body.op("Add", rest, b), rest)
    body.give(0, body.op("CastLike", rest, "i0") if kind in _HALVES else rest)
    return body.function()


def _shape(node: ir.Node) -> list[int | None] | None:
    """Return the result's sizes, those that are known."""
    shape = node.outputs[0].shape
    return None if shape is None else [d if isinstance(d, int) else None for d in shape]


def _constant(node: ir.Node) -> Array | None:
    """Return the sizes of known divisors, whose multiples and reciprocals are ordinary floats."""
    value = node.inputs[1]
    if value is None or value.const_value is None:
        return None
    sizes = np.abs(value.const_value.numpy().astype(np.float32))
    usual = np.isfinite(sizes) & (sizes >= _LEAST) & (sizes <= _TOP)
    return sizes if usual.all() and sizes.size else None


class _Steps:
    """Steps in one type of floats."""

    def __init__(self, body: Body, kind: ir.DataType) -> None:
        self.body, self._narrow = body, kind in _HALVES
        self.dtype = np.dtype(np.float64 if kind == ir.DataType.DOUBLE else np.float32)

    def const(self, value: Array | float) -> str:
        """Return a constant of this type."""
        return self.body.const(np.asarray(value, self.dtype))

    def widened(self, x: str) -> str:
        """Convert half precision, whose values are all floats."""
        return self.body.op("Cast", x, to=ir.DataType.FLOAT.value) if self._narrow else x

    def below(self, x: str, value: float) -> str:
        """Compare with a number."""
        return self.body.op("Less", x, self.const(value))

    def where(self, condition: str, x: str, other: float | str) -> str:
        """Choose; the second may be a number."""
        second = other if isinstance(other, str) else self.const(other)
        return self.body.op("Where", condition, x, second)

    def by_digits(self, size: str, divisor: Array) -> str:
        """Subtract the nearest multiple of ``divisor * 2^(10 k)``, the largest ``k`` first.

        What is left is at most half of that on either side. Products are of halves of the divisor's
        digits and differences are exact, whether or not the engine joins the two.
        """
        body = self.body
        huge = body.op("Greater", size, self.const(_TOP / 4))
        rest = self.where(huge, body.op("Mul", size, self.const(0.25)), size)
        powers = np.frexp(divisor)[0] == 0.5
        digit = 100 if powers.all() else _DIGIT
        count = max(1, math.ceil((127 - math.log2(float(divisor.min()))) / digit))
        for index in range(count - 1, -1, -1):
            rest = self._nearest(rest, divisor.astype(np.float64) * 2.0 ** (digit * index))
        whole, half = self.const(divisor), self.const(divisor / 2)
        for _ in range(2):
            twice = body.op("Mul", rest, self.const(2))
            above = body.op("Greater", twice, half)
            over = body.op("Where", above, body.op("Sub", twice, whole), twice)
            under = body.op("Less", twice, body.op("Neg", half))
            reduced = body.op("Where", under, body.op("Add", twice, whole), over)
            rest = self.where(huge, reduced, rest)
        return self.where(self.below(rest, 0), body.op("Add", rest, whole), rest)

    def _nearest(self, rest: str, multiple: Array) -> str:
        body = self.body
        # A multiple beyond the largest dividend is taken no time.
        held = multiple <= _TOP
        multiple = np.where(held, multiple, 0)
        first = np.ldexp(np.trunc(np.ldexp(np.frexp(multiple)[0], 12)), np.frexp(multiple)[1] - 12)
        inverse = np.divide(1, multiple, out=np.zeros_like(multiple), where=held)
        times = body.op("Round", body.op("Mul", rest, self.const(inverse)))
        rest = body.op("Sub", rest, body.op("Mul", times, self.const(first)))
        if (first == multiple).all():
            return rest
        return body.op("Sub", rest, body.op("Mul", times, self.const(multiple - first)))

    def by_bits(self, size: str, width: str, shape: list[int | None] | None) -> str:
        """Double the divisor up to the dividend, and subtract it on the way back.

        As many turns as the longest quotient has bits, twice.
        """
        op, two, half = self.body.op, self.const(2), self.const(0.5)

        def fits(far: str, *_: str) -> str:
            return op("LessOrEqual", far, op("Mul", size, half))

        def double(far: str) -> list[str]:
            return [op("Where", fits(far), op("Mul", far, two), far)]

        def is_left(rest: str, _: str) -> str:
            return op("GreaterOrEqual", rest, width)

        def subtract(rest: str, far: str) -> list[str]:
            less = op("Where", op("GreaterOrEqual", rest, far), op("Sub", rest, far), rest)
            return [less, op("Where", op("Greater", far, width), op("Mul", far, half), far)]

        # Both conditions hold everywhere: the results have the broadcast shape.
        far = self.where(op("GreaterOrEqual", size, self.const(0)), width, size)
        rest = self.where(op("Greater", width, self.const(0)), size, width)
        (far,) = self._while([far], fits, double, shape)
        return self._while([rest, far], is_left, subtract, shape)[0]

    def _while(
        self,
        state: list[str],
        goes_on: Callable[..., str],
        turn: Callable[..., list[str]],
        shape: list[int | None] | None,
    ) -> list[str]:
        """Repeat a turn until a condition holds for no element."""
        body, kind = self.body, onnx.helper.np_dtype_to_tensor_dtype(self.dtype)

        def some(condition: str) -> str:
            ones = body.op("Cast", condition, to=ir.DataType.FLOAT.value)
            count = body.op("ReduceSum", ones, keepdims=0)
            return body.op("Greater", count, body.const(0.0))

        def info(name: str) -> onnx.ValueInfoProto:
            return onnx.helper.make_tensor_value_info(name, kind, shape)

        def scalar(name: str, of: ir.DataType) -> onnx.ValueInfoProto:
            return onnx.helper.make_tensor_value_info(name, of.value, [])

        number, go, before = body.name(), body.name(), [body.name() for _ in state]
        with body.inside() as nodes:
            after = turn(*before)
            again = some(goes_on(*after))
        taken = [scalar(number, ir.DataType.INT64), scalar(go, ir.DataType.BOOL)]
        graph = onnx.helper.make_graph(
            nodes,
            "turn",
            [*taken, *map(info, before)],
            [scalar(again, ir.DataType.BOOL), *map(info, after)],
        )
        # No quotient has more bits; what rounds otherwise than floats do ends all the same.
        most = body.const(np.array(_BITS[self.dtype.itemsize], np.int64))
        return body.ops("Loop", len(state), most, some(goes_on(*state)), *state, body=graph)
