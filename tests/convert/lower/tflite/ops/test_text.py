"""Counts of sequences of words, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgeinfer.errors import UnsupportedError
from tests.convert.lower.tflite.run import lower, schema_faults
from tests.convert.lower.tflite.single import agree, single

POOL: dict[str, Any] = {
    "ngram_counts": [0, 4],
    "ngram_indexes": [0, 1, 2, 3, 6, 5, 4],
    "pool_int64s": [2, 3, 5, 4, 5, 6, 7, 8, 6, 7],
}
TEXT = np.array([[1, 1, 3, 3, 3, 7], [8, 6, 7, 5, 6, 8], [5, 6, 7, 8, 6, 7]], np.int32)


def test_signatures_are_the_schemas() -> None:
    assert schema_faults("text") == []


@pytest.mark.parametrize("skips", [0, 1, 5])
@pytest.mark.parametrize("lengths", [(1, 1), (1, 2), (2, 2)])
@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
def test_counts(mode: str, lengths: tuple[int, int], skips: int) -> None:
    weights = [0.5, 1, 2, 3, 0.25, 4, 7]
    given = dict(POOL, mode=mode, max_skip_count=skips, weights=weights)
    given.update(min_gram_length=lengths[0], max_gram_length=lengths[1])
    agree("TfIdfVectorizer", TEXT, shape=[3, 7], types=[np.float32], both=False, **given)
    agree(
        "TfIdfVectorizer",
        TEXT[2].astype(np.int64),
        shape=[7],
        types=[np.float32],
        both=False,
        **given,
    )


def test_words_are_refused() -> None:
    given = dict(POOL, mode="TF", max_skip_count=0, min_gram_length=1, max_gram_length=1)
    del given["pool_int64s"]
    given["pool_strings"] = ["a"] * 10
    with pytest.raises(UnsupportedError, match="text"):
        lower(single("TfIdfVectorizer", [TEXT], shape=[3, 7], types=[np.float32], **given))
