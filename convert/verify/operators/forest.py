"""Decision trees, walked tree by tree, and what becomes of their sums, row by row.

``onnx.reference`` (1.23) does not know most transforms, adds base values that ONNX Runtime does
not, decides between two classes otherwise, and takes sets of members for other nodes' sets.

Source: ONNX, ai.onnx.ml; where it is silent, ONNX Runtime 1.32, tree_ensemble_aggregator.h.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from edgeinfer.convert.verify.operators.window import Unhandled
from edgeinfer.types import Array

_COMPARE: dict[str, Callable[[Array, Any], Array]] = {
    "BRANCH_LEQ": lambda x, t: x <= t,
    "BRANCH_LT": lambda x, t: x < t,
    "BRANCH_GTE": lambda x, t: x >= t,
    "BRANCH_GT": lambda x, t: x > t,
    "BRANCH_EQ": lambda x, t: x == t,
    "BRANCH_NEQ": lambda x, t: x != t,
    "BRANCH_MEMBER": lambda x, t: np.isin(x, t),
}
_MODES = tuple(_COMPARE)
_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")

Attrs = Mapping[str, Any]
Leaf = Sequence[tuple[int, float]]
"""Targets and what each gets."""


class _Node:
    """A comparison and its two ends, or a leaf."""

    __slots__ = ("feature", "leaf", "mode", "no", "tracks", "value", "yes")

    def __init__(self) -> None:
        self.leaf: list[tuple[int, float]] | None = None
        self.feature, self.mode, self.tracks = 0, "", False
        self.value: Any = 0.0
        self.yes = self.no = self

    def sort(self, x: Array) -> Array:
        """Whether each row goes on at ``yes``."""
        column = x[:, self.feature]
        held = _COMPARE[self.mode](column, self.value)
        return held | np.isnan(column) if self.tracks else held


def regressor(attrs: Attrs, version: int, inputs: list[Array | None]) -> tuple[Array, ...]:
    """TreeEnsembleRegressor."""
    x = _rows(inputs)
    count = int(attrs.get("n_targets", 1))
    reached = _reached(_old_trees(attrs, "target"), x)
    how = attrs.get("aggregate_function", "SUM")
    totals, has = _joined(reached, count, how, x.dtype)
    base = _list(attrs, "base_values")
    if len(base):
        totals = totals + np.asarray(base, x.dtype)
        totals = np.where(has | (count == 1), totals, 0)
    return (transformed(totals, attrs.get("post_transform", "NONE")),)


def ensemble(attrs: Attrs, version: int, inputs: list[Array | None]) -> tuple[Array, ...]:
    """TreeEnsemble."""
    x = _rows(inputs)
    how = _AGGREGATES[int(attrs.get("aggregate_function", 1))]
    totals, _ = _joined(_reached(_new_trees(attrs), x), int(attrs["n_targets"]), how, x.dtype)
    return (transformed(totals, _TRANSFORMS[int(attrs.get("post_transform", 0))]),)


def classifier(attrs: Attrs, version: int, inputs: list[Array | None]) -> tuple[Array, ...]:
    """TreeEnsembleClassifier."""
    x = _rows(inputs)
    labels: Any = attrs.get("classlabels_int64s") or attrs.get("classlabels_strings")
    if not labels:
        raise Unhandled("a classifier without classes")
    totals, has = _joined(_reached(_old_trees(attrs, "class"), x), len(labels), "SUM", x.dtype)
    base = [float(v) for v in _list(attrs, "base_values")]
    kind = attrs.get("post_transform", "NONE")
    weights = _list(attrs, "class_weights")
    alone = len(labels) == 2 and len(set(attrs["class_ids"])) == 1
    positive = all(w >= 0 for w in weights)
    chosen, scores = [], []
    for row, own in zip(totals.tolist(), has.tolist(), strict=True):
        decide = _among_several if len(labels) > 2 else _of_two
        place, made, mixed = decide(row, own, base, alone, positive)
        chosen.append(place)
        scores.append(finished(np.asarray(made), kind, mixed))
    strings = bool(attrs.get("classlabels_strings"))
    # Without one class that all weights are of, two classes are 0 and 1 whatever their labels.
    names = labels if strings or alone or len(labels) > 2 else [0, 1]
    named = np.asarray([names[p] for p in chosen], object if strings else np.int64)
    return named, np.asarray(scores, x.dtype).reshape(len(x), -1)


Decided = tuple[int, list[float], bool | None]
"""Place of the label, the scores, and of a single score whether it may be negative."""


def _among_several(
    row: list[float], own: list[bool], base: list[float], alone: bool, positive: bool
) -> Decided:
    if base:
        row = [r + b for r, b in zip(row, base, strict=True)]
        own = [True] * len(row)
    best = -1
    for place, (score, has) in enumerate(zip(row, own, strict=True)):
        if has and (best < 0 or score > row[best]):
            best = place
    return best, row, None


def _of_two(
    row: list[float], own: list[bool], base: list[float], alone: bool, positive: bool
) -> Decided:
    if len(row) == 1:
        score = row[0] + sum(base)
        return int(score > 0), [score], None
    one, other = row
    has_one, has_other = own
    if len(base) == 2 and has_other:
        other = one + base[1]
        one = -other
    elif len(base) == 2:
        one, other = one + base[0], 0.0
    elif base:
        one += base[0]
    one = one if has_one else 0.0
    decisive = other if has_other else one
    label = int(decisive > (0.5 if alone and positive else 0.0))
    if has_other or len(base) == 2:
        return label, [one, other], None
    if base and not alone:
        raise Unhandled("the second score is left open")
    return label, [one], not (alone and positive)


def finished(scores: Array, kind: str, mixed: bool | None) -> Array:
    """Scores after the transform; a single one of two classes is given the other.

    ``mixed``: it may be negative; None where it stays alone.
    """
    if len(scores) > 1 or mixed is None:
        return np.asarray(transformed(scores[None], kind)[0])
    score: Any = scores[0]
    if kind == "PROBIT":
        raise Unhandled("a probit of one score for two classes")
    if kind == "LOGISTIC":
        return np.asarray([1 / (1 + np.exp(score)), 1 / (1 + np.exp(-score))])
    return np.asarray([-score if mixed else 1 - score, score])


def transformed(scores: Array, kind: str) -> Array:
    """Apply a transform to each row; of a single target only the probit is one."""
    if kind == "NONE" or (scores.shape[1] == 1 and kind != "PROBIT"):
        return scores
    if kind == "LOGISTIC":
        return np.asarray(1 / (1 + np.exp(-scores)))
    if kind == "PROBIT":
        return _probit(scores)
    raised = np.exp(scores - scores.max(1, keepdims=True))
    if kind == "SOFTMAX":
        return np.asarray(raised / raised.sum(1, keepdims=True))
    counts = np.abs(scores) > 1e-7
    total = np.where(counts, raised, 0).sum(1, keepdims=True)
    rest = scores * np.exp(-scores.max(1, keepdims=True))
    return np.asarray(np.where(counts, raised, rest) / total)


def _probit(scores: Array) -> Array:
    """By Winitzki's approximation of the inverse of erf, as the operator is defined."""
    x = 2 * scores - 1
    log = np.log((1 - x) * (1 + x))
    v = 2 / (3.14159 * 0.147) + 0.5 * log
    return np.asarray(1.41421356 * np.sign(x) * np.sqrt(np.sqrt(v * v - log / 0.147) - v))


