"""Round floats to integers before the zero point is added, as every other engine does.

The plugin multiplies by the reciprocal of the scale, adds the zero point and rounds: between 128
and 256 a float32 knows 65536 parts of a step only, and what is nearer than that to halfway is
rounded the other way. In a net of attention a dozen such values move most of those behind them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from edgeinfer.backends.engines import import_openvino
from edgeinfer.convert.lower.openvino.integers import HAND_ON

_PASSED = HAND_ON | frozenset({
    *("AvgPool", "ReduceMean", "Concat", "Add", "Subtract", "Multiply", "Divide", "Maximum"),
    "Minimum",
    *("Relu", "Clamp", "PRelu", "Sigmoid", "Tanh", "Gelu", "Erf", "Swish", "HSwish", "Mish"),
    *("HSigmoid", "Elu", "Selu", "SoftPlus", "Exp", "Pad", "Interpolate"),
})  # fmt: skip
"""Operators that are computed together with what gives their operand, or with integers."""

_MOVES = frozenset({"Reshape", "Transpose", "Squeeze", "Unsqueeze"})
_PRODUCTS = frozenset({
    "Convolution", "GroupConvolution", "ConvolutionBackpropData", "GroupConvolutionBackpropData",
    "MatMul",
})  # fmt: skip
_BETWEEN = frozenset({"Add", "Subtract", "Multiply", "Reshape"})
"""Operators that the plugin moves a scale behind."""

_SMALLEST = 1e-30
"""Below this a step's reciprocal may be infinite."""

_WHOLE = 1e-2
"""What a zero point may be off by as the ends are float32; any other is no integer."""

_INTEGERS = frozenset({"FakeQuantize", "Convert", "Parameter"})


def round_before_shift(written: Any) -> None:
    """Rewrite the rounding of floats that come of no product with weights, in place.

    Given: ``y = FakeQuantize(x, -z * s, (255 - z) * s, -z * s, (255 - z) * s)``
    Result: ``y = FakeQuantize(Round(x * (1 / s)), -z, 255 - z, -z * s, (255 - z) * s)``
    """
    opset = import_openvino().opset13
    for node in written.get_ordered_ops():
        if node.get_type_name() != "FakeQuantize" or node.get_attributes()["levels"] != 256:
            continue
        ends = [_single(node.input_value(i)) for i in (1, 2, 3, 4)]
        if None in ends or ends[:2] != ends[2:] or not _of_floats(node.input_value(0)):
            continue
        low, high = (float(e) for e in ends[2:] if e is not None)
        step = np.float32((high - low) / 255.0)
        zero = -low / float(step) if step > _SMALLEST else 0.0
        whole = float(np.rint(zero))
        if whole == 0.0 or abs(zero - whole) > _WHOLE:
            continue
        factor = _factor(node.input_value(0), np.float32(1.0) / step)
        scaled = opset.multiply(node.input_value(0), opset.constant(factor))
        rounded = opset.round(scaled, "half_to_even")
        node.input(0).replace_source_output(rounded.output(0))
        for place, end in ((1, -whole), (2, 255.0 - whole)):
            made = opset.constant(np.float32(end))
            node.input(place).replace_source_output(made.output(0))


def keep_exact(written: Any) -> None:
    """Let floats made of integers be what they are where they are rounded again, in place.

    The plugin moves the scale of integers behind sums and differences, and divides what they are
    added to by it: the last bits are then others than those of the sum. Behind an activation that
    changes nothing it leaves the scale where it is.

    Given: ``y = Round(c * Add(FakeQuantize(x), r))``
    Result: ``y = Round(c * Add(PRelu(FakeQuantize(x), 1), r))``
    """
    opset = import_openvino().opset13
    for node in written.get_ordered_ops():
        if node.get_type_name() != "FakeQuantize" or node.get_attributes()["levels"] != 256:
            continue
        if _single(node.input_value(3)) in (None, 0.0):
            continue
        targets = [
            target
            for target in node.output(0).get_target_inputs()
            if _is_rounded(target.get_node())
        ]
        if targets:
            one = opset.constant(np.ones(1, np.float32))
            same = opset.prelu(node.output(0), one)
            for target in targets:
                target.replace_source_output(same.output(0))


def _is_rounded(node: Any, depth: int = 4) -> bool:
    """Whether floats end in a rounding that the graph has itself."""
    kind = node.get_type_name()
    if kind == "Round" or not depth or kind not in _BETWEEN:
        return bool(kind == "Round")
    users = (t.get_node() for t in node.output(0).get_target_inputs())
    return any(_is_rounded(user, depth - 1) for user in users)


def _factor(output: Any, factor: np.float32) -> npt.NDArray[np.float32]:
    """Return a factor, once for each column where values were just moved.

    The plugin moves a product with one number in front of a Transpose, which then is no part of
    the kernel that computes attention any more.
    """
    shape = output.get_partial_shape()
    moved = output.get_node().get_type_name() in _MOVES
    if not moved or shape.rank.is_dynamic or not len(shape) or shape[-1].is_dynamic:
        return np.asarray(factor)
    sizes = [1] * (len(shape) - 1) + [shape[-1].get_length()]
    return np.full(sizes, factor, np.float32)


def _of_floats(output: Any) -> bool:
    roots: set[str] = set()
    seen: set[str] = set()
    left = [output]
    while left:
        node = left.pop().get_node()
        if node.get_name() in seen:
            continue
        seen.add(node.get_name())
        kind = node.get_type_name()
        if kind in _PASSED:
            left += [node.input_value(i) for i in range(node.get_input_size())]
        elif kind in _PRODUCTS and _is_weight(node.input_value(1)):
            roots.add("product")
        elif kind not in _INTEGERS and kind != "Constant":
            roots.add("float")
    return roots == {"float"}


def _is_weight(output: Any) -> bool:
    """Whether an operand is made of constants alone."""
    node = output.get_node()
    count = node.get_input_size()
    if node.get_type_name() == "Constant":
        return True
    return bool(count) and all(_is_weight(node.input_value(i)) for i in range(count))


def _single(output: Any) -> float | None:
    node = output.get_node()
    if node.get_type_name() != "Constant" or node.data.size != 1:
        return None
    return float(node.data.ravel()[0])
