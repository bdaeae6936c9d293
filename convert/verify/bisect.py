"""Where it goes wrong: the first diverging node, and the smallest sub-model that still fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.verify.evaluate import CannotEvaluate, Evaluator
from edgeinfer.convert.verify.finding import Finding
from edgeinfer.convert.verify.locate import all_values, disputed_node
from edgeinfer.convert.verify.submodel import ancestors, extract, part_inputs, part_outputs
from edgeinfer.errors import CrashedError, EdgeInferError
from edgeinfer.metrics import Budget, OutputMetrics, check, compare
from edgeinfer.types import Array, Feeds

LowerAndRun = Callable[[ir.Model, Feeds], Mapping[str, Array]]
"""Lower a (sub-)model, load it in the engine, run it once; outputs by name."""

_SMALL = 10
"""A failing part of so many nodes points at a fault, a larger one at rounding that grows."""

_CHECKPOINTS = 6

_EVALUATION_S = 60.0


def explain(
    model: ir.Model,
    feeds: Feeds,
    lower_and_run: LowerAndRun,
    budget: Budget,
    *,
    seconds: float = 120.0,
) -> Finding:
    """Find the node that a lowering or an engine gets wrong.

    Args:
        model: the normalised graph that was lowered; it is not modified.
        feeds: the vector that failed.
        lower_and_run: computes a sub-model the way the failing variant does.
        budget: the variant's.
        seconds: when to stop narrowing down.
    """
    values, wide = oracle_values(model, feeds)
    if not values:
        return Finding(note="no oracle can run the normalised graph, so no node can be named")
    search = _Search(model, values, wide, lower_and_run, budget, time.monotonic() + seconds)
    nodes = search.nodes
    if not search.fails(nodes, part_outputs(model.graph, nodes)):
        if search.refused:
            return Finding(note=f"not reproduced: {search.refused}")
        return Finding(note=_elsewhere(model, feeds, budget, values, wide))
    end = search.first_failing_prefix()
    start, outputs = search.last_failing_start(end)
    kept, target = search.shrink(nodes[start:end], outputs)
    late = "" if time.monotonic() < search.until else "; stopped by the time limit"
    if not late and len(kept) > _SMALL:
        late = "; no small part fails by itself: the error builds up over many nodes"
    return search.finding(nodes[end - 1], nodes[start], kept, target, f"reproduced{late}")


def _elsewhere(
    model: ir.Model,
    feeds: Feeds,
    budget: Budget,
    values: Mapping[str, Array],
    wide: Mapping[str, Array],
) -> str:
    """Say where the difference to the source is, when the engine does as the graph's oracle."""
    gives = "the engine gives what the normalised graph says"
    node = disputed_node(model, feeds, budget)
    if node:
        return f"the engine computes {node} as ONNX Runtime does, which its definition does not"
    outputs = [str(v.name) for v in model.graph.outputs if str(v.name) in wide]
    apart = [compare(values[n], wide[n].astype(values[n].dtype)) for n in outputs]
    if any(check(m, budget) for m in apart):
        return f"{gives} in float32, and float64 says otherwise: rounding that grows in this model"
    if node is None:
        # The graph's oracle is ONNX Runtime, whose own faults look the same.
        return f"{gives} by ONNX Runtime, and nothing else here can run all of that graph"
    return f"{gives}, which is not what the source gives: a pass changed it"


