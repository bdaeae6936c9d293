"""Element-wise operations of one or two tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from edgeinfer.backends.coreml_reference.program import TensorType
from edgeinfer.backends.coreml_reference.registry import op
from edgeinfer.types import Array

_UNARY: dict[str, Callable[[Array], Array]] = {
    "abs": np.abs,
    "acos": np.arccos,
    "asin": np.arcsin,
    "atan": np.arctan,
    "atanh": np.arctanh,
    "ceil": np.ceil,
    "cos": np.cos,
    "cosh": np.cosh,
    "exp": np.exp,
    "exp2": np.exp2,
    "floor": np.floor,
    "logical_not": np.logical_not,
    "round": np.round,  # halves to even, as Core ML does
    "sign": np.sign,
    "sin": np.sin,
    "sinh": np.sinh,
    "sqrt": np.sqrt,
    "square": np.square,
    "tan": np.tan,
}

_BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "equal": np.equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "mul": np.multiply,
    "not_equal": np.not_equal,
    "sub": np.subtract,
}


def _register_unary(name: str, function: Callable[[Array], Array]) -> None:
    @op(name)
    def kernel(x: Array) -> Array:
        return function(x)


def _register_binary(name: str, function: Callable[[Array, Array], Array]) -> None:
    @op(name)
    def kernel(x: Array, y: Array) -> Array:
        return function(x, y)


for _name, _unary in _UNARY.items():
    _register_unary(_name, _unary)
for _name, _binary in _BINARY.items():
    _register_binary(_name, _binary)


@op("identity")
def identity(x: Any) -> Any:
    return x


@op("log")
def log(x: Array, epsilon: float = 1e-45) -> Array:
    return np.log(x + np.float32(epsilon))


@op("inverse")
def inverse(x: Array, epsilon: float = 1e-4) -> Array:
    return np.float32(1) / (x + np.float32(epsilon))


@op("rsqrt")
def rsqrt(x: Array, epsilon: float = 1e-12) -> Array:
    return np.float32(1) / np.sqrt(x + np.float32(epsilon))


@op("erf")
def erf(x: Array) -> Array:
    return error_function(x)


@op("clip")
def clip(x: Array, alpha: float, beta: float) -> Array:
    return np.minimum(np.maximum(x, np.float32(alpha)), np.float32(beta))


@op("threshold")
def threshold(x: Array, alpha: float) -> Array:
    result: Array = np.maximum(x, np.asarray(alpha, x.dtype))
    return result


@op("real_div")
def real_div(x: Array, y: Array) -> Array:
    if x.dtype.kind == "f":
        return x / y
    quotient, remainder = _integer_division(x, y)
    # Integers divide toward zero.
    result: Array = quotient + ((remainder != 0) & ((x < 0) != (y < 0)))
    return result


@op("floor_div")
def floor_div(x: Array, y: Array) -> Array:
    return np.floor(x / y) if x.dtype.kind == "f" else _integer_division(x, y)[0]


@op("mod")
def mod(x: Array, y: Array) -> Array:
    return x - y * np.floor(x / y) if x.dtype.kind == "f" else _integer_division(x, y)[1]


@op("pow")
def pow_(x: Array, y: Array) -> Array:
    if x.dtype.kind == "f":
        return np.power(x, y)
    return to_integers(np.power(x.astype(np.float64), y), np.int32)


@op("cast")
def cast(x: Array, dtype: str, *, out: tuple[TensorType, ...]) -> Array:
    if x.dtype == object or dtype == "string":
        raise ValueError("casts of strings are not known")
    if dtype == "bool":
        result: Array = x != 0
        return result
    wanted = out[0].container
    return to_integers(x, wanted) if x.dtype.kind == "f" and wanted.kind in "iu" else x


@op("select")
def select(cond: Array, a: Array, b: Array) -> Array:
    return np.where(cond, a, b)


def to_integers(x: Array, dtype: Any) -> Array:
    """Truncate toward zero; what does not fit becomes the nearest that does, NaN becomes 0."""
    limits = np.iinfo(dtype)
    wide = np.clip(np.nan_to_num(x.astype(np.float64), nan=0.0), limits.min, limits.max)
    return np.trunc(wide).astype(dtype)


def _integer_division(x: Array, y: Array) -> tuple[Array, Array]:
    return np.floor_divide(x, y), np.remainder(x, y)


# Coefficients of Cody's rational approximations: relative error below 1e-15.
# Source: W. J. Cody, Rational Chebyshev Approximations for the Error Function, 1969.
_ERF_P = (
    *(3.20937758913846947e03, 3.77485237685302021e02, 1.13864154151050156e02),
    *(3.16112374387056560e00, 1.85777706184603153e-01),
)
_ERF_Q = (
    *(2.84423683343917062e03, 1.28261652607737228e03, 2.44024637934444173e02),
    *(2.36012909523441209e01, 1.0),
)
_ERFC_P = (
    *(1.23033935479799725e03, 2.05107837782607147e03, 1.71204761263407058e03),
    *(8.81952221241769090e02, 2.98635138197400131e02, 6.61191906371416295e01),
    *(8.88314979438837594e00, 5.64188496988670089e-01, 2.15311535474403846e-08),
)
_ERFC_Q = (
    *(1.23033935480374942e03, 3.43936767414372164e03, 4.36261909014324716e03),
    *(3.29079923573345963e03, 1.62138957456669019e03, 5.37181101862009858e02),
    *(1.17693950891312499e02, 1.57449261107098347e01, 1.0),
)


def error_function(x: Array) -> Array:
    """Return erf, computed in float64."""
    value = x.astype(np.float64)
    # Above 6 the result is 1 to the last bit.
    size = np.minimum(np.abs(value), 6.0)
    near = value * _ratio(_ERF_P, _ERF_Q, size * size)
    far = np.sign(value) * (1.0 - np.exp(-size * size) * _ratio(_ERFC_P, _ERFC_Q, size))
    return np.where(size <= 0.46875, near, far).astype(np.float32)


def _ratio(above: Sequence[float], below: Sequence[float], x: Array) -> Array:
    return _polynomial(above, x) / _polynomial(below, x)


def _polynomial(coefficients: Sequence[float], x: Array) -> Array:
    total = np.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = total * x + coefficient
    return total
