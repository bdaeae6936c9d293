"""A small language model's description."""

from __future__ import annotations

from typing import Any

from edgeinfer.llm import LlmConfig, Rope


def small(**changes: Any) -> LlmConfig:
    """Return a description of two layers, changed as given."""
    size = changes.get("head_dim", 16)
    return LlmConfig(
        **{
            **{"family": "llama", "hidden": 64, "layers": 2, "heads": 4, "kv_heads": 2},
            **{"head_dim": size, "ffn": 96, "vocab": 256, "context": 128, "norm_epsilon": 1e-5},
            **{"activation": "silu", "tied": True, "layer_rope": (0, 0), "windows": (0, 0)},
            "ropes": (Rope(tuple(100.0 ** -(i / (size // 2)) for i in range(size // 2))),),
            "attention_scale": 0.25,
            **changes,
        }
    )