class _Search:
    """Asks the engine about parts of the graph, fed with what the oracle computed before them.

    Every step keeps one invariant, that the part at hand fails, so the result is a failing part
    even where divergence comes, vanishes and comes again along the graph.
    """

    def __init__(
        self,
        model: ir.Model,
        values: dict[str, Array],
        wide: dict[str, Array],
        lower_and_run: LowerAndRun,
        budget: Budget,
        until: float,
    ) -> None:
        self.nodes: list[ir.Node] = list(model.graph)
        self.until = until
        self.refused = ""
        self._model, self._values = model, values
        self._lower_and_run, self._budget = lower_and_run, budget
        self._wide = wide

    def fails(
        self, nodes: Sequence[ir.Node], outputs: Sequence[ir.Value]
    ) -> dict[str, tuple[str, ...]]:
        """Return what leaves the budget, by output name; empty when all is well or unknown."""
        inputs = part_inputs(nodes)
        outputs = [v for v in outputs if isinstance(self._values.get(str(v.name)), np.ndarray)]
        if not nodes or not outputs or not all(str(v.name) in self._values for v in inputs):
            return {}
        part = extract(self._model, inputs, outputs, self._values)
        try:
            given = {str(v.name): self._values[str(v.name)] for v in inputs}
            results = self._lower_and_run(part, given)
        except CrashedError as e:
            if e.by_fault:
                line = f"{e.engine} ends its process, to {e.stage}: {e.how}"
                return {str(v.name): (line,) for v in outputs}
            self.refused = str(e)
            return {}
        except EdgeInferError as e:
            self.refused = f"a part of the graph cannot be lowered or run: {e}".splitlines()[0]
            return {}
        found = {}
        for value in outputs:
            name = str(value.name)
            if name not in results:
                continue
            budget = self._budget.among([self._values[name]])
            floor = budget.channel_floor
            metrics = compare(self._values[name], results[name], channel_floor=floor)
            breaches = check(metrics, budget)
            if breaches and name in self._wide:
                breaches = check(metrics, budget.widened(self._spread(name)))
            if breaches:
                found[name] = tuple(f"output {name!r}: {b}" for b in breaches)
        return found

    def first_failing_prefix(self) -> int:
        """Return the length of the shortest failing beginning that a search finds."""
        good, bad = self._halve(0, len(self.nodes), self._prefix_fails)
        # Divergence may hide behind a clip and show again: look at some earlier cuts as well.
        for step in range(1, _CHECKPOINTS):
            earlier = good * step // _CHECKPOINTS
            if self._has_time() and earlier > 0 and self._prefix_fails(earlier):
                good, bad = self._halve(0, earlier, self._prefix_fails)
                break
        return bad

    def last_failing_start(self, end: int) -> tuple[int, list[ir.Value]]:
        """Return where the shortest failing part before ``end`` starts, and what it computes."""
        outputs = part_outputs(self._model.graph, self.nodes[:end])
        made = set(self.nodes[end - 1].outputs)
        own = [v for v in outputs if v in made]
        if own and self.fails(self.nodes[:end], own):
            outputs = own

        def passes(start: int) -> bool:
            made = [v for v in outputs if self._made(v, start)]
            return not self.fails(self.nodes[start:end], made)

        start, _ = self._halve(0, end, passes)
        return start, [v for v in outputs if self._made(v, start)]

    def shrink(
        self, nodes: Sequence[ir.Node], outputs: Sequence[ir.Value]
    ) -> tuple[list[ir.Node], ir.Value | None]:
        """Drop nodes, feeding what they made instead, as long as one output still fails."""
        wrong = self.fails(nodes, outputs)
        targets = [v for v in outputs if str(v.name) in wrong]
        parts = [(ancestors(nodes, v), v) for v in targets]
        for kept, target in sorted(parts, key=lambda p: len(p[0])):
            if self.fails(kept, [target]):
                return self._drop(kept, target), target
        return list(nodes), None

    def finding(
        self,
        node: ir.Node,
        cause: ir.Node,
        kept: Sequence[ir.Node],
        target: ir.Value | None,
        note: str,
    ) -> Finding:
        """Put together what was found."""
        outputs = part_outputs(self._model.graph, kept) if target is None else [target]
        inputs = part_inputs(kept)
        breaches = self.fails(kept, outputs)
        return Finding(
            node=node.name or "",
            op=node.op_type,
            cause=cause.name or "",
            nodes=tuple(n.name or n.op_type for n in kept),
            model=extract(self._model, inputs, outputs, self._values),
            inputs={str(v.name): self._values[str(v.name)] for v in inputs},
            expected={str(v.name): self._values[str(v.name)] for v in outputs},
            breaches=tuple(line for lines in breaches.values() for line in lines),
            note=note,
        )

    def _drop(self, kept: list[ir.Node], target: ir.Value) -> list[ir.Node]:
        """Delta debugging (Zeller 1999): drop ever smaller runs of nodes."""
        size = max(1, len(kept) // 2)
        while len(kept) > 1 and self._has_time():
            dropped = False
            for first in range(0, len(kept), size):
                rest = ancestors(kept[:first] + kept[first + size :], target)
                if rest and self._has_time() and self.fails(rest, [target]):
                    kept, dropped = rest, True
                    break
            if not dropped:
                if size == 1:
                    break
                size = max(1, size // 2)
        return kept

    def _prefix_fails(self, length: int) -> bool:
        nodes = self.nodes[:length]
        return bool(self.fails(nodes, part_outputs(self._model.graph, nodes)))

    def _halve(self, low: int, high: int, holds: Callable[[int], bool]) -> tuple[int, int]:
        """Return neighbours between which a condition turns from false at low to true at high."""
        while high - low > 1 and self._has_time():
            middle = (low + high) // 2
            if holds(middle):
                high = middle
            else:
                low = middle
        return low, high

    def _made(self, value: ir.Value, start: int) -> bool:
        node = value.producer()
        return node is not None and node in set(self.nodes[start:])

    def _spread(self, name: str) -> OutputMetrics:
        """Return how far rounding alone moves a value."""
        value, wide = self._values[name], self._wide[name]
        return compare(value, wide.astype(value.dtype))

    def _has_time(self) -> bool:
        return time.monotonic() < self.until


def oracle_values(model: ir.Model, feeds: Feeds) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return every value of the graph, and the same in float64 as far as it can be had.

    The first are ONNX Runtime's, or our evaluation's where it cannot run the graph.
    """
    values = all_values(model, feeds)
    names = {str(v.name): v for n in model.graph for v in n.outputs if v.name}
    try:
        found = Evaluator(model, wide=True).run(feeds, seconds=_EVALUATION_S, wanted=names)
    except CannotEvaluate:
        return values, {}
    wide = {n: a for n, a in found.items() if isinstance(a, np.ndarray) and a.dtype == np.float64}
    if not values:
        values = {n: a for n, a in found.items() if isinstance(a, np.ndarray)} | dict(feeds)
        for name, array in wide.items():
            dtype = names[name].dtype
            values[name] = array.astype(np.float32 if dtype is None else dtype.numpy())
    return values, wide
