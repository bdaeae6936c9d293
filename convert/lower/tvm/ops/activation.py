"""Activation functions."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import tirx

from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.lower.tvm.builder import Builder, Tensor
from edgeinfer.convert.lower.tvm.ops.arith import function, larger, smaller
from edgeinfer.convert.lower.tvm.registry import FLOATS, NUMBERS, OPS
from edgeinfer.kernels.defs.math import constant

Value = Any

_MISH_END = 20.0


def _choose(test: Value, yes: Value, no: Value) -> Value:
    return tirx.Select(test, yes, no)


@OPS.lower("Relu", since=14, dtypes=NUMBERS)
def relu(g: Builder, X: Tensor) -> Tensor:  # noqa: N803
    """The positive part; NaN stays."""
    return g.map(lambda v: _choose(v < constant(0, v), constant(0, v), v), X)


@OPS.lower("Clip", since=13, dtypes=NUMBERS)
def clip(g: Builder, input: Tensor, min: Tensor | None = None, max: Tensor | None = None) -> Tensor:
    """Bound from below and above; the upper bound wins."""
    for bound, pick in ((min, larger), (max, smaller)):
        if bound is None or _is_open(bound, below=bound is min):
            continue
        if bound.rank:
            raise Refusal("a bound with axes")
        input = g.map(lambda v, b, pick=pick: pick(v, b), input, bound)
    return input


def _is_open(bound: Tensor, *, below: bool) -> bool:
    if bound.data is None or "float" not in bound.dtype:
        return False
    return bool(bound.data.reshape(-1)[0] == (-np.inf if below else np.inf))


@OPS.lower("Gelu", since=20, dtypes=FLOATS)
def gelu(g: Builder, X: Tensor, *, approximate: str = "none") -> Tensor:  # noqa: N803
    """Gaussian error linear unit."""
    if approximate == "tanh":
        tanh = function(g, "tanh", X)

        def curved(v: Value) -> Value:
            inner = constant(0.7978845608028654, v) * (v + constant(0.044715, v) * v * v * v)
            return constant(0.5, v) * v * (constant(1, v) + tanh(inner))

        return g.map(curved, X)
    erf = function(g, "erf", X)
    return g.map(
        lambda v: (
            constant(0.5, v) * v * (constant(1, v) + erf(v * constant(0.7071067811865476, v)))
        ),
        X,
    )
