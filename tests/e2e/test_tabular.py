"""Models that scikit-learn, XGBoost and LightGBM train here, on every target.

What is right says the library that trained the model, on rows that it has and on rows with values
missing; the gate holds every artifact to it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import edgeinfer
from edgeinfer.types import Array

TARGETS = {
    "cpu": (),
    "onnxruntime": ("onnxruntime",),
    "openvino": ("openvino",),
    "rpi5": ("ai_edge_litert",),
    "ios": ("coremltools",),
    "tvm-x86-64-v3": ("tvm",),
}
"""With what has to be installed for it."""

RNG = np.random.default_rng(0)
ROWS = np.round(RNG.standard_normal((300, 5)) * 3, 1).astype(np.float32)
"""Rounded, so that samples and thresholds meet."""

SUM = ROWS @ np.asarray([1.0, -2.0, 0.5, 0.0, 1.0], np.float32)
CLASSES = np.digitize(SUM, [-4, 4])
WORDS = np.asarray(["low", "middle", "high"])[CLASSES]
GAPS = np.where(RNG.random(ROWS.shape) < 0.15, np.float32(np.nan), ROWS)

Trained = tuple[onnx.ModelProto, Array, dict[str, Array]]
"""A model, rows for it, and what the library makes of them by output."""


def _sklearn(model: Any, rows: Array, wanted: Array, **options: Any) -> Trained:
    pytest.importorskip("sklearn")
    skl2onnx = pytest.importorskip("skl2onnx")
    model.fit(rows, wanted)
    try:
        proto = skl2onnx.to_onnx(model, rows[:1], **options)
    except (TypeError, ValueError) as error:
        # Of version 1.20 with a newer onnx, which takes no boolean of NumPy for an attribute.
        pytest.skip(f"skl2onnx {skl2onnx.__version__}, onnx {onnx.__version__}: {error}")
    tried = rows[:40]
    if not hasattr(model, "predict_proba"):
        made = np.asarray(model.predict(tried), np.float32).reshape(len(tried), -1)
        return proto, tried, {"variable": made}
    return proto, tried, {"output_probability": model.predict_proba(tried).astype(np.float32)}


def forest_of_words() -> Trained:
    from sklearn.ensemble import RandomForestClassifier

    return _sklearn(RandomForestClassifier(20, random_state=0), ROWS, WORDS)


def forest_of_two() -> Trained:
    from sklearn.ensemble import RandomForestClassifier

    return _sklearn(RandomForestClassifier(20, max_depth=5, random_state=0), ROWS, SUM > 0)


def regressing_forest() -> Trained:
    from sklearn.ensemble import ExtraTreesRegressor

    both = np.stack([SUM, -SUM * 2], axis=1)
    return _sklearn(ExtraTreesRegressor(10, random_state=0), ROWS, both)


def boosted_trees() -> Trained:
    from sklearn.ensemble import GradientBoostingClassifier

    return _sklearn(GradientBoostingClassifier(n_estimators=10, random_state=0), ROWS, CLASSES)


def logistic_regression_with_gaps() -> Trained:
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import RobustScaler

    model = make_pipeline(SimpleImputer(), RobustScaler(), LogisticRegression())
    return _sklearn(model, GAPS, CLASSES)


def neighbours() -> Trained:
    """Distances from the training rows by a Scan, with an open batch."""
    from sklearn.neighbors import KNeighborsClassifier

    return _sklearn(KNeighborsClassifier(5), ROWS, CLASSES)


def neighbours_by_cdist() -> Trained:
    """Distances by the operator of ONNX Runtime that skl2onnx can write."""
    from sklearn.neighbors import KNeighborsRegressor

    model = KNeighborsRegressor(5)
    return _sklearn(model, ROWS, SUM, options={KNeighborsRegressor: {"optim": "cdist"}})


def histograms_with_gaps() -> Trained:
    from sklearn.ensemble import HistGradientBoostingClassifier

    return _sklearn(HistGradientBoostingClassifier(max_iter=8), GAPS, CLASSES)


def support_vectors() -> Trained:
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import SVR

    return _sklearn(make_pipeline(StandardScaler(), SVR()), ROWS, SUM)


def categories() -> Trained:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    rows = np.random.default_rng(1).integers(0, 5, (200, 3))
    model = make_pipeline(OneHotEncoder(handle_unknown="ignore"), LogisticRegression())
    return _sklearn(model, rows, rows.sum(1) > 6)


def gaussian_processes() -> Trained:
    """Equations with a known matrix, and sizes of the batch as values."""
    from sklearn.gaussian_process import GaussianProcessClassifier

    return _sklearn(GaussianProcessClassifier(), ROWS[:60], (SUM > 0)[:60])


def regressing_processes() -> Trained:
    from sklearn.gaussian_process import GaussianProcessRegressor

    proto, rows, want = _sklearn(GaussianProcessRegressor(alpha=0.1), ROWS[:60], SUM[:60])
    return proto, rows, {proto.graph.output[0].name: want["variable"]}


def columns_of_floats() -> Trained:
    """Categories that are floats, next to numbers."""
    from sklearn.compose import ColumnTransformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    groups = np.random.default_rng(1).integers(0, 5, (len(ROWS), 1)).astype(np.float32)
    columns = ColumnTransformer(
        [
            ("numbers", StandardScaler(), [0, 1]),
            ("groups", OneHotEncoder(handle_unknown="ignore"), [2]),
        ]
    )
    rows = np.concatenate([ROWS[:, :2], groups], axis=1)
    return _sklearn(make_pipeline(columns, LogisticRegression()), rows, CLASSES)


def places_among_quantiles() -> Trained:
    """Zeros that are written as products, of which the cast of an open input is one."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import QuantileTransformer

    model = make_pipeline(QuantileTransformer(n_quantiles=20), LogisticRegression())
    return _sklearn(model, ROWS, CLASSES)


