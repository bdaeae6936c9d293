"""What is left of training in a model: statistics of a batch, a draw that draws nothing, steps."""

from __future__ import annotations

import math

import numpy as np
import onnx
import onnx_ir as ir

from edgeinfer.convert.lower.definitions.body import Body, attribute, input_at


def batch_normalization(node: ir.Node) -> onnx.FunctionProto | None:
    """Normalise by the statistics of the batch itself, and move the stored ones towards them.

    Given: ``y, mean, var = BatchNormalization<training_mode=1>(x, s, b, mean0, var0)``
    Result::

        m = ReduceMean(x, all but the channels); v = ReduceMean((x - m) ** 2, ...)
        y = BatchNormalization(x, s, b, m, v); mean = mean0 * momentum + m * (1 - momentum)
    """
    x = node.inputs[0]
    if not attribute(node, "training_mode", 0) or x is None or x.shape is None:
        return None
    body = Body(node)
    axes = body.const([a for a in range(len(x.shape)) if a != 1])
    mean = body.op("ReduceMean", "i0", axes, keepdims=1)
    apart = body.op("Sub", "i0", mean)
    variance = body.op("ReduceMean", body.op("Mul", apart, apart), axes, keepdims=0)
    statistics = [body.reshape(mean, -1), variance]
    epsilon = float(attribute(node, "epsilon", 1e-5))
    stored = [body.op("CastLike", v, "i0") for v in statistics]
    body.give(0, body.op("BatchNormalization", "i0", "i1", "i2", *stored, epsilon=epsilon))
    momentum = float(attribute(node, "momentum", 0.9))
    for index, own in enumerate(statistics[: len(node.outputs) - 1], 1):
        old = f"i{index + 2}"
        kept, share = (
            body.op("CastLike", body.const(value), old) for value in (momentum, 1 - momentum)
        )
        moved = body.op("Mul", body.op("CastLike", own, old), share)
        body.give(index, body.op("Add", body.op("Mul", old, kept), moved))
    return body.function()


def dropout(node: ir.Node) -> onnx.FunctionProto | None:
    """Nothing is dropped of a share of zero, whatever would be drawn."""
    ratio = input_at(node, 1)
    if ratio is None or ratio.const_value is None or np.any(ratio.const_value.numpy()):
        return None
    body = Body(node)
    body.give(0, "i0")
    if len(node.outputs) > 1:
        ones = body.op("Expand", body.const(np.array(True)), body.op("Shape", "i0"))
        body.give(1, ones)
    return body.function()


class Optimizer:
    """A step of a training algorithm: the rate, how often it was made, and tensors by kind.

    Args:
        node: Takes the rate, the count, then all tensors of a kind after those of another.
        kinds: How many kinds there are.
    """

    def __init__(self, node: ir.Node, kinds: int) -> None:
        self.node, self.body, self.kinds = node, Body(node), kinds
        self.count = (len(node.inputs) - 2) // kinds
        self.has_begun = self.body.op("Greater", "i1", self.body.const(np.array(0, np.int64)))

    def number(self, name: str, default: float) -> float:
        """Return an attribute."""
        return float(attribute(self.node, name, default))

    def tensors(self, index: int) -> list[str]:
        """Return one tensor of each kind."""
        return [f"i{2 + kind * self.count + index}" for kind in range(self.kinds)]

    def like(self, value: str, index: int) -> str:
        """Convert to the element type of a tensor."""
        return self.body.op("CastLike", value, f"i{2 + index}")

    def sum(self, index: int, *terms: tuple[float, str]) -> str:
        """Add tensors times numbers."""
        made = [
            value if factor == 1 else self.body.op("Mul", value, self.constant(factor, index))
            for factor, value in terms
            if factor != 0
        ]
        return made[0] if len(made) == 1 else self.body.op("Add", *made)

    def constant(self, number: float, index: int) -> str:
        """Return a number of the element type of a tensor."""
        tensor = self.node.inputs[2 + index]
        wide = tensor is not None and tensor.dtype == ir.DataType.DOUBLE
        kind = np.float64 if wide else np.float32
        return self.like(self.body.const(np.array(number, kind)), index)

    def gradient(self, index: int, x: str, g: str) -> str:
        """Return the gradient of the loss and of the squares of what is trained."""
        return self.sum(index, (self.number("norm_coefficient", 0.0), x), (1.0, g))

    def give(self, index: int, *results: str) -> None:
        """Make values the results of a tensor."""
        for kind, value in enumerate(results):
            self.body.give(kind * self.count + index, value)

    def stepped(self, index: int, x: str, rate: str, towards: str) -> str:
        """Move a tensor against a direction."""
        return self.body.op("Sub", x, self.body.op("Mul", self.like(rate, index), towards))


