"""Support vector machines: products with the support vectors, votes of pairs, and probabilities.

Source: ONNX Runtime 1.32, svmclassifier.cc; Wu, Lin and Weng 2004, "Probability estimates for
multi-class classification by pairwise coupling", algorithm 2.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
from onnx import TensorProto, helper

from edgeinfer.convert.lower.tabular.body import NotDefinedError, TabularBody, is_read, values_of
from edgeinfer.convert.lower.tabular.scores import (
    add_column,
    argmax,
    choose,
    is_number_labelled,
    labels_of,
    named,
    transform,
)
from edgeinfer.types import Array

_ROUNDS = 100
"""The most rounds that probabilities of several classes are improved for."""

_ROUNDS_OF_TWO = 3
"""Of two classes two rounds are enough whatever their probabilities are; one more for rounding."""

_WHOLE = 16
"""Powers up to this are products: engines differ in powers of negative numbers."""


def regressor(b: TabularBody) -> list[str]:
    """Define SVMRegressor."""
    supports = int(values_of(b.node, "n_supports", 0))
    coefficients = values_of(b.node, "coefficients")
    rho = b.const(values_of(b.node, "rho")[:1], np.float32)
    if supports:
        kernel = _kernel(b, _supports(b, supports))
        product = b.op("MatMul", kernel, b.const(coefficients[:, None], np.float32))
        score = b.op("Add", product, rho)
    else:
        product = b.op("MatMul", _rows(b), b.const(coefficients[:, None], np.float32))
        score = b.op("Add", product, rho)
    if values_of(b.node, "one_class", 0):
        above = b.op("Greater", score, b.const(0, np.float32))
        score = b.op("Where", above, b.const(1, np.float32), b.const(-1, np.float32))
    return [score]


def classifier(b: TabularBody) -> list[str]:
    """Define SVMClassifier: one machine for each pair of classes, or one row for each class."""
    node = b.node
    if is_read(node, 0) and not is_number_labelled(node):
        raise NotDefinedError("its classes are strings")
    labels = labels_of(node)
    per_class = values_of(node, "vectors_per_class", np.zeros(0, np.int64))
    kind = values_of(node, "post_transform", "NONE")
    if len(labels) < 2:
        raise NotDefinedError("it has fewer than two classes")
    if not per_class.sum():
        return _linear(b, labels, kind)
    if len(per_class) != len(labels):
        raise NotDefinedError("the numbers of classes and of vectors_per_class differ")
    kernel = _kernel(b, _supports(b, int(per_class.sum())))
    pairs = list(combinations(range(len(labels)), 2))
    weights = _pair_weights(values_of(node, "coefficients"), per_class, pairs)
    rho = values_of(node, "rho")[: len(pairs)]
    product = b.op("MatMul", kernel, b.const(weights))
    scores = b.op("Add", product, b.const(rho, np.float32))
    label = named(b, _voted(b, scores, pairs, len(labels)), labels)
    first, second = (values_of(node, f"prob_{n}", np.zeros(0)) for n in "ab")
    if len(first):
        chances = _chances(b, scores, first[: len(pairs)], second[: len(pairs)], pairs)
        return [label, transform(b, chances, kind, len(labels), np.float32)]
    if len(labels) > 2:
        return [label, transform(b, scores, kind, len(pairs), np.float32)]
    return [
        label,
        add_column(b, scores, kind, mixed=kind == "NONE", dtype=np.float32),
    ]


def _rows(b: TabularBody) -> str:
    x = b.rows()
    return b.cast(x, np.float32) if b.dtype is np.float64 else x


def _linear(b: TabularBody, labels: Array, kind: str) -> list[str]:
    """No support vectors: a row of coefficients for each class, and one offset for all."""
    weights = values_of(b.node, "coefficients")
    rows = np.ascontiguousarray(weights.reshape(len(labels), -1).T)
    product = b.op("MatMul", _rows(b), b.const(rows, np.float32))
    scores = b.op("Add", product, b.const(values_of(b.node, "rho")[:1], np.float32))
    label = argmax(b, scores, labels)
    if len(labels) == 2 and not len(values_of(b.node, "prob_a", np.zeros(0))):
        # Above the limit it is the second class, whichever has the greater score.
        most = b.op("ReduceMax", scores, b.ints(1), keepdims=1)
        positive = bool((weights >= 0).all())
        limit = np.nextafter(np.float32(0.5), np.float32(0)) if positive else 0.0
        above = choose(b, most, float(limit), np.asarray([0, 1]), np.float32)
        is_second = b.op("Equal", above, b.const(1, np.int64))
        label = b.op("Where", is_second, b.const(labels[1]), label)
    return [label, transform(b, scores, kind, len(labels), np.float32)]


def _supports(b: TabularBody, count: int) -> Array:
    vectors: Array = values_of(b.node, "support_vectors").reshape(count, -1)
    return vectors


def _kernel(b: TabularBody, vectors: Array) -> str:
    """What a sample has in common with each support vector, (samples, vectors)."""
    kind = values_of(b.node, "kernel_type", "LINEAR")
    given = values_of(b.node, "kernel_params", np.zeros(3, np.float32))
    gamma, zero, degree = (float(v) for v in given[:3])
    x = _rows(b)
    if kind == "RBF":
        # Differences, not products: those would lose digits where samples lie far from zero.
        apart = b.op("Sub", b.op("Unsqueeze", x, b.ints(1)), b.const(vectors[None], np.float32))
        far = b.op("ReduceSum", b.op("Mul", apart, apart), b.ints(2), keepdims=0)
        return b.op("Exp", b.op("Mul", far, b.const(-gamma, np.float32)))
    dots = b.op("MatMul", x, b.const(np.ascontiguousarray(vectors.T), np.float32))
    if kind == "LINEAR":
        return dots
    scaled = b.op("Mul", dots, b.const(gamma, np.float32))
    scaled = b.op("Add", scaled, b.const(zero, np.float32))
    if kind == "SIGMOID":
        return b.op("Tanh", scaled)
    if kind != "POLY":
        raise NotDefinedError(f"kernel {kind!r} is not known")
    if degree == int(degree) and 1 <= degree <= _WHOLE:
        power = scaled
        for _ in range(int(degree) - 1):
            power = b.op("Mul", power, scaled)
        return power
    return b.op("Pow", scaled, b.const(degree, np.float32))


def _pair_weights(coefficients: Array, per_class: Array, pairs: list[tuple[int, int]]) -> Array:
    """The weight of each support vector in each pair's machine, (vectors, pairs)."""
    vectors = int(per_class.sum())
    rows = coefficients.reshape(-1, vectors)
    owner = np.repeat(np.arange(len(per_class)), per_class)
    weights = np.zeros((vectors, len(pairs)), np.float32)
    for place, (one, other) in enumerate(pairs):
        weights[owner == one, place] = rows[other - 1, owner == one]
        weights[owner == other, place] = rows[one, owner == other]
    return weights


