"""Rows at the thresholds of trees."""

from __future__ import annotations

import numpy as np

from edgeinfer.convert.verify.oracles import Oracles
from edgeinfer.convert.verify.thresholds import at_thresholds
from edgeinfer.convert.verify.vectors import make_vectors
from tests.convert.lower.tabular.tables import forest, one_node, samples


def test_rows_meet_thresholds_and_gaps() -> None:
    rng = np.random.default_rng(0)
    x = samples(rng, 3, 4)
    trees = forest(rng, 4, lambda r, t: [0], missing=True)
    model = one_node("TreeEnsembleRegressor", x, n_targets=1, **trees)
    rows = at_thresholds(model, {"x": (2, 4)})["x"]
    assert rows.shape == (64, 4)
    own = np.asarray(trees["nodes_values"], np.float32)
    columns = np.asarray(trees["nodes_featureids"])
    leaves = np.asarray(trees["nodes_modes"]) == "LEAF"
    for column in set(columns[~leaves].tolist()):
        assert np.isin(rows[:, column], own[~leaves & (columns == column)]).any()
    assert np.isnan(rows).any()


def test_models_without_trees_have_none() -> None:
    x = np.zeros((2, 3), np.float32)
    assert at_thresholds(one_node("Scaler", x, offset=[1.0], scale=[1.0]), {"x": (2, 3)}) == {}


def test_the_gate_tries_them() -> None:
    rng = np.random.default_rng(0)
    trees = forest(rng, 4, lambda r, t: [0])
    model = one_node("TreeEnsembleRegressor", samples(rng, 3, 4), n_targets=1, **trees)
    with Oracles(model) as oracles:
        vectors = make_vectors(model, oracles.inputs, oracles=oracles)
    assert [v.feeds["x"].shape for v in vectors if "thresholds" in v.origin] == [(64, 4)]
