"""Inputs and outputs in half precision: the cast becomes part of the model."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from edgeinfer.convert.passes.infra import Namer
from edgeinfer.errors import UsageError

HALF, SINGLE = ir.DataType.FLOAT16, ir.DataType.FLOAT


def exchange_halves(model: ir.Model, names: Collection[str]) -> tuple[str, ...]:
    """Let inputs and outputs be half precision instead of single, in place; return their names.

    Given: ``float x; float y = Relu(x)``
    Result: ``float16 x; a = Cast<float>(x); b = Relu(a); float16 y = Cast<float16>(b)``

    Args:
        model: as read.
        names: Names of inputs and outputs; the empty one stands for all that are floats.

    Raises:
        UsageError: there is no such input or output, or it is no float.
    """
    inputs = [v for v in model.graph.inputs if not v.is_initializer()]
    floats = {v.name or "": v for v in (*inputs, *model.graph.outputs) if v.dtype == SINGLE}
    for name in names:
        if name and name not in floats:
            known = ", ".join(map(repr, floats)) or "none"
            raise UsageError(f"io dtype of {name!r}: no float32 input or output; known: {known}")
    wanted = frozenset(floats if "" in names else names)
    namer = Namer(model)
    for value in inputs:
        if value.name in wanted:
            _take(model.graph, value, namer)
    for index, value in enumerate(model.graph.outputs):
        if value.name in wanted and value.dtype == SINGLE:
            _give(model.graph, index, value, namer)
    return tuple(name for name in floats if name in wanted)


def _take(graph: ir.Graph, value: ir.Value, namer: Namer) -> None:
    users = list(value.uses())
    cast = _cast(value, SINGLE, namer.fresh(f"{value.name}.fp32"))
    for user, index in users:
        user.replace_input_with(index, cast.outputs[0])
    for index, output in enumerate(graph.outputs):
        if output is value:
            graph.outputs[index] = cast.outputs[0]
    value.type = ir.TensorType(HALF)
    if len(graph):
        graph.insert_before(graph[0], cast)
    else:
        graph.append(cast)


def _give(graph: ir.Graph, index: int, value: ir.Value, namer: Namer) -> None:
    name = value.name or ""
    value.name = namer.fresh(f"{name}.fp32")
    cast = _cast(value, HALF, name)
    graph.append(cast)
    graph.outputs[index] = cast.outputs[0]


def _cast(value: ir.Value, to: ir.DataType, name: str) -> ir.Node:
    cast = ir.node("Cast", [value], {"to": to.value})
    made = cast.outputs[0]
    made.name, made.type, made.shape = name, ir.TensorType(to), value.shape
    return cast
