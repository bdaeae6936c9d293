"""What formats have operators for, and what is made of a few of these."""

from __future__ import annotations

import math
from functools import reduce

from edgeinfer.convert.lower.core.portable import Elements, Value
from edgeinfer.convert.lower.core.table import elementwise

_PLAIN = {
    **{"Add": "add", "Sub": "sub", "Mul": "mul"},
    **{"Exp": "exp", "Log": "log", "Sqrt": "sqrt", "Erf": "erf"},
    **{"Sin": "sin", "Cos": "cos", "Tan": "tan", "Asin": "asin", "Acos": "acos", "Atan": "atan"},
    **{"Sinh": "sinh", "Cosh": "cosh", "Tanh": "tanh", "Sigmoid": "sigmoid", "Relu": "relu"},
    **{"Abs": "abs", "Neg": "neg", "Sign": "sign"},
    **{"Floor": "floor", "Ceil": "ceil", "Round": "round"},
    **{"Equal": "equal", "Greater": "greater", "Less": "less"},
    **{"GreaterOrEqual": "greater_equal", "LessOrEqual": "less_equal"},
    **{"And": "logical_and", "Or": "logical_or", "Xor": "logical_xor", "Not": "logical_not"},
    **{"Where": "select"},
}
"""Methods of ``Elements`` by operator."""


def _plain(op: str, name: str) -> None:
    @elementwise(op)
    def body(e: Elements, *operands: Value) -> Value:
        return getattr(e, name)(*operands)

    body.__name__ = name


for _op, _name in _PLAIN.items():
    _plain(_op, _name)


@elementwise("Reciprocal")
def reciprocal(e: Elements, x: Value) -> Value:
    """``1 / x``."""
    return e.div(1, x)


@elementwise("Gelu")
def gelu(e: Elements, x: Value, *, approximate: str) -> Value:
    """``x`` times the normal distribution function, or its approximation by ``tanh``."""
    if approximate == "tanh":
        cube = e.mul(e.mul(x, x), x)
        inner = e.mul(e.add(x, e.mul(cube, 0.044715)), math.sqrt(2 / math.pi))
        share = e.add(e.tanh(inner), 1)
    else:
        share = e.add(e.erf(e.mul(x, math.sqrt(0.5))), 1)
    return e.mul(e.mul(x, 0.5), share)


@elementwise("Max")
def largest(e: Elements, *operands: Value) -> Value:
    """Largest of any number of operands."""
    return reduce(e.maximum, operands)


@elementwise("Min")
def smallest(e: Elements, *operands: Value) -> Value:
    """Smallest of any number of operands."""
    return reduce(e.minimum, operands)


@elementwise("Sum")
def total(e: Elements, *operands: Value) -> Value:
    """Sum of any number of operands."""
    return reduce(e.add, operands)


@elementwise("Mean")
def mean(e: Elements, *operands: Value) -> Value:
    """Mean of any number of operands."""
    result = total(e, *operands)
    return result if len(operands) == 1 else e.mul(result, 1 / len(operands))
