"""Functions of one real operand.

LiteRT has few of them; the others are composed so that neither small nor large operands lose
digits: ``expm1`` is what ``ELU`` computes below zero, ``log1p`` is a polynomial near zero, inverse
circular functions go through ``ATAN2``.
"""

from __future__ import annotations

import math

import numpy as np

from edgeinfer.convert.lower.tflite.builder import Builder
from edgeinfer.convert.lower.tflite.graph import Tensor
from edgeinfer.convert.lower.tflite.ops.integer import select
from edgeinfer.convert.lower.tflite.registry import OPS
from edgeinfer.convert.lower.tflite.widen import DOUBLES, REALS, widened

_ERF = (
    *(1.1283792746308983, 0.10276905277735934, -0.00019182381664651542),
    *(-0.0006197907987096993, 8.763967409016931e-05, -5.668863954233187e-06),
    1.418746619894278e-07,
)
"""``atanh(erf(x)) / x`` as a polynomial in ``x * x``, fitted up to 4.05 (minimax, own fit): with
float32 rounding ``erf`` comes out within 3e-7 of itself."""

_NEAR = 2.0**-5
"""On both sides of one, where the logarithm is computed apart."""

_LOG_CENTRE = 4 + 3 / 16 * _NEAR**2
_LOG_LEVEL = 12 + (_LOG_CENTRE - 1) ** 2
"""``log(1 + o)`` is ``o / (1 + o / 2 - o**2 / 12 + o**3 / 24 ...)``. For the cubic term stands the
line that is nearest to it up to ``_NEAR`` (Chebyshev), so that three terms are a square and a
constant: within 5e-7 of itself with float32 rounding, in three operators less than the series."""

_TURNS = tuple(
    (multiple, math.remainder(multiple, 2 * math.pi))
    for multiple in (710.0 * 2.0**24, 710.0 * 2.0**12, 710.0, 6.28125)
)
"""Multiples of nearly a turn, and what they are beyond whole turns."""

_BEYOND = 2.0**82
"""A factor with which angles above 2^46 become infinite."""

