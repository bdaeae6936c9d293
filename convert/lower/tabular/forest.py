"""Decision trees as packed tables, read from any version of the operators that hold them.

Source: ONNX, ai.onnx.ml, TreeEnsembleClassifier and TreeEnsembleRegressor (1 to 5), TreeEnsemble
(5).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.tabular.body import MALFORMED, NotDefinedError, values_of
from edgeinfer.records import dataclass
from edgeinfer.types import Array

LEQ, LT, EQ = 0, 1, 2
"""Comparisons that are left: the others are these with the branches exchanged."""

_PLAIN = {
    "BRANCH_LEQ": (LEQ, False),
    "BRANCH_LT": (LT, False),
    "BRANCH_GTE": (LT, True),
    "BRANCH_GT": (LEQ, True),
    "BRANCH_EQ": (EQ, False),
    "BRANCH_NEQ": (EQ, True),
}
_MODES = (*_PLAIN, "BRANCH_MEMBER")
"""In the order of their numbers in TreeEnsemble."""

MEMBER = _MODES.index("BRANCH_MEMBER")
"""Number of the mode that asks for a member of a set."""

_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


_MOST_TABLE = 1 << 26
"""Nodes times targets."""


@dataclass(frozen=True, slots=True)
class Forest:
    """Trees in tables with a row for each node; a leaf's children are itself.

    Attributes:
        features: column that a node compares.
        thresholds: with what, in the type of the samples.
        modes: how: ``LEQ``, ``LT`` or ``EQ``.
        missing: whether NaN goes to the first child, which no comparison sends it to.
        first: the child where the comparison holds.
        second: the other one.
        roots: one for each tree.
        depth: comparisons on the longest way to a leaf.
        nodes: leaf of each weight.
        targets: target of each weight.
        weights: what it adds.
        count: Number of targets.
        base: added to each target, or what the operator makes of another number of values.
        aggregate: ``SUM``, ``AVERAGE``, ``MIN`` or ``MAX``.
        transform: Transform of the results, ``NONE``, ``SOFTMAX``, ...
    """

    features: Array
    thresholds: Array
    modes: Array
    missing: Array
    first: Array
    second: Array
    roots: Array
    depth: int
    nodes: Array
    targets: Array
    weights: Array
    count: int
    base: Array
    aggregate: str
    transform: str

    def __post_init__(self) -> None:
        """Refuse what tables of nodes by targets would be too large for."""
        if not 1 <= self.count <= _MOST_TABLE // max(1, len(self.features)):
            raise NotDefinedError(f"its {len(self.features)} nodes have {self.count} targets")

    def scored(self) -> list[bool | None]:
        """Say of each target whether every sample has a weight of it, none has, or some do."""
        has = np.zeros((len(self.features), self.count), bool)
        has[self.nodes, self.targets] = True
        leaves = self.first == np.arange(len(self.first))
        tree = self._trees()
        found: list[bool | None] = []
        for target in range(self.count):
            if not has[:, target].any():
                found.append(False)
                continue
            lacking = {int(t) for t in tree[leaves & ~has[:, target]]}
            found.append(True if len(lacking) < len(self.roots) else None)
        return found

    def tree_targets(self) -> list[int] | None:
        """The one target of each tree; None where a tree has several."""
        tree = self._trees()
        own: dict[int, int] = {}
        for node, target in zip(self.nodes, self.targets, strict=True):
            if own.setdefault(int(tree[node]), int(target)) != target:
                return None
        return [own.get(t, 0) for t in range(len(self.roots))]

    def _trees(self) -> Array:
        """The tree of each node that a root leads to; -1 for others."""
        tree = np.full(len(self.features), -1)
        for index, root in enumerate(self.roots):
            waiting = [int(root)]
            while waiting:
                node = waiting.pop()
                if tree[node] < 0:
                    tree[node] = index
                    waiting += [int(self.first[node]), int(self.second[node])]
        return tree


class _Tables:
    """Grows the tables; a row is a leaf until it is made a branch."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, float, int, bool, int, int]] = []

    def leaf(self) -> int:
        index = len(self.rows)
        self.rows.append((0, 0.0, LEQ, False, index, index))
        return index

    def branch(
        self, index: int, feature: int, value: Any, mode: str, tracks: bool, yes: int, no: int
    ) -> None:
        """Make a row a branch: ``yes`` where the comparison of this mode holds."""
        kind, exchanged = _PLAIN[mode]
        # Only "not equal" holds for NaN by itself.
        to_yes = tracks or mode == "BRANCH_NEQ"
        first, second = (no, yes) if exchanged else (yes, no)
        self.rows[index] = (feature, value, kind, to_yes != exchanged, first, second)

    def done(self, roots: list[int], dtype: Any) -> dict[str, Any]:
        features, thresholds, modes, missing, first, second = zip(*self.rows, strict=True)
        tables = {
            "features": np.asarray(features, np.int32),
            "thresholds": np.asarray(thresholds, dtype),
            "modes": np.asarray(modes, np.int8),
            "missing": np.asarray(missing, bool),
            "first": np.asarray(first, np.int32),
            "second": np.asarray(second, np.int32),
            "roots": np.asarray(roots, np.int32),
        }
        return {**tables, "depth": _depth(tables["first"], tables["second"], tables["roots"])}


