"""Forests as gathers over packed tables: every tree of every sample goes one level at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.tabular.body import (
    DOMAIN,
    MALFORMED,
    NotDefinedError,
    TabularBody,
    is_read,
    values_of,
)
from edgeinfer.convert.lower.tabular.forest import EQ, LEQ, LT, MEMBER, Forest, read
from edgeinfer.convert.lower.tabular.scores import (
    add_column,
    argmax,
    choose,
    is_number_labelled,
    labels_of,
    transform,
)
from edgeinfer.types import Array

_COMPARE = {LEQ: "LessOrEqual", LT: "Less", EQ: "Equal"}


def ensemble(b: TabularBody) -> list[str]:
    """Define TreeEnsemble and TreeEnsembleRegressor.

    Result::

        f = Gather(features, node); v = GatherElements(x, f); t = Gather(thresholds, node)
        node = Where(LessOrEqual(v, t), Gather(first, node), Gather(second, node))   # each level
        y = ReduceSum(Gather(weights, node))
    """
    forest = read(b.node, b.dtype)
    node = _leaves(b, forest, b.rows())
    scores = _aggregated(b, forest, node)
    if len(forest.base) == forest.count:
        scores = b.op("Add", scores, b.const(forest.base))
        if forest.count > 1:
            scores = _or_zero(b, scores, _has(b, forest, node))
    scores = transform(b, scores, forest.transform, forest.count, b.dtype)
    wide = b.dtype is np.float64 and b.node.op_type != "TreeEnsemble"
    return [b.cast(scores, np.float32) if wide else scores]


def _leaves(b: TabularBody, forest: Forest, x: str) -> str:
    """The leaf that each sample reaches in each tree, (samples, trees)."""
    roots = forest.roots
    tables = {"first": forest.first, "second": forest.second}
    v = b.op("Gather", x, b.const(forest.features[roots]), axis=1)
    ways = (b.const(table[roots][None]) for table in tables.values())
    node = b.op("Where", _holds(b, forest, v, None), *ways)
    for _ in range(1, forest.depth):
        columns = b.op("Gather", b.const(forest.features), node)
        v = b.op("GatherElements", x, columns, axis=1)
        ways = (b.op("Gather", b.const(table), node) for table in tables.values())
        node = b.op("Where", _holds(b, forest, v, node), *ways)
    return node


def _holds(b: TabularBody, forest: Forest, v: str, node: str | None) -> str:
    """Whether each sample goes to the first child; ``node`` is None at the roots."""

    def row(table: Array) -> str:
        """A table's entry for the node that a sample is at."""
        if node is None:
            return b.const(table[forest.roots][None])
        if np.all(table == table[0]):
            return b.const(table[:1])
        return b.op("Gather", b.const(table), node)

    inner = forest.first != np.arange(len(forest.first))
    at = forest.roots[inner[forest.roots]] if node is None else np.flatnonzero(inner)
    kinds = sorted(set(forest.modes[at].tolist())) or [LEQ]
    threshold = row(forest.thresholds)
    held = b.op(_COMPARE[kinds[0]], v, threshold)
    for kind in kinds[1:]:
        other = b.op("And", b.op(_COMPARE[kind], v, threshold), row(forest.modes == kind))
        held = b.op("Or", b.op("And", held, row(forest.modes != kind)), other)
    if forest.missing[at].any():
        held = b.op("Or", held, b.op("And", b.op("IsNaN", v), row(forest.missing)))
    return held


def _table(forest: Forest, fill: Any, combine: Any) -> Array:
    """Weights by node and target."""
    table = np.full((len(forest.features), forest.count), fill, forest.weights.dtype)
    combine.at(table, (forest.nodes, forest.targets), forest.weights)
    return table


