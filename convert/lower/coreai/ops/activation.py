"""Activations."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgeinfer.convert.lower.coreai.builder import Builder
from edgeinfer.convert.lower.coreai.registry import FLOATS, NUMBERS, OPS
from edgeinfer.convert.lower.coreai.tensor import Tensor
from edgeinfer.convert.lower.registry import Refusal


@OPS.lower("Sigmoid", since=13, dtypes=FLOATS)
def sigmoid(g: Builder, X: Tensor) -> Tensor:
    return g.unary("sigmoid", X)


@OPS.lower("Tanh", since=13, dtypes=FLOATS)
def tanh(g: Builder, input: Tensor) -> Tensor:
    return g.unary("tanh", input)


@OPS.lower("Erf", since=13, dtypes=FLOATS)
def erf(g: Builder, input: Tensor) -> Tensor:
    return g.unary("erf", input)


@OPS.lower("Relu", since=14, dtypes=NUMBERS)
def relu(g: Builder, X: Tensor) -> Tensor:
    return g.unary("relu", X) if X.is_float else g.binary("maximum", X, 0)


@OPS.lower("LeakyRelu", since=6, dtypes=FLOATS)
def leaky_relu(g: Builder, x: Tensor, *, alpha: float = 0.01) -> Tensor:
    return g.select(g.less(x, 0), g.binary("mul", x, alpha), x)


@OPS.lower("PRelu", since=9, dtypes=NUMBERS)
def prelu(g: Builder, x: Tensor, slope: Tensor) -> Tensor:
    return g.select(g.less(x, 0), g.binary("mul", x, slope), x)


@OPS.lower("ThresholdedRelu", since=10, dtypes=FLOATS)
def thresholded_relu(g: Builder, x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return g.select(g.binary("greater", x, alpha), x, 0.0)


def _below(g: Builder, x: Tensor) -> Tensor:
    """exp(x) - 1 of what is below zero; what is above would overflow in the branch not taken."""
    return g.binary("sub", g.unary("exp", g.binary("minimum", x, 0)), 1)


@OPS.lower("Elu", since=6, dtypes=FLOATS)
def elu(g: Builder, x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return g.select(g.less(x, 0), g.binary("mul", _below(g, x), alpha), x)


@OPS.lower("Selu", since=6, dtypes=FLOATS)
def selu(
    g: Builder,
    x: Tensor,
    *,
    alpha: float = 1.67326319217681884765625,
    gamma: float = 1.05070102214813232421875,
) -> Tensor:
    low = g.binary("mul", _below(g, x), alpha)
    return g.binary("mul", g.select(g.less(x, 0), low, x), gamma)


@OPS.lower("HardSigmoid", since=6, dtypes=FLOATS)
def hard_sigmoid(g: Builder, x: Tensor, *, alpha: float = 0.2, beta: float = 0.5) -> Tensor:
    return g.clip(g.binary("add", g.binary("mul", x, alpha), beta), 0, 1)


@OPS.lower("HardSwish", since=14, dtypes=FLOATS)
def hard_swish(g: Builder, x: Tensor) -> Tensor:
    return g.binary("mul", x, hard_sigmoid(g, x, alpha=1 / 6, beta=0.5))


@OPS.lower("Softplus", since=1, dtypes=FLOATS)
def softplus(g: Builder, x: Tensor) -> Tensor:
    small = g.unary("exp", g.neg(g.unary("abs_", x)))
    return g.binary("add", g.binary("maximum", x, 0), g.unary("log", g.binary("add", small, 1)))


@OPS.lower("Softsign", since=1, dtypes=FLOATS)
def softsign(g: Builder, input: Tensor) -> Tensor:
    return g.binary("divide", input, g.binary("add", g.unary("abs_", input), 1))


@OPS.lower("Mish", since=18, dtypes=FLOATS)
def mish(g: Builder, x: Tensor) -> Tensor:
    return g.binary("mul", x, g.unary("tanh", softplus(g, x)))


@OPS.lower("Swish", since=24, dtypes=FLOATS)
def swish(g: Builder, x: Tensor, *, alpha: float = 1.0) -> Tensor:
    scaled = x if alpha == 1 else g.binary("mul", x, alpha)
    return g.binary("mul", x, g.unary("sigmoid", scaled))


@OPS.lower("Gelu", since=20, dtypes=FLOATS)
def gelu(g: Builder, x: Tensor, *, approximate: str = "none") -> Tensor:
    if approximate == "none":
        return g.unary("gelu", x)
    cube = g.binary("mul", g.binary("mul", x, x), x)
    inner = g.binary("add", x, g.binary("mul", cube, 0.044715))
    bend = g.unary("tanh", g.binary("mul", inner, float(np.sqrt(2 / np.pi))))
    return g.binary("mul", g.binary("mul", x, 0.5), g.binary("add", bend, 1))


@OPS.lower("Clip", since=13, dtypes=NUMBERS)
def clip(g: Builder, input: Tensor, min: Tensor | None = None, max: Tensor | None = None) -> Tensor:
    return g.clip(input, min, max)


def _by_row(g: Builder, x: Tensor, axis: int) -> tuple[Tensor, int]:
    if not x.rank:
        raise Refusal("a scalar has no axis")
    return x, axis % x.rank


@OPS.lower("Softmax", since=13, dtypes=FLOATS)
def softmax(g: Builder, input: Tensor, *, axis: int = -1) -> Tensor:
    input, axis = _by_row(g, input, axis)
    return g.call("softmax", input, np.int32(axis))


@OPS.lower("LogSoftmax", since=13, dtypes=FLOATS)
def log_softmax(g: Builder, input: Tensor, *, axis: int = -1) -> Tensor:
    input, axis = _by_row(g, input, axis)
    moved = g.binary("sub", input, g.reduce("max", input, [axis]))
    total = g.reduce("sum", g.unary("exp", moved), [axis])
    return g.binary("sub", moved, g.unary("log", total))


def function_of(name: str, alpha: float | None, beta: float | None) -> Callable[..., Tensor]:
    """An activation of a recurrent layer as a function of the builder and a tensor."""
    given = {k: v for k, v in (("alpha", alpha), ("beta", beta)) if v is not None}
    match name.lower():
        case "sigmoid" | "tanh" | "relu" as plain:
            return lambda g, x: g.unary(plain, x)
        case "leakyrelu":
            return lambda g, x: leaky_relu(g, x, alpha=given.get("alpha", 0.01))
        case "thresholdedrelu":
            return lambda g, x: thresholded_relu(g, x, alpha=given.get("alpha", 1.0))
        case "elu":
            return lambda g, x: elu(g, x, alpha=given.get("alpha", 1.0))
        case "hardsigmoid":
            a, b = given.get("alpha", 0.2), given.get("beta", 0.5)
            return lambda g, x: hard_sigmoid(g, x, alpha=a, beta=b)
        case "softsign":
            return softsign
        case "softplus":
            return softplus
        case "affine":
            a, b = given.get("alpha", 1.0), given.get("beta", 0.0)
            return lambda g, x: g.binary("add", g.binary("mul", x, a), b)
        case "scaledtanh":
            a, b = given.get("alpha", 1.0), given.get("beta", 1.0)
            return lambda g, x: g.binary("mul", g.unary("tanh", g.binary("mul", x, b)), a)
    raise Refusal(f"activation {name!r}")
