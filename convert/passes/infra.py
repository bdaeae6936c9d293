"""What every pass shares: its result, and safe steps to read and change a graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import onnx_ir as ir

from edgeinfer.records import dataclass
from edgeinfer.types import Array

DEFAULT_DOMAINS = frozenset({"", "ai.onnx"})
SMALL_BYTES = 4096
"""Tensors up to this size are read freely; larger ones only when a pass needs the values."""

_BODIES = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


@dataclass
class PassOutcome(ir.passes.PassResult):
    """A pass's result, with what it changed.

    Attributes:
        count: number of changes, in the pass's own unit.
        notes: lines for the report beyond the count.
    """

    count: int = 0
    notes: tuple[str, ...] = ()


def outcome(model: ir.Model, count: int, *notes: str) -> PassOutcome:
    """Build the result of an in-place pass from its number of changes."""
    return PassOutcome(model, modified=count > 0, count=count, notes=notes)


def all_nodes(model: ir.Model) -> list[ir.Node]:
    """List the nodes of the main graph and of every subgraph, so that passes may edit meanwhile."""
    return [n for graph in walk(model.graph) for n in graph]


def is_op(node: ir.Node | None, *op_types: str) -> bool:
    """Whether a node is one of these operators of the default domain."""
    return node is not None and node.domain in DEFAULT_DOMAINS and node.op_type in op_types


def attr(node: ir.Node, name: str, default: Any = None) -> Any:
    """Value of an attribute, or the default; strings are str, lists are tuples."""
    found = node.attributes.get(name)
    if found is None or found.is_ref():
        return default
    value = found.value
    return tuple(value) if isinstance(value, list) else value


def has_subgraph(node: ir.Node) -> bool:
    """Whether the node carries a body (If, Loop, Scan, SequenceMap)."""
    return any(a.type in _BODIES for a in node.attributes.data.values())


def bodies(node: ir.Node) -> list[ir.Graph]:
    """The node's subgraphs, of one level."""
    found: list[ir.Graph] = []
    # The dictionary below its class: every walk over a model comes here for each node.
    for a in node.attributes.data.values():
        if a.type in _BODIES:
            found.extend([a.as_graph()] if a.type == ir.AttributeType.GRAPH else a.as_graphs())
    return found


def input_at(node: ir.Node, index: int) -> ir.Value | None:
    """The input, or None where it is left out."""
    return node.inputs[index] if index < len(node.inputs) else None


def used_outputs(node: ir.Node) -> list[ir.Value]:
    """Outputs that something reads."""
    return [o for o in node.outputs if o.uses() or o.is_graph_output()]


def constant(value: ir.Value | None) -> ir.TensorProtocol | None:
    """The tensor of a value that no run can change; None for anything else."""
    if value is None or value.is_graph_input():
        return None
    if value.is_initializer():
        return value.const_value
    producer = value.producer()
    if is_op(producer, "Constant") and producer is not None and "value" in producer.attributes:
        return producer.attributes["value"].as_tensor()
    return None


def small(value: ir.Value | None) -> Array | None:
    """The array of a small constant of an ordinary dtype, else None."""
    tensor = constant(value)
    if tensor is None or tensor.nbytes > SMALL_BYTES or tensor.dtype == ir.DataType.STRING:
        return None
    return np.asarray(tensor.numpy())


def ints(value: ir.Value | None) -> list[int] | None:
    """The integers of a small constant, flattened."""
    array = small(value)
    if array is None or array.dtype.kind not in "iu":
        return None
    return [int(v) for v in array.ravel()]


def rank(value: ir.Value | None) -> int | None:
    """Number of axes when known."""
    return None if value is None or value.shape is None else len(value.shape)


def dims_of(value: ir.Value) -> list[int | ir.SymbolicDim]:
    """The sizes of a value of known rank; empty for a scalar and where the rank is unknown."""
    return [] if value.shape is None else list(value.shape.copy())


def same_dim(a: int | ir.SymbolicDim, b: int | ir.SymbolicDim) -> bool:
    """Whether two sizes are equal in every run."""
    if isinstance(a, int) or isinstance(b, int):
        return isinstance(a, int) and isinstance(b, int) and a == b
    return a.value is not None and a.value == b.value


def same_shape(a: ir.Value, b: ir.Value) -> bool:
    """Whether two values have equal shapes in every run."""
    if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
        return False
    return all(same_dim(x, y) for x, y in zip(a.shape, b.shape, strict=True))