def adagrad(node: ir.Node) -> onnx.FunctionProto | None:
    """Divide by the root of the sum of all squares of gradients (Duchi et al. 2011)."""
    step = Optimizer(node, 3)
    body = step.body
    slower = step.sum(
        0, (step.number("decay_factor", 0.0), step.like("i1", 0)), (1.0, step.constant(1.0, 0))
    )
    rate = body.op("Div", step.like("i0", 0), slower)
    for index in range(step.count):
        x, g, h = step.tensors(index)
        gradient = step.gradient(index, x, g)
        squares = body.op("Add", h, body.op("Mul", gradient, gradient))
        epsilon = step.constant(step.number("epsilon", 0.0), index)
        root = body.op("Add", body.op("Sqrt", squares), epsilon)
        step.give(index, step.stepped(index, x, rate, body.op("Div", gradient, root)), squares)
    return body.function()


def momentum(node: ir.Node) -> onnx.FunctionProto | None:
    """Go on in the direction of earlier steps; Nesterov's looks ahead in it."""
    step = Optimizer(node, 3)
    body, alpha = step.body, step.number("alpha", 0.0)
    for index in range(step.count):
        x, g, v = step.tensors(index)
        gradient = step.gradient(index, x, g)
        beta, one = (step.constant(n, index) for n in (step.number("beta", 0.0), 1.0))
        share = body.op("Mul", body.op("Where", step.has_begun, beta, one), gradient)
        speed = step.sum(index, (alpha, v), (1.0, share))
        ahead = speed
        if attribute(node, "mode", "standard") == "nesterov":
            ahead = step.sum(index, (1.0, gradient), (alpha, speed))
        step.give(index, step.stepped(index, x, "i0", ahead), speed)
    return body.function()


def adam(node: ir.Node) -> onnx.FunctionProto | None:
    """Divide a running mean of gradients by the root of that of their squares (Kingma, Ba 2015)."""
    step = Optimizer(node, 4)
    body, alpha, beta = step.body, step.number("alpha", 0.9), step.number("beta", 0.999)
    rate = body.op("Where", step.has_begun, _unbiased(step, alpha, beta), step.like("i0", 0))
    kept = 1.0 - step.number("norm_coefficient_post", 0.0)
    for index in range(step.count):
        x, g, v, h = step.tensors(index)
        gradient = step.gradient(index, x, g)
        mean = step.sum(index, (alpha, v), (1.0 - alpha, gradient))
        squares = step.sum(index, (beta, h), (1.0 - beta, body.op("Mul", gradient, gradient)))
        epsilon = step.constant(step.number("epsilon", 1e-6), index)
        root = body.op("Add", body.op("Sqrt", squares), epsilon)
        moved = step.stepped(index, x, rate, body.op("Div", mean, root))
        step.give(index, step.sum(index, (kept, moved)), mean, squares)
    return body.function()


def _unbiased(step: Optimizer, alpha: float, beta: float) -> str:
    """The rate times ``sqrt(1 - beta ** T) / (1 - alpha ** T)``: first means are near zero.

    ``1 - b ** T`` is ``-Elu(T * log(b))``, which keeps the digits of a ``b`` near 1.
    """
    body, count = step.body, step.like("i1", 0)

    def rest(base: float) -> str:
        power = math.log(base) if base > 0 else -math.inf
        return body.op("Neg", body.op("Elu", body.op("Mul", count, step.constant(power, 0))))

    return body.op(
        "Mul", step.like("i0", 0), body.op("Div", body.op("Sqrt", rest(beta)), rest(alpha))
    )
