"""The pass that replaces what patterns match, and what its replacements are built with."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.passes.infra import Namer, PassOutcome, all_nodes, outcome
from edgeinfer.convert.passes.match import Match, Pattern
from edgeinfer.types import Array

FLOATS = frozenset({ir.DataType.FLOAT})
"""Types that fusions work in. In half precision the roundings inside a pattern are as large as the
differences that users can see, unless the formula is one that is computed in single precision
(``verify.beyond_half``); for double precision the engines have no fused kernels."""


class ReplacementBuilder:
    """Collects the nodes and constants of one replacement; only ``commit`` changes the graph."""

    def __init__(self, namer: Namer, base: str) -> None:
        self._namer, self._base = namer, base
        self.nodes: list[ir.Node] = []
        self.constants: list[ir.Value] = []

    def op(self, op_type: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        """Add a node of the default domain and return its first output."""
        node = ir.node(op_type, inputs, attributes, name=self._base)
        self.nodes.append(node)
        return node.outputs[0]

    def const(self, data: Array, hint: str) -> ir.Value:
        """Return a new constant, to be an initializer of the main graph."""
        name = self._namer.fresh(f"{self._base}.{hint}")
        tensor = ir.tensor(np.ascontiguousarray(data) if data.ndim else data, name=name)
        value = ir.Value(
            name=name,
            shape=ir.Shape(data.shape),
            type=ir.TensorType(tensor.dtype),
            const_value=tensor,
        )
        self.constants.append(value)
        return value

    def computed(
        self, compute: Callable[[], Array], like: ir.TensorProtocol, hint: str
    ) -> ir.Value:
        """Return a new constant of the type and shape of another, computed whenever it is read.

        Folding the weights of a whole model would hold them in memory a second time.
        """
        name = self._namer.fresh(f"{self._base}.{hint}")
        tensor = ir.LazyTensor(
            lambda: ir.tensor(compute(), name=name),
            dtype=like.dtype,
            shape=ir.Shape(like.shape.numpy()),
            name=name,
        )
        value = ir.Value(
            name=name,
            shape=ir.Shape(like.shape.numpy()),
            type=ir.TensorType(like.dtype),
            const_value=tensor,
        )
        self.constants.append(value)
        return value

    def commit(self, main: ir.Graph, root: ir.Node) -> None:
        """Put the nodes in the place of ``root``; the last one takes over its value's name."""
        graph, old = root.graph, root.outputs[0]
        if graph is None:
            raise ValueError(f"node {root.name!r} is in no graph")
        self._name(main, self.nodes[:-1])
        ir.convenience.replace_nodes_and_values(
            graph, root, [root], self.nodes, [old], [self.nodes[-1].outputs[0]]
        )

    def insert(self, main: ir.Graph, before: ir.Node) -> None:
        """Put the nodes before another one, which stays."""
        if before.graph is None:
            raise ValueError(f"node {before.name!r} is in no graph")
        self._name(main, self.nodes)
        before.graph.insert_before(before, self.nodes)

    def _name(self, main: ir.Graph, nodes: Sequence[ir.Node]) -> None:
        for value in self.constants:
            main.register_initializer(value)
        for node in nodes:
            node.name = None
            for out in node.outputs:
                out.name = self._namer.fresh(f"{self._base}.{node.op_type}")


class Fusion(ir.passes.InPlacePass):
    """Replaces every match of ``patterns`` by what ``fuse`` builds.

    Attributes:
        patterns: tried one after the other, each on the whole model.
        dtypes: types of the value that is replaced.
        since: opset that has the fused operator; older models are left alone.
    """

    patterns: ClassVar[tuple[Pattern, ...]]
    since: ClassVar[int] = 1
    dtypes: ClassVar[frozenset[ir.DataType]] = FLOATS

    @abc.abstractmethod
    def fuse(self, match: Match, out: ir.Value, build: ReplacementBuilder) -> bool:
        """Build the nodes that compute ``out`` anew, its own last; False leaves all as it is."""

    def call(self, model: ir.Model) -> PassOutcome:
        """Try every node as the end of a match, pattern by pattern, until nothing matches."""
        if model.opset_imports.get("", 0) < self.since:
            return outcome(model, 0)
        roots = frozenset(op for pattern in self.patterns for op in pattern.roots)
        if not any(node.op_type in roots for node in all_nodes(model)):
            return outcome(model, 0)
        namer, count = Namer(model), 0
        while found := sum(self._search(pattern, model, namer) for pattern in self.patterns):
            count += found
        return outcome(model, count)

    def _search(self, pattern: Pattern, model: ir.Model, namer: Namer) -> int:
        count = 0
        for node in all_nodes(model):
            fits = node.graph is not None and not node.domain and node.op_type in pattern.roots
            if fits and len(node.outputs) == 1 and node.outputs[0].dtype in self.dtypes:
                count += self._rewrite(pattern, node, model.graph, namer)
        return count

    def _rewrite(self, pattern: Pattern, root: ir.Node, main: ir.Graph, namer: Namer) -> bool:
        out = root.outputs[0]
        for match in pattern.match(out, Match()):
            build = ReplacementBuilder(namer, out.name or root.op_type)
            if exclusive(root, match) and self.fuse(match, out, build):
                before = [p for v in root.inputs if v is not None and (p := v.producer())]
                build.commit(main, root)
                sweep(before)
                return True
        return False


def exclusive(root: ir.Node, match: Match) -> bool:
    """Whether all inner values are used by the match only, in the graph of its root."""
    inside = set(match.nodes)
    for node in inside - {root}:
        if node.graph is not root.graph:
            return False
        for out in node.outputs:
            if out.is_graph_output() or any(user not in inside for user, _ in out.uses()):
                return False
    return True


def sweep(nodes: Iterable[ir.Node]) -> None:
    """Remove those of the nodes that nobody reads any more, and then those that only they read."""
    left = list(nodes)
    while left:
        node = left.pop()
        graph = node.graph
        if graph is None or any(o.is_graph_output() or o.uses() for o in node.outputs):
            continue
        left += [p for v in node.inputs if v is not None and (p := v.producer())]
        graph.remove(node, safe=True)
