"""Activation functions."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import tirx

from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.lower.tvm.builder import Builder, Tensor
from edgeinfer.convert.lower.tvm.ops.arith import convert, function, larger, smaller
from edgeinfer.convert.lower.tvm.registry import FLOATS, NUMBERS, OPS
from edgeinfer.kernels.defs.math import constant, named

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


@OPS.lower("LeakyRelu", since=16, dtypes=FLOATS)
def leaky_relu(g: Builder, X: Tensor, *, alpha: float = 0.009999999776482582) -> Tensor:  # noqa: N803
    """A slope below zero."""
    return g.map(lambda v: _choose(v < constant(0, v), v * constant(alpha, v), v), X)


@OPS.lower("PRelu", since=16, dtypes=NUMBERS)
def prelu(g: Builder, X: Tensor, slope: Tensor) -> Tensor:  # noqa: N803
    """A slope below zero for each element or axis."""
    return g.map(lambda v, s: _choose(v < constant(0, v), v * s, v), X, slope)


@OPS.lower("ThresholdedRelu", since=22, dtypes=FLOATS)
def thresholded_relu(g: Builder, X: Tensor, *, alpha: float = 1.0) -> Tensor:  # noqa: N803
    """What exceeds a threshold."""
    return g.map(lambda v: _choose(v > constant(alpha, v), v, constant(0, v)), X)


def _exponential(g: Builder, x: Tensor, alpha: float, gamma: float) -> Tensor:
    exp = function(g, "exp", x)

    def compute(v: Value) -> Value:
        # Near zero exp(v) - 1 has no digits left; its series has.
        small = v + v * v * constant(0.5, v) + v * v * v * constant(1 / 6, v)
        below = _choose(v > constant(-0.01, v), small, exp(v) - constant(1, v))
        value = _choose(v < constant(0, v), below * constant(alpha, v), v)
        return value if gamma == 1 else value * constant(gamma, v)

    return g.map(compute, x)


@OPS.lower("Elu", since=22, dtypes=FLOATS)
def elu(g: Builder, X: Tensor, *, alpha: float = 1.0) -> Tensor:  # noqa: N803
    """``alpha * (exp(x) - 1)`` below zero."""
    return _exponential(g, X, alpha, 1.0)


@OPS.lower("Selu", since=22, dtypes=FLOATS)
def selu(
    g: Builder,
    X: Tensor,  # noqa: N803
    *,
    alpha: float = 1.6732631921768188,
    gamma: float = 1.0507010221481323,
) -> Tensor:
    """``Elu``, scaled."""
    return _exponential(g, X, alpha, gamma)


@OPS.lower("HardSigmoid", since=22, dtypes=FLOATS)
def hard_sigmoid(
    g: Builder,
    X: Tensor,  # noqa: N803
    *,
    alpha: float = 0.20000000298023224,
    beta: float = 0.5,
) -> Tensor:
    """A line between zero and one."""
    return g.map(lambda v: _hard_sigmoid(v, alpha, beta), X)


def _hard_sigmoid(v: Value, alpha: float, beta: float) -> Value:
    line = v * constant(alpha, v) + constant(beta, v)
    return smaller(larger(line, constant(0, v)), constant(1, v))


@OPS.lower("HardSwish", since=22, dtypes=FLOATS)
def hard_swish(g: Builder, X: Tensor) -> Tensor:  # noqa: N803
    """``x * HardSigmoid(x)``."""
    return g.map(lambda v: v * _hard_sigmoid(v, 1 / 6, 0.5), X)


@OPS.lower("Swish", since=24, dtypes=FLOATS)
def swish(g: Builder, X: Tensor, *, alpha: float = 1.0) -> Tensor:  # noqa: N803
    """``x * Sigmoid(alpha * x)``."""
    sigmoid = function(g, "sigmoid", X)
    return g.map(lambda v: v * sigmoid(v if alpha == 1 else v * constant(alpha, v)), X)


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


@OPS.lower("Softplus", since=22, dtypes=FLOATS)
def softplus(g: Builder, X: Tensor) -> Tensor:  # noqa: N803
    """``log(1 + exp(x))``, without overflow and with small values right."""
    exp, log = function(g, "exp", X), function(g, "log", X)

    def rest(v: Value, e: Value) -> Value:
        # log(1 + e) loses what is below the rounding of 1; the series does not.
        series = e - e * e * constant(0.5, v) + e * e * e * constant(1 / 3, v)
        tail = _choose(e < constant(0.01, v), series, log(constant(1, v) + e))
        return larger(v, constant(0, v)) + tail

    def compute(v: Value) -> Value:
        return named(exp(constant(0, v) - tirx.abs(v)), lambda e: rest(v, e))

    return g.map(compute, X)


@OPS.lower("Softsign", since=22, dtypes=FLOATS)
def softsign(g: Builder, input: Tensor) -> Tensor:
    """``x / (1 + |x|)``."""
    return g.map(lambda v: v / (constant(1, v) + tirx.abs(v)), input)


@OPS.lower("Mish", since=22, dtypes=FLOATS)
def mish(g: Builder, X: Tensor) -> Tensor:  # noqa: N803
    """``x * tanh(log(1 + exp(x)))``, in powers of ``exp(x)`` alone."""
    # Their squares leave the range of float16.
    x = convert(g, X, "float32") if X.dtype == "float16" else X
    exp = function(g, "exp", x)

    def compute(v: Value) -> Value:
        # Above it the factor is 1; NaN stays.
        held = _choose(v > constant(_MISH_END, v), constant(_MISH_END, v), v)
        return named(exp(held), lambda e: v * _ratio(e * (e + constant(2, e))))

    return convert(g, g.map(compute, x), X.dtype)


def _ratio(v: Value) -> Value:
    return named(v, lambda n: n / (n + constant(2, n)))
