"""Types and shapes of the operators of tabular models, most of which onnx does not infer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from edgeinfer.convert.passes.infra import dims_of

DOMAIN = "ai.onnx.ml"

Dim = int | ir.SymbolicDim
Found = Sequence[tuple[ir.DataType | None, Sequence[Dim]]]
"""Type and sizes of each output."""

_FLOAT = ir.DataType.FLOAT


def learn(node: ir.Node) -> set[ir.Value]:
    """Fill in what follows for the outputs of a node; returns those that changed."""
    rule = _RULES.get(node.op_type) if node.domain == DOMAIN else None
    x = node.inputs[0] if node.inputs else None
    if rule is None or x is None or x.shape is None:
        return set()
    changed = set()
    for value, (dtype, dims) in zip(node.outputs, rule(node, x), strict=False):
        shape = ir.Shape(list(dims))
        if dtype is not None and value.dtype != dtype:
            value.type = ir.TensorType(dtype)
            changed.add(value)
        if value.shape is None or tuple(value.shape) != tuple(shape):
            value.shape = shape
            changed.add(value)
    return changed


def _ints(node: ir.Node, name: str) -> Sequence[int]:
    found = node.attributes.get(name)
    return () if found is None else found.as_ints()


def _count(node: ir.Node, *names: str) -> int:
    """Length of the first list that is there."""
    for name in names:
        found = node.attributes.get(name)
        if found is not None and len(found.value):
            return len(found.value)
    return 0


def _rows(x: ir.Value) -> Dim:
    dims = dims_of(x)
    return dims[0] if len(dims) > 1 else 1


def _same(node: ir.Node, x: ir.Value) -> Found:
    return [(x.dtype, dims_of(x))]


def _as_float(node: ir.Node, x: ir.Value) -> Found:
    return [(_FLOAT, dims_of(x))]


def _targets(name: str) -> Callable[[ir.Node, ir.Value], Found]:
    def rule(node: ir.Node, x: ir.Value) -> Found:
        found = node.attributes.get(name)
        count = 1 if found is None else found.as_int()
        kind = x.dtype if node.op_type == "TreeEnsemble" else _FLOAT
        return [(kind, [_rows(x), count])]

    return rule


def _one(node: ir.Node, x: ir.Value) -> Found:
    return [(_FLOAT, [_rows(x), 1])]


def _classes(node: ir.Node, x: ir.Value) -> Found:
    """The label and the scores; of a machine without probabilities one score a pair."""
    strings = _count(node, "classlabels_strings")
    count = strings or _count(node, "classlabels_int64s", "classlabels_ints")
    scores = count
    if node.op_type == "LinearClassifier":
        scores = _count(node, "intercepts")
        scores = 2 if scores == 1 and count == 2 else scores
    pairs = sum(_ints(node, "vectors_per_class")) and not _count(node, "prob_a")
    if node.op_type == "SVMClassifier" and pairs and count > 2:
        scores = count * (count - 1) // 2
    label = ir.DataType.STRING if strings else ir.DataType.INT64
    return [(label, [_rows(x)]), (_FLOAT, [_rows(x), scores])]


def _vector(node: ir.Node, x: ir.Value) -> Found:
    return [(_FLOAT, [_rows(x), sum(_ints(node, "inputdimensions"))])]


def _hot(node: ir.Node, x: ir.Value) -> Found:
    return [(_FLOAT, [*dims_of(x), _count(node, "cats_int64s", "cats_strings")])]


_RULES: dict[str, Callable[[ir.Node, ir.Value], Found]] = {
    "Binarizer": _same,
    "FeatureVectorizer": _vector,
    "Imputer": _same,
    "LinearClassifier": _classes,
    "LinearRegressor": _targets("targets"),
    "Normalizer": _as_float,
    "OneHotEncoder": _hot,
    "SVMClassifier": _classes,
    "SVMRegressor": _one,
    "Scaler": _as_float,
    "TreeEnsemble": _targets("n_targets"),
    "TreeEnsembleClassifier": _classes,
    "TreeEnsembleRegressor": _targets("n_targets"),
}
