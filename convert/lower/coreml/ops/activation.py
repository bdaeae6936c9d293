"""Activations."""

from __future__ import annotations

import math

import numpy as np

from edgeinfer.convert.lower.coreml.builder import Builder
from edgeinfer.convert.lower.coreml.registry import FLOATS, NUMBERS, OPS
from edgeinfer.convert.lower.coreml.tensor import MAX_RANK, Tensor


@OPS.lower("Relu", dtypes=NUMBERS)
def relu(g: Builder, x: Tensor) -> Tensor:
    """relu; integers by a maximum."""
    if x.is_integer:
        low, high = x.bounds
        return g.binary("maximum", x, 0, (max(low, 0), max(high, 0)))
    return g.unary("relu", x)


@OPS.lower("LeakyRelu", dtypes=FLOATS)
def leaky_relu(g: Builder, x: Tensor, *, alpha: float) -> Tensor:
    """leaky_relu."""
    return g.unary("leaky_relu", x, alpha=float(alpha))


@OPS.lower("Elu", dtypes=FLOATS)
def elu(g: Builder, x: Tensor, *, alpha: float) -> Tensor:
    """Elu."""
    return g.unary("elu", x, alpha=float(alpha))


@OPS.lower("HardSigmoid", dtypes=FLOATS)
def hard_sigmoid(g: Builder, x: Tensor, *, alpha: float, beta: float) -> Tensor:
    """sigmoid_hard."""
    return g.unary("sigmoid_hard", x, alpha=float(alpha), beta=float(beta))


@OPS.lower("Gelu", dtypes=FLOATS)
def gelu(g: Builder, x: Tensor, *, approximate: str) -> Tensor:
    """gelu, exact or by tanh."""
    mode = "TANH_APPROXIMATION" if approximate == "tanh" else "EXACT"
    return g.unary("gelu", x, mode=mode)


@OPS.lower("Swish", dtypes=FLOATS)
def swish(g: Builder, x: Tensor, *, alpha: float) -> Tensor:
    """silu, or x times the sigmoid of its multiple."""
    if alpha == 1.0:
        return g.unary("silu", x)
    return g.binary("mul", x, g.unary("sigmoid", g.binary("mul", x, float(alpha))))


@OPS.lower("Mish", dtypes=FLOATS)
def mish(g: Builder, x: Tensor) -> Tensor:
    """X times the tanh of softplus: each is one kernel, and half precision holds no exp(20)."""
    return g.binary("mul", x, g.unary("tanh", g.unary("softplus", x)))


@OPS.lower("Softplus", dtypes=FLOATS)
def softplus(g: Builder, x: Tensor) -> Tensor:
    """Softplus."""
    return g.unary("softplus", x)


@OPS.lower("Softsign", dtypes=FLOATS)
def softsign(g: Builder, input: Tensor) -> Tensor:
    """Softsign."""
    return g.unary("softsign", input)


@OPS.lower("PRelu", dtypes=FLOATS)
def prelu(g: Builder, X: Tensor, slope: Tensor) -> Tensor:
    """Prelu for a slope by channel, else arithmetic."""
    if _is_by_channel(X, slope) and slope.data is not None:
        return g.emit("prelu", x=X, alpha=np.ascontiguousarray(slope.data.reshape(-1)))
    negative = g.binary("mul", g.binary("minimum", X, 0.0), slope)
    return g.binary("add", g.unary("relu", X), negative)


def _is_by_channel(x: Tensor, slope: Tensor) -> bool:
    if not 3 <= x.rank <= MAX_RANK or slope.data is None or slope.rank > x.rank:
        return False
    if x.rank != 4 and np.ptp(slope.data):
        # Others are taken with one slope for all channels only.
        return False
    aligned = (1,) * (x.rank - slope.rank) + slope.shape
    return aligned[1] == x.shape[1] and math.prod(slope.shape) == aligned[1]


@OPS.lower("Clip", dtypes=NUMBERS)
def clip(g: Builder, input: Tensor, min: Tensor | None = None, max: Tensor | None = None) -> Tensor:
    """Clip between known floats, else a maximum and a minimum."""
    known = [b is None or b.data is not None for b in (min, max)]
    if input.is_float and all(known) and min is not None and max is not None:
        low, high = _number(min), _number(max)
        if low <= high:
            return g.unary("clip", input, alpha=low, beta=high)
    out = input
    for op, bound in (("maximum", min), ("minimum", max)):
        if bound is not None:
            out = g.binary(op, out, g.reshape(bound, []), _clipped(op, out, bound))
    return g.same(out) if out is input else out


def _number(bound: Tensor) -> float:
    return float(bound.data.reshape(-1)[0]) if bound.data is not None else math.nan


def _clipped(op: str, x: Tensor, bound: Tensor) -> tuple[int, int] | None:
    if not x.is_integer:
        return None
    pick = max if op == "maximum" else min
    (a, b), (c, d) = x.bounds, bound.bounds
    return pick(a, c), pick(b, d)


@OPS.lower("Softmax", dtypes=FLOATS)
def softmax(g: Builder, input: Tensor, *, axis: int) -> Tensor:
    """Softmax."""
    if input.rank == 0:
        return g.same(g.const(1, input.dtype))
    return g.emit("softmax", x=input, axis=axis % input.rank)


@OPS.lower("Hardmax", dtypes=FLOATS)
def hardmax(g: Builder, input: Tensor, *, axis: int) -> Tensor:
    """One at the first maximum, zero elsewhere."""
    at = axis % input.rank
    size = g.extent(input, at)
    where = g.emit("reduce_argmax", np.int32, x=input, axis=at, keep_dims=False)
    return g.emit(
        "one_hot",
        input.dtype,
        indices=where,
        one_hot_vector_size=size,
        axis=at,
        on_value=input.dtype.type(1),
        off_value=input.dtype.type(0),
    )
