"""The body of a definition: nodes of the standard, written one after the other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from edgeinfer.convert.lower.single import WHOLE
from edgeinfer.types import Array

OPSET = 24


class Body:
    """Collects the nodes of a function from ``i0, i1, ...`` to ``o0, o1, ...``.

    Values are known by their names.

    Args:
        node: that is defined.
        whole: Whether half precision would spoil the steps.
    """

    def __init__(self, node: ir.Node, *, whole: bool = False) -> None:
        self._node, self._whole = node, whole
        self._nodes: list[onnx.NodeProto] = []
        self._made = 0

    def given(self, index: int) -> str:
        """Return the input at an index; empty where the node leaves it out."""
        inputs = self._node.inputs
        return f"i{index}" if index < len(inputs) and inputs[index] is not None else ""

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one result."""
        return self.ops(kind, 1, *inputs, **attributes)[0]

    def ops(self, kind: str, count: int, *inputs: str, **attributes: Any) -> list[str]:
        """Add a node with several results."""
        names = [f"v{self._made + i}" for i in range(count)]
        self._made += count
        made = onnx.helper.make_node(kind, inputs, names, **attributes)
        if self._whole:
            made.metadata_props.add(key=WHOLE)
        self._nodes.append(made)
        return names

    def const(self, values: Array | Sequence[int] | float) -> str:
        """Return a constant: an array, integers for a shape or axes, or a float."""
        array = np.asarray(values, np.float32 if isinstance(values, float) else None)
        if isinstance(values, Sequence):
            array = array.astype(np.int64)
        return self.op("Constant", value=onnx.numpy_helper.from_array(array))

    def reshape(self, x: str, *shape: int) -> str:
        """Reshape; one size may be -1."""
        return self.op("Reshape", x, self.const(shape))

    def part(self, x: str, index: int) -> str:
        """Return one element of a vector, as a vector."""
        return self.op("Slice", x, self.const([index]), self.const([index + 1]))

    @contextmanager
    def inside(self) -> Iterator[list[onnx.NodeProto]]:
        """Collect nodes apart, for the body of a loop; they may read what there is outside."""
        outer, self._nodes = self._nodes, []
        try:
            yield self._nodes
        finally:
            self._nodes = outer

    def name(self) -> str:
        """Return a name that nothing has yet."""
        self._made += 1
        return f"v{self._made - 1}"

    def give(self, index: int, value: str) -> None:
        """Make a value the result at an index."""
        self._nodes.append(onnx.helper.make_node("Identity", [value], [f"o{index}"]))

    def function(self) -> onnx.FunctionProto:
        """Return the function."""
        taken = [f"i{i}" for i in range(len(self._node.inputs))]
        given = [f"o{i}" for i in range(len(self._node.outputs))]
        imports = [onnx.helper.make_opsetid("", OPSET)]
        return onnx.helper.make_function("edgeinfer", "f", taken, given, self._nodes, imports)


def sizes(value: ir.Value | None) -> tuple[int, ...] | None:
    """Return a shape whose sizes are all known, else None."""
    if value is None or value.shape is None:
        return None
    known = tuple(d for d in value.shape if isinstance(d, int))
    return known if len(known) == len(value.shape) else None


def input_at(node: ir.Node, index: int) -> ir.Value | None:
    """Return an input; None where it is left out."""
    return node.inputs[index] if index < len(node.inputs) else None


def attribute(node: ir.Node, name: str, default: Any) -> Any:
    """Return an attribute's value, or the default."""
    found = node.attributes.get(name)
    return default if found is None else found.value


def table(body: Body, shape: tuple[int, ...]) -> str:
    """Lay images (batch, channels, *sizes) as a table (batch * positions, channels)."""
    batch, channels, *space = shape
    flat = body.reshape("i0", batch, channels, math.prod(space))
    return body.reshape(body.op("Transpose", flat, perm=[0, 2, 1]), -1, channels)


def scaled(body: Body, x: str, factor: float) -> str:
    """Multiply by a number."""
    return body.op("Mul", x, body.const(float(factor)))


def times(body: Body, index: str, count: int) -> str:
    """Multiply whole numbers, which half precision would not hold as floats."""
    return body.op("Mul", index, body.const(np.array(count, np.int64)))


def raised(body: Body, x: str, number: float) -> str:
    """Add a number."""
    return body.op("Add", x, body.const(float(number)))


def clipped(body: Body, x: str, low: float, high: float) -> str:
    """Hold between two numbers."""
    return body.op("Clip", x, body.const(float(low)), body.const(float(high)))


def cubic_shares(body: Body, far: str, a: float) -> list[str]:
    """Return the weights of four neighbours, by how far from the second a place lies."""
    near = body.op("Sub", body.const(1.0), far)

    def outer(t: str) -> str:
        # a ((t + 1)^3 - 5 (t + 1)^2 + 8 (t + 1) - 4) = a t (t - 1)^2
        left = body.op("Sub", t, body.const(1.0))
        return scaled(body, body.op("Mul", t, body.op("Mul", left, left)), a)

    def inner(t: str) -> str:
        slope = raised(body, scaled(body, t, a + 2.0), -(a + 3.0))
        return raised(body, body.op("Mul", body.op("Mul", slope, t), t), 1.0)

    return [outer(far), inner(far), inner(near), outer(near)]
