"""Counts of sequences of words that are numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.lower.tflite.builder import Builder
from edgeinfer.convert.lower.tflite.graph import Tensor
from edgeinfer.convert.lower.tflite.registry import INTEGERS, OPS

_LIMIT = 1 << 22
"""Comparisons at once."""


@OPS.lower("TfIdfVectorizer", since=9, dtypes=INTEGERS | {ir.DataType.FLOAT})
def tf_idf_vectorizer(
    g: Builder,
    x: Tensor,
    *,
    max_gram_length: int,
    max_skip_count: int,
    min_gram_length: int,
    mode: str,
    ngram_counts: Sequence[int],
    ngram_indexes: Sequence[int],
    pool_int64s: Sequence[int] | None = None,
    pool_strings: Sequence[str] | None = None,
    weights: Sequence[float] | None = None,
) -> Tensor:
    """Compare every place of the text with every sequence of the pool."""
    if pool_int64s is None:
        raise Refusal("words that are text", "unsupported_dtype")
    if not x.is_static:
        raise Refusal("the length of the text must be known", "dynamic_shape")
    rows = x if x.rank == 2 else g.insert_axis(x, 0)
    width = max(ngram_indexes) + 1
    total = g.const(np.zeros((rows.static_shape[0], width), np.float32))
    columns = list(ngram_indexes)
    for length, grams in _pool(pool_int64s, ngram_counts):
        mine, columns = columns[: len(grams)], columns[len(grams) :]
        if not min_gram_length <= length <= max_gram_length or not len(grams):
            continue
        place = np.zeros((len(grams), width), np.float32)
        place[np.arange(len(grams)), mine] = 1
        # Between the words of one there is nothing to skip.
        for skip in range(max_skip_count + 1 if length > 1 else 1):
            counts = _counts(g, rows, grams, skip + 1)
            if counts is not None:
                options = {"adj_x": False, "adj_y": False, "asymmetric_quantize_inputs": False}
                spread = g.emit("BATCH_MATMUL", [counts, g.const(place)], total.shape, **options)
                total = g.binary("ADD", total, spread)
    total = _weighed(g, total, mode, weights, ngram_indexes)
    return total if x.rank == 2 else g.drop_axis(total, 0)


def _pool(values: Sequence[int], starts: Sequence[int]) -> list[tuple[int, np.ndarray]]:
    """The sequences of each length."""
    ends = [*starts[1:], len(values)]
    return [
        (n, np.asarray(values[a:b], np.int64).reshape(-1, n))
        for n, (a, b) in enumerate(zip(starts, ends, strict=True), 1)
    ]


def _counts(g: Builder, rows: Tensor, grams: np.ndarray, step: int) -> Tensor | None:
    """How often each sequence is in each row, its words so many places apart."""
    batch, size = rows.static_shape
    length = grams.shape[1]
    places = size - (length - 1) * step
    if places <= 0:
        return None
    if batch * places * len(grams) > _LIMIT:
        raise Refusal(f"more than {_LIMIT} comparisons at once")
    found: Tensor | None = None
    for word in range(length):
        begin, end = [0, word * step], [None, word * step + places]
        part = g.insert_axis(g.slice(rows, begin, end, [1, 1]), 2)
        same = g.binary("EQUAL", part, g.const(grams[:, word].reshape(1, 1, -1), rows.dtype))
        found = same if found is None else g.binary("LOGICAL_AND", found, same)
    if found is None:
        return None
    return g.reduce("SUM", g.cast(found, np.float32), [1], False)


def _weighed(
    g: Builder,
    counts: Tensor,
    mode: str,
    weights: Sequence[float] | None,
    columns: Sequence[int],
) -> Tensor:
    if mode not in ("TF", "IDF", "TFIDF"):
        raise Refusal(f"mode {mode!r}")
    if mode != "TF" and weights is not None:
        shares = np.ones(counts.static_shape[1], np.float32)
        shares[list(columns)] = weights
    else:
        shares = None
    if mode == "IDF":
        counts = g.binary("MINIMUM", counts, 1)
    return counts if shares is None else g.binary("MUL", counts, g.const(shares))
