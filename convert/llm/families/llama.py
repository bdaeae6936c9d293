"""Llama and what is built like it: SmolLM2, Mistral with its window, SmolLM3 without some ropes."""

from __future__ import annotations

from edgeinfer.convert.llm.families.base import Family, Shape, hf_windows
from edgeinfer.llm import LlmConfig

_NO_ROPE_STEP = 4
"""SmolLM3: every fourth layer has none; GGUF files do not say so."""


def _llama(shape: Shape) -> LlmConfig:
    shape.keys.refuse("attention_bias")
    # Mistral's, which GGUF files name llama.
    window = int(shape.keys.get("attention.sliding_window", 0)) if shape.is_gguf else 0
    return shape.make("llama", windows=(window,) * shape.layers)


def _mistral(shape: Shape) -> LlmConfig:
    return shape.make("mistral", windows=hf_windows(shape, lambda _: True))


def _smollm3(shape: Shape) -> LlmConfig:
    keys = shape.keys
    keys.refuse("attention_bias")
    listed = keys.get("no_rope_layers")
    step = keys.get("no_rope_layer_interval", _NO_ROPE_STEP)
    has = listed or [(i + 1) % step != 0 for i in range(shape.layers)]
    sliding = keys.get("use_sliding_window", False)
    windows = hf_windows(shape) if sliding else (0,) * shape.layers
    return shape.make("smollm3", layer_rope=tuple(0 if h else -1 for h in has), windows=windows)


FAMILIES = (
    Family("llama", ("llama",), ("llama",), _llama, paired=True),
    Family("mistral", (), ("mistral",), _mistral),
    Family("smollm3", ("smollm3",), ("smollm3",), _smollm3, paired=True),
)
