"""The second oracle's operators of tables, against ONNX Runtime's kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from edgeinfer.convert.verify.evaluate import Evaluator
from edgeinfer.types import Array
from tests.convert.lower.running import run
from tests.convert.lower.tabular.tables import forest, new_forest, one_node, samples

TRANSFORMS = ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO")


def _same(model: ir.Model, x: Array, tolerance: float = 1e-4) -> None:
    want = run(model, {"x": x})
    found = Evaluator(model, wide=True).run({"x": x})
    for value, expected in zip(model.graph.outputs, want, strict=True):
        made = np.asarray(found[str(value.name)])
        assert made.shape == expected.shape
        if expected.dtype.kind == "f":
            np.testing.assert_allclose(made, expected, rtol=tolerance, atol=1e-5)
        else:
            np.testing.assert_array_equal(made, expected)


@pytest.mark.parametrize("seed", range(12))
def test_forests(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, count = samples(rng, 20, 3), 1 + seed % 4
    own = forest(rng, 3, lambda r, t: [t % count], trees=count * 2, missing=bool(seed % 2))
    about = {
        "n_targets": count,
        "aggregate_function": ("SUM", "AVERAGE", "MIN", "MAX")[seed // 3],
        "post_transform": TRANSFORMS[seed % 4],
    }
    _same(one_node("TreeEnsembleRegressor", x, **about, **own), x)
    count += 1
    own = forest(rng, 3, lambda r, t: [int(r.integers(count))], kind="class", missing=True)
    base = {"base_values": rng.standard_normal(count).tolist()} if seed % 3 == 0 else {}
    classes = {"classlabels_int64s": rng.permutation(9)[:count].tolist(), **base}
    kind = {"post_transform": TRANSFORMS[seed % 4]}
    _same(one_node("TreeEnsembleClassifier", x, 2, **classes, **kind, **own), x)
    own = new_forest(rng, 3, 2, np.float32, range(6))
    _same(one_node("TreeEnsemble", x, ml=5, aggregate_function=seed % 4, **own), x)


ROWS = np.random.default_rng(0).standard_normal((6, 3)).astype(np.float32)
MACHINE = {
    "coefficients": [0.5, -1.0, 0.7, 0.3, 0.2, -0.4, 1.0, -0.9],
    "support_vectors": np.linspace(-1, 1, 12).tolist(),
    "vectors_per_class": [1, 2, 1],
    "rho": [0.1, -0.2, 0.3],
    "kernel_type": "RBF",
    "kernel_params": [0.5, 0.0, 0.0],
    "classlabels_ints": [4, 5, 6],
}


@pytest.mark.parametrize(
    ("op", "outputs", "about"),
    [
        ("Scaler", 1, {"offset": [1.0, 2.0, 3.0], "scale": [0.5, 0.1, 2.0]}),
        ("Normalizer", 1, {}),
        ("Normalizer", 1, {"norm": "L1"}),
        ("Normalizer", 1, {"norm": "L2"}),
        ("Binarizer", 1, {"threshold": 0.2}),
        ("Imputer", 1, {"imputed_value_floats": [9.0], "replaced_value_float": 0.0}),
        ("OneHotEncoder", 1, {"cats_int64s": [-1, 0, 1]}),
        ("FeatureVectorizer", 1, {"inputdimensions": [4]}),
        ("LinearRegressor", 1, {"coefficients": [1.0, 2.0, 3.0], "intercepts": [0.5]}),
        ("LinearClassifier", 2, {"coefficients": [1.0, 2.0, 3.0], "intercepts": [0.5]}),
        ("SVMClassifier", 2, MACHINE),
        ("SVMClassifier", 2, {**MACHINE, "prob_a": [-1.0] * 3, "prob_b": [0.1] * 3}),
    ],
)
def test_others(op: str, outputs: int, about: dict[str, Any]) -> None:
    labels = {"classlabels_ints": [3, 8]} if op == "LinearClassifier" else {}
    for transform in TRANSFORMS if op == "LinearClassifier" else ("",):
        kind = {"post_transform": transform} if transform else {}
        _same(one_node(op, ROWS, outputs, **about, **labels, **kind), ROWS)


@pytest.mark.parametrize("ml", [2, 4])
def test_keys_that_are_nan_are_found_from_version_4_on(ml: int) -> None:
    x = np.asarray([[0.0, np.nan, 5.0]], np.float32)
    about = {"keys_floats": [0.0, np.nan], "values_int64s": [7, 8]}
    _same(one_node("LabelEncoder", x, ml=ml, **about), x)