def static_shape(value: ir.Value | None) -> tuple[int, ...] | None:
    """The shape when every size is known."""
    if value is None or value.shape is None:
        return None
    dims = tuple(d for d in value.shape if isinstance(d, int))
    return dims if len(dims) == len(value.shape) else None


def taken_names(model: ir.Model) -> set[str]:
    """Every value name in the model, subgraphs included."""
    names: set[str] = set()
    for graph in walk(model.graph):
        names.update(v.name for v in graph.inputs if v.name)
        names.update(graph.initializers)
        names.update(o.name for n in graph for o in n.outputs if o.name)
    return names


class Namer:
    """Gives names that no value of the model has, not even in a subgraph.

    The model is looked at when the first name is requested: most passes change nothing.
    """

    def __init__(self, model: ir.Model) -> None:
        self._model = model

    @cached_property
    def _taken(self) -> set[str]:
        return taken_names(self._model)

    def fresh(self, base: str) -> str:
        """Return ``base`` or the first free ``base_N``."""
        name, n = base, 0
        while name in self._taken:
            n += 1
            name = f"{base}_{n}"
        self._taken.add(name)
        return name


def add_initializer(graph: ir.Graph, name: str, array: Array | ir.TensorProtocol) -> ir.Value:
    """Register a constant in a graph; the name must be free."""
    # Arithmetic of arrays without axes gives numbers.
    if isinstance(array, np.ndarray | np.generic):
        tensor: ir.TensorProtocol = ir.tensor(np.asarray(array), name=name)
    else:
        tensor = array
    value = ir.Value(
        name=name,
        shape=ir.Shape(tensor.shape.numpy()),
        type=ir.TensorType(tensor.dtype),
        const_value=tensor,
    )
    graph.register_initializer(value)
    return value


def replace_value(old: ir.Value, new: ir.Value) -> bool:
    """Make every reader of ``old`` read ``new``; graph outputs keep their name and declared type.

    Returns:
        False, with nothing changed, where the name of a graph output would be lost: ``new`` is an
        input, an initializer, an output already or lives in another graph.
    """
    if old is new:
        return False
    if not old.is_graph_output():
        _keep_shape(old, new)
        old.replace_all_uses_with(new)
        return True
    producer = new.producer()
    if producer is None or new.is_graph_output() or producer.graph is not old.graph:
        return False
    _keep_shape(old, new)
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    name, old.name = old.name, None
    new.name = name
    return True


def _keep_shape(old: ir.Value, new: ir.Value) -> None:
    """Let the surviving value know what was known of the other one."""
    if new.type is None:
        new.type = old.type
    if old.shape is None:
        return
    if new.shape is None:
        new.shape = old.shape.copy()
    elif len(new.shape) == len(old.shape) and not new.is_graph_input():
        dims = [_better(a, b) for a, b in zip(dims_of(new), dims_of(old), strict=True)]
        new.shape = ir.Shape(dims)


def _better(mine: int | ir.SymbolicDim, other: int | ir.SymbolicDim) -> int | ir.SymbolicDim:
    if isinstance(mine, int):
        return mine
    if isinstance(other, int) or mine.value is None:
        return other
    return mine


def remove_node(node: ir.Node) -> None:
    """Take a node whose outputs nobody reads out of its graph."""
    graph = node.graph
    if graph is None:
        raise ValueError(f"node {node.name!r} is in no graph")
    graph.remove(node, safe=True)


def replace_node(
    node: ir.Node, new_nodes: Sequence[ir.Node], outputs: Sequence[ir.Value | None]
) -> None:
    """Put ``new_nodes`` in the place of ``node``.

    Args:
        node: the node that goes.
        new_nodes: in topological order; not in a graph yet.
        outputs: one per output of ``node``, made by ``new_nodes``; None where nobody reads it.
    """
    graph = node.graph
    if graph is None:
        raise ValueError(f"node {node.name!r} is in no graph")
    graph.insert_before(node, new_nodes)
    for old, new in zip(node.outputs, outputs, strict=True):
        if new is None:
            continue
        # The declared type is kept: the new node computes the same value.
        new.type, new.shape = old.type, None if old.shape is None else old.shape.copy()
        name = old.name
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        old.name = None
        new.name = name
    graph.remove(node, safe=True)


def walk(graph: ir.Graph) -> Iterator[ir.Graph]:
    """The graph and all graphs below it."""
    yield graph
    for node in graph:
        for body in bodies(node):
            yield from walk(body)