def _voted(b: TabularBody, scores: str, pairs: list[tuple[int, int]], classes: int) -> str:
    """The class with the most votes, the first of equal ones."""
    gain = np.zeros((len(pairs), classes), np.float32)
    lost = np.zeros((1, classes), np.float32)
    for place, (one, other) in enumerate(pairs):
        gain[place, one] += 1
        gain[place, other] -= 1
        lost[0, other] += 1
    won = b.cast(b.op("Greater", scores, b.const(0, np.float32)), np.float32)
    votes = b.op("Add", b.op("MatMul", won, b.const(gain)), b.const(lost))
    return b.op("ArgMax", votes, axis=1, keepdims=0)


# ---- probabilities


def _chances(
    b: TabularBody, scores: str, first: Array, second: Array, pairs: list[tuple[int, int]]
) -> str:
    """Probabilities of the classes from those of the pairs, (samples, classes)."""
    classes = max(j for _, j in pairs) + 1
    raised = b.op("Mul", scores, b.const(first, np.float32))
    raised = b.op("Add", raised, b.const(second, np.float32))
    wins = b.op("Sigmoid", b.op("Neg", raised))
    low, high = np.float32(1e-7), np.float32(1) - np.float32(1e-7)
    wins = b.op("Clip", wins, b.const(low), b.const(high))
    losses = b.op("Sub", b.const(1, np.float32), wins)
    # r[i][j]: probability of class i where it is i or j.
    r: dict[tuple[int, int], str] = {}
    for place, (i, j) in enumerate(pairs):
        r[i, j] = b.op("Gather", wins, b.ints(place), axis=1)
        r[j, i] = b.op("Gather", losses, b.ints(place), axis=1)
    q: list[list[str]] = [[""] * classes for _ in range(classes)]
    for i in range(classes):
        others = [b.op("Mul", r[j, i], r[j, i]) for j in range(classes) if j != i]
        q[i][i] = _sum(b, others)
        for j in range(i):
            q[i][j] = q[j][i] = b.op("Neg", b.op("Mul", r[j, i], r[i, j]))
    matrix = b.op("Concat", *(name for row in q for name in row), axis=1)
    share = b.op("Mul", q[0][0], b.const(0, np.float32))
    start = b.op("Concat", *[share] * classes, axis=1)
    start = b.op("Add", start, b.const(np.float32(1) / np.float32(classes), np.float32))
    if classes == 2:
        for _ in range(_ROUNDS_OF_TWO):
            start = _round(b, matrix, start, classes)[0]
        return start
    return _loop(b, matrix, start, classes)