def _depth(first: Array, second: Array, roots: Array) -> int:
    level, depth, seen = np.unique(roots), 0, 0
    while True:
        seen += len(level)
        if seen > _WAYS * len(first):
            raise NoTreeError("its nodes lead to each other in a circle, or many ways lead to one")
        inner = level[(first[level] != level) | (second[level] != level)]
        if not len(inner):
            return depth
        depth += 1
        if depth > MOST_DEPTH:
            raise NoTreeError(f"it has a tree of more than {MOST_DEPTH} levels")
        level = np.unique(np.concatenate([first[inner], second[inner]]))


MOST_DEPTH = 2000
"""Levels of a tree; ONNX Runtime, which goes along them by calls, ends the process at 16,000."""

_WAYS = 4
"""On average, that lead to a node: one in a tree, some more where leaves are shared."""


class NoTreeError(NotDefinedError):
    """What is called a tree is none, or is far deeper than any that was trained."""


def check_trees(node: ir.Node) -> None:
    """Raise where the trees of a node would keep, or end, whoever follows them.

    Raises:
        NoTreeError: says why.
    """
    try:
        read(node, np.float64)
    except NoTreeError:
        raise
    except (NotDefinedError, *MALFORMED):
        # What it lacks is reported by whoever needs it.
        return


def read(node: ir.Node, dtype: Any) -> Forest:
    """Read the trees of a node; thresholds get the type of the samples.

    Raises:
        NotDefinedError: they contradict themselves.
    """
    return _read_5(node, dtype) if node.op_type == "TreeEnsemble" else _read_1(node, dtype)


