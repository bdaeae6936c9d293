from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.convert.llm import source
from edgeinfer.convert.llm.families import FAMILIES
from edgeinfer.convert.llm.families.base import from_gguf, from_hf
from edgeinfer.convert.llm.oracle import Oracle
from edgeinfer.convert.llm.rope import rope
from edgeinfer.convert.llm.source import floats
from edgeinfer.errors import SourceError
from edgeinfer.llm import LlmConfig
from tests.convert.llm import tiny

LINEAR = {"rope_type": "linear", "factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


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


@pytest.mark.parametrize("name", ["llama", "smollm3", "gemma2", "gemma3"])
def test_what_a_folder_leaves_out_is_what_its_class_has(name: str, tmp_path: Path) -> None:
    """Of ropes and ties each family has its own."""
    transformers = pytest.importorskip("transformers")
    tiny.save(name, tmp_path)
    path = tmp_path / "config.json"
    left = ("rope_theta", "rope_parameters", "tie_word_embeddings", "final_logit_softcapping")
    path.write_text(
        json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k not in left})
    )
    found = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
    ids = np.random.default_rng(1).integers(3, 128, 40)
    expected = tiny.logits(found.float().eval(), ids)
    read = source.read(tmp_path)
    result = Oracle(read.config, read.tensors).logits([ids])[0]
    np.testing.assert_allclose(result, expected, rtol=0, atol=2e-4 * np.abs(expected).max())


TIED = frozenset({"gemma2", "gemma3_text", "smollm3"})


