"""One ONNX graph becoming one graph of Core AI, with the graphs inside it on request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.coreai import ops as _families  # noqa: F401  (fills the registry)
from edgeinfer.convert.lower.coreai.builder import Builder
from edgeinfer.convert.lower.coreai.registry import ALL, OPS
from edgeinfer.convert.lower.coreai.tensor import Shape, Tensor
from edgeinfer.convert.lower.registry import Driver, Refusal
from edgeinfer.convert.passes.infra import static_shape
from edgeinfer.errors import Problem, UnsupportedError
from edgeinfer.types import Array

ENTRY = "main"
"""Name of the graph."""


class _Driver(Driver[Tensor]):
    """Adds what ONNX's inference knows of shapes: Core AI's own sees less.

    Results without elements are constants: Apple's runtime ends its process on some operators that
    are to make them.
    """

    def _node(self, node: ir.Node, name: str) -> None:
        wanted = [v for v in node.outputs if v.name]
        empty = [a for v in wanted if (a := _without_elements(v)) is not None]
        if wanted and len(empty) == len(wanted) and isinstance(self.graph, Builder):
            self.values.update(zip(wanted, map(self.graph.const, empty), strict=True))
            return
        super()._node(node, name)
        for value in node.outputs:
            made = self.values.get(value)
            if made is None or value.shape is None or len(value.shape) != made.rank:
                continue
            pairs = zip(made.shape, value.shape, strict=True)
            shape = tuple(b if a is None and isinstance(b, int) else a for a, b in pairs)
            if shape != made.shape and isinstance(self.graph, Builder):
                self.values[value] = self.graph.typed(made, shape)


class Scope(Builder):
    """A builder that knows the ONNX graph it is made of; its context must be active.

    Attributes:
        module: the library's module, complete after ``lower``.
    """

    def __init__(self, model: ir.Model, module: Any) -> None:
        super().__init__()
        self.model, self.module = model, module
        self.driver: Driver[Tensor] = _Driver(OPS, self)
        self._entry: Any = None
        self._given: dict[ir.Value, Tensor] = {}

    def lower(self) -> None:
        """Lower the main graph.

        Raises:
            UnsupportedError: with every node that has no lowering.
        """
        values = [v for v in self.model.graph.inputs if v.const_value is None]
        _check_ports([*values, *self.model.graph.outputs])
        types = [self.type_of(v.dtype.numpy(), _shape(v)) for v in values if v.dtype]
        names = [v.name for v in values]
        with self.module:
            graph = self.dialect.GraphOp(ENTRY, types, [], input_names=names or None)
            self._entry = graph.entry_block
            with graph.block:
                held = [self.wrap(v) for v in graph.arguments]
                self._given = dict(zip(values, held, strict=True))
                made = self.driver.run(self.model)
                results = [
                    (v.name, (made[v] if v in made else self.constant(v)).value)
                    for v in self.model.graph.outputs
                ]
            graph.outputs_spec = results

    def input(self, value: ir.Value) -> Tensor:
        """Return the tensor of a model input."""
        return self._given[value]

    def constant(self, value: ir.Value) -> Tensor:
        """Add an initializer, where every body sees it."""
        if value.const_value is None:
            raise ValueError(f"{value.name!r} is no constant")
        array = value.const_value.numpy()
        if array.dtype.name in ("int4", "uint4"):
            # Weights of four bits are held in eight.
            array = array.astype(array.dtype.name.replace("4", "8"))
        if array.dtype not in [d.numpy() for d in ALL]:
            raise Refusal(f"{value.name!r} is {array.dtype}", "unsupported_dtype")
        from edgeinfer.backends.engines import import_coreai

        with import_coreai().ir.InsertionPoint.at_block_begin(self._entry):
            return self.const(array)

    def lower_body(self, body: ir.Graph, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Lower a graph of a node where the builder stands; returns its results."""
        before = len(self.driver.problems)
        for value, tensor in zip(body.inputs, inputs, strict=True):
            self.driver.values[value] = tensor
        self.driver.lower_nodes(body)
        if len(self.driver.problems) > before:
            raise Refusal("a node of its body is refused")
        values = self.driver.values
        return [values[v] if v in values else self.constant(v) for v in body.outputs]


def _without_elements(value: ir.Value) -> Array | None:
    """The array that a value is in every run, if it has no elements there."""
    shape = static_shape(value)
    if shape is None or 0 not in shape or value.dtype not in ALL:
        return None
    return np.zeros(shape, value.dtype.numpy())


def _shape(value: ir.Value) -> Shape:
    if value.shape is None:
        raise Refusal(f"{value.name!r} has no known rank", "dynamic_shape")
    return tuple(s if isinstance(s, int) else None for s in value.shape)


def _check_ports(values: Sequence[ir.Value]) -> None:
    problems = []
    for value in values:
        side = "model input" if value.is_graph_input() else "model output"
        if value.type is not None and not isinstance(value.type, ir.TensorType):
            detail = f"{value.name!r} is no tensor"
            problems.append(Problem(value.name or "", side, "unsupported_dtype", detail, ""))
        elif value.dtype not in ALL:
            kind = value.dtype.name.lower() if value.dtype else "unknown"
            detail = f"{value.name!r} is {kind}"
            problems.append(Problem(value.name or "", side, "unsupported_dtype", detail, ""))
        elif value.shape is None and side == "model input":
            detail = f"{value.name!r} has no known rank"
            problems.append(Problem(value.name or "", side, "dynamic_shape", detail, ""))
    if problems:
        raise UnsupportedError(OPS.target, problems)
