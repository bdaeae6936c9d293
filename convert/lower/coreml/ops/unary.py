# ruff: noqa: N803  (arguments have ONNX's names)
"""Functions of one number."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.coreml.builder import Builder
from edgeinfer.convert.lower.coreml.registry import ALL, BOOL, FLOATS, NUMBERS, OPS
from edgeinfer.convert.lower.coreml.tensor import Tensor
from edgeinfer.convert.lower.registry import Const, Refusal


@OPS.lower("Identity", since=24, dtypes=ALL)
def identity(g: Builder, input: Tensor) -> Tensor:
    """Nothing."""
    return input


@OPS.lower("Dropout", since=22, dtypes=FLOATS | BOOL)
def dropout(
    g: Builder,
    data: Tensor,
    ratio: Tensor | None = None,
    training_mode: Const | None = None,
    *,
    seed: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Nothing, and a mask that keeps everything."""
    if training_mode is not None and bool(np.any(training_mode.array)):
        raise Refusal("training_mode draws random numbers")
    return g.same(data), g.binary("equal", data, data)


@OPS.lower("Abs", since=13, dtypes=NUMBERS)
def absolute(g: Builder, X: Tensor) -> Tensor:
    """Abs."""
    low, high = X.bounds
    span = (0 if low <= 0 <= high else min(abs(low), abs(high)), max(abs(low), abs(high)))
    return g.unary("abs", X, span=span if X.is_integer else None)


@OPS.lower("Neg", since=13, dtypes=NUMBERS)
def negative(g: Builder, X: Tensor) -> Tensor:
    """A product with -1."""
    low, high = X.bounds
    return g.binary("mul", X, -1, (-high, -low) if X.is_integer else None)


@OPS.lower("Sign", since=13, dtypes=NUMBERS)
def sign(g: Builder, input: Tensor) -> Tensor:
    """Sign."""
    return g.unary("sign", input, span=(-1, 1) if input.is_integer else None)


@OPS.lower("Floor", since=13, dtypes=FLOATS)
def floor(g: Builder, X: Tensor) -> Tensor:
    """Floor."""
    return g.unary("floor", X)


@OPS.lower("Ceil", since=13, dtypes=FLOATS)
def ceil(g: Builder, X: Tensor) -> Tensor:
    """Ceil."""
    return g.unary("ceil", X)


@OPS.lower("Round", since=22, dtypes=FLOATS)
def round(g: Builder, X: Tensor) -> Tensor:
    """round, halves to the even number."""
    return g.unary("round", X)


@OPS.lower("Sqrt", since=13, dtypes=FLOATS)
def sqrt(g: Builder, X: Tensor) -> Tensor:
    """Sqrt."""
    return g.unary("sqrt", X)


@OPS.lower("Reciprocal", since=13, dtypes=FLOATS)
def reciprocal(g: Builder, X: Tensor) -> Tensor:
    """A quotient; Core ML's own inverse adds an epsilon."""
    return g.binary("real_div", 1.0, X)


@OPS.lower("Exp", since=13, dtypes=FLOATS)
def exp(g: Builder, input: Tensor) -> Tensor:
    """Exp."""
    return g.unary("exp", input)


@OPS.lower("Log", since=13, dtypes=FLOATS)
def log(g: Builder, input: Tensor) -> Tensor:
    """Log without the epsilon that it adds by default."""
    return g.unary("log", input, epsilon=0.0)


@OPS.lower("Erf", since=13, dtypes=FLOATS)
def erf(g: Builder, input: Tensor) -> Tensor:
    """Erf."""
    return g.unary("erf", input)


@OPS.lower("Sin", since=22, dtypes=FLOATS)
def sin(g: Builder, input: Tensor) -> Tensor:
    """Sin."""
    return g.unary("sin", input)


@OPS.lower("Cos", since=22, dtypes=FLOATS)
def cos(g: Builder, input: Tensor) -> Tensor:
    """Cos."""
    return g.unary("cos", input)


@OPS.lower("Tan", since=22, dtypes=FLOATS)
def tan(g: Builder, input: Tensor) -> Tensor:
    """Tan."""
    return g.unary("tan", input)


@OPS.lower("Asin", since=22, dtypes=FLOATS)
def asin(g: Builder, input: Tensor) -> Tensor:
    """Asin."""
    return g.unary("asin", input)


@OPS.lower("Acos", since=22, dtypes=FLOATS)
def acos(g: Builder, input: Tensor) -> Tensor:
    """Acos."""
    return g.unary("acos", input)


@OPS.lower("Atan", since=22, dtypes=FLOATS)
def atan(g: Builder, input: Tensor) -> Tensor:
    """Atan."""
    return g.unary("atan", input)


@OPS.lower("Sinh", since=22, dtypes=FLOATS)
def sinh(g: Builder, input: Tensor) -> Tensor:
    """Sinh."""
    return g.unary("sinh", input)


@OPS.lower("Cosh", since=22, dtypes=FLOATS)
def cosh(g: Builder, input: Tensor) -> Tensor:
    """Cosh."""
    return g.unary("cosh", input)


@OPS.lower("Atanh", since=22, dtypes=FLOATS)
def atanh(g: Builder, input: Tensor) -> Tensor:
    """Atanh."""
    return g.unary("atanh", input)


@OPS.lower("IsNaN", since=20, dtypes=FLOATS | BOOL)
def is_nan(g: Builder, X: Tensor) -> Tensor:
    """What does not equal itself."""
    return g.binary("not_equal", X, X)


@OPS.lower("IsInf", since=20, dtypes=FLOATS | BOOL)
def is_inf(
    g: Builder,
    X: Tensor,
    *,
    detect_negative: int = 1,
    detect_positive: int = 1,
) -> Tensor:
    """Comparisons with the infinities."""
    if detect_negative and detect_positive:
        return g.binary("equal", g.unary("abs", X), math.inf)
    if detect_positive or detect_negative:
        return g.binary("equal", X, math.inf if detect_positive else -math.inf)
    return g.binary("not_equal", g.binary("equal", X, X), g.binary("equal", X, X))


@OPS.lower("Cast", since=24, dtypes=ALL)
def cast(
    g: Builder, input: Tensor, *, to: int, saturate: int = 1, round_mode: str = "up"
) -> Tensor:
    """cast; small integers wrap as their type does."""
    return g.cast(input, ir.DataType(to).numpy())


@OPS.lower("CastLike", since=24, dtypes=ALL)
def cast_like(
    g: Builder,
    input: Tensor,
    target_type: Tensor,
    *,
    saturate: int = 1,
    round_mode: str = "up",
) -> Tensor:
    """Cast to the type of another tensor."""
    return g.cast(input, target_type.dtype)
