"""Which vectors onnx's inference may follow: what sizes are made of, not whatever is a vector.

Where it follows what vectors hold, onnx 1.23 keeps 70 to 150 bytes for each element that such an
operator takes or makes, known or not, and a length may follow from another vector. So their inputs
are hidden, which is to say that they have no length, unless they are known before to be short.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator

import onnx

from edgeinfer.records import dataclass

_LONGEST = 256
"""Elements that an operator may take to be followed; no tensor has so many sizes."""

_MOST = 1 << 18
"""Elements that all operators of a model may take."""


@functools.cache
def _is_followed(op: str) -> bool:
    """Whether onnx follows what an operator takes, itself or the operators it consists of.

    All schemas at once would take a tenth of a second.
    """
    version = onnx.defs.onnx_opset_version()
    while version and onnx.defs.has(op, version):
        schema = onnx.defs.get_schema(op, version)
        # These two look at shapes alone.
        if schema.has_data_propagation_function and op not in ("Shape", "Size"):
            return True
        consists = schema.has_function or schema.has_context_dependent_function
        if consists and not schema.has_type_and_shape_inference_function:
            return True
        version = schema.since_version - 1
    return False


_OF_ALL = frozenset({"Add", "Concat", "Mul", "Sub"})
"""Operators that make something only of what all their inputs hold; the others go by the first."""

_HIDDEN = "edgeinfer_hidden_"


@dataclass(frozen=True, slots=True)
class Hidden:
    """What ``hide`` did.

    Attributes:
        operands: numbers of the graph, the node and the input.
        unknown: those of them whose length may be found yet.
    """

    operands: tuple[tuple[int, int, int], ...]
    unknown: frozenset[tuple[int, int, int]]


class _Scope:
    """What is known of the values that the nodes of a graph may take."""

    def __init__(self, graph: onnx.GraphProto, outer: _Scope | None) -> None:
        self._outer = outer
        self._followed: dict[str, int] = {}
        # A name of this graph is never the outer one's, though nothing is known of it.
        none = onnx.TypeProto()
        self._types = {name: none for node in graph.node for name in node.output}
        for tensor in graph.initializer:
            kind = onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
            self._types[tensor.name] = kind
        for info in (*graph.input, *graph.value_info, *graph.output):
            if info.type.WhichOneof("value") is not None:
                self._types[info.name] = info.type

    def kind(self, name: str) -> onnx.TypeProto:
        """Return what is known of a value."""
        scope: _Scope | None = self
        while scope is not None:
            if name in scope._types:
                return scope._types[name]
            scope = scope._outer
        return onnx.TypeProto()

    def size(self, name: str) -> int | None:
        """Return how many elements are kept of a value; None where they may be any number."""
        if not name:
            return 0
        scope: _Scope | None = self
        while scope is not None:
            if name in scope._followed:
                return scope._followed[name]
            if name in scope._types:
                return _length(scope._types[name])
            scope = scope._outer
        return None

    def follow(self, name: str, most: int) -> None:
        """Learn that a value is made of values that are followed."""
        if _length(self._types[name]) in (0, None):
            self._followed[name] = most


def hide(model: onnx.ModelProto) -> Hidden:
    """Hide what is too long to be followed, or may turn out to be; ``show`` takes that back.

    Args:
        model: with what was inferred of it so far; it is changed.
    """
    operands, unknown, left = [], set(), _MOST
    for number, (graph, scope) in enumerate(_scopes(model.graph, None)):
        hidden: dict[str, onnx.TypeProto] = {}
        for index, node in enumerate(graph.node):
            if not _is_followed(node.op_type):
                continue
            sizes = [scope.size(name) for name in node.input]
            most = sum(size or 0 for size in sizes)
            if None not in sizes and most <= min(_LONGEST, left):
                left -= most
                if 0 not in (sizes if node.op_type in _OF_ALL else sizes[:1]):
                    for name in node.output:
                        scope.follow(name, most)
                continue
            for at, (name, size) in enumerate(zip(node.input, sizes, strict=True)):
                if size != 0:
                    hidden[name] = scope.kind(name)
                    node.input[at] = _HIDDEN + name
                    operands.append((number, index, at))
                    if size is None:
                        unknown.add(operands[-1])
        graph.value_info.extend(_without_length(hidden))
    return Hidden(tuple(operands), frozenset(unknown))


def show(model: onnx.ModelProto, hidden: Hidden) -> None:
    """Bring back into a model what was hidden in it."""
    graphs = list(graphs_of(model.graph))
    for number, index, at in hidden.operands:
        node = graphs[number].node[index]
        node.input[at] = node.input[at].removeprefix(_HIDDEN)
    for graph in graphs:
        kept = [info for info in graph.value_info if not info.name.startswith(_HIDDEN)]
        if len(kept) < len(graph.value_info):
            del graph.value_info[:]
            graph.value_info.extend(kept)


def graphs_of(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and all graphs in it."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                if body.node:
                    yield from graphs_of(body)


def _scopes(
    graph: onnx.GraphProto, outer: _Scope | None
) -> Iterator[tuple[onnx.GraphProto, _Scope]]:
    """Yield the same graphs, with what is known in them."""
    scope = _Scope(graph, outer)
    yield graph, scope
    for node in graph.node:
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                if body.node:
                    yield from _scopes(body, scope)


def _length(kind: onnx.TypeProto) -> int | None:
    """Return how many elements onnx takes a value to hold, by its type alone."""
    if kind.WhichOneof("value") not in (None, "tensor_type"):
        return 0
    if not kind.tensor_type.HasField("shape"):
        return None
    dims = kind.tensor_type.shape.dim
    if len(dims) != 1:
        # What has more axes holds nothing, unless it is made of what does.
        return 0 if dims else 1
    return max(dims[0].dim_value, 0) if dims[0].HasField("dim_value") else None


def _without_length(hidden: dict[str, onnx.TypeProto]) -> Iterable[onnx.ValueInfoProto]:
    """Say of values what is known of them, but not how long a vector is."""
    for name, kind in hidden.items():
        if kind.WhichOneof("value") is not None:
            info = onnx.ValueInfoProto(name=_HIDDEN + name, type=kind)
            if len(info.type.tensor_type.shape.dim) == 1:
                info.type.tensor_type.shape.dim[0].Clear()
            yield info