def _rows(inputs: list[Array | None]) -> Array:
    x = inputs[0]
    if x is None:
        raise Unhandled("trees without samples")
    x = x if x.dtype.kind == "f" else x.astype(np.float32)
    return x.reshape(1, -1) if x.ndim == 1 else x


def _list(attrs: Attrs, name: str) -> Sequence[float]:
    tensor = attrs.get(f"{name}_as_tensor")
    found: Sequence[float] = attrs.get(name, ()) if tensor is None else tensor.numpy()
    return found


def _reached(trees: Sequence[_Node], x: Array) -> list[list[Leaf]]:
    """The leaf of each tree for each row."""
    rows: list[list[Leaf]] = [[] for _ in x]
    for tree in trees:
        waiting = [(tree, np.arange(len(x)))]
        while waiting:
            node, reached = waiting.pop()
            if node.leaf is not None:
                for place in reached:
                    rows[place].append(node.leaf)
            elif len(reached):
                held = node.sort(x[reached])
                waiting += [(node.yes, reached[held]), (node.no, reached[~held])]
    return rows


def _joined(rows: list[list[Leaf]], count: int, how: str, dtype: Any) -> tuple[Array, Array]:
    """What the trees give each target together, and whether any gives it something."""
    totals, has = np.zeros((len(rows), count), dtype), np.zeros((len(rows), count), bool)
    for row, leaves in enumerate(rows):
        for target, weight in (pair for leaf in leaves for pair in leaf):
            old = totals[row, target]
            if how in ("SUM", "AVERAGE") or not has[row, target]:
                totals[row, target] = old + weight if how in ("SUM", "AVERAGE") else weight
            else:
                totals[row, target] = min(old, weight) if how == "MIN" else max(old, weight)
            has[row, target] = True
        if how == "AVERAGE":
            totals[row] /= len(leaves)
    return totals, has


