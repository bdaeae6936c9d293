"""One operator as the rules of the analysis see it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.passes.constants import evaluate_node
from edgeinfer.convert.passes.infra import attr, constant
from edgeinfer.convert.verify.bounds.span import ANY, Span
from edgeinfer.records import dataclass
from edgeinfer.types import Array

_MOST_READ = 1 << 16
"""Elements of a constant that are looked at one by one."""

Shape = tuple[int | None, ...] | None


@dataclass(frozen=True, slots=True)
class BoundedNode:
    """A node, and what is known of its operands.

    Attributes:
        node: in a graph whose shapes are inferred.
        spans: what values were found to lie between.
        opsets: Opsets of the model.
    """

    node: ir.Node
    spans: Mapping[ir.Value, Span]
    opsets: Mapping[str, int]

    @property
    def count(self) -> int:
        """How many inputs it lists."""
        return len(self.node.inputs)

    def has(self, index: int) -> bool:
        """Whether an input is there."""
        return index < len(self.node.inputs) and self.node.inputs[index] is not None

    def attr(self, name: str, default: Any = None) -> Any:
        """Return an attribute's value, or the default."""
        return attr(self.node, name, default)

    def shape(self, index: int) -> Shape:
        """Return the shape of an input; None where its rank is unknown or it is left out."""
        return shape_of(self.node.inputs[index]) if self.has(index) else None

    def rank(self, index: int) -> int | None:
        """Return the number of axes of an input where it is known."""
        shape = self.shape(index)
        return None if shape is None else len(shape)

    def size(self, index: int, axis: int) -> int | None:
        """Return the size of an input along an axis where it is known."""
        shape = self.shape(index)
        if shape is None or not -len(shape) <= axis < len(shape):
            return None
        return shape[axis]

    def elements(self, index: int) -> int | None:
        """Return how many elements an input has where it is known."""
        shape = self.shape(index)
        if shape is None or any(d is None for d in shape):
            return None
        return int(np.prod([d or 0 for d in shape], dtype=np.int64))

    def dtype(self, index: int) -> ir.DataType | None:
        """Return the element type of an input."""
        value = self.node.inputs[index] if self.has(index) else None
        return None if value is None else value.dtype

    def is_whole(self, index: int) -> bool:
        """Whether an input holds integers."""
        kind = self.dtype(index)
        return kind is not None and kind.is_integer()

    def span(self, index: int) -> Span:
        """Return what an input lies between, as far as that was found."""
        value = self.node.inputs[index] if self.has(index) else None
        return ANY if value is None else self.spans.get(value, ANY)

    def const(self, index: int) -> Array | None:
        """Return the array of an input that no run can change; None for large ones too."""
        value = self.node.inputs[index] if self.has(index) else None
        tensor = constant(value)
        if tensor is None or tensor.size > _MOST_READ or tensor.dtype == ir.DataType.STRING:
            return None
        return np.asarray(tensor.numpy())

    def number(self, index: int) -> float | None:
        """Return the one number that a constant input holds."""
        array = self.const(index)
        if array is None or not array.size or array.dtype.kind not in "biuf":
            return None
        first = float(array.ravel()[0])
        return first if bool((array == array.ravel()[0]).all()) else None

    def evaluated(self, *arrays: Array | None) -> list[Array] | None:
        """Evaluate the node on other operands; None where that is not possible."""
        return evaluate_node(self.node, dict(self.opsets), list(arrays))


def shape_of(value: ir.Value | None) -> Shape:
    """Return a value's shape, unknown sizes as None."""
    if value is None or value.shape is None:
        return None
    return tuple(d if isinstance(d, int) and d >= 0 else None for d in value.shape)
