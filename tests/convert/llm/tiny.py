"""Families in tiny random form, by transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.types import Array

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 256,
    "rope_theta": 10000.0,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_TIED = {"tie_word_embeddings": True}
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
_EXPERTS = {"moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2}

TINY: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-tied-3.1": ("llama", {**_TIED, "rope_scaling": _LLAMA3}),
    "llama-linear": ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
    "llama-gelu": ("llama", {"hidden_act": "gelu_new"}),
    "mistral": ("mistral", {"sliding_window": 8, "head_dim": 32}),
    "smollm3": ("smollm3", {**_TIED, "num_hidden_layers": 4, "use_sliding_window": False}),
    "qwen2": ("qwen2", {}),
    "qwen2-window": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    ),
    "qwen3": ("qwen3", {"head_dim": 32, **_TIED}),
    "qwen3-yarn": ("qwen3", {"head_dim": 32, "rope_scaling": _YARN}),
    "qwen3-experts": ("qwen3_moe", {"head_dim": 32, "norm_topk_prob": True, **_EXPERTS}),
    "olmoe": ("olmoe", {"num_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 32}),
    "gemma2": (
        "gemma2",
        {"head_dim": 32, "sliding_window": 8, "query_pre_attn_scalar": 24, "num_hidden_layers": 4},
    ),
    "gemma3": (
        "gemma3_text",
        {"head_dim": 32, "sliding_window": 8, "query_pre_attn_scalar": 24, "num_hidden_layers": 7},
    ),
    "phi3": ("phi3", {"sliding_window": 200, "original_max_position_embeddings": 256}),
    "phi3-long": (
        "phi3",
        {
            "original_max_position_embeddings": 16,
            "rope_scaling": {
                "type": "longrope",
                "short_factor": [1.0 + 0.1 * i for i in range(8)],
                "long_factor": [1.5 + 0.5 * i for i in range(8)],
            },
        },
    ),
}


def save(name: str, folder: Path) -> Any:
    """Write a tiny model of a family; return it."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    kind, more = TINY[name]
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **{**SIZES, **more})
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for key, value in model.named_parameters():
            spread = 0.3 if value.ndim > 1 else 0.2
            value.add_(torch.randn(value.shape) * spread * ("norm" in key or value.ndim > 1))
            if key.endswith("bias"):
                value.add_(torch.randn(value.shape) * 0.2)
    model.save_pretrained(folder, safe_serialization=True)
    # The form that most published files have.
    path = folder / "config.json"
    text = json.loads(path.read_text())
    path.write_text(json.dumps(text))
    return model


def logits(model: Any, ids: Array) -> Array:
    """Logits of all tokens, float32."""
    torch = pytest.importorskip("torch")
    with torch.no_grad():
        found: Array = model(torch.from_numpy(ids.astype(np.int64))[None]).logits[0].numpy()
    return found
