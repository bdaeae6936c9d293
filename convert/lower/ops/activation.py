"""Activations."""

from __future__ import annotations

from edgeinfer.convert.lower.core.portable import Elements, Value
from edgeinfer.convert.lower.core.table import elementwise
from edgeinfer.convert.lower.ops.function import log1p_small
from edgeinfer.convert.lower.registry import Refusal

_MISH_END = 20.0
"""From here on the factor of Mish is 1 in single precision."""


@elementwise("LeakyRelu")
def leaky_relu(e: Elements, x: Value, *, alpha: float) -> Value:
    """A slope below zero."""
    return e.select(e.less(x, 0), e.mul(x, alpha), x)


@elementwise("PRelu")
def prelu(e: Elements, x: Value, slope: Value) -> Value:
    """A slope below zero for each element or axis."""
    return e.select(e.less(x, 0), e.mul(x, slope), x)


@elementwise("ThresholdedRelu")
def thresholded_relu(e: Elements, x: Value, *, alpha: float) -> Value:
    """What exceeds a threshold."""
    return e.select(e.greater(x, alpha), x, 0)


@elementwise("Shrink")
def shrink(e: Elements, x: Value, *, bias: float, lambd: float) -> Value:
    """Zero around zero, nearer to it elsewhere."""
    below = e.select(e.less(x, -lambd), e.add(x, bias), 0)
    return e.select(e.greater(x, lambd), e.sub(x, bias), below)


@elementwise("Elu")
def elu(e: Elements, x: Value, *, alpha: float) -> Value:
    """``alpha * (exp(x) - 1)`` below zero; one of the two terms is zero."""
    below = e.expm1(x)
    return e.add(e.relu(x), below if alpha == 1 else e.mul(below, alpha))


@elementwise("Selu")
def selu(e: Elements, x: Value, *, alpha: float, gamma: float) -> Value:
    """``Elu``, scaled."""
    return e.mul(elu(e, x, alpha=alpha), gamma)


@elementwise("Celu")
def celu(e: Elements, x: Value, *, alpha: float) -> Value:
    """``Elu`` whose slope is continuous at zero."""
    if alpha <= 0:
        raise Refusal(f"alpha={alpha}: must be positive")
    below = e.expm1(x if alpha == 1 else e.mul(x, 1 / alpha))
    return e.add(e.relu(x), below if alpha == 1 else e.mul(below, alpha))


@elementwise("HardSigmoid")
def hard_sigmoid(e: Elements, x: Value, *, alpha: float, beta: float) -> Value:
    """A line between zero and one."""
    return e.minimum(e.relu(e.add(e.mul(x, alpha), beta)), 1)


@elementwise("HardSwish")
def hard_swish(e: Elements, x: Value) -> Value:
    """``x * HardSigmoid(x)``."""
    return e.mul(x, hard_sigmoid(e, x, alpha=1 / 6, beta=0.5))


@elementwise("Swish")
def swish(e: Elements, x: Value, *, alpha: float) -> Value:
    """``x * Sigmoid(alpha * x)``."""
    return e.mul(x, e.sigmoid(x if alpha == 1 else e.mul(x, alpha)))


@elementwise("Softplus")
def softplus(e: Elements, x: Value) -> Value:
    """``log(1 + exp(x))`` without overflow, exact to the last digits below zero."""
    tail = e.named(e.exp(e.neg(e.abs(x))), lambda small: log1p_small(e, small))
    return e.add(e.relu(x), tail)


@elementwise("Softsign")
def softsign(e: Elements, x: Value) -> Value:
    """``x / (1 + |x|)``."""
    return e.div(x, e.add(e.abs(x), 1))


@elementwise("Mish")
def mish(e: Elements, x: Value) -> Value:
    """``x * tanh(Softplus(x))`` in powers of ``exp(x)`` alone."""
    if e.is_half(x):
        # The squares of exp(x) leave half precision.
        return e.mul(x, e.tanh(softplus(e, x)))

    def ratio(power: Value) -> Value:
        product = e.mul(power, e.add(power, 2))
        return e.named(product, lambda n: e.mul(x, e.div(n, e.add(n, 2))))

    return e.named(e.exp(e.minimum(x, _MISH_END)), ratio)
