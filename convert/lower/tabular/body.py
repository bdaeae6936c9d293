"""What writes a definition: a function of standard operators, built node by node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

DOMAIN = "ai.onnx.ml"

OPSET = 24
"""Of the functions."""

_WIDE = frozenset({ir.DataType.DOUBLE})


class TabularBody:
    """Collects the nodes of one definition.

    Values are their names. The inputs are ``i0``, ``i1``, ..., the outputs ``o0``, ``o1``, ...
    """

    def __init__(self, node: ir.Node) -> None:
        """Start the definition of a node."""
        self.node = node
        self.nodes: list[onnx.NodeProto] = []
        self._count = 0
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}

    def op(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Add an operator and return its first result."""
        result = self._name()
        self.nodes.append(helper.make_node(op_type, list(inputs), [result], **attributes))
        return result

    def const(self, array: Any, dtype: Any = None) -> str:
        """Return a constant; equal ones are one."""
        array = np.asarray(array, dtype)
        key = array.dtype.str, array.shape, array.tobytes()
        if key not in self._constants:
            name = self._name()
            tensor = numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape))
            self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
            self._constants[key] = name
        return self._constants[key]

    def ints(self, *values: int) -> str:
        """Return a list of int64: axes, shapes."""
        return self.const(values, np.int64)

    def cast(self, value: str, dtype: Any) -> str:
        """Return a value in another element type."""
        return self.op("Cast", value, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def function(self, results: Sequence[str]) -> onnx.FunctionProto:
        """Return the function; a result may be empty where the node has none."""
        outputs = [f"o{i}" for i, _ in enumerate(self.node.outputs)]
        given = [(name, made) for name, made in zip(outputs, results, strict=False) if made]
        ends = [helper.make_node("Identity", [made], [name]) for name, made in given]
        return helper.make_function(
            "edgeinfer",
            "f",
            [f"i{i}" for i, _ in enumerate(self.node.inputs)],
            outputs,
            [*self.nodes, *ends],
            [helper.make_opsetid("", OPSET)],
        )

    def rows(self) -> str:
        """Return the first input as floats of two axes, one row for each sample.

        Doubles stay what they are; integers become the floats that comparisons take them for.
        """
        value = self.node.inputs[0]
        name = "i0"
        if value is None or value.dtype is None or value.shape is None:
            raise NotDefinedError("the type and the rank of the input are not known")
        if value.dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
            name = self.cast(name, np.float32)
        if len(value.shape) == 1:
            name = self.op("Reshape", name, self.ints(1, -1))
        elif len(value.shape) != 2:
            raise NotDefinedError(f"an input of {len(value.shape)} axes has no rows")
        return name

    @property
    def dtype(self) -> type[np.floating[Any]]:
        """Type of ``rows``."""
        value = self.node.inputs[0]
        return np.float64 if value is not None and value.dtype in _WIDE else np.float32

    def _name(self) -> str:
        self._count += 1
        return f"v{self._count}"


class NotDefinedError(Exception):
    """A node's form has no definition here; never leaves the package."""


MALFORMED = (ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError)
"""What comes of attributes that lack, or contradict each other."""


def values_of(node: ir.Node, name: str, default: Any = None) -> Any:
    """Value of an attribute: tensors and lists of numbers as arrays, strings as str."""
    found = node.attributes.get(name)
    if found is None:
        return default
    if found.type == ir.AttributeType.TENSOR:
        return found.as_tensor().numpy()
    value = found.value
    if isinstance(value, (list, tuple)):
        if found.type == ir.AttributeType.STRINGS:
            return [v.decode() if isinstance(v, bytes) else v for v in value]
        kind = np.float32 if found.type == ir.AttributeType.FLOATS else np.int64
        return np.asarray(value, kind)
    return value.decode() if isinstance(value, bytes) else value


def is_read(node: ir.Node, index: int) -> bool:
    """Whether anybody reads an output."""
    if index >= len(node.outputs):
        return False
    value = node.outputs[index]
    return bool(value.uses()) or value.is_graph_output()