_LEARNED = frozenset({"CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "TRANSPOSE_CONV"})
_ELEMENTS = frozenset({"ADD", "SUB", "MUL", "DIV", "RESHAPE", "TRANSPOSE", "EXPAND_DIMS"})
_DEPTH = 12

_ERF_LIMIT = 16.4
"""The square above which float32 has nothing between erf and 1."""


@OPS.lower("Log", dtypes=DOUBLES)
@widened
def log(g: Builder, input: Tensor) -> Tensor:
    """Natural logarithm."""
    if input.dtype != np.float32:
        return g.unary("LOG", input)
    # XNNPACK's is off by 6e-8 near one, where the result is as small: there it is a quotient.
    over = g.binary("SUB", input, 1)
    divisor = g.binary("SUB", _LOG_LEVEL, g.binary("SQUARED_DIFFERENCE", input, _LOG_CENTRE))
    quotient = g.binary("MUL", g.binary("DIV", over, divisor), 12)
    near = g.binary("LESS", g.unary("ABS", over), _NEAR)
    return select(g, near, quotient, logarithm(g, input))


def logarithm(g: Builder, x: Tensor) -> Tensor:
    """Natural logarithm; of infinity and of NaN XNNPACK's is 88."""
    return select(g, g.binary("LESS", x, np.inf), g.unary("LOG", x), x)


@OPS.lower("Sin", dtypes=REALS)
@widened
def sin(g: Builder, input: Tensor) -> Tensor:
    """Sine."""
    return g.unary("SIN", _angle(g, input))


@OPS.lower("Cos", dtypes=REALS)
@widened
def cos(g: Builder, input: Tensor) -> Tensor:
    """Cosine."""
    return g.unary("COS", _angle(g, input))


@OPS.lower("Tan", dtypes=REALS)
@widened
def tan(g: Builder, input: Tensor) -> Tensor:
    """Tangent."""
    angle = _angle(g, input)
    return g.binary("DIV", g.unary("SIN", angle), g.unary("COS", angle))


def _angle(g: Builder, x: Tensor) -> Tensor:
    """Take whole turns off an angle, which XNNPACK does right up to 1e6 only.

    710 is 113 turns and 6e-5, 6.28125 is a turn less 2e-3. Multiples of them by a power of two have
    ten digits, so that as many as 2^12 of them are exact, and so is what is left. Beyond 2^46 the
    angle is no number: neighbours of float32 are a million turns apart there. What learned layers
    make needs no such care, and waveforms of vocoders are made so.
    """
    if _is_learned(g, x):
        return x
    beyond = g.binary("MUL", x, _BEYOND)
    rest, total = g.binary("ADD", x, g.binary("SUB", beyond, beyond)), None
    for multiple, more in _TURNS:
        count = g.unary("ROUND", g.binary("MUL", rest, 1 / multiple))
        rest = g.binary("SUB", rest, g.binary("MUL", count, multiple))
        part = g.binary("MUL", count, more)
        total = part if total is None else g.binary("ADD", total, part)
    return rest if total is None else g.binary("ADD", rest, total)


def _is_learned(g: Builder, x: Tensor) -> bool:
    """Whether a tensor comes from a product with weights, through operators of elements."""
    makers = {id(t): op for op in g.ops for t in op.outputs}
    for _ in range(_DEPTH):
        op = makers.get(id(x))
        if op is None:
            return False
        if op.code in _LEARNED:
            return True
        made = [t for t in op.inputs if t is not None and t.data is None]
        if op.code not in _ELEMENTS or not made:
            return False
        x = made[0]
    return False


@OPS.lower("Asin", dtypes=REALS)
@widened
def asin(g: Builder, input: Tensor) -> Tensor:
    """Inverse of the sine."""
    return _atan2(g, input, _cofunction(g, input))


@OPS.lower("Acos", dtypes=REALS)
@widened
def acos(g: Builder, input: Tensor) -> Tensor:
    """Inverse of the cosine."""
    return _atan2(g, _cofunction(g, input), input)


@OPS.lower("Atan", dtypes=REALS)
@widened
def atan(g: Builder, input: Tensor) -> Tensor:
    """Inverse of the tangent."""
    # ATAN2 does not broadcast.
    return _atan2(g, input, g.binary("ADD", g.unary("ZEROS_LIKE", input), 1))


def _cofunction(g: Builder, x: Tensor) -> Tensor:
    """``sqrt(1 - x * x)`` without cancellation near one."""
    return g.unary("SQRT", g.binary("MUL", g.binary("SUB", 1, x), g.binary("ADD", x, 1)))


def _atan2(g: Builder, y: Tensor, x: Tensor) -> Tensor:
    return g.emit("ATAN2", [y, x], y.shape)


@OPS.lower("Sinh", dtypes=REALS)
@widened
def sinh(g: Builder, input: Tensor) -> Tensor:
    """Hyperbolic sine."""
    size = g.unary("ABS", input)
    # With t = 1 - exp(-|x|): sinh(|x|) = t * (exp(|x|) + 1) / 2.
    t = g.unary("ELU", g.unary("NEG", size))
    grown = g.binary("SUB", -0.5, _half_exponential(g, size))
    return g.binary("MUL", g.unary("SIGN", input), g.binary("MUL", t, grown))


@OPS.lower("Cosh", dtypes=REALS)
@widened
def cosh(g: Builder, input: Tensor) -> Tensor:
    """Hyperbolic cosine."""
    grown = _half_exponential(g, g.unary("ABS", input))
    return g.binary("ADD", grown, g.binary("DIV", 0.25, grown))


def _half_exponential(g: Builder, x: Tensor) -> Tensor:
    """``exp(x) / 2``, finite where that is: XNNPACK's exponential ends at 88.37."""
    root = g.unary("EXP", g.binary("MUL", x, 0.5))
    return g.binary("MUL", g.binary("MUL", root, 0.5), root)


def _polynomial(g: Builder, x: Tensor, coefficients: tuple[float, ...]) -> Tensor:
    """By Horner's rule; coefficients begin with the constant."""
    value = g.binary("MUL", x, coefficients[-1])
    for coefficient in coefficients[-2:0:-1]:
        value = g.binary("MUL", g.binary("ADD", value, coefficient), x)
    return g.binary("ADD", value, coefficients[0])


@OPS.lower("Erf", dtypes=REALS)
@widened
def erf(g: Builder, input: Tensor) -> Tensor:
    """Error function."""
    square = g.binary("MINIMUM", g.binary("MUL", input, input), _ERF_LIMIT)
    value = _polynomial(g, square, _ERF)
    return g.unary("TANH", g.binary("MUL", input, value))


def minus_one(g: Builder, x: Tensor) -> Tensor:
    """``exp(min(x, 0)) - 1``, exact for small operands."""
    return g.unary("ELU", g.binary("MINIMUM", x, np.float32(0)))