def of_folder(kind: str, **changed: Any) -> LlmConfig:
    """What a folder of some small sizes and these keys is taken for."""
    sizes: dict[str, Any] = {"hidden_size": 64, "num_hidden_layers": 8, "head_dim": 16}
    sizes |= {"num_attention_heads": 4, "intermediate_size": 96, "vocab_size": 32}
    sizes |= {"num_key_value_heads": 2, "max_position_embeddings": 256, "rms_norm_eps": 1e-5}
    if kind in ("olmoe", "qwen3_moe"):
        sizes |= {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    if kind == "olmoe":
        del sizes["moe_intermediate_size"]
    (family,) = (f for f in FAMILIES if kind in f.hf)
    given = {**family.usual, **sizes, **changed}
    head = {} if kind in TIED else {"output": floats(np.zeros((32, 64)))}
    return family.config(from_hf(given, head, {*sizes, *changed}))


KINDS = [kind for family in FAMILIES for kind in family.hf if kind != "gemma3"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_nobody_reads_of_a_folder_is_refused(kind: str) -> None:
    """In one error, which names all; a key of another family is one of them."""
    others: dict[str, Any] = {
        **{"attention_multiplier": 0.5, "residual_multiplier": 0.25, "logits_scaling": 8.0},
        **{"use_qk_norm": True, "attn_temperature_tuning": 4, "clip_qkv": 8.0, "mlp_bias": True},
        **{"rope_interleaved": True, "router_scores": "sigmoid", "n_shared_experts": 1},
        **{"attention_bias": True, "per_layer_config": {"0": {}}},
    }
    if kind != "phi3":
        others["partial_rotary_factor"] = 0.5
    if not kind.startswith("gemma"):
        others |= {"query_pre_attn_scalar": 24, "final_logit_softcapping": 30.0}
    if kind in ("llama", "olmoe"):
        others |= {"sliding_window": 8, "layer_types": ["sliding_attention"] * 8}
    with pytest.raises(SourceError) as error:
        of_folder(kind, **others)
    assert [name for name in others if f"{name}: " not in str(error.value)] == []
    assert "can be taken out" in str(error.value)


@pytest.mark.parametrize("kind", KINDS)
def test_what_published_folders_say_besides_is_taken(kind: str) -> None:
    plain = of_folder(kind)
    besides: dict[str, Any] = {
        **{"architectures": ["A"], "torch_dtype": "bfloat16", "transformers_version": "4.50.0"},
        **{"use_cache": True, "initializer_range": 0.02, "attention_dropout": 0.0},
        **{"bos_token_id": 1, "eos_token_id": [2, 3], "pad_token_id": 0, "pretraining_tp": 2},
        **{"_name_or_path": "a/b", "is_llama_config": True, "rope_interleaved": False},
        **{"use_mrope": False, "quantization_config": None, "rope_scaling": None},
        **{"attention_bias": False, "mlp_bias": False, "cache_implementation": "hybrid"},
        **{"router_aux_loss_coef": 0.01, "full_attn_mod": 1, "lm_head_bias": False},
        **{"unsloth_fixed": True, "logits_scaling": 1.0, "resid_pdrop": 0.0},
    }
    if kind.startswith("qwen"):
        besides |= {"use_sliding_window": False, "sliding_window": 32768, "max_window_layers": 4}
    if kind == "smollm3":
        besides |= {"layer_types": ["full_attention"] * 8, "max_window_layers": 28}
    if kind.startswith("gemma"):
        besides |= {"hidden_act": "gelu", "hidden_activation": "gelu_pytorch_tanh"}
    assert of_folder(kind, **besides) == plain


def test_windows_of_a_folder_are_those_of_its_class() -> None:
    assert of_folder("mistral").windows == (4096,) * 8
    assert of_folder("mistral", sliding_window=None).windows == (0,) * 8
    used: dict[str, Any] = {"use_sliding_window": True, "sliding_window": 8}
    assert of_folder("qwen2", **used).windows == (0,) * 8
    assert of_folder("qwen2", **used, max_window_layers=6).windows == (*(0,) * 6, 8, 8)
    assert of_folder("qwen3_moe", **used).windows == (8,) * 8
    assert of_folder("smollm3", **used).windows == (0, 0, 0, 8, 0, 0, 0, 8)
    assert of_folder("gemma2").windows == (4096, 0) * 4
    with pytest.raises(SourceError, match="sliding_window_pattern: 3 is not supported"):
        of_folder("gemma2", sliding_window_pattern=3)
    with pytest.raises(SourceError, match="max_window_layers: 4 is not supported"):
        of_folder("qwen3_moe", **used, max_window_layers=4)


@pytest.mark.parametrize(
    ("kind", "changed", "said"),
    [
        ("llama", {"rope_scaling": {"rope_type": "default", "factor": 2.0}}, "has no factor = 2.0"),
        (
            "llama",
            {"rope_scaling": {"type": "linear", "factor": 2, "attention_factor": 2}},
            "has no",
        ),
        (
            "llama",
            {"rope_parameters": {"partial_rotary_factor": 0.5}},
            "partial_rotary_factor: 0.5",
        ),
        ("llama", {"rope_parameters": {"full_attention": {}}}, "by kind of layers"),
        ("phi3", {"rope_scaling": {"type": "yarn", "factor": 2.0}}, "expected default, longrope"),
        ("gemma3_text", {"rope_parameters": {"rope_theta": 5e5}}, "for each kind of layers"),
        (
            "qwen3",
            {"rope_scaling": YARN, "original_max_position_embeddings": 32},
            "32 of the model, 64 of its rope",
        ),
        (
            "qwen3",
            {"rope_scaling": YARN, "rope_parameters": {"rope_theta": 5e5}},
            "not those of rope_scaling",
        ),
    ],
)
def test_what_no_rope_of_a_family_has_is_refused(
    kind: str, changed: dict[str, Any], said: str
) -> None:
    with pytest.raises(SourceError, match=said):
        of_folder(kind, **changed)


def test_ropes_of_a_folder_begin_from_its_family_s_base() -> None:
    assert of_folder("llama").ropes[0] == rope(10000.0, 16, None, 256)
    assert of_folder("smollm3").ropes[0] == rope(2e6, 16, None, 256)
    found = of_folder("gemma3_text", rope_scaling={"rope_type": "linear", "factor": 8.0}).ropes
    scaled = rope(1e6, 16, {"rope_type": "linear", "factor": 8.0}, 256)
    assert found == (scaled, rope(10000.0, 16, None, 256))
    named = {"full_attention": {"rope_theta": 5e5}, "sliding_attention": {"rope_theta": 2e4}}
    found = of_folder("gemma3_text", rope_parameters=named).ropes
    assert [made.frequencies[1] for made in found] == [
        rope(base, 16, None, 256).frequencies[1] for base in (5e5, 2e4)
    ]
    assert len(of_folder("phi3", partial_rotary_factor=0.5).ropes[0].frequencies) == 4


def test_the_language_part_of_gemma_3_says_little() -> None:
    """Of 4B its published file leaves out what is the class's own."""
    (family,) = (f for f in FAMILIES if f.name == "gemma3")
    given: dict[str, Any] = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "sliding_window": 1024,
    }
    given |= {"num_hidden_layers": 34, "model_type": "gemma3_text"}
    given |= {"rope_scaling": {"factor": 8.0, "rope_type": "linear"}}
    made = family.config(from_hf({**family.usual, **given}, {}, given))
    assert (made.heads, made.kv_heads, made.head_dim, made.vocab) == (8, 4, 256, 262208)
    assert (made.context, made.norm_epsilon, made.attention_scale) == (131072, 1e-6, 1 / 16)
    assert made.windows[4:7] == (1024, 0, 1024)


def test_a_head_beside_a_tied_embedding_is_its_copy(tmp_path: Path) -> None:
    """Versions of transformers disagree which of two that differ is used."""
    safetensors = pytest.importorskip("safetensors.numpy")
    tiny.save("llama-tied-3.1", tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = safetensors.load_file(path)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    safetensors.save_file(tensors, path, {"format": "pt"})
    assert source.read(tmp_path).config.tied
    tensors["lm_head.weight"][0, 0] += 1
    safetensors.save_file(tensors, path, {"format": "pt"})
    with pytest.raises(SourceError, match="weight 'output' is not the embedding"):
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
    named = {"rope__freq_base": 900.0, "rope__freq_base_swa": 500.0}
    otherwise = {"rope__global__freq_base": 900.0, "rope__local__freq_base": 500.0}
    for given in (named, otherwise):
        ropes = described("gemma3", **of_every, **given).ropes
        assert ropes == (rope(900.0, 16, None, 256), rope(500.0, 16, None, 256))


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
    """A factor alone is linear; what YaRN says next to its factor counts."""
    made = described("llama", **{f"rope__{name}": value for name, value in fields.items()})
    expected = rope(10000.0, 16, scaling, 256)
    assert made.ropes[0].frequencies == expected.frequencies
    assert made.ropes[0].factor == expected.factor * share
