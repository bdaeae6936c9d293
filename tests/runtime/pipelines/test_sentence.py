"""Texts to results, by a bundle with its vocabulary."""

import numpy as np
import pytest

import edgeinfer
from edgeinfer.errors import InputError, UsageError
from edgeinfer.heads import Embed, Segment
from edgeinfer.results import Embedding
from edgeinfer.tasks import Embedder
from edgeinfer.types import TextInput
from tests.runtime.pipelines.conftest import MakeBundle

pytest.importorskip("tokenizers")

COUNT = """
count (int64[N, T] ids, int64[N, T] mask) => (float[N, T, 2] states)
{
    axis = Constant <value_ints = [2]> ()
    a = Unsqueeze(ids, axis)
    b = Unsqueeze(mask, axis)
    both = Concat <axis = 2> (a, b)
    states = Cast <to = 1> (both)
}
"""
PIECES = "\n".join(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "cat")).encode()


def test_tokens_are_pooled_where_the_mask_is(make: MakeBundle) -> None:
    records = {
        "ids": TextInput("vocab.txt", 6, pad=True),
        "mask": TextInput("vocab.txt", 6, field="mask", pad=True),
    }
    head = Embed(pooling="mean", normalize=False)
    path = make("count", COUNT, {"vocab.txt": PIECES}, head=head, preprocessing=records)
    with Embedder(path) as embedder:
        found = embedder.embed("The cat")
        assert isinstance(found, Embedding)
        # [CLS] the cat [SEP]: 2, 4, 5, 3; two fillings do not count.
        np.testing.assert_allclose(found.vector, [14 / 4, 1.0])
        with pytest.raises(InputError, match="expected a str, received ndarray"):
            embedder.embed(np.zeros((2, 2, 3), np.uint8))


def test_another_head_is_refused(make: MakeBundle) -> None:
    records = {n: TextInput("vocab.txt", 6) for n in ("ids", "mask")}
    path = make("count", COUNT, {"vocab.txt": PIECES}, head=Segment(), preprocessing=records)
    with pytest.raises(UsageError, match="'segment' is not read from a text"):
        edgeinfer.pipeline(path)
