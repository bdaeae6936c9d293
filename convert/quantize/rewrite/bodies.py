"""Weights in bodies of If, Loop and Scan: stored as integers where an engine can run that there.

Scales of activations are measured in the main graph only, so that weights alone are stored. What
stays float all the same is counted, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.passes.dead_code import RemoveDeadCode
from edgeinfer.convert.passes.infra import Namer, add_initializer, bodies, constant
from edgeinfer.convert.quantize.rewrite.weight_only import channels_axis, takes_integers
from edgeinfer.convert.quantize.rewrite.weights import StoredIntegers, mark, store
from edgeinfer.convert.quantize.units import WEIGHTED, array_of, is_flat
from edgeinfer.profiles.schema import Quantization
from edgeinfer.records import dataclass

LEAST = 256
"""Elements from which a float constant in a body counts as weights."""

_LOOPS = frozenset({"Loop", "Scan"})


@dataclass(frozen=True, slots=True)
class Left:
    """Weights in a body that stayed float.

    Attributes:
        node: that reads them.
        op: its operator.
        body: operator whose body it is in.
        nbytes: Number of bytes of the weights.
        why: they are not stored as integers.
    """

    node: str
    op: str
    body: str
    nbytes: int
    why: str

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        found = {"node": self.node, "op": self.op, "body": self.body}
        return {**found, "bytes": self.nbytes, "why": self.why}


@dataclass(frozen=True, slots=True)
class _Inside:
    """A node in a body; the owners are the operators around it, the innermost first."""

    node: ir.Node
    graph: ir.Graph
    owners: tuple[tuple[ir.Node, ir.Graph], ...]


def _inside(
    graph: ir.Graph, owners: tuple[tuple[ir.Node, ir.Graph], ...] = ()
) -> Iterator[_Inside]:
    for node in list(graph):
        if owners:
            yield _Inside(node, graph, owners)
        for body in bodies(node):
            yield from _inside(body, ((node, graph), *owners))


def candidates(model: ir.Model, limits: Quantization) -> list[ir.Node]:
    """Return the nodes in bodies whose weights a target stores as integers."""
    if not limits.bodies:
        return []
    return [i.node for i in _inside(model.graph) if not i.node.domain and _places(i.node, limits)]


def _places(node: ir.Node, limits: Quantization) -> tuple[int, ...]:
    """Return the operands that are stored as integers."""
    takes = node.op_type in WEIGHTED and takes_integers(node)
    return (1,) if takes and (is_flat(node) or not limits.flat) else ()


def store_bodies(
    model: ir.Model, limits: Quantization, *, kept: AbstractSet[str], half: bool = False
) -> int:
    """Store weights in bodies as integers, in place; return of how many nodes.

    Given::

        y = Loop<body = {... MatMul(x, w) ...}>(...)

    Result, where floats are made before a loop::

        f = DequantizeLinear(w_int, w_scale)
        y = Loop<body = {... MatMul(x, f) ...}>(...)

    Args:
        model: with bodies; constants are those of the main graph.
        limits: Limits of the target.
        kept: names of nodes that stay float.
        half: scales are numbers that half precision holds too.
    """
    writer, count = _Writer(model, limits, half), 0
    for inside in list(_inside(model.graph)):
        node = inside.node
        found = () if node.domain or not limits.bodies else _places(node, limits)
        if (node.name or "") in kept:
            continue
        for place in found:
            writer.write(inside, place)
        count += bool(found)
    if count:
        RemoveDeadCode()(model)
    return count


class _Writer:
    """Adds integers to one model."""

    def __init__(self, model: ir.Model, limits: Quantization, half: bool) -> None:
        self._model, self._limits, self._half = model, limits, half
        self._namer = Namer(model)
        self._made: dict[tuple[ir.Value, int | None, ir.Graph], ir.Value] = {}

    def write(self, inside: _Inside, place: int) -> None:
        node, value = inside.node, inside.node.inputs[place]
        axis = channels_axis(node)
        if value is None:
            return
        graph, before = self._place(inside)
        key = (value, axis, graph)
        if key not in self._made:
            made = store(array_of(value), axis, name=value.name or "weights", half=self._half)
            self._made[key] = self._dequantized(value, made, graph, before)
            mark(self._made[key], "float")
        node.replace_input_with(place, self._made[key])

    def _place(self, inside: _Inside) -> tuple[ir.Graph, ir.Node]:
        """Return where floats are made, and before which node.

        A loop's turn should not make them again; what a branch that is not taken reads is not made.
        """
        graph, before = inside.graph, inside.graph[0]
        if self._limits.bodies == "inside":
            return graph, before
        for owner, around in inside.owners:
            if owner.op_type in _LOOPS:
                graph, before = around, around[0]
        return graph, before

    def _dequantized(
        self, value: ir.Value, stored: StoredIntegers, graph: ir.Graph, before: ir.Node
    ) -> ir.Value:
        name, main = value.name or "weights", self._model.graph
        arrays = {"int": stored.values, "scale": stored.scale}
        if not self._limits.bare_weights:
            arrays["zero"] = np.zeros(stored.scale.shape, stored.values.dtype)
        # ONNX Runtime looks for the integers in the graph that makes floats of them.
        home = main if self._limits.bodies == "inside" else graph
        operands = [
            add_initializer(home, self._namer.fresh(f"{name}.{part}"), array)
            for part, array in arrays.items()
        ]
        attributes = {} if stored.axis is None else {"axis": stored.axis}
        node = ir.node("DequantizeLinear", operands, attributes)
        out = node.outputs[0]
        out.name = node.name = self._namer.fresh(f"{name}.dq")
        out.type, out.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(stored.values.shape)
        graph.insert_before(before, node)
        return out


def left(
    model: ir.Model, limits: Quantization, kept: AbstractSet[str] = frozenset()
) -> tuple[Left, ...]:
    """List the weights in bodies that are float in a written graph, each once."""
    found: dict[ir.Value, Left] = {}
    for inside in _inside(model.graph):
        node = inside.node
        for value in node.inputs:
            tensor = constant(value)
            if value is None or tensor is None or value in found or not _is_float(tensor):
                continue
            if tensor.size < LEAST or len(tensor.shape) < 2 or node.op_type == "DequantizeLinear":
                continue
            why = _why(node, limits, kept)
            body = inside.owners[0][0].op_type
            found[value] = Left(node.name or "", node.op_type, body, tensor.nbytes, why)
    return tuple(found.values())


def _is_float(tensor: ir.TensorProtocol) -> bool:
    return tensor.dtype in (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def _why(node: ir.Node, limits: Quantization, kept: AbstractSet[str]) -> str:
    if (node.name or "") in kept:
        return "the accuracy budget needs them"
    if node.op_type not in WEIGHTED:
        return f"{node.op_type} has stored weights in the main graph only"
    if not limits.bodies:
        return "the profile names no form in which its engine runs stored weights in a body"
    if limits.flat and not is_flat(node):
        return "the engine's kernel takes floats only in this form"
    return "too few for integers to be smaller"


def summary(found: tuple[Left, ...]) -> str:
    """Say how many bytes stayed float in bodies, and why; empty where none did."""
    if not found:
        return ""
    total = sum(x.nbytes for x in found)
    whys: dict[str, list[Left]] = {}
    for one in found:
        whys.setdefault(one.why, []).append(one)
    parts = "; ".join(
        f"{why} ({', '.join(dict.fromkeys(x.op for x in group))}, "
        f"{sum(x.nbytes for x in group):,} bytes)"
        for why, group in whys.items()
    )
    kinds = ", ".join(sorted({x.body for x in found}))
    return f"{total:,} bytes of weights in bodies of {kinds} stayed float: {parts}"
