"""Operators of ``ai.onnx.ml`` in terms of the standard ones: models of tables.

What scikit-learn, XGBoost and LightGBM are exported as. Each operator is given as a function, for
every target that has no kernel of its own; ONNX Runtime keeps its kernels. A form that has no
definition is refused like any operator without a lowering.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx
import onnx_ir as ir

from edgeinfer.backends.checks import one_line
from edgeinfer.convert.lower.tabular import categories, linear, svm, trees
from edgeinfer.convert.lower.tabular.body import DOMAIN, MALFORMED, NotDefinedError, TabularBody
from edgeinfer.convert.lower.tabular.trees import misread

__all__ = ["DOMAIN", "definition", "misread", "undefined"]

_KNOWN: dict[str, Callable[[TabularBody], list[str]]] = {
    "ArrayFeatureExtractor": categories.array_feature_extractor,
    "Binarizer": linear.binarizer,
    "FeatureVectorizer": linear.feature_vectorizer,
    "Imputer": linear.imputer,
    "LabelEncoder": categories.label_encoder,
    "LinearClassifier": linear.classifier,
    "LinearRegressor": linear.regressor,
    "Normalizer": linear.normalizer,
    "OneHotEncoder": categories.one_hot,
    "SVMClassifier": svm.classifier,
    "SVMRegressor": svm.regressor,
    "Scaler": linear.scaler,
    "TreeEnsemble": trees.ensemble,
    "TreeEnsembleClassifier": trees.classifier,
    "TreeEnsembleRegressor": trees.ensemble,
}


def definition(node: ir.Node) -> onnx.FunctionProto | None:
    """Return a function that computes what a node does; None where there is none for its form."""
    return _understood(node)[0]


def undefined(node: ir.Node) -> str:
    """Say why a form of an operator has no definition; empty where it has one, or is not known."""
    return _understood(node)[1]


def _understood(node: ir.Node) -> tuple[onnx.FunctionProto | None, str]:
    make = _KNOWN.get(node.op_type) if node.domain == DOMAIN else None
    if make is None:
        return None, ""
    try:
        body = TabularBody(node)
        return body.function(make(body)), ""
    except NotDefinedError as e:
        return None, str(e)
    except MALFORMED as e:
        return None, f"its attributes do not go together: {one_line(e)[:200]}"
