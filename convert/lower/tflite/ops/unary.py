"""Functions of one real operand.

LiteRT has few of them; the others are composed so that neither small nor large operands lose
digits: ``expm1`` is what ``ELU`` computes below zero, ``log1p`` is a polynomial near zero, inverse
circular functions go through ``ATAN2``.
"""

from __future__ import annotations

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

_ATANH = (
    *(1.0000000039964059, 0.333331560467095, 0.20012525510481372),
    *(0.13979112064862514, 0.14095314632435546),
)
"""``atanh(x) / x`` as a polynomial in ``x * x``, up to a third (minimax, own fit, 4e-9)."""

_ERF_LIMIT = 16.4
"""The square above which float32 has nothing between erf and 1."""


@OPS.lower("Exp", since=13, dtypes=DOUBLES)
@widened
def exp(g: Builder, input: Tensor) -> Tensor:
    """Exponential function."""
    return g.unary("EXP", input)


@OPS.lower("Log", since=13, dtypes=DOUBLES)
@widened
def log(g: Builder, input: Tensor) -> Tensor:
    """Natural logarithm."""
    return g.unary("LOG", input)


@OPS.lower("Sqrt", since=13, dtypes=DOUBLES)
@widened
def sqrt(g: Builder, x: Tensor) -> Tensor:
    """Square root."""
    return g.unary("SQRT", x)


@OPS.lower("Floor", since=13, dtypes=DOUBLES)
@widened
def floor(g: Builder, x: Tensor) -> Tensor:
    """Round down."""
    return g.unary("FLOOR", x)


@OPS.lower("Ceil", since=13, dtypes=DOUBLES)
@widened
def ceil(g: Builder, x: Tensor) -> Tensor:
    """Round up."""
    return g.unary("CEIL", x)


@OPS.lower("Round", since=22, dtypes=DOUBLES)
@widened
def round_(g: Builder, x: Tensor) -> Tensor:
    """Round to nearest, halves to even."""
    return g.unary("ROUND", x)


@OPS.lower("Sin", since=22, dtypes=REALS)
@widened
def sin(g: Builder, input: Tensor) -> Tensor:
    """Sine."""
    return g.unary("SIN", input)


@OPS.lower("Cos", since=22, dtypes=REALS)
@widened
def cos(g: Builder, input: Tensor) -> Tensor:
    """Cosine."""
    return g.unary("COS", input)


@OPS.lower("Tan", since=22, dtypes=REALS)
@widened
def tan(g: Builder, input: Tensor) -> Tensor:
    """Tangent."""
    return g.binary("DIV", g.unary("SIN", input), g.unary("COS", input))


@OPS.lower("Asin", since=22, dtypes=REALS)
@widened
def asin(g: Builder, input: Tensor) -> Tensor:
    """Inverse of the sine."""
    return _atan2(g, input, _cofunction(g, input))


@OPS.lower("Acos", since=22, dtypes=REALS)
@widened
def acos(g: Builder, input: Tensor) -> Tensor:
    """Inverse of the cosine."""
    return _atan2(g, _cofunction(g, input), input)


@OPS.lower("Atan", since=22, dtypes=REALS)
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


@OPS.lower("Sinh", since=22, dtypes=REALS)
@widened
def sinh(g: Builder, input: Tensor) -> Tensor:
    """Hyperbolic sine."""
    size = g.unary("ABS", input)
    # With t = 1 - exp(-|x|): sinh(|x|) = t * (exp(|x|) + 1) / 2.
    t = g.unary("ELU", g.unary("NEG", size))
    grown = g.binary("MUL", g.binary("ADD", g.unary("EXP", size), 1), -0.5)
    return g.binary("MUL", g.unary("SIGN", input), g.binary("MUL", t, grown))


@OPS.lower("Cosh", since=22, dtypes=REALS)
@widened
def cosh(g: Builder, input: Tensor) -> Tensor:
    """Hyperbolic cosine."""
    grown = g.unary("EXP", g.unary("ABS", input))
    return g.binary("MUL", g.binary("ADD", grown, g.binary("DIV", 1, grown)), 0.5)


@OPS.lower("Asinh", since=22, dtypes=REALS)
@widened
def asinh(g: Builder, input: Tensor) -> Tensor:
    """Inverse of the hyperbolic sine."""
    size = g.unary("ABS", input)
    # The square of what is larger would overflow; log(a * b) = log(a) + log(b) takes that part.
    near = g.binary("MINIMUM", size, 1e18)
    root = g.unary("SQRT", g.binary("ADD", g.binary("MUL", near, near), 1))
    inner = g.binary("MUL", near, g.binary("DIV", near, g.binary("ADD", root, 1)))
    part = log1p(g, g.binary("ADD", near, inner))
    far = g.unary("LOG", g.binary("DIV", g.binary("MAXIMUM", size, 1e18), 1e18))
    return g.binary("MUL", g.unary("SIGN", input), g.binary("ADD", part, far))


@OPS.lower("Acosh", since=22, dtypes=REALS)
@widened
def acosh(g: Builder, input: Tensor) -> Tensor:
    """Inverse of the hyperbolic cosine."""
    over = g.binary("SUB", input, 1)
    root = g.binary("MUL", g.unary("SQRT", over), g.unary("SQRT", g.binary("ADD", over, 2)))
    return log1p(g, g.binary("ADD", over, root))


@OPS.lower("Atanh", since=22, dtypes=REALS)
@widened
def atanh(g: Builder, input: Tensor) -> Tensor:
    """Inverse of the hyperbolic tangent."""
    size = g.unary("ABS", input)
    ratio = g.binary("DIV", g.binary("ADD", size, size), g.binary("SUB", 1, size))
    half = g.binary("MUL", g.unary("SIGN", input), 0.5)
    return g.binary("MUL", half, log1p(g, ratio))


def log1p(g: Builder, x: Tensor) -> Tensor:
    """``log(1 + x)`` for operands from -0.5 on, also where ``1 + x`` rounds to one."""
    far = g.unary("LOG", g.binary("ADD", x, 1))
    near = g.binary("LESS_EQUAL", g.unary("ABS", x), 1)
    return select(g, near, log1p_small(g, x), far)


def log1p_small(g: Builder, x: Tensor) -> Tensor:
    """``log(1 + x)`` for operands from -0.5 to 1; XNNPACK takes every operator of it.

    A logarithm would not do: XNNPACK's is off by 1e-7 near one, where the result is that small.
    """
    half = g.binary("DIV", x, g.binary("ADD", x, 2))
    twice = tuple(2 * c for c in _ATANH)
    return g.binary("MUL", half, _polynomial(g, g.binary("MUL", half, half), twice))


def _polynomial(g: Builder, x: Tensor, coefficients: tuple[float, ...]) -> Tensor:
    """By Horner's rule; coefficients begin with the constant."""
    value = g.binary("MUL", x, coefficients[-1])
    for coefficient in coefficients[-2:0:-1]:
        value = g.binary("MUL", g.binary("ADD", value, coefficient), x)
    return g.binary("ADD", value, coefficients[0])


@OPS.lower("Erf", since=13, dtypes=REALS)
@widened
def erf(g: Builder, input: Tensor) -> Tensor:
    """Error function."""
    square = g.binary("MINIMUM", g.binary("MUL", input, input), _ERF_LIMIT)
    value = _polynomial(g, square, _ERF)
    return g.unary("TANH", g.binary("MUL", input, value))


def minus_one(g: Builder, x: Tensor) -> Tensor:
    """``exp(min(x, 0)) - 1``, exact for small operands."""
    return g.unary("ELU", g.binary("MINIMUM", x, np.float32(0)))
