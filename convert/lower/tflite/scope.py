"""One ONNX graph becoming one TFLite graph, with the graphs inside it on request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.registry import Driver, Refusal
from edgeinfer.convert.lower.target import ARITHMETIC_KEY
from edgeinfer.convert.lower.tflite import ops as _families  # noqa: F401  (fills the registry)
from edgeinfer.convert.lower.tflite.builder import Builder
from edgeinfer.convert.lower.tflite.graph import Shape, Tensor
from edgeinfer.convert.lower.tflite.registry import OPS
from edgeinfer.convert.passes.infra import bodies
from edgeinfer.errors import Problem, UnsupportedError


class Scope(Builder):
    """A builder that knows the ONNX graph it is made of.

    Args:
        name: Name of the subgraph in the file.
        prefix: Prefix of the names of tensors that ONNX does not name.
    """

    def __init__(self, name: str = "main", prefix: str = "") -> None:
        super().__init__(name, prefix)
        self.driver: Driver[Tensor] = Driver(OPS, self)
        self._bodies = 0

    @property
    def arithmetic(self) -> str:
        """What the node that is being lowered says of it."""
        node = self.driver.node
        return "" if node is None else node.metadata_props.get(ARITHMETIC_KEY, "")

    def wants(self, output: int) -> bool:
        """Whether anyone reads an output of the node that is being lowered."""
        node = self.driver.node
        if node is None or output >= len(node.outputs):
            return False
        value = node.outputs[output]
        return bool(value.uses()) or value.is_graph_output()

    def input(self, value: ir.Value) -> Tensor:
        """Add an input of the model, with its name and layout."""
        try:
            tensor = tensor_like(value)
        except Refusal as e:
            problem = Problem(value.name or "", "input", e.reason, e.detail, e.hint)
            raise UnsupportedError(OPS.target, [problem]) from e
        self.inputs.append(tensor)
        return tensor

    def constant(self, value: ir.Value) -> Tensor:
        """Make a constant of an initializer; its values are not copied."""
        return constant_of(value)

    def lower(self, model: ir.Model) -> None:
        """Lower the main graph.

        Raises:
            UnsupportedError: with every node that has no lowering.
        """
        self.driver.run(model)
        self.finish([self.tensor_of(v) for v in model.graph.outputs], model.graph.outputs)

    def tensor_of(self, value: ir.Value) -> Tensor:
        """Return what a value of this graph, or a constant around it, has become."""
        values = self.driver.values
        if value not in values:
            if value.const_value is None:
                raise Refusal(f"{value.name!r} is not known where it is used")
            values[value] = self.constant(value)
        return values[value]

    def finish(self, tensors: list[Tensor], values: Sequence[ir.Value] | None = None) -> None:
        """Set the outputs: each computed here and listed once, by the names of ``values``."""
        taken = {id(t) for t in self.inputs}
        self.outputs = []
        for index, tensor in enumerate(tensors):
            own = tensor
            if tensor.data is not None or id(tensor) in taken:
                own = self.copy(tensor)
            if values is not None and values[index].name:
                own.name = values[index].name or own.name
            taken.add(id(own))
            self.outputs.append(own)
        self.drop_dead()

    def captured(self, body: ir.Graph) -> list[ir.Value]:
        """List the values computed outside of a body that it reads, in the order of first use."""
        return list(dict.fromkeys(_captures(body)))

    def body(self, name: str) -> Scope:
        """Start a subgraph for a body; it gets its inputs from the caller."""
        self._bodies += 1
        prefix = f"{self._prefix}{name}_{self._bodies}/"
        return Scope(prefix[:-1], prefix)

    def lower_body(
        self, body: ir.Graph, inner: Scope, given: Mapping[ir.Value, Tensor]
    ) -> list[Tensor]:
        """Lower the nodes of a body into a subgraph.

        Args:
            body: Body of an ``If``, ``Loop`` or ``Scan``.
            inner: from ``body``; the caller sets its inputs, and its outputs with ``finish``.
            given: tensors of ``inner`` for the body's inputs and for what it captures.

        Returns:
            A tensor of ``inner`` for each output of the body. Nodes that cannot be lowered are
            added to the problems of this graph.

        Raises:
            Refusal: an inner node could not be lowered.
        """
        inner.driver.values.update(given)
        inner.driver.lower_nodes(body)
        if inner.driver.problems:
            self.driver.problems.extend(inner.driver.problems)
            raise Refusal("its body has operators that cannot be expressed", "unsupported_op")
        return [inner.tensor_of(v) for v in body.outputs]


def tensor_like(value: ir.Value) -> Tensor:
    """Make a tensor with the name, type and shape of a value.

    Raises:
        Refusal: its type or rank is not known.
    """
    if value.type is not None and not isinstance(value.type, ir.TensorType):
        raise Refusal(f"{value.name!r} is no tensor", "unsupported_dtype")
    if value.dtype is None or value.shape is None:
        raise Refusal(f"{value.name!r} has no known type or rank", "dynamic_shape")
    return Tensor(value.name or "", shape_of(value), np.dtype(value.dtype.numpy()))


def constant_of(value: ir.Value) -> Tensor:
    """Make a constant of an initializer."""
    if value.const_value is None:
        raise Refusal(f"{value.name!r} is not constant", "requires_constant")
    array = value.const_value.numpy()
    return Tensor(value.name or "", array.shape, array.dtype, array)


def shape_of(value: ir.Value) -> Shape:
    """The sizes of a value of known rank; None where it is known only at run time."""
    return tuple(d if isinstance(d, int) else None for d in value.shape or ())


def _captures(body: ir.Graph) -> Iterator[ir.Value]:
    inside = set(body.inputs) | set(body.initializers.values())
    for node in body:
        inside.update(node.outputs)
        for inner in bodies(node):
            yield from (v for v in _captures(inner) if v not in inside)
        for value in node.inputs:
            if value is not None and value not in inside and value.const_value is None:
                yield value
    for value in body.outputs:
        if value not in inside and value.const_value is None:
            yield value
