"""Parts of a graph that may be faster as code of their own, the most promising first.

What a part costs the engine is measured, what its code would cost is guessed: products at the
speed that the engine reaches or somewhat less, everything else by the bytes that go in and out of
the part, since what is fused stays in the cache. The guess only says what is tried first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from math import prod

import onnx_ir as ir

from edgeinfer.convert.lower.single import has_subgraph
from edgeinfer.records import dataclass

_MOST_NODES = 2000
"""Of a graph that is looked at; ways between nodes take the square of it in bits."""

_MOST_IN_REGION = 150

_CALL_US = 0.3
"""What a region's call costs, whatever it does."""

_BYTES_PER_US = 8000.0

_PRODUCTS = frozenset({"Conv", "ConvTranspose", "MatMul", "Gemm", "Einsum"})
_RECURRENT = frozenset({"LSTM", "GRU", "RNN"})
_SMALL_US = 12.0
"""Products that take the engine less are calls more than arithmetic."""

_DOUBT, _DOUBT_OF_CONV = 0.3, 1.0
"""Of the engine's time of products: a part with them has to promise so much more to come first."""

_SHARES = {"small": 0.7, "product": 1.1, "recurrent": 0.5, "other": 0.35}
"""What the engine's time of an operator shrinks to, by what it is; of others, with the bytes."""

_UNFIT = frozenset({"Shape", "Size", "NonZero", "Unique", "NonMaxSuppression", "RandomNormal"})


@dataclass(frozen=True, slots=True)
class RegionCandidate:
    """A part of a graph.

    Attributes:
        nodes: in the graph's order.
        engine_us: what they take in the engine, as far as it says.
        doubt_us: how much of that it is not likely to save.
        gain_us: what is hoped for.
    """

    nodes: tuple[ir.Node, ...]
    engine_us: float
    doubt_us: float
    gain_us: float

    @property
    def title(self) -> str:
        """Name it for people."""
        names = [n.name or n.op_type for n in self.nodes]
        ends = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
        return f"{len(names)} operators, {ends}" if len(names) > 1 else f"operator {ends}"


@dataclass(slots=True)
class _Graph:
    """A graph with who comes before whom, as bits."""

    nodes: list[ir.Node]
    place: dict[ir.Node, int]
    before: list[int] = field(default_factory=list)
    after: list[int] = field(default_factory=list)

    def near(self, members: int) -> Iterator[int]:
        """Nodes next to a part, outside of it."""
        seen = members
        for index in _bits(members):
            node = self.nodes[index]
            for other in (*node.predecessors(), *node.successors()):
                there = self.place.get(other)
                if there is not None and not seen >> there & 1:
                    seen |= 1 << there
                    yield there

    def between(self, members: int) -> int:
        """Nodes on ways that lead out of a part and back into it."""
        before = after = 0
        for index in _bits(members):
            before |= self.before[index]
            after |= self.after[index]
        return before & after & ~members


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def find(
    model: ir.Model, engine_us: Mapping[str, float], supported: Iterable[ir.Node]
) -> list[RegionCandidate]:
    """List parts that may be worth a try, of which one may hold another.

    Args:
        model: with sizes of all values, as far as they are known.
        engine_us: microseconds that the engine takes for an operator, by the node's name.
        supported: nodes that code can be written for.
    """
    nodes = list(model.graph)
    if len(nodes) > _MOST_NODES:
        return []
    graph = _linked(nodes)
    fit = {graph.place[n] for n in supported if _is_fit(n)}
    gain = {i: _gain(nodes[i], engine_us.get(nodes[i].name or "", 0.0)) for i in fit}
    found = dict.fromkeys(_all_grown(graph, gain))
    for members in list(found):
        found.setdefault(_joined(graph, members, gain))
    plain = {i: gain[i] for i in fit if not is_product(nodes[i])}
    found |= dict.fromkeys(_all_grown(graph, plain))
    made = [_candidate(graph, members, engine_us, gain) for members in found]
    return sorted((c for c in made if c.gain_us > 0), key=lambda c: c.doubt_us - c.gain_us)


def whole(
    model: ir.Model, engine_us: Mapping[str, float], supported: Iterable[ir.Node]
) -> RegionCandidate | None:
    """Return all of a graph as one part; None where some of it does not fit or it is too large."""
    nodes = tuple(model.graph)
    fit = {n for n in supported if _is_fit(n)}
    if not nodes or len(nodes) > _MOST_IN_REGION or not fit.issuperset(nodes):
        return None
    return RegionCandidate(nodes, sum(engine_us.values()), 0.0, 0.0)


def _linked(nodes: list[ir.Node]) -> _Graph:
    graph = _Graph(nodes, {n: i for i, n in enumerate(nodes)})
    graph.before = [0] * len(nodes)
    graph.after = [0] * len(nodes)
    for index, node in enumerate(nodes):
        for value in _read(node):
            there = graph.place.get(value)
            if there is not None:
                graph.before[index] |= graph.before[there] | 1 << there
    for index in reversed(range(len(nodes))):
        for value in _read(nodes[index]):
            there = graph.place.get(value)
            if there is not None:
                graph.after[there] |= graph.after[index] | 1 << index
    return graph


