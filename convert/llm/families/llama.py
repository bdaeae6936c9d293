"""Llama and what is built like it: SmolLM2, Mistral with its window, SmolLM3 without some ropes."""

from __future__ import annotations

from edgeinfer.convert.llm.families.base import Family, Shape, hf_windows, one_window
from edgeinfer.llm import LlmConfig

_NO_ROPE_STEP = 4
"""SmolLM3: every fourth layer has none; GGUF files do not say so."""


def _llama(shape: Shape) -> LlmConfig:
    shape.keys.refuse("attention_bias")
    # Mistral's, which GGUF files name llama.
    return shape.make("llama", windows=one_window(shape) if shape.is_gguf else None)


def _mistral(shape: Shape) -> LlmConfig:
    return shape.make("mistral", windows=one_window(shape))


def _smollm3(shape: Shape) -> LlmConfig:
    keys = shape.keys
    keys.refuse("attention_bias")
    listed = keys.get("no_rope_layers")
    step = keys.get("no_rope_layer_interval", _NO_ROPE_STEP)
    has = (listed or [(i + 1) % step != 0 for i in range(shape.layers)])[: shape.layers]
    # Its class has no such key, and most of its files do.
    keys.ignore("max_window_layers")
    window = keys.get("sliding_window", 0)
    size = window if keys.get("use_sliding_window", False) else 0
    windows = hf_windows(shape, size, lambda i: i < len(has) and not has[i])
    return shape.make("smollm3", layer_rope=tuple(0 if h else -1 for h in has), windows=windows)


_MISTRAL = {"num_key_value_heads": 8, "sliding_window": 4096}
_SMOLLM3 = {"num_key_value_heads": 4, "rope_theta": 2e6, "tie_word_embeddings": True}

FAMILIES = (
    Family("llama", ("llama",), ("llama",), _llama, paired=True),
    Family("mistral", (), ("mistral",), _mistral, usual=_MISTRAL),
    Family("smollm3", ("smollm3",), ("smollm3",), _smollm3, paired=True, usual=_SMOLLM3),
)