def _old_trees(attrs: Attrs, kind: str) -> list[_Node]:
    """Trees of the operators up to version 4: nodes by tree and number."""
    keys = list(zip(attrs["nodes_treeids"], attrs["nodes_nodeids"], strict=True))
    nodes = {key: _Node() for key in keys}
    values = _list(attrs, "nodes_values")
    tracks = attrs.get("nodes_missing_value_tracks_true") or [0] * len(keys)
    for i, key in enumerate(keys):
        node, mode = nodes[key], attrs["nodes_modes"][i]
        if mode == "LEAF":
            node.leaf = []
            continue
        node.mode, node.feature, node.value = mode, attrs["nodes_featureids"][i], values[i]
        node.tracks = bool(tracks[i])
        node.yes = nodes[key[0], attrs["nodes_truenodeids"][i]]
        node.no = nodes[key[0], attrs["nodes_falsenodeids"][i]]
    owners = zip(attrs[f"{kind}_treeids"], attrs[f"{kind}_nodeids"], strict=True)
    weights = _list(attrs, f"{kind}_weights")
    for key, target, weight in zip(owners, attrs[f"{kind}_ids"], weights, strict=True):
        leaf = nodes[key].leaf
        if leaf is None:
            raise Unhandled("a weight of a node that is no leaf")
        leaf.append((target, weight))
    starts = [k for i, k in enumerate(keys) if i == 0 or keys[i - 1][0] != k[0]]
    return [nodes[key] for key in starts]


def _new_trees(attrs: Attrs) -> list[_Node]:
    """Trees of TreeEnsemble: nodes and leaves in lists of their own."""
    modes = attrs["nodes_modes"].numpy()
    nodes, leaves = [_Node() for _ in modes], []
    weights = attrs["leaf_weights"].numpy()
    for target, weight in zip(attrs["leaf_targetids"], weights, strict=True):
        leaves.append(_Node())
        leaves[-1].leaf = [(target, weight)]
    splits, members = attrs["nodes_splits"].numpy(), attrs.get("membership_values")
    listed = [] if members is None else members.numpy()
    ends = np.flatnonzero(np.isnan(listed))
    sets = iter(np.split(listed, ends + 1)) if members is not None else iter(())
    tracks = attrs.get("nodes_missing_value_tracks_true") or [0] * len(nodes)
    for i, node in enumerate(nodes):
        node.mode, node.feature = _MODES[int(modes[i])], attrs["nodes_featureids"][i]
        node.value = next(sets) if node.mode == "BRANCH_MEMBER" else splits[i]
        if node.mode == "BRANCH_MEMBER":
            node.value = node.value[~np.isnan(node.value)]
        node.tracks = bool(tracks[i])
        for side, end in (("true", "yes"), ("false", "no")):
            of_leaves = attrs[f"nodes_{side}leafs"][i]
            setattr(node, end, (leaves if of_leaves else nodes)[attrs[f"nodes_{side}nodeids"][i]])
    roots = []
    for root in attrs["tree_roots"]:
        both = attrs["nodes_trueleafs"][root] and attrs["nodes_falseleafs"][root]
        node = nodes[root]
        roots.append(node.yes if both and node.yes is node.no else node)
    return roots