def _read(node: ir.Node) -> set[ir.Node]:
    """Nodes whose results a node reads, in its bodies too."""
    found = set(node.predecessors())
    if has_subgraph(node):
        for attribute in node.attributes.values():
            graphs: list[ir.Graph] = []
            if attribute.type == ir.AttributeType.GRAPH:
                graphs = [attribute.as_graph()]
            elif attribute.type == ir.AttributeType.GRAPHS:
                graphs = list(attribute.as_graphs())
            for graph in graphs:
                for inner in ir.traversal.RecursiveGraphIterator(graph):
                    found.update(inner.predecessors())
    return found


def _is_fit(node: ir.Node) -> bool:
    """Whether all sizes are fixed and something is computed."""
    if node.op_type in _UNFIT or has_subgraph(node):
        return False
    values = [v for v in (*node.inputs, *node.outputs) if v is not None and v.name]
    return all(sizes(v) is not None and v.dtype is not None for v in values)


def sizes(value: ir.Value) -> tuple[int, ...] | None:
    """The fixed sizes of a value; None if any is open."""
    if value.shape is None:
        return None
    found = tuple(d for d in value.shape if isinstance(d, int))
    return found if len(found) == len(value.shape) and all(found) else None


def is_product(node: ir.Node) -> bool:
    """Whether it multiplies matrices, which engines do well."""
    return node.op_type in _PRODUCTS


def _kind(node: ir.Node, us: float) -> str:
    if node.op_type in _RECURRENT:
        return "recurrent"
    if is_product(node):
        return "small" if us < _SMALL_US else "product"
    return "other"


def _gain(node: ir.Node, us: float) -> float:
    kind = _kind(node, us)
    own = us * _SHARES[kind]
    if kind == "other":
        moved = sum(_bytes(v) for v in node.outputs if v.name)
        own = max(own, moved / _BYTES_PER_US) if us else 0.0
    return us - own


def _bytes(value: ir.Value) -> float:
    shape = sizes(value)
    return prod(shape) * value.dtype.itemsize if shape and value.dtype else 0.0


def _all_grown(graph: _Graph, gain: Mapping[int, float]) -> list[int]:
    """Grow parts from all nodes that promise something, without overlap."""
    found, taken = [], 0
    for seed in sorted(gain, key=lambda i: -gain[i]):
        if not taken >> seed & 1 and gain[seed] > 0:
            found.append(_grown(graph, seed, gain, taken))
            taken |= found[-1]
    return found


def _grown(graph: _Graph, seed: int, gain: Mapping[int, float], taken: int) -> int:
    """Add neighbours that cost nothing, as long as no way leads out and back in."""
    members, tried = 1 << seed, taken | 1 << seed
    todo = sorted(graph.near(members), key=lambda i: -gain.get(i, -1.0))
    while todo and members.bit_count() < _MOST_IN_REGION:
        index = todo.pop(0)
        if tried >> index & 1 or gain.get(index, -1.0) < 0:
            continue
        tried |= 1 << index
        wider = members | 1 << index
        wider |= graph.between(wider)
        if wider & taken or any(gain.get(i, -1.0) < 0 for i in _bits(wider)):
            continue
        members = wider
        tried |= wider
        todo.extend(graph.near(members))
    return members


def _joined(graph: _Graph, members: int, gain: Mapping[int, float]) -> int:
    """Grow a part over nodes that cost something, as long as the sum of it grows."""
    best = members
    total = sum(gain[i] for i in _bits(members))
    for index in list(graph.near(members)):
        if index not in gain:
            continue
        wider = best | 1 << index
        for further in list(graph.near(wider)):
            if gain.get(further, -1.0) >= 0:
                wider |= 1 << further
        wider |= graph.between(wider)
        if any(i not in gain for i in _bits(wider)) or wider.bit_count() > _MOST_IN_REGION:
            continue
        made = sum(gain[i] for i in _bits(wider))
        if made > total:
            best, total = wider, made
    return best


def _candidate(
    graph: _Graph, members: int, engine_us: Mapping[str, float], gain: Mapping[int, float]
) -> RegionCandidate:
    nodes = tuple(graph.nodes[i] for i in _bits(members))
    us = [engine_us.get(n.name or "", 0.0) for n in nodes]
    doubts = sum(t * _doubt(n) for n, t in zip(nodes, us, strict=True))
    return RegionCandidate(nodes, sum(us), doubts, sum(gain[i] for i in _bits(members)) - _CALL_US)


def _doubt(node: ir.Node) -> float:
    if not is_product(node):
        return 0.0
    return _DOUBT_OF_CONV if node.op_type.startswith("Conv") else _DOUBT
