# ruff: noqa: N803, N806  (arguments have ONNX's names)
"""Comparisons, logic and choices."""

from __future__ import annotations

import numpy as np

from edgeinfer.convert.lower.coreml.builder import Builder
from edgeinfer.convert.lower.coreml.registry import ALL, BOOL, OPS
from edgeinfer.convert.lower.coreml.tensor import Tensor


@OPS.lower("Equal", since=19, dtypes=ALL)
def equal(g: Builder, A: Tensor, B: Tensor) -> Tensor:
    """equal; truth values as integers."""
    if A.dtype == np.bool_:
        A, B = g.cast(A, np.int32), g.cast(B, np.int32)
    return g.binary("equal", A, B)


@OPS.lower("Greater", since=13, dtypes=ALL)
def greater(g: Builder, A: Tensor, B: Tensor) -> Tensor:
    """Greater."""
    return g.binary("greater", A, B)


@OPS.lower("GreaterOrEqual", since=16, dtypes=ALL)
def greater_or_equal(g: Builder, A: Tensor, B: Tensor) -> Tensor:
    """greater_equal."""
    return g.binary("greater_equal", A, B)


@OPS.lower("Less", since=13, dtypes=ALL)
def less(g: Builder, A: Tensor, B: Tensor) -> Tensor:
    """Less."""
    return g.binary("less", A, B)


@OPS.lower("LessOrEqual", since=16, dtypes=ALL)
def less_or_equal(g: Builder, A: Tensor, B: Tensor) -> Tensor:
    """less_equal."""
    return g.binary("less_equal", A, B)


@OPS.lower("And", since=7, dtypes=BOOL)
def logical_and(g: Builder, A: Tensor, B: Tensor) -> Tensor:
    """logical_and."""
    return g.binary("logical_and", A, B)


@OPS.lower("Or", since=7, dtypes=BOOL)
def logical_or(g: Builder, A: Tensor, B: Tensor) -> Tensor:
    """logical_or."""
    return g.binary("logical_or", A, B)


@OPS.lower("Xor", since=7, dtypes=BOOL)
def logical_xor(g: Builder, A: Tensor, B: Tensor) -> Tensor:
    """logical_xor."""
    return g.binary("logical_xor", A, B)


@OPS.lower("Not", since=1, dtypes=BOOL)
def logical_not(g: Builder, X: Tensor) -> Tensor:
    """logical_not."""
    return g.unary("logical_not", X)


@OPS.lower("Where", since=16, dtypes=ALL)
def where(g: Builder, condition: Tensor, X: Tensor, Y: Tensor) -> Tensor:
    """Select."""
    return g.select(condition, X, Y)
