"""Activation functions."""

from __future__ import annotations

import numpy as np

from edgeinfer.convert.lower.ops import softmax as shared
from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.lower.tflite.builder import Builder
from edgeinfer.convert.lower.tflite.graph import Tensor
from edgeinfer.convert.lower.tflite.ops.integer import select
from edgeinfer.convert.lower.tflite.ops.unary import minus_one
from edgeinfer.convert.lower.tflite.registry import OPS
from edgeinfer.convert.lower.tflite.widen import DOUBLES, NUMBERS, REALS, widened

_BOUNDED = {
    (0.0, np.inf): "RELU",
    (0.0, 6.0): "RELU6",
    (-1.0, 1.0): "RELU_N1_TO_1",
    (0.0, 1.0): "RELU_0_TO_1",
}


@OPS.lower("Clip", dtypes=NUMBERS)
@widened
def clip(g: Builder, input: Tensor, min: Tensor | None = None, max: Tensor | None = None) -> Tensor:
    """Bound from below and above; bounds may be computed."""
    code = None
    if input.dtype == np.float32:
        code = _BOUNDED.get((_bound(min, -np.inf), _bound(max, np.inf)))
    if code is not None:
        return g.unary(code, input)
    if min is not None and _bound(min, 0) != -np.inf:
        input = g.binary("MAXIMUM", input, g.reshape(min, []))
    if max is not None and _bound(max, 0) != np.inf:
        input = g.binary("MINIMUM", input, g.reshape(max, []))
    return input


def _bound(tensor: Tensor | None, missing: float) -> float:
    """The value of a bound; NaN, which equals nothing, where it is known only at run time."""
    if tensor is None:
        return missing
    return float("nan") if tensor.data is None else float(tensor.data.reshape(())[()])


@OPS.lower("LeakyRelu", dtypes=REALS)
@widened
def leaky_relu(g: Builder, x: Tensor, *, alpha: float) -> Tensor:
    """A slope below zero."""
    return g.unary("LEAKY_RELU", x, alpha=alpha)


@OPS.lower("PRelu", dtypes=NUMBERS)
@widened
def prelu(g: Builder, x: Tensor, slope: Tensor) -> Tensor:
    """A slope below zero for each element or axis."""
    if x.dtype == np.float32:
        return g.emit("PRELU", [x, slope], x.shape)
    return select(g, g.binary("LESS", x, 0), g.binary("MUL", x, slope), x)


@OPS.lower("Elu", dtypes=REALS)
@widened
def elu(g: Builder, x: Tensor, *, alpha: float) -> Tensor:
    """``alpha * (exp(x) - 1)`` below zero: one kernel where alpha is one."""
    if alpha == 1:
        return g.unary("ELU", x)
    return g.binary("ADD", g.unary("RELU", x), g.binary("MUL", minus_one(g, x), alpha))


@OPS.lower("HardSwish", dtypes=REALS)
@widened
def hard_swish(g: Builder, x: Tensor) -> Tensor:
    """``x * HardSigmoid(x)``."""
    return g.unary("HARD_SWISH", x)


@OPS.lower("Gelu", dtypes=REALS)
@widened
def gelu(g: Builder, x: Tensor, *, approximate: str) -> Tensor:
    """The exact form or the one with tanh; there are kernels for both."""
    return g.unary("GELU", x, approximate=approximate == "tanh")


@OPS.lower("Softmax", dtypes=DOUBLES)
@widened
def softmax(g: Builder, input: Tensor, *, axis: int) -> Tensor:
    """Exponentials that add up to one."""
    return _along(g, input, axis, "SOFTMAX", beta=1.0)


@OPS.lower("LogSoftmax", dtypes=DOUBLES)
@widened
def log_softmax(g: Builder, input: Tensor, *, axis: int) -> Tensor:
    """Logarithm of ``Softmax``."""
    return _along(g, input, axis, "LOG_SOFTMAX")


def _along(g: Builder, x: Tensor, axis: int, code: str, **options: float) -> Tensor:
    """Apply an operator that only knows the last axis."""
    axis = axis % x.rank
    if x.shape[axis] == 0:
        return x
    if x.dtype == np.float64:
        # No kernel takes them.
        from edgeinfer.convert.lower.tflite.portable import Portable

        body = shared.softmax if code == "SOFTMAX" else shared.log_softmax
        made: Tensor = body(Portable(g), x, axis=axis)
        return made
    if x.rank > 6 and not x.is_static:
        raise Refusal("more than 6 axes of unknown sizes", "unsupported_rank")
    order = [i for i in range(x.rank) if i != axis] + [axis]
    last = g.transpose(x, order)
    # XNNPACK takes up to 6 axes and then fails instead of leaving the operator alone.
    flat = g.reshape(last, [-1, x.static_shape[axis]]) if x.rank > 6 else last
    found = g.unary(code, flat, **options)
    if x.rank > 6:
        found = g.reshape(found, last.static_shape)
    return g.transpose(found, list(np.argsort(order)))


@OPS.lower("Hardmax", dtypes=REALS)
@widened
def hardmax(g: Builder, input: Tensor, *, axis: int) -> Tensor:
    """One at the first maximum, zero elsewhere."""
    axis = axis % input.rank
    rest = [s for i, s in enumerate(input.shape) if i != axis]
    along = g.const(axis, np.int32)
    first = g.emit("ARG_MAX", [input, along], rest, np.int32, output_type=np.dtype(np.int32))
    depth = g.extent(input, axis)
    if isinstance(depth, int):
        depth = g.const(depth, np.int32)
    values = [g.const(v, input.dtype) for v in (1, 0)]
    return g.emit("ONE_HOT", [first, depth, *values], input.shape, input.dtype, axis=axis)
