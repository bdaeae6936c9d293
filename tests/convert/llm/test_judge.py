from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgeinfer.convert.llm import judge
from edgeinfer.convert.llm.oracle import Given, Oracle
from edgeinfer.convert.llm.source import floats
from edgeinfer.errors import SourceError
from edgeinfer.llm.step import Floats, StepBatch
from tests.backends.llm.small import CONFIG, weights


class Same:
    """The definition itself as what is compared, with logits that are off by so much."""

    def __init__(self, oracle: Oracle, off: float) -> None:
        self.oracle, self.off = oracle, off

    def step(self, batch: StepBatch) -> Floats:
        given = None
        if batch.embedded is not None and batch.embeddings is not None:
            given = Given(batch.embedded, batch.embeddings)
        (logits,) = self.oracle.heads(self.oracle.states([batch.tokens], given))
        more = np.random.default_rng(0).standard_normal(logits.shape).astype(np.float32)
        return np.asarray(logits + self.off * more)


def compared(scale: float, *off: float) -> list[judge.Quality]:
    tensors = weights(CONFIG)
    tensors["token_embd"] = floats(tensors["token_embd"].float32() * scale)
    executors = [Same(Oracle(CONFIG, tensors), each) for each in off]
    ids = [np.arange(3, 50, dtype=np.int32), np.arange(60, 90, dtype=np.int32)]
    found, last = judge.compare(Oracle(CONFIG, tensors), executors, ids)  # type: ignore[arg-type]
    assert len(last) == 2
    return found


def test_each_is_judged_by_itself() -> None:
    right, wrong = compared(1.0, 0.0, 2.0)
    assert right.tokens == wrong.tokens == 77
    assert (right.kl, right.top1, right.sure) == (0, 1, 1)
    assert right.perplexity == right.expected == wrong.expected
    assert wrong.kl > 0.1
    assert wrong.sure < 1
    assert not judge.STORED.breaches(right)
    assert judge.STORED.breaches(wrong)


def test_text_behind_an_image_is_judged_by_itself() -> None:
    tensors = weights(CONFIG)
    oracle = Oracle(CONFIG, tensors)
    image = np.random.default_rng(0).standard_normal((20, CONFIG.hidden)).astype(np.float32)
    ids = [np.arange(3, 50, dtype=np.int32), np.arange(60, 90, dtype=np.int32)]
    executors: list[Any] = [Same(oracle, 0.0), Same(oracle, 2.0), Blind(oracle, 0.0)]
    right, wrong, blind = judge.behind_image(oracle, executors, ids, image)
    assert right.tokens == 30
    assert (right.kl, right.top1) == (0, 1)
    assert judge.STORED.breaches(wrong)
    # Whoever looks the tokens up in their place is found.
    assert judge.STORED.breaches(blind)
    assert judge.length_behind(image) == 116


class Blind(Same):
    """Heeds no embeddings."""

    def step(self, batch: StepBatch) -> Floats:
        return super().step(replace(batch, embedded=None, embeddings=None))


def test_a_model_that_is_never_sure_loses_no_sure_token() -> None:
    (found,) = compared(1e-3, 1e-4)
    assert found.sure == 1
    assert not judge.STORED.breaches(found)


def tokenizer(**changes: Any) -> bytes:
    parts = ("normalizer", "pre_tokenizer", "post_processor", "decoder", "truncation", "padding")
    whole = {
        "version": "1.0",
        "added_tokens": [],
        **dict.fromkeys(parts),
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": [], "unk_token": "a"},
        **changes,
    }
    return json.dumps(whole).encode()


def test_a_tokenizer_that_panics_or_multiplies_is_named() -> None:
    pytest.importorskip("tokenizers")
    assert judge.encoded(tokenizer(), ["ab", ""]) == [[0, 1], []]
    panics = {"type": "Split", "pattern": {"Regex": "(?m:(?:.|.)*(?!))"}, "behavior": "Isolated"}
    with pytest.raises(SourceError, match="the model's tokenizer cannot be used"):
        judge.encoded(tokenizer(pre_tokenizer={**panics, "invert": False}), ["ab" * 50])
    grows = {"type": "Replace", "pattern": {"String": "."}, "content": "a" * 100}
    with pytest.raises(SourceError, match="makes 5000 tokens of 50 characters; at most 4"):
        judge.encoded(tokenizer(normalizer=grows), ["." * 50])
