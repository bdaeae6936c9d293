"""Functions of one number."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.coreml.builder import Builder
from edgeinfer.convert.lower.coreml.registry import ALL, BOOL, FLOATS, NUMBERS, OPS
from edgeinfer.convert.lower.coreml.tensor import Tensor
from edgeinfer.convert.lower.registry import Const, Refusal


@OPS.lower("Identity", dtypes=ALL)
def identity(g: Builder, input: Tensor) -> Tensor:
    """Nothing."""
    return input


@OPS.lower("Dropout", dtypes=FLOATS | BOOL)
def dropout(
    g: Builder, data: Tensor, ratio: Tensor | None = None, training_mode: Const | None = None
) -> tuple[Tensor, Tensor]:
    """Nothing, and a mask that keeps everything."""
    if training_mode is not None and bool(np.any(training_mode.array)):
        raise Refusal("training_mode draws random numbers")
    return g.same(data), g.binary("equal", data, data)


@OPS.lower("Abs", dtypes=NUMBERS)
def absolute(g: Builder, X: Tensor) -> Tensor:
    """Abs."""
    low, high = X.bounds
    span = (0 if low <= 0 <= high else min(abs(low), abs(high)), max(abs(low), abs(high)))
    return g.unary("abs", X, span=span if X.is_integer else None)


@OPS.lower("Neg", dtypes=NUMBERS)
def negative(g: Builder, X: Tensor) -> Tensor:
    """A product with -1."""
    low, high = X.bounds
    return g.binary("mul", X, -1, (-high, -low) if X.is_integer else None)


@OPS.lower("Sign", dtypes=NUMBERS)
def sign(g: Builder, input: Tensor) -> Tensor:
    """Sign."""
    return g.unary("sign", input, span=(-1, 1) if input.is_integer else None)


@OPS.lower("Atanh", dtypes=FLOATS)
def atanh(g: Builder, input: Tensor) -> Tensor:
    """Atanh."""
    return g.unary("atanh", input)


@OPS.lower("IsNaN", dtypes=FLOATS | BOOL)
def is_nan(g: Builder, X: Tensor) -> Tensor:
    """What does not equal itself."""
    return g.binary("not_equal", X, X)


@OPS.lower("IsInf", dtypes=FLOATS | BOOL)
def is_inf(g: Builder, X: Tensor, *, detect_negative: int, detect_positive: int) -> Tensor:
    """Comparisons with the infinities."""
    if detect_negative and detect_positive:
        return g.binary("equal", g.unary("abs", X), math.inf)
    if detect_positive or detect_negative:
        return g.binary("equal", X, math.inf if detect_positive else -math.inf)
    return g.binary("not_equal", g.binary("equal", X, X), g.binary("equal", X, X))


@OPS.lower("Cast", dtypes=ALL)
def cast(g: Builder, input: Tensor, *, to: int) -> Tensor:
    """cast; small integers wrap as their type does."""
    return g.cast(input, ir.DataType(to).numpy())


@OPS.lower("CastLike", dtypes=ALL)
def cast_like(g: Builder, input: Tensor, target_type: Tensor) -> Tensor:
    """Cast to the type of another tensor."""
    return g.cast(input, target_type.dtype)
