"""Positions that a model writes to: each once, or the standard leaves open what comes out."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx_ir.convenience import get_const_tensor

from edgeinfer.convert.verify.evaluate import CannotEvaluate, Evaluator
from edgeinfer.types import Array, Feeds

TWICE = "made-up integers name a place twice that is written to, which ONNX leaves open"

_SECONDS = 10.0
"""CPU time after which nothing is known of the positions."""

_TRIES = 20


class Places:
    """Tells whether inputs have a model write twice to one place, and gives others that do not."""

    def __init__(self, model: ir.Model) -> None:
        """Look for scatters without a reduction whose positions hang on integer inputs."""
        found = [n for n in model.graph if _writes(n)]
        self._nodes = [
            (n.op_type, str(n.inputs[0].name), str(n.inputs[1].name), _axis(n))
            for n in found
            if n.inputs[0] is not None and n.inputs[1] is not None
        ]
        self._sources = {str(v.name) for n in found for v in _inputs_behind(n.inputs[1])}
        self._evaluator = Evaluator(model, wide=False) if self._sources else None
        self.is_free = False
        """Set where no inputs keep the positions apart, so that any will do."""

    def clash(self, feeds: Feeds) -> bool:
        """Whether one place is written to twice; False where nobody can tell."""
        if self._evaluator is None or self.is_free:
            return False
        wanted = {name for _, data, index, _ in self._nodes for name in (data, index)}
        try:
            values = self._evaluator.run(feeds, seconds=_SECONDS, wanted=wanted)
        except CannotEvaluate:
            return False
        values = {**feeds, **values}
        return any(
            _is_double(op, np.shape(values[data]), np.asarray(values[index]), axis)
            for op, data, index, axis in self._nodes
            if data in values and index in values
        )

    def apart(self, feeds: dict[str, Array], seed: int) -> dict[str, Array]:
        """Return inputs whose integers name each place once, if some are found soon."""
        rng, made = np.random.default_rng(seed), feeds
        for _ in range(_TRIES):
            if not self.clash(made):
                return made
            made = {n: _other(a, rng) if n in self._sources else a for n, a in feeds.items()}
        return feeds


def _axis(node: ir.Node) -> int:
    axis = node.attributes.get("axis")
    return 0 if axis is None else axis.as_int()


def _writes(node: ir.Node) -> bool:
    if node.domain not in ("", "ai.onnx") or len(node.inputs) < 3:
        return False
    if node.op_type not in ("ScatterND", "ScatterElements", "Scatter"):
        return False
    index = node.inputs[1]
    fixed = index is None or get_const_tensor(index) is not None
    return not fixed and node.attributes.get_string("reduction", "none") == "none"


def _inputs_behind(value: ir.Value | None) -> set[ir.Value]:
    """Integer inputs of the graph that a value is made of."""
    found: set[ir.Value] = set()
    seen: set[ir.Value] = set()
    open_ = [value]
    while open_:
        one = open_.pop()
        if one is None or one in seen:
            continue
        seen.add(one)
        node = one.producer()
        if node is not None:
            open_ += node.inputs
        elif one.is_graph_input() and one.dtype is not None and one.dtype.is_integer():
            found.add(one)
    return found


def _is_double(op: str, shape: tuple[int, ...], index: Array, axis: int) -> bool:
    if op == "ScatterND":
        depth = index.shape[-1] if index.ndim else 0
        rows = np.mod(index.reshape(-1, depth), np.maximum(shape[:depth], 1))
    else:
        grid = np.indices(index.shape).reshape(index.ndim, -1)
        grid[axis] = np.mod(index, max(shape[axis], 1)).reshape(-1)
        rows = grid.T
    return len(np.unique(rows, axis=0)) < len(rows)


def _other(array: Array, rng: np.random.Generator) -> Array:
    """Return other integers between the same ends, each once where there are so many."""
    if array.dtype.kind not in "iu" or not array.size:
        return array
    low, high = int(array.min()), int(array.max())
    if array.size <= high - low + 1 <= 1 << 20:
        drawn = low + rng.permutation(high - low + 1)[: array.size]
    else:
        drawn = rng.integers(low, high + 1, array.size)
    return np.asarray(drawn).reshape(array.shape).astype(array.dtype)