def counted_categories() -> Trained:
    """Floats that say where to read."""
    from sklearn.naive_bayes import CategoricalNB

    return _sklearn(CategoricalNB(), np.abs(np.round(ROWS)), CLASSES)


def neighbours_within_reach() -> Trained:
    from sklearn.neighbors import RadiusNeighborsRegressor

    return _sklearn(RadiusNeighborsRegressor(radius=6.0), ROWS, SUM)


def _outliers(model: Any) -> Trained:
    pytest.importorskip("sklearn")
    skl2onnx = pytest.importorskip("skl2onnx")
    model.fit(ROWS)
    proto = skl2onnx.to_onnx(model, ROWS[:1], target_opset={"": 18, "ai.onnx.ml": 3})
    scores = model.decision_function(ROWS[:40]).astype(np.float32).reshape(-1, 1)
    return proto, ROWS[:40], {"scores": scores}


def outliers_by_trees() -> Trained:
    from sklearn.ensemble import IsolationForest

    return _outliers(IsolationForest(n_estimators=10, random_state=0))


def outliers_by_support_vectors() -> Trained:
    from sklearn.svm import OneClassSVM

    return _outliers(OneClassSVM())


def _onnxmltools(model: Any, convert: str, rows: Array) -> Trained:
    tools = pytest.importorskip("onnxmltools")
    from onnxmltools.convert.common.data_types import FloatTensorType

    proto = getattr(tools, convert)(
        model, initial_types=[("x", FloatTensorType([None, rows.shape[1]]))]
    )
    tried = rows[:40]
    last = proto.graph.output[-1].name
    if hasattr(model, "predict_proba"):
        return proto, tried, {last: model.predict_proba(tried).astype(np.float32)}
    return proto, tried, {last: model.predict(tried).astype(np.float32).reshape(-1, 1)}


def xgboost_with_gaps() -> Trained:
    xgboost = pytest.importorskip("xgboost")
    model = xgboost.XGBClassifier(n_estimators=8, max_depth=4).fit(GAPS, CLASSES)
    return _onnxmltools(model, "convert_xgboost", GAPS)


