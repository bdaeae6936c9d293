"""Forests in terms of the standard, against ONNX Runtime's kernels: NaN, ties, every form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgeinfer.convert.lower.tabular import definition, misread, undefined
from edgeinfer.types import Array
from tests.convert.lower.running import ops, run
from tests.convert.lower.tabular.tables import (
    MODES,
    TREE,
    Ids,
    check_definition,
    defined,
    forest,
    new_forest,
    one_node,
    samples,
)

TRANSFORMS = ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("missing", [False, True])
def test_each_comparison_sends_nan_and_ties_where_the_kernel_does(mode: str, missing: bool) -> None:
    rng = np.random.default_rng(MODES.index(mode))
    x = samples(rng, 60, 3)
    trees = forest(rng, 3, lambda r, t: [0], modes=[mode], missing=missing)
    check_definition(one_node("TreeEnsembleRegressor", x, n_targets=1, **trees), x)


@pytest.mark.parametrize("seed", range(16))
def test_regressors_of_several_targets(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count, x = 1 + seed % 4, samples(rng, 30, 4)
    choices: tuple[Ids, ...] = (
        lambda r, t: [t % count],
        lambda r, t: sorted(r.choice(count, int(r.integers(1, count + 1)), replace=False).tolist()),
    )
    base = {"base_values": rng.standard_normal(count).tolist()} if seed % 3 else {}
    trees = forest(
        rng,
        4,
        choices[seed % 2],
        trees=count * 2,
        depth=seed % 6,
        modes=MODES if seed % 2 else MODES[:1],
        missing=bool(seed % 2),
    )
    node = one_node(
        "TreeEnsembleRegressor",
        x,
        n_targets=count,
        aggregate_function=("SUM", "AVERAGE", "MIN", "MAX")[seed // 4],
        post_transform=TRANSFORMS[seed % 4],
        **base,
        **trees,
    )
    check_definition(node, x)


TWO: dict[str, Ids] = {
    "all of the first": lambda r, t: [0],
    "all of the second": lambda r, t: [1],
    "both": lambda r, t: [0, 1],
    "in turn": lambda r, t: [t % 2],
    "by chance": lambda r, t: [int(r.integers(2))],
}


@pytest.mark.sample(12)
@pytest.mark.parametrize("ids", list(TWO))
@pytest.mark.parametrize("negative", [False, True])
@pytest.mark.parametrize(
    ("base", "transform"), [(0, "NONE"), (0, "LOGISTIC"), (2, "SOFTMAX_ZERO"), (2, "NONE")]
)
def test_two_classes(ids: str, negative: bool, base: int, transform: str) -> None:
    rng = np.random.default_rng(7)
    x = samples(rng, 25, 3)
    trees = forest(rng, 3, TWO[ids], kind="class", negative=negative, missing=True)
    given = {"base_values": rng.standard_normal(base).tolist()} if base else {}
    node = one_node(
        "TreeEnsembleClassifier",
        x,
        2,
        classlabels_int64s=[7, 3],
        post_transform=transform,
        **given,
        **trees,
    )
    check_definition(node, x)


@pytest.mark.parametrize("seed", range(12))
def test_several_classes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count, x = 3 + seed % 3, samples(rng, 25, 3)
    choices: tuple[Ids, ...] = (
        lambda r, t: range(count),
        lambda r, t: [t % count],
        lambda r, t: [int(r.integers(count))],
    )
    trees = forest(rng, 3, choices[seed % 3], kind="class", missing=True, trees=count)
    base = {"base_values": rng.standard_normal(count).tolist()} if seed % 2 else {}
    node = one_node(
        "TreeEnsembleClassifier",
        x,
        2,
        classlabels_int64s=rng.permutation(20)[:count].tolist(),
        post_transform=TRANSFORMS[seed % 4],
        **base,
        **trees,
    )
    check_definition(node, x)


@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.int32])
def test_samples_of_other_types(dtype: Any) -> None:
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((20, 3)) * 2).astype(dtype)
    trees = forest(rng, 3, lambda r, t: [0, 1, 2], kind="class")
    node = one_node("TreeEnsembleClassifier", x, 2, classlabels_int64s=[3, 1, 2], **trees)
    check_definition(node, x)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("aggregate", range(4))
def test_tree_ensemble_of_version_5(dtype: Any, aggregate: int) -> None:
    rng = np.random.default_rng(aggregate)
    x = samples(rng, 30, 3).astype(dtype)
    trees = new_forest(rng, 3, 2, dtype, range(6))
    node = one_node(
        "TreeEnsemble", x, ml=5, aggregate_function=aggregate, post_transform=0, **trees
    )
    check_definition(node, x)


def _by_hand(x: Array, members: list[float], yes: float, no: float) -> Array:
    return np.where(np.isin(x[:, :1], members), np.float32(yes), np.float32(no))


def test_members_of_a_set_are_equal_to_one_of_them() -> None:
    from onnx import numpy_helper

    members = [0.0, 5.0, 37.0]
    x = np.asarray([[0.0], [0.55], [-1.0], [5.0], [37.0], [36.9], [np.nan]], np.float32)
    node = one_node(
        "TreeEnsemble",
        x,
        ml=5,
        n_targets=1,
        nodes_featureids=[0],
        nodes_splits=numpy_helper.from_array(np.zeros(1, np.float32)),
        nodes_modes=numpy_helper.from_array(np.full(1, 6, np.uint8)),
        nodes_truenodeids=[0],
        nodes_falsenodeids=[1],
        nodes_trueleafs=[1],
        nodes_falseleafs=[1],
        leaf_targetids=[0, 0],
        leaf_weights=numpy_helper.from_array(np.asarray([2.0, -3.0], np.float32)),
        membership_values=numpy_helper.from_array(np.asarray([*members, np.nan], np.float32)),
        tree_roots=[0],
    )
    made = defined(node)
    assert made is not None
    np.testing.assert_array_equal(run(made, {"x": x})[0], _by_hand(x, members, 2, -3))
    # The kernel takes fractions for members, so that no artifact and no oracle may use it.
    assert misread(next(iter(node.graph)))


def test_trees_with_several_comparisons_at_once_stay_small() -> None:
    rng = np.random.default_rng(0)
    x = samples(rng, 5, 3)
    trees = forest(rng, 3, lambda r, t: [0], modes=["BRANCH_LEQ"], trees=100, depth=5)
    made = defined(one_node("TreeEnsembleRegressor", x, n_targets=1, **trees))
    assert made is not None
    # Seven operators a level, whatever the number of trees.
    assert len(ops(made)) <= 3 + 7 * 4 + 3


def test_what_the_kernel_leaves_open_has_no_definition() -> None:
    rng = np.random.default_rng(3)
    x = samples(rng, 5, 2)
    trees = forest(rng, 2, TWO["by chance"], kind="class", trees=1)
    node = one_node(
        "TreeEnsembleClassifier",
        x,
        2,
        classlabels_int64s=[0, 1],
        base_values=[0.5],
        **trees,
    )
    assert defined(node) is None


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"nodes_featureids": [2**40, 0, 0]}, "int32"),
        ({"target_ids": [2**40, 0]}, "out of bounds"),
        ({"nodes_values": None}, "index"),
        ({"nodes_truenodeids": 3}, ""),
    ],
)
def test_attributes_that_do_not_go_together_are_no_definition(
    changed: dict[str, Any], text: str
) -> None:
    """They were faults of the program."""
    given: dict[str, Any] = {
        "n_targets": 1,
        **TREE,
        "target_weights": [1.0, 2.0],
    }
    attributes = {k: v for k, v in (given | changed).items() if v is not None}
    node = one_node("TreeEnsembleRegressor", np.ones((2, 3), np.float32), **attributes).graph[0]
    assert definition(node) is None
    assert text in undefined(node)
    assert not misread(node)
