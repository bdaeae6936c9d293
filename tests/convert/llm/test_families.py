from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.convert.llm import source
from edgeinfer.convert.llm.families import FAMILIES
from edgeinfer.convert.llm.families.base import from_gguf
from edgeinfer.convert.llm.oracle import Oracle
from edgeinfer.convert.llm.rope import rope
from edgeinfer.convert.llm.source import floats
from edgeinfer.errors import SourceError
from edgeinfer.llm import LlmConfig
from tests.convert.llm import tiny


@pytest.mark.parametrize("name", tiny.TINY)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    model = tiny.save(name, tmp_path)
    ids = np.random.default_rng(1).integers(3, 128, 40)
    expected = tiny.logits(model, ids)
    found = source.read(tmp_path)
    result = Oracle(found.config, found.tensors).logits([ids])[0]
    assert np.abs(expected).max() > 0.5
    np.testing.assert_allclose(result, expected, rtol=0, atol=2e-4 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"hidden_act": "gelu"}, "hidden_act: expected silu, .*received 'gelu'"),
        ({"hidden_act": "relu"}, "received 'relu'"),
        ({"tie_word_embeddings": False}, "'output' is missing, and tie_word_embeddings is false"),
    ],
)
def test_what_a_folder_computes_otherwise_is_refused(
    changed: dict[str, Any], said: str, tmp_path: Path
) -> None:
    """The activation was never looked at; a head that lacks was the embedding."""
    tiny.save("llama-tied-3.1", tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))
    with pytest.raises(SourceError, match=said):
        source.read(tmp_path)


def described(architecture: str, **fields: Any) -> LlmConfig:
    """What a GGUF file of some small sizes and these fields is taken for."""
    sizes: dict[str, Any] = {"embedding_length": 64, "block_count": 6, "context_length": 256}
    sizes |= {"attention.head_count": 4, "feed_forward_length": 96}
    sizes["attention.layer_norm_rms_epsilon"] = 1e-5
    named = {k.replace("__", "."): v for k, v in fields.items()}
    given = {f"{architecture}.{k}": v for k, v in {**sizes, **named}.items()}
    (family,) = (f for f in FAMILIES if architecture in f.gguf)
    embedding = {"token_embd": floats(np.zeros((32, 64)))}
    return family.config(from_gguf(architecture, given, embedding))


def test_what_nobody_reads_of_a_file_is_refused() -> None:
    """It would be another function than the one that was trained, without a word."""
    others: dict[str, Any] = {
        "attention__scale": 0.5,
        "logit_scale": 2.0,
        "attention__causal": False,
        "rope__dimension_sections": np.array([8, 8]),
        "final_logit_softcapping": 30.0,
        "expert_shared_count": 1,
    }
    with pytest.raises(SourceError) as error:
        described("llama", **others)
    for name in others:
        assert f"llama.{name.replace('__', '.')}: " in str(error.value)
    with pytest.raises(SourceError, match=r"qwen2.attention.sliding_window: 64 is not supported"):
        described("qwen2", attention__sliding_window=64)


def test_what_says_nothing_new_of_a_file_is_taken() -> None:
    """Of a window as long as the context, too."""
    plain = described("qwen2")
    same = {"vocab_size": 32, "expert_count": 0, "attention__causal": True, "logit_scale": 1.0}
    assert described("qwen2", **same, attention__sliding_window=256, mm__tokens=9) == plain


def test_a_window_of_llama_is_mistrals() -> None:
    assert described("llama", attention__sliding_window=64).windows == (64,) * 6


def test_windows_of_gemma_are_those_of_the_file() -> None:
    of_every = {"attention__sliding_window": 64}
    listed = np.array([True, False, True, True, False, True])
    for pattern, windows in (
        (3, (64, 64, 0, 64, 64, 0)),
        (listed, (64, 0, 64, 64, 0, 64)),
    ):
        made = described("gemma3", **of_every, attention__sliding_window_pattern=pattern)
        assert made.windows == windows
    assert described("gemma3", **of_every).windows == (64, 64, 64, 64, 64, 0)
    other = described("gemma3", **of_every, rope__freq_base_swa=500.0)
    assert other.ropes[1] == rope(500.0, 16, None, 256)


LINEAR = {"rope_type": "linear", "factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    ("fields", "scaling", "share"),
    [
        ({"scaling__factor": 4.0}, LINEAR, 1.0),
        ({"scale_linear": 4.0}, LINEAR, 1.0),
        ({"scaling__type": "none", "scaling__factor": 4.0}, None, 1.0),
        ({"scaling__type": "linear", "scaling__factor": 0.0}, None, 1.0),
        ({"scaling__attn_factor": 1.5}, None, 1.5),
        (
            {
                **{"scaling__type": "yarn", "scaling__factor": 4.0},
                **{"scaling__original_context_length": 64, "scaling__attn_factor": 1.5},
                **{"scaling__yarn_beta_fast": 16.0, "scaling__yarn_beta_slow": 2.0},
            },
            {**YARN, "beta_fast": 16.0, "beta_slow": 2.0},
            1.5,
        ),
    ],
)
def test_ropes_of_a_file_are_scaled_as_llama_cpp_does(
    fields: dict[str, Any], scaling: dict[str, Any] | None, share: float
) -> None:
    """A factor alone is linear; what YaRN says beside its factor counts."""
    made = described("llama", **{f"rope__{name}": value for name, value in fields.items()})
    expected = rope(10000.0, 16, scaling, 256)
    assert made.ropes[0].frequencies == expected.frequencies
    assert made.ropes[0].factor == expected.factor * share