def _sum(b: TabularBody, parts: list[str]) -> str:
    total = parts[0]
    for part in parts[1:]:
        total = b.op("Add", total, part)
    return total


def _round(b: TabularBody, matrix: str, p: str, classes: int) -> tuple[str, str]:
    """Improve the probabilities once where they are not good enough; say where they were not."""

    def column(name: str, index: int) -> str:
        return b.op("Gather", name, b.ints(index), axis=1)

    ps = [column(p, i) for i in range(classes)]
    q = [[column(matrix, i * classes + j) for j in range(classes)] for i in range(classes)]
    qp = [_sum(b, [b.op("Mul", q[i][j], ps[j]) for j in range(classes)]) for i in range(classes)]
    pqp = _sum(b, [b.op("Mul", ps[i], qp[i]) for i in range(classes)])
    errors = b.op("Abs", b.op("Sub", b.op("Concat", *qp, axis=1), pqp))
    limit = b.const(np.float32(0.005) / np.float32(classes), np.float32)
    worst = b.op("ReduceMax", errors, b.ints(1), keepdims=1)
    bad = b.op("GreaterOrEqual", worst, limit)
    one, two = b.const(1, np.float32), b.const(2, np.float32)
    for i in range(classes):
        step = b.op("Div", b.op("Sub", pqp, qp[i]), q[i][i])
        ps[i] = b.op("Add", ps[i], step)
        whole = b.op("Add", one, step)
        more = b.op("Add", b.op("Mul", step, q[i][i]), b.op("Mul", two, qp[i]))
        pqp = b.op("Div", b.op("Add", pqp, b.op("Mul", step, more)), b.op("Mul", whole, whole))
        for j in range(classes):
            qp[j] = b.op("Div", b.op("Add", qp[j], b.op("Mul", step, q[i][j])), whole)
            ps[j] = b.op("Div", ps[j], whole)
    better = b.op("Concat", *ps, axis=1)
    return b.op("Where", bad, better, p), bad


def _loop(b: TabularBody, matrix: str, start: str, classes: int) -> str:
    """Rounds until every sample is good enough."""
    inner = TabularBody(b.node)
    inner._count = 1_000_000
    p, bad = _round(inner, matrix, "probabilities", classes)
    most = inner.op("ReduceMax", inner.cast(bad, np.float32), keepdims=0)
    goes_on = inner.op("Greater", most, inner.const(0, np.float32))
    floats, truth = TensorProto.FLOAT, TensorProto.BOOL
    body = helper.make_graph(
        inner.nodes,
        "round",
        [
            helper.make_tensor_value_info("number", TensorProto.INT64, []),
            helper.make_tensor_value_info("goes", truth, []),
            helper.make_tensor_value_info("probabilities", floats, [None, classes]),
        ],
        [
            helper.make_tensor_value_info(goes_on, truth, []),
            helper.make_tensor_value_info(p, floats, [None, classes]),
        ],
    )
    return b.op("Loop", b.const(_ROUNDS, np.int64), b.const(np.asarray(True)), start, body=body)
