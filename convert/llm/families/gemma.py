"""Gemma 2 and 3: norms behind both parts, windows in turns, two ropes."""

from __future__ import annotations

import math

import numpy as np

from edgeinfer.convert.llm.families.base import Family, Shape, hf_windows
from edgeinfer.llm import LlmConfig

_NAMES = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_LOCAL_BASE = 10000.0
_BY_HIDDEN = {"gemma2": 46, "gemma3": 62}
"""Layers of the model of 27B, whose scores are scaled by the whole row's share of a head."""
_STEP = {"gemma2": 2, "gemma3": 6}
"""Every such layer sees everything."""


def _windows(shape: Shape, family: str) -> tuple[int, ...]:
    keys = shape.keys
    if not shape.is_gguf:
        step = _STEP[family]
        if family == "gemma3":
            step = keys.get("sliding_window_pattern", step)
        else:
            keys.refuse("sliding_window_pattern", unless=(None, step))
        # Another name of the same, which no class reads.
        keys.ignore("sliding_window_size")
        return hf_windows(shape, keys.get("sliding_window", 0), lambda i: (i + 1) % step != 0)
    size = keys.size("attention.sliding_window")
    listed = keys.get("attention.sliding_window_pattern", _STEP[family])
    if not isinstance(listed, np.ndarray):
        step = int(listed)
        return tuple(size if (i + 1) % step else 0 for i in range(shape.layers))
    if len(listed) != shape.layers:
        keys.problems.append(f"sliding_window_pattern: {len(listed)} layers of {shape.layers}")
    return tuple(size if has else 0 for has in listed[: shape.layers])


def _root(value: float) -> float:
    return 1 / math.sqrt(value)


def _scale(shape: Shape, family: str) -> float:
    if not shape.is_gguf:
        return _root(shape.keys.number("query_pre_attn_scalar", 256))
    common = shape.common
    if shape.layers == _BY_HIDDEN[family]:
        return _root(common["hidden"] / common["heads"])
    return _root(common["head_dim"])


def _cap(shape: Shape, ours: str, theirs: str, default: float) -> float:
    if shape.is_gguf:
        return shape.keys.number(ours, default)
    return float(shape.keys.get(theirs, 0.0))


def _gemma2(shape: Shape) -> LlmConfig:
    shape.keys.refuse("attention_bias")
    shape.keys.refuse("use_bidirectional_attention")
    return shape.make(
        "gemma2",
        windows=_windows(shape, "gemma2"),
        activation="gelu_tanh",
        attention_scale=_scale(shape, "gemma2"),
        embedding_scale=float(shape.common["hidden"]) ** 0.5,
        post_norms=True,
        attention_softcap=_cap(shape, "attn_logit_softcapping", "attn_logit_softcapping", 50.0),
        logit_softcap=_cap(shape, "final_logit_softcapping", "final_logit_softcapping", 30.0),
    )


def _gemma3(shape: Shape) -> LlmConfig:
    keys = shape.keys
    keys.refuse("attention_bias")
    keys.refuse("use_bidirectional_attention")
    windows = _windows(shape, "gemma3")
    # The second name is that of Ollama's converter.
    names = ("rope.freq_base_swa", "rope.local.freq_base")
    given = [keys.get(n) for n in (names if shape.is_gguf else ("rope_local_base_freq",))]
    local = next((value for value in given if value is not None), None)
    base = _LOCAL_BASE if local is None else float(local)
    ropes = (shape.rope(kind="full_attention"), shape.rope(kind="sliding_attention", base=base))
    return shape.make(
        "gemma3",
        ropes=ropes,
        layer_rope=tuple(1 if window else 0 for window in windows),
        windows=windows,
        activation="gelu_tanh",
        attention_scale=_scale(shape, "gemma3"),
        embedding_scale=float(shape.common["hidden"]) ** 0.5,
        qk_norm=True,
        post_norms=True,
        attention_softcap=_cap(shape, "attn_logit_softcapping", "attn_logit_softcapping", 0.0),
        logit_softcap=_cap(shape, "final_logit_softcapping", "final_logit_softcapping", 0.0),
    )


_USUAL = {
    **{"head_dim": 256, "num_key_value_heads": 4, "sliding_window": 4096},
    "tie_word_embeddings": True,
}
_GEMMA2 = {**_USUAL, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
_GEMMA3 = {
    **{**_USUAL, "rope_theta": 1e6, "num_attention_heads": 8, "vocab_size": 262208},
    **{"max_position_embeddings": 131072, "rms_norm_eps": 1e-6},
}
"""Files with images leave most of it out."""

FAMILIES = (
    Family(
        *("gemma2", ("gemma2",), ("gemma2",), _gemma2, _NAMES), norm_less_one=True, usual=_GEMMA2
    ),
    Family(
        *("gemma3", ("gemma3",), ("gemma3_text", "gemma3"), _gemma3, _NAMES),
        norm_less_one=True,
        usual=_GEMMA3,
    ),
)
