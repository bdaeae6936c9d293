"""Interval analysis of a graph whose sizes are known: forwards, then backwards to its inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.passes.constants import FoldConstants
from edgeinfer.convert.passes.fold_shapes import FoldShapes
from edgeinfer.convert.passes.infra import bodies, constant
from edgeinfer.convert.passes.inline import InlineFunctions
from edgeinfer.convert.passes.interface import DropDefaultInputs
from edgeinfer.convert.passes.lift_constants import LiftConstants
from edgeinfer.convert.passes.shapes import InferShapes
from edgeinfer.convert.passes.static_shapes import BindShapes
from edgeinfer.convert.verify.bounds.backward import backward
from edgeinfer.convert.verify.bounds.forward import forward, of_constant
from edgeinfer.convert.verify.bounds.limits import limits
from edgeinfer.convert.verify.bounds.node import BoundedNode, shape_of
from edgeinfer.convert.verify.bounds.span import ANY, Span
from edgeinfer.records import dataclass


@dataclass(frozen=True, slots=True)
class InputBounds:
    """What the operators behind an input ask of it.

    Attributes:
        span: what it holds in an ordinary run; never empty.
        hard: what it may hold at all; never empty.
    """

    span: Span
    hard: Span = ANY


def bounds_of(
    model: ir.Model,
    shapes: Mapping[str, Sequence[int]],
    known: Mapping[str, tuple[float, float]] | None = None,
) -> dict[str, InputBounds]:
    """Derive what each input may hold from the operators that its values reach.

    Args:
        model: it is not modified.
        shapes: sizes of all inputs.
        known: what inputs are said to hold, by name.

    Returns:
        By name; an input of which nothing is asked is left out.
    """
    model = _bound(model, shapes)
    given = {n: Span.of(low, high) for n, (low, high) in (known or {}).items()}
    spans = _Forward(model, given).run()
    usual = _Backward(model, spans, hard=False).run()
    hard = _Backward(model, spans, hard=True).run()
    found = {}
    for value in model.graph.inputs:
        allowed, wanted = hard.get(value, ANY), usual.get(value, ANY)
        if allowed.is_empty:
            # Operators contradict each other, or a rule knows less than the model.
            allowed = ANY
        if wanted.is_empty:
            wanted = allowed
        if not (wanted.is_open and allowed.is_open):
            found[value.name or ""] = InputBounds(wanted, allowed)
    return found


def _bound(model: ir.Model, shapes: Mapping[str, Sequence[int]]) -> ir.Model:
    """Return a copy with all sizes filled in and what follows from them folded."""
    model = model.clone()
    known = {n: tuple(s) for n, s in shapes.items() if any(v.name == n for v in model.graph.inputs)}
    passes: tuple[ir.passes.PassBase, ...] = (
        DropDefaultInputs(),
        BindShapes(known),
        InlineFunctions(),
        LiftConstants(),
        InferShapes(),
        FoldShapes(),
        FoldConstants(),
        InferShapes(),
    )
    for one in passes:
        one(model)
    return model


@dataclass(slots=True)
class _Forward:
    """Computes what values lie between, in the graph's order."""

    model: ir.Model
    given: Mapping[str, Span]
    spans: dict[ir.Value, Span] = field(default_factory=dict)

    def run(self) -> dict[ir.Value, Span]:
        self._graph(self.model.graph)
        return self.spans

    def _graph(self, graph: ir.Graph) -> None:
        for value in graph.inputs:
            own = self.given.get(value.name or "", ANY) if graph is self.model.graph else ANY
            self.spans[value] = Span.of(0, 1) if value.dtype == ir.DataType.BOOL else own
        for node in graph:
            self._constants(node)
            for body in bodies(node):
                self._graph(body)
            found = forward(BoundedNode(node, self.spans, self.model.opset_imports))
            self.spans.update(zip(node.outputs, found, strict=False))

    def _constants(self, node: ir.Node) -> None:
        for value in node.inputs:
            if value is None or value in self.spans:
                continue
            tensor = constant(value)
            if tensor is not None and tensor.dtype != ir.DataType.STRING and tensor.size < 1 << 20:
                self.spans[value] = of_constant(np.asarray(tensor.numpy()))


@dataclass(slots=True)
class _Backward:
    """Collects what is asked of values, from the last node to the first."""

    model: ir.Model
    spans: Mapping[ir.Value, Span]
    hard: bool
    needs: dict[ir.Value, Span] = field(default_factory=dict)

    def run(self) -> dict[ir.Value, Span]:
        self._graph(self.model.graph)
        return self.needs

    def _graph(self, graph: ir.Graph) -> None:
        for node in reversed(graph):
            self._into_bodies(node)
            op = BoundedNode(node, self.spans, self.model.opset_imports)
            asked = limits(op)
            needs = [self.needs.get(v, ANY) for v in node.outputs]
            for index, value in enumerate(node.inputs):
                if value is None or constant(value) is not None:
                    continue
                own = asked.get(index)
                if own is not None:
                    span = own.hard if self.hard else own.usual
                    self._need(value, span.fitted(shape_of(value)))
                self._need(value, backward(op, index, needs))

    def _need(self, value: ir.Value, span: Span) -> None:
        if not span.is_open:
            self.needs[value] = self.needs.get(value, ANY).meet(span)

    def _into_bodies(self, node: ir.Node) -> None:
        """Hand on what is asked of results to the bodies, and what bodies ask to what they get."""
        for body in bodies(node):
            skipped = 1 if node.op_type == "Loop" else 0
            for inner, outer in zip(body.outputs[skipped:], node.outputs, strict=False):
                self._need(inner, self.needs.get(outer, ANY).core())
            self._graph(body)
            if node.op_type in ("Loop", "Scan"):
                first = 2 if node.op_type == "Loop" else 0
                for inner, given in zip(body.inputs[first:], node.inputs[first:], strict=False):
                    if given is not None and inner in self.needs:
                        self._need(given, self.needs[inner].core())
