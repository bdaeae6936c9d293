"""What classifiers and regressors make of their sums: labels, and scores after a transform.

Source: ONNX Runtime 1.32, ml_common.h.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.tabular.body import NotDefinedError, TabularBody, values_of
from edgeinfer.types import Array

_INTEGERS = ("classlabels_int64s", "classlabels_ints")
_SMALL = 1e-7
"""What SOFTMAX_ZERO takes for zero."""

_WINITZKI = 0.147
"""Of the approximation of the inverse of erf that PROBIT is defined by."""


def labels_of(node: ir.Node) -> Array:
    """Integers that stand for the classes; for strings their positions."""
    for name in _INTEGERS:
        found = values_of(node, name)
        if found is not None and len(found):
            return np.asarray(found, np.int64)
    return np.arange(len(values_of(node, "classlabels_strings", [])), dtype=np.int64)


def is_number_labelled(node: ir.Node) -> bool:
    """Whether the classes are integers."""
    return not values_of(node, "classlabels_strings", [])


def argmax(b: TabularBody, scores: str, labels: Array) -> str:
    """The label of the greatest score of each row; the first of equal ones."""
    place = b.op("ArgMax", scores, axis=1, keepdims=0)
    return named(b, place, labels)


def named(b: TabularBody, place: str, labels: Array) -> str:
    """The label at each place."""
    if np.array_equal(labels, np.arange(len(labels))):
        return place
    return b.op("Gather", b.const(labels), place)


def choose(b: TabularBody, score: str, limit: float, labels: Array, dtype: Any) -> str:
    """The second label where a score, (samples, 1), is above a limit, else the first one."""
    above = b.op("Greater", b.op("Reshape", score, b.ints(-1)), b.const(limit, dtype))
    return b.op("Where", above, *(b.const(labels[i], np.int64) for i in (1, 0)))


def transform(b: TabularBody, scores: str, kind: str, count: int, dtype: Any) -> str:
    """Apply a transform to the scores of all targets; a single one is only ever a probit."""
    if kind == "NONE" or (count == 1 and kind != "PROBIT"):
        return scores
    if kind == "LOGISTIC":
        return b.op("Sigmoid", scores)
    if kind == "SOFTMAX":
        return b.op("Softmax", scores, axis=1)
    if kind == "SOFTMAX_ZERO":
        return _softmax_zero(b, scores, dtype)
    if kind == "PROBIT":
        return _probit(b, scores, dtype)
    raise NotDefinedError(f"transform {kind!r} is not known")


def add_column(b: TabularBody, score: str, kind: str, *, mixed: bool, dtype: Any) -> str:
    """Give one score, (samples, 1), the score of the other class before it."""
    if kind == "PROBIT":
        raise NotDefinedError("a probit of one score for two classes")
    if kind == "LOGISTIC":
        both = b.op("Concat", b.op("Neg", score), score, axis=1)
        return b.op("Sigmoid", both)
    other = b.op("Neg", score) if mixed else b.op("Sub", b.const(1, dtype), score)
    return b.op("Concat", other, score, axis=1)


def _softmax_zero(b: TabularBody, scores: str, dtype: Any) -> str:
    most = b.op("ReduceMax", scores, b.ints(1), keepdims=1)
    is_some = b.op("Greater", b.op("Abs", scores), b.const(_SMALL, dtype))
    raised = b.op("Exp", b.op("Sub", scores, most))
    zero = b.const(0, dtype)
    total = b.op("ReduceSum", b.op("Where", is_some, raised, zero), b.ints(1), keepdims=1)
    small = b.op("Mul", scores, b.op("Exp", b.op("Neg", most)))
    return b.op("Div", b.op("Where", is_some, raised, small), total)


def _probit(b: TabularBody, scores: str, dtype: Any) -> str:
    """The square root of two, times the inverse of erf."""

    def number(value: float) -> str:
        return b.const(value, dtype)

    x = b.op("Sub", b.op("Mul", scores, number(2)), number(1))
    one = number(1)
    log = b.op("Log", b.op("Mul", b.op("Sub", one, x), b.op("Add", one, x)))
    v = b.op("Add", number(2 / (3.14159 * _WINITZKI)), b.op("Mul", number(0.5), log))
    inner = b.op("Sub", b.op("Mul", v, v), b.op("Mul", number(1 / _WINITZKI), log))
    root = b.op("Sqrt", b.op("Sub", b.op("Sqrt", inner), v))
    negative = b.op("Less", x, number(0))
    signed = b.op("Where", negative, b.op("Neg", root), root)
    return b.op("Mul", signed, number(1.41421356))
