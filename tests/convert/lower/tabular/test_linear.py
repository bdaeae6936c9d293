"""Linear models and columns, against ONNX Runtime's kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from edgeinfer.types import Array
from tests.convert.lower.tabular.tables import check_definition, defined, one_node, samples

RNG = np.random.default_rng(0)
X = RNG.standard_normal((7, 3)).astype(np.float32)
TRANSFORMS = ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO")


def _numbers(count: int) -> list[float]:
    found: list[float] = np.random.default_rng(count).standard_normal(count).tolist()
    return found


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("count", [1, 2, 4])
def test_classifiers(transform: str, count: int) -> None:
    node = one_node(
        "LinearClassifier",
        X,
        2,
        coefficients=_numbers(3 * count),
        intercepts=_numbers(count),
        classlabels_ints=[4, 7] if count == 1 else list(range(3, 3 + count)),
        post_transform=transform,
    )
    check_definition(node, X)


@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.int32])
def test_classifiers_of_other_types(dtype: Any) -> None:
    x = (X * 3).astype(dtype)
    about = {"coefficients": _numbers(6), "intercepts": _numbers(2), "classlabels_ints": [0, 1]}
    check_definition(one_node("LinearClassifier", x, 2, **about), x)


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("targets", [1, 3])
def test_regressors(transform: str, targets: int) -> None:
    about = {"coefficients": _numbers(3 * targets), "targets": targets, "post_transform": transform}
    check_definition(one_node("LinearRegressor", X, **about), X)
    about["intercepts"] = _numbers(targets)
    check_definition(one_node("LinearRegressor", X, **about), X)


@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_normalizer(norm: str, dtype: Any) -> None:
    x = np.concatenate([X * 3, np.zeros((1, 3), np.float32), -np.abs(X[:1]) - 1]).astype(dtype)
    check_definition(one_node("Normalizer", x, norm=norm), x)


def test_normalizer_keeps_small_and_large_rows() -> None:
    x = (np.asarray([[3.0, 4.0]]) * np.asarray([[1e-30], [1.0], [1e30]])).astype(np.float32)
    made = defined(one_node("Normalizer", x, norm="L2"))
    assert made is not None
    from tests.convert.lower.running import run

    np.testing.assert_allclose(run(made, {"x": x})[0], [[0.6, 0.8]] * 3, rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_scaler(dtype: Any) -> None:
    x = (X * 3).astype(dtype)
    check_definition(one_node("Scaler", x, offset=_numbers(3), scale=_numbers(3)), x)
    check_definition(one_node("Scaler", x, offset=_numbers(1), scale=_numbers(1)), x)


@pytest.mark.parametrize("replaced", [np.nan, 0.0, 1.0])
@pytest.mark.parametrize("made", [1, 3])
def test_imputer(replaced: float, made: int) -> None:
    x = samples(np.random.default_rng(1), 20, 3)
    about = {"imputed_value_floats": _numbers(made), "replaced_value_float": replaced}
    check_definition(one_node("Imputer", x, **about), x)


def test_imputer_of_integers_and_binarizer() -> None:
    x = np.random.default_rng(2).integers(-2, 3, (6, 3))
    about = {"imputed_value_int64s": [9], "replaced_value_int64": 1}
    check_definition(one_node("Imputer", x, **about), x)
    check_definition(one_node("Binarizer", X, threshold=0.1), X)


def _joined(sizes: list[int], widths: list[int]) -> tuple[ir.Model, dict[str, Array]]:
    from onnx import helper

    feeds = {
        f"x{i}": np.random.default_rng(i).standard_normal((4, w)).astype(np.float32)
        for i, w in enumerate(widths)
    }
    node = helper.make_node(
        "FeatureVectorizer", list(feeds), ["y"], domain="ai.onnx.ml", inputdimensions=sizes
    )
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(n, 1, ["N", a.shape[1]]) for n, a in feeds.items()],
        [helper.make_tensor_value_info("y", 1, ["N", sum(sizes)])],
    )
    imports = [helper.make_opsetid("", 24), helper.make_opsetid("ai.onnx.ml", 1)]
    made = helper.make_model(graph, opset_imports=imports, ir_version=10)
    return ir.from_proto(made), feeds


@pytest.mark.parametrize("sizes", [[2, 3], [4, 1], [2, 5]])
def test_feature_vectorizer_cuts_and_fills_up(sizes: list[int]) -> None:
    from tests.convert.lower.running import run

    model, feeds = _joined(sizes, [2, 3])
    made = defined(model)
    assert made is not None
    np.testing.assert_array_equal(run(made, feeds)[0], run(model, feeds)[0])


def test_probit() -> None:
    x = np.linspace(-0.5, 1.5, 21, dtype=np.float32)[:, None]
    about = {"coefficients": [1.0], "intercepts": [0.0], "post_transform": "PROBIT"}
    check_definition(one_node("LinearRegressor", x, **about), x, 1e-3)
