"""Operators of tables other than trees, as their definitions read.

``onnx.reference`` (1.23) lacks transforms, wants attributes that have defaults, scales integers as
integers, finds NaN among categories, and decides between two classes otherwise than ONNX Runtime.

Source: ONNX, ai.onnx.ml; where it is silent, ONNX Runtime 1.32, core/providers/cpu/ml.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from edgeinfer.convert.verify.operators.forest import finished, transformed
from edgeinfer.convert.verify.operators.window import Unhandled
from edgeinfer.types import Array

Attrs = Mapping[str, Any]
Plain = Callable[[Attrs, int, list[Array | None]], tuple[Array, ...]]

_FINDS_NAN = 4
"""Version from which on a key that is NaN is found."""


def of_one(function: Callable[[Attrs, Array], Array]) -> Plain:
    """Return the operator that a function of one tensor is."""

    def run(attrs: Attrs, version: int, inputs: list[Array | None]) -> tuple[Array, ...]:
        x = inputs[0]
        if x is None or x.dtype.kind not in "iuf":
            raise Unhandled("no numbers")
        return (function({**attrs, "#version": version}, x),)

    return run


def _wide(x: Array) -> Array:
    """Numbers as the operators compute with them: floats."""
    return x if x.dtype.kind == "f" else x.astype(np.float32)


def _rows(x: Array) -> Array:
    x = _wide(x)
    return x.reshape(1, -1) if x.ndim == 1 else x


def _scaler(attrs: Attrs, x: Array) -> Array:
    x = _wide(x)
    offset, scale = (np.asarray(attrs.get(n, d), x.dtype) for n, d in (("offset", 0), ("scale", 1)))
    return np.asarray((x - offset) * scale)


def _normalizer(attrs: Attrs, x: Array) -> Array:
    x, kind = _wide(x), attrs.get("norm", "MAX")
    if kind == "MAX":
        size = x.max(-1, keepdims=True)
    elif kind == "L1":
        size = np.abs(x).sum(-1, keepdims=True)
    else:
        size = np.sqrt((x * x).sum(-1, keepdims=True))
    return np.asarray(x / np.where(size == 0, 1, size))


def _imputer(attrs: Attrs, x: Array) -> Array:
    kind = "float" if x.dtype.kind == "f" else "int64"
    made = np.asarray(attrs[f"imputed_value_{kind}s"], x.dtype)
    replaced = attrs.get(f"replaced_value_{kind}", 0)
    made = made if len(made) == x.shape[-1] else made[:1]
    found = np.isnan(x) if replaced != replaced else x == replaced
    return np.asarray(np.where(found, made, x))


def _binarizer(attrs: Attrs, x: Array) -> Array:
    return np.asarray(x > attrs.get("threshold", 0.0)).astype(x.dtype)


def _one_hot(attrs: Attrs, x: Array) -> Array:
    categories = attrs.get("cats_int64s")
    if categories is None:
        raise Unhandled("categories that are strings")
    flat = [None if v != v or abs(v) == np.inf else int(v) for v in x.reshape(-1).tolist()]
    indices = {c: i for i, c in enumerate(categories)}
    hot = np.zeros((len(flat), len(categories)), np.float32)
    for row, value in enumerate(flat):
        if value in indices:
            hot[row, indices[value]] = 1
        elif not attrs.get("zeros", 1):
            raise Unhandled("a category that is not known")
    return hot.reshape(*x.shape, -1)


def _label_encoder(attrs: Attrs, x: Array) -> Array:
    keys, _ = _listed(attrs, "keys")
    values, kind = _listed(attrs, "values")
    given = attrs.get("default_tensor")
    usual = attrs.get(f"default_{kind}", -0.0 if kind == "float" else -1)
    default = usual if given is None else given.numpy().reshape(-1)[0]
    table: dict[Any, Any] = {}
    for key, value in zip(keys.tolist(), values.tolist(), strict=True):
        table.setdefault("nan" if key != key else key, value)
    if attrs["#version"] < _FINDS_NAN:
        table.pop("nan", None)
    flat = ["nan" if v != v else v for v in x.reshape(-1).tolist()]
    return np.asarray([table.get(v, default) for v in flat], values.dtype).reshape(x.shape)


def _listed(attrs: Attrs, what: str) -> tuple[Array, str]:
    tensor = attrs.get(f"{what}_tensor")
    if tensor is not None:
        return tensor.numpy().reshape(-1), "tensor"
    for kind, dtype in (("int64", np.int64), ("float", np.float32)):
        if f"{what}_{kind}s" in attrs:
            return np.asarray(attrs[f"{what}_{kind}s"], dtype), kind
    raise Unhandled("keys or values that are strings")


def vectorizer(attrs: Attrs, version: int, inputs: list[Array | None]) -> tuple[Array, ...]:
    """FeatureVectorizer."""
    parts = []
    for x, size in zip(inputs, attrs["inputdimensions"], strict=True):
        if x is None:
            raise Unhandled("columns that are left out")
        rows = _wide(x)
        rows = rows.reshape(1 if rows.ndim == 1 else len(rows), -1)[:, :size]
        parts.append(np.pad(rows, ((0, 0), (0, size - rows.shape[1]))))
    return (np.concatenate(parts, axis=1),)


# ---- linear models and support vectors


def _linear_regressor(attrs: Attrs, x: Array) -> Array:
    scores = _products(attrs, _rows(x), int(attrs.get("targets", 1)))
    return transformed(scores, attrs.get("post_transform", "NONE"))


def _products(attrs: Attrs, x: Array, count: int) -> Array:
    weights = np.asarray(attrs["coefficients"], x.dtype).reshape(count, -1)
    return np.asarray(x @ weights.T + np.asarray(attrs.get("intercepts") or 0, x.dtype))


def _labels(attrs: Attrs) -> tuple[Sequence[Any], Any]:
    """Labels and the type of their array."""
    strings = attrs.get("classlabels_strings")
    return (strings, object) if strings else (attrs["classlabels_ints"], np.int64)


def linear_classifier(attrs: Attrs, version: int, inputs: list[Array | None]) -> tuple[Array, ...]:
    """LinearClassifier."""
    if inputs[0] is None or not attrs.get("intercepts"):
        raise Unhandled("no samples, or no intercepts")
    x = _rows(inputs[0])
    scores = _products(attrs, x, len(attrs["intercepts"]))
    labels, dtype = _labels(attrs)
    kind = attrs.get("post_transform", "NONE")
    if scores.shape[1] > 1:
        chosen = [labels[i] for i in scores.argmax(1)]
        return np.asarray(chosen, dtype), transformed(scores, kind)
    pair = labels if len(labels) == 2 else [0, 1]
    chosen = [pair[int(s > 0)] for s in scores[:, 0]]
    mixed = None if len(labels) != 2 else False
    made = [finished(row, kind, mixed) for row in scores]
    return np.asarray(chosen, dtype), np.asarray(made).reshape(len(x), -1)


def _kernel(attrs: Attrs, x: Array, vectors: Array) -> Array:
    kind = attrs.get("kernel_type", "LINEAR")
    gamma, zero, degree = (attrs.get("kernel_params") or [0.0, 0.0, 0.0])[:3]
    if kind == "RBF":
        return np.asarray(np.exp(-gamma * ((x[:, None] - vectors[None]) ** 2).sum(2)))
    dots = x @ vectors.T
    if kind == "LINEAR":
        return np.asarray(dots)
    dots = dots * gamma + zero
    return np.asarray(dots**degree if kind == "POLY" else np.tanh(dots))


def _svm_regressor(attrs: Attrs, x: Array) -> Array:
    x = _rows(x)
    weights = np.asarray(attrs["coefficients"], x.dtype)
    supports = attrs.get("n_supports", 0)
    if supports:
        vectors = np.asarray(attrs["support_vectors"], x.dtype).reshape(supports, -1)
        x = _kernel(attrs, x, vectors)
    scores = (x @ weights + np.asarray(attrs["rho"][0], x.dtype))[:, None]
    if attrs.get("one_class", 0):
        scores = np.where(scores > 0, 1, -1).astype(x.dtype)
    return np.asarray(scores)


def svm_classifier(attrs: Attrs, version: int, inputs: list[Array | None]) -> tuple[Array, ...]:
    """SVMClassifier."""
    if inputs[0] is None:
        raise Unhandled("no samples")
    x = _rows(inputs[0])
    labels, dtype = _labels(attrs)
    sizes, kind = attrs.get("vectors_per_class") or [], attrs.get("post_transform", "NONE")
    if not sum(sizes):
        return _of_rows(attrs, x)
    pairs = list(combinations(range(len(labels)), 2))
    vectors = np.asarray(attrs["support_vectors"], x.dtype).reshape(sum(sizes), -1)
    shared = _kernel(attrs, x, vectors)
    weights = np.asarray(attrs["coefficients"], x.dtype).reshape(len(labels) - 1, -1)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    scores = np.zeros((len(x), len(pairs)), x.dtype)
    votes = np.zeros((len(x), len(labels)), np.int64)
    for place, (i, j) in enumerate(pairs):
        for own, row in ((i, j - 1), (j, i)):
            part = slice(starts[own], starts[own + 1])
            scores[:, place] += shared[:, part] @ weights[row, part]
        scores[:, place] += attrs["rho"][place]
        won = scores[:, place] > 0
        votes[won, i] += 1
        votes[~won, j] += 1
    chosen = np.asarray([labels[i] for i in votes.argmax(1)], dtype)
    if attrs.get("prob_a"):
        return chosen, transformed(_probabilities(attrs, scores, pairs, len(labels)), kind)
    if len(labels) > 2:
        return chosen, transformed(scores, kind)
    mixed = kind == "NONE"
    return chosen, np.asarray([finished(row, kind, mixed) for row in scores]).reshape(len(x), -1)


def _of_rows(attrs: Attrs, x: Array) -> tuple[Array, ...]:
    """A row of coefficients for each class, without support vectors."""
    labels, dtype = _labels(attrs)
    weights = np.asarray(attrs["coefficients"], x.dtype).reshape(len(labels), -1)
    scores = x @ weights.T + np.asarray(attrs["rho"][0], x.dtype)
    indices = scores.argmax(1)
    if len(labels) == 2 and not attrs.get("prob_a"):
        most = scores.max(1)
        above = most >= 0.5 if (weights >= 0).all() else most > 0
        indices = np.where(above, 1, indices)
    chosen = np.asarray([labels[i] for i in indices], dtype)
    return chosen, transformed(scores, attrs.get("post_transform", "NONE"))


def _probabilities(
    attrs: Attrs, scores: Array, pairs: Sequence[tuple[int, int]], count: int
) -> Array:
    """Probabilities of classes from those of pairs.

    Source: Wu, Lin and Weng 2004, algorithm 2, stopped as libsvm does.
    """
    found = []
    for row in scores:
        r = np.zeros((count, count))
        for place, (i, j) in enumerate(pairs):
            chance = 1 / (1 + np.exp(row[place] * attrs["prob_a"][place] + attrs["prob_b"][place]))
            r[i, j] = min(max(chance, 1e-7), 1 - 1e-7)
            r[j, i] = 1 - r[i, j]
        q = -r * r.T
        np.fill_diagonal(q, (r * r).sum(0))
        found.append(_coupled(q, count))
    return np.asarray(found, scores.dtype)


def _coupled(q: Array, count: int) -> Array:
    p = np.full(count, 1 / count)
    for _ in range(100):
        qp = q @ p
        pqp = p @ qp
        if np.abs(qp - pqp).max() < 0.005 / count:
            break
        for i in range(count):
            step = (pqp - qp[i]) / q[i, i]
            p[i] += step
            pqp = (pqp + step * (step * q[i, i] + 2 * qp[i])) / (1 + step) ** 2
            qp = (qp + step * q[i]) / (1 + step)
            p = p / (1 + step)
    return p


scaler, normalizer, imputer = of_one(_scaler), of_one(_normalizer), of_one(_imputer)
binarizer, one_hot, label_encoder = of_one(_binarizer), of_one(_one_hot), of_one(_label_encoder)
linear_regressor, svm_regressor = of_one(_linear_regressor), of_one(_svm_regressor)