def xgboost_of_two() -> Trained:
    xgboost = pytest.importorskip("xgboost")
    model = xgboost.XGBClassifier(n_estimators=8, max_depth=4).fit(ROWS, SUM > 0)
    return _onnxmltools(model, "convert_xgboost", ROWS)


def xgboost_regression() -> Trained:
    xgboost = pytest.importorskip("xgboost")
    model = xgboost.XGBRegressor(n_estimators=8, max_depth=4).fit(GAPS, SUM)
    return _onnxmltools(model, "convert_xgboost", GAPS)


def lightgbm_with_gaps() -> Trained:
    lightgbm = pytest.importorskip("lightgbm")
    model = lightgbm.LGBMClassifier(n_estimators=8, verbose=-1).fit(GAPS, CLASSES)
    return _onnxmltools(model, "convert_lightgbm", GAPS)


def lightgbm_regression() -> Trained:
    lightgbm = pytest.importorskip("lightgbm")
    model = lightgbm.LGBMRegressor(n_estimators=8, verbose=-1).fit(GAPS, SUM)
    return _onnxmltools(model, "convert_lightgbm", GAPS)


FROM_SKLEARN = (
    forest_of_words,
    forest_of_two,
    regressing_forest,
    boosted_trees,
    logistic_regression_with_gaps,
    neighbours,
    neighbours_by_cdist,
    histograms_with_gaps,
    support_vectors,
    categories,
    gaussian_processes,
    regressing_processes,
    columns_of_floats,
    places_among_quantiles,
    counted_categories,
    neighbours_within_reach,
    outliers_by_trees,
    outliers_by_support_vectors,
)
OTHERS = (
    xgboost_with_gaps,
    xgboost_of_two,
    xgboost_regression,
    lightgbm_with_gaps,
    lightgbm_regression,
)


def _exported(
    train: Callable[[], Trained], target: str, tmp_path: Path
) -> tuple[edgeinfer.ExportResult, Array, dict[str, Array]]:
    """Convert with the library's answers as data: an artifact that gives others is refused."""
    if train in FROM_SKLEARN:
        pytest.importorskip("sklearn")
        pytest.importorskip("skl2onnx")
    for name in TARGETS[target]:
        pytest.importorskip(name)
    proto, rows, want = train()
    (name,) = (v.name for v in proto.graph.input)
    result = edgeinfer.export(
        proto, tmp_path / "m.edge", targets=[target], data=[{name: rows, **want}]
    )
    return result, rows, want


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("train", FROM_SKLEARN + OTHERS, ids=lambda t: t.__name__)
def test_every_target_gives_what_the_library_does(
    train: Callable[[], Trained], target: str, tmp_path: Path
) -> None:
    result, _, _ = _exported(train, target, tmp_path)
    assert [v for v in result.manifest.variants if v.target == target]


@pytest.mark.slow
@pytest.mark.parametrize(
    "train",
    [forest_of_words, xgboost_with_gaps, logistic_regression_with_gaps],
    ids=lambda t: t.__name__,
)
def test_a_session_gives_what_the_library_does(
    train: Callable[[], Trained], tmp_path: Path
) -> None:
    result, rows, want = _exported(train, "openvino", tmp_path)
    with edgeinfer.load(result.path) as session:
        (name,) = (s.name for s in result.manifest.inputs)
        found = session.run({name: rows})
    ((output, scores),) = want.items()
    np.testing.assert_allclose(found[output], scores, rtol=1e-4, atol=1e-5)
    label = next(n for n in found if n != output)
    assert train is forest_of_words or np.isnan(rows).any()
    if train is forest_of_words:
        assert result.manifest.labels == ("high", "low", "middle")
        named = [result.manifest.labels[i] for i in found[label]]
        best = [("high", "low", "middle")[i] for i in scores.argmax(1)]
        assert named == best
