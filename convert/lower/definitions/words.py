"""TfIdfVectorizer: counts of sequences of words that are numbers."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import onnx
import onnx_ir as ir

from edgeinfer.convert.lower.definitions.body import Body, attribute, sizes
from edgeinfer.types import Array

_LIMIT = 1 << 22
"""Comparisons at once."""


def tf_idf_vectorizer(node: ir.Node) -> onnx.FunctionProto | None:
    """Compare every place of the text with every sequence of the pool; None of words in letters."""
    x, shape = node.inputs[0], sizes(node.inputs[0])
    pool, columns = attribute(node, "pool_int64s", None), attribute(node, "ngram_indexes", ())
    if x is None or x.dtype is None or shape is None or 0 in shape or pool is None or not columns:
        return None
    body, batch = Body(node), shape[0] if len(shape) == 2 else 1
    rows = body.reshape("i0", batch, shape[-1])
    width, left = max(columns) + 1, list(columns)
    total = body.const(np.zeros((batch, width), np.float32))
    skips = attribute(node, "max_skip_count", 0)
    shortest, longest = (attribute(node, f"{m}_gram_length", 1) for m in ("min", "max"))
    for length, grams in _pool(pool, attribute(node, "ngram_counts", ())):
        mine, left = left[: len(grams)], left[len(grams) :]
        if not shortest <= length <= longest or not len(grams):
            continue
        place = np.zeros((len(grams), width), np.float32)
        place[np.arange(len(grams)), mine] = 1
        # Between the words of one there is nothing to skip.
        for step in range(1, skips + 2 if length > 1 else 2):
            windows = shape[-1] - (length - 1) * step
            if windows <= 0:
                continue
            if batch * windows * len(grams) > _LIMIT:
                return None
            counts = _counts(body, rows, grams.astype(x.dtype.numpy()), windows, step)
            total = body.op("Add", total, body.op("MatMul", counts, body.const(place)))
    total = _weighed(body, node, total, width)
    body.give(0, body.reshape(total, *shape[:-1], width))
    return body.function()


def _pool(values: list[int], starts: list[int]) -> list[tuple[int, Array]]:
    """The sequences of each length."""
    ends = pairwise([*starts, len(values)])
    return [(n, np.asarray(values[a:b]).reshape(-1, n)) for n, (a, b) in enumerate(ends, 1)]


def _counts(body: Body, rows: str, grams: Array, width: int, step: int) -> str:
    """How often each sequence is in each row, its words so many positions apart."""
    found = ""
    for word in range(grams.shape[1]):
        ends = (body.const([n]) for n in (word * step, word * step + width, 1))
        part = body.op("Unsqueeze", body.op("Slice", rows, *ends), body.const([2]))
        same = body.op("Equal", part, body.const(grams[:, word].reshape(1, 1, -1)))
        found = body.op("And", found, same) if found else same
    number = body.op("Cast", found, to=ir.DataType.FLOAT.value)
    return body.op("ReduceSum", number, body.const([1]), keepdims=0)


def _weighed(body: Body, node: ir.Node, counts: str, width: int) -> str:
    mode, weights = attribute(node, "mode", "TF"), attribute(node, "weights", None)
    if mode == "IDF":
        counts = body.op("Min", counts, body.const(1.0))
    if mode == "TF" or weights is None:
        return counts
    shares = np.ones(width, np.float32)
    shares[list(attribute(node, "ngram_indexes", ()))] = weights
    return body.op("Mul", counts, body.const(shares))