def _read_1(node: ir.Node, dtype: Any) -> Forest:
    """TreeEnsembleClassifier and TreeEnsembleRegressor: nodes by tree and number."""

    def listed(name: str) -> Any:
        tensor = values_of(node, f"{name}_as_tensor")
        return values_of(node, name, np.zeros(0)) if tensor is None else tensor

    trees, numbers = (values_of(node, f"nodes_{n}", np.zeros(0)) for n in ("treeids", "nodeids"))
    slots = {(int(t), int(n)): i for i, (t, n) in enumerate(zip(trees, numbers, strict=True))}
    modes = values_of(node, "nodes_modes", [])
    features = values_of(node, "nodes_featureids")
    values = listed("nodes_values")
    tracks = values_of(node, "nodes_missing_value_tracks_true", np.zeros(0))
    yes, no = (values_of(node, f"nodes_{n}nodeids") for n in ("true", "false"))
    tables = _Tables()
    for _ in modes:
        tables.leaf()
    kind = "class" if node.op_type == "TreeEnsembleClassifier" else "target"
    try:
        for i, mode in enumerate(modes):
            if mode == "LEAF":
                continue
            missing = bool(tracks[i]) if len(tracks) > i else False
            ends = (slots[int(trees[i]), int(n[i])] for n in (yes, no))
            tables.branch(i, int(features[i]), values[i], mode, missing, *ends)
        owners = zip(
            values_of(node, f"{kind}_treeids"), values_of(node, f"{kind}_nodeids"), strict=True
        )
        leaves = [slots[int(t), int(n)] for t, n in owners]
    except (KeyError, IndexError, TypeError) as error:
        raise NotDefinedError(f"its trees refer to a node that is not there ({error})") from error
    roots = [i for i, t in enumerate(trees) if i == 0 or trees[i - 1] != t]
    if kind == "class":
        labels = values_of(node, "classlabels_int64s")
        count = len(labels if labels is not None else values_of(node, "classlabels_strings", []))
    else:
        count = int(values_of(node, "n_targets", 1))
    return Forest(
        **tables.done(roots, dtype),
        nodes=np.asarray(leaves, np.int64),
        targets=np.asarray(values_of(node, f"{kind}_ids"), np.int64),
        weights=np.asarray(listed(f"{kind}_weights"), dtype),
        count=count,
        base=np.asarray(listed("base_values"), dtype),
        aggregate=values_of(node, "aggregate_function", "SUM"),
        transform=values_of(node, "post_transform", "NONE"),
    )


def _read_5(node: ir.Node, dtype: Any) -> Forest:
    """TreeEnsemble: nodes and leaves in lists of their own, sets of members between NaNs."""
    names = ("featureids", "splits", "modes", "truenodeids", "falsenodeids")
    features, splits, modes, yes, no = (values_of(node, f"nodes_{n}") for n in names)
    yes_leaf, no_leaf = (values_of(node, f"nodes_{n}leafs") for n in ("true", "false"))
    tracks = values_of(node, "nodes_missing_value_tracks_true", np.zeros(len(features)))
    members = _members(values_of(node, "membership_values"), modes)
    weights = values_of(node, "leaf_weights")
    tables = _Tables()
    inner = [tables.leaf() for _ in features]
    leaves = [tables.leaf() for _ in weights]
    for i, mode in enumerate(modes):
        pair = ((yes, yes_leaf), (no, no_leaf))
        first, second = ((leaves if leaf[i] else inner)[int(end[i])] for end, leaf in pair)
        about = int(features[i]), bool(tracks[i])
        if _MODES[mode] != "BRANCH_MEMBER":
            tables.branch(inner[i], about[0], splits[i], _MODES[mode], about[1], first, second)
            continue
        # One comparison for each member; those after the first have rows of their own.
        here = inner[i]
        for place, value in enumerate(members[i]):
            last = place == len(members[i]) - 1
            following = second if last else tables.leaf()
            tables.branch(here, about[0], value, "BRANCH_EQ", about[1], first, following)
            here = following
    roots = []
    for root in values_of(node, "tree_roots"):
        alone = yes_leaf[root] and no_leaf[root] and yes[root] == no[root]
        roots.append(leaves[int(yes[root])] if alone else inner[int(root)])
    return Forest(
        **tables.done(roots, dtype),
        nodes=np.asarray(leaves, np.int64),
        targets=np.asarray(values_of(node, "leaf_targetids"), np.int64),
        weights=np.asarray(weights, dtype),
        count=int(values_of(node, "n_targets", 1)),
        base=np.zeros(0, dtype),
        aggregate=_AGGREGATES[int(values_of(node, "aggregate_function", 1))],
        transform=_TRANSFORMS[int(values_of(node, "post_transform", 0))],
    )


def _members(values: Array | None, modes: Array) -> dict[int, list[float]]:
    """The values of each node that asks whether a sample is one of them."""
    found: dict[int, list[float]] = {}
    left = iter([] if values is None else values.tolist())
    for index, mode in enumerate(modes):
        if _MODES[mode] == "BRANCH_MEMBER":
            own: list[float] = []
            for value in left:
                if np.isnan(value):
                    break
                own.append(value)
            if not own:
                raise NotDefinedError(f"node {index} asks for a member of nothing")
            found[index] = own
    return found