def _aggregated(b: TabularBody, forest: Forest, node: str) -> str:
    """Join the trees' weights, (samples, targets)."""
    if forest.aggregate in ("MIN", "MAX"):
        return _extreme(b, forest, node)
    if forest.aggregate not in ("SUM", "AVERAGE"):
        raise NotDefinedError(f"aggregate {forest.aggregate!r} is not known")
    table = _table(forest, 0, np.add)
    order = _in_turn(forest)
    if forest.count == 1:
        each = b.op("Gather", b.const(table[:, 0]), node)
        total = b.op("ReduceSum", each, b.ints(1), keepdims=1)
    elif order is not None:
        # Each tree is of one target: no need for a column of zeros for each of the others.
        each = b.op("Gather", b.const(table.sum(1)), node)
        if order != list(range(len(order))):
            each = b.op("Gather", each, b.const(order, np.int64), axis=1)
        shape = b.ints(-1, forest.count, len(order) // forest.count)
        total = b.op("ReduceSum", b.op("Reshape", each, shape), b.ints(2), keepdims=0)
    else:
        each = b.op("Gather", b.const(table), node)
        total = b.op("ReduceSum", each, b.ints(1), keepdims=0)
    if forest.aggregate == "AVERAGE":
        total = b.op("Div", total, b.const(len(forest.roots), b.dtype))
    return total


def _in_turn(forest: Forest) -> list[int] | None:
    """Trees sorted by target where each has one and each target has as many."""
    own = forest.tree_targets()
    if own is None or len(set(np.bincount(own, minlength=forest.count))) != 1:
        return None
    return sorted(range(len(own)), key=lambda t: own[t])


def _extreme(b: TabularBody, forest: Forest, node: str) -> str:
    """The least or greatest weight of each target; zero where no leaf has one."""
    least = forest.aggregate == "MIN"
    end = np.finfo(b.dtype).max if least else np.finfo(b.dtype).min
    table = _table(forest, end, np.minimum if least else np.maximum)
    found = b.op(
        "ReduceMin" if least else "ReduceMax",
        b.op("Gather", b.const(table), node),
        b.ints(1),
        keepdims=0,
    )
    if all(forest.scored()):
        return found
    none = b.op("Equal", found, b.const(end, b.dtype))
    return b.op("Where", none, b.const(0, b.dtype), found)


def misread(node: ir.Node) -> str:
    """Say what ONNX Runtime's own kernel gets wrong about a node; empty where it is right.

    Sets of members are masks of bits there, which a fraction or a negative number falls into.
    """
    if node.domain != DOMAIN or node.op_type != "TreeEnsemble":
        return ""
    try:
        modes = np.asarray(values_of(node, "nodes_modes", np.zeros(0)))
    except MALFORMED:
        return ""
    return "fractions are taken for members of sets" if np.any(modes == MEMBER) else ""


# ---- classes


def classifier(b: TabularBody) -> list[str]:
    """Define TreeEnsembleClassifier: the class and its scores.

    What it does with two classes depends on which of them have weights, and for which sample.

    Source: ONNX Runtime 1.32, tree_ensemble_aggregator.h; the standard leaves it open.
    """
    forest = read(b.node, b.dtype)
    if is_read(b.node, 0) and not is_number_labelled(b.node):
        raise NotDefinedError("its classes are strings")
    node = _leaves(b, forest, b.rows())
    totals = _aggregated(b, forest, node)
    labels = labels_of(b.node)
    made = (_several if forest.count > 2 else _one_or_two)(b, forest, node, totals, labels)
    label, scores = made
    return [label, b.cast(scores, np.float32) if b.dtype is np.float64 else scores]


def _has(b: TabularBody, forest: Forest, node: str) -> str:
    """Whether a sample has a weight of each target, (samples or one, targets); empty: all do."""
    known = forest.scored()
    if all(known):
        return ""
    if None not in known:
        return b.const(np.asarray([known], bool))
    table = np.zeros((len(forest.features), forest.count), np.float32)
    table[forest.nodes, forest.targets] = 1
    most = b.op("ReduceMax", b.op("Gather", b.const(table), node), b.ints(1), keepdims=0)
    return b.op("Greater", most, b.const(0.5, np.float32))


def _or_zero(b: TabularBody, scores: str, has: str) -> str:
    """Scores of targets that have one; ONNX Runtime gives others zero, without the base value."""
    return b.op("Where", has, scores, b.const(0, b.dtype)) if has else scores


def _several(
    b: TabularBody, forest: Forest, node: str, totals: str, labels: Array
) -> tuple[str, str]:
    """Three classes or more: the greatest of those that have a score."""
    if len(forest.base):
        totals = b.op("Add", totals, b.const(forest.base))
    has = "" if len(forest.base) else _has(b, forest, node)
    ranked = totals
    if has:
        ranked = b.op("Where", has, totals, b.const(np.finfo(b.dtype).min, b.dtype))
    label = argmax(b, ranked, labels)
    return label, transform(b, totals, forest.transform, forest.count, b.dtype)


def _one_or_two(
    b: TabularBody, forest: Forest, node: str, totals: str, labels: Array
) -> tuple[str, str]:
    if forest.count == 1:
        return _one(b, forest, totals)
    has = _has(b, forest, node)
    first, second = forest.scored()
    mine = "" if first or not has else b.op("Gather", has, b.ints(0), axis=1)
    if second is not None:
        return _two(b, forest, totals, labels, mine, second=second)
    # Whether the second class has a weight differs from sample to sample: both, and choose.
    is_there = b.op("Gather", has, b.ints(1), axis=1)
    with_second = _two(b, forest, totals, labels, mine, second=True)
    without = _two(b, forest, totals, labels, mine, second=False)
    flat = b.op("Reshape", is_there, b.ints(-1))
    label = b.op("Where", flat, with_second[0], without[0])
    return label, b.op("Where", is_there, with_second[1], without[1])


def _one(b: TabularBody, forest: Forest, total: str) -> tuple[str, str]:
    if len(forest.base) > 1 or forest.transform == "PROBIT":
        raise NotDefinedError("one class with two base values, or as a probit")
    if len(forest.base):
        total = b.op("Add", total, b.const(forest.base))
    return choose(b, total, 0.0, np.asarray([0, 1]), b.dtype), total


def _two(
    b: TabularBody, forest: Forest, totals: str, labels: Array, has_first: str, *, second: bool
) -> tuple[str, str]:
    """Two classes.

    Args:
        b: the definition.
        forest: its trees.
        totals: (samples, 2).
        labels: Labels of both classes.
        has_first: whether the first class has a score; empty where it has in every sample.
        second: whether the second one has.
    """
    base, kind = forest.base, forest.transform
    one, other = (b.op("Gather", totals, b.ints(i), axis=1) for i in (0, 1))
    single = False
    if len(base) == 2 and second:
        # As ONNX Runtime does it: the first class's sum, and the second base value.
        other = b.op("Add", one, b.const(base[1:]))
        one = b.op("Neg", other)
    elif len(base) == 2:
        one = b.op("Add", one, b.const(base[:1]))
        other = b.op("Mul", other, b.const(0, b.dtype))
    else:
        if len(base) == 1:
            one = b.op("Add", one, b.const(base))
        single = not second
    one = _or_zero(b, one, has_first)
    decisive = other if second else one
    positive = bool((forest.weights >= 0).all())
    alone = len(set(forest.targets.tolist())) == 1
    limit = 0.5 if alone and positive else 0.0
    label = choose(b, decisive, limit, labels if alone else np.asarray([0, 1]), b.dtype)
    if not single:
        both = b.op("Concat", one, other, axis=1)
        return label, transform(b, both, kind, 2, b.dtype)
    if not alone and len(base):
        raise NotDefinedError("a score of one class only, where both have weights")
    return label, add_column(b, one, kind, mixed=not (alone and positive), dtype=b.dtype)
