"""Qwen2, 2.5 and 3, with experts too, and OLMoE, which norms queries and keys by rows."""

from __future__ import annotations

from edgeinfer.convert.llm.families.base import Family, Shape, hf_windows, one_window
from edgeinfer.llm import Experts, LlmConfig


def _windows(shape: Shape) -> tuple[int, ...]:
    keys = shape.keys
    window, first = keys.get("sliding_window", 0), keys.get("max_window_layers", shape.layers)
    size = window if keys.get("use_sliding_window", False) else 0
    return hf_windows(shape, size, lambda i: i >= first)


def _qwen2(shape: Shape) -> LlmConfig:
    return shape.make("qwen2", windows=_windows(shape), qkv_bias=True)


def _qwen3(shape: Shape) -> LlmConfig:
    shape.keys.refuse("attention_bias")
    return shape.make("qwen3", windows=_windows(shape), qk_norm=True)


def _experts(shape: Shape, normalised: bool) -> Experts:
    keys = shape.keys
    if shape.is_gguf:
        count, used = keys.size("expert_count"), keys.size("expert_used_count")
        inner = keys.size("expert_feed_forward_length", keys.get("feed_forward_length"))
        return Experts(count, used, inner, bool(keys.get("expert_weights_norm", normalised)))
    count = keys.size("num_experts", keys.get("num_local_experts"))
    inner = keys.size("moe_intermediate_size", keys.get("intermediate_size"))
    chosen = bool(keys.get("norm_topk_prob", normalised))
    return Experts(count, keys.size("num_experts_per_tok"), inner, chosen)


def _qwen3moe(shape: Shape) -> LlmConfig:
    keys = shape.keys
    keys.refuse("attention_bias")
    keys.refuse("mlp_only_layers", unless=(None, []))
    keys.refuse("decoder_sparse_step", unless=(None, 1))
    experts = _experts(shape, normalised=shape.is_gguf)
    windows = None
    if keys.get("use_sliding_window", False):
        # Its class has the window in all layers.
        keys.refuse("max_window_layers", unless=(None, 0))
        windows = one_window(shape)
    keys.ignore("intermediate_size", "max_window_layers", "sliding_window")
    return shape.make("qwen3moe", windows=windows, qk_norm=True, experts=experts)


def _olmoe(shape: Shape) -> LlmConfig:
    shape.keys.refuse("attention_bias")
    return shape.make("olmoe", qk_norm_rows=True, experts=_experts(shape, normalised=False))


_QWEN2 = {"num_key_value_heads": 32, "max_window_layers": 28, "sliding_window": 4096}
_EXPERTS = {"num_key_value_heads": 4, "sliding_window": 4096}

FAMILIES = (
    Family("qwen2", ("qwen2",), ("qwen2",), _qwen2, usual=_QWEN2),
    Family("qwen3", ("qwen3",), ("qwen3",), _qwen3, usual={**_QWEN2, "head_dim": 128}),
    Family("qwen3moe", ("qwen3moe",), ("qwen3_moe",), _qwen3moe, usual=_EXPERTS),
    Family("olmoe", ("olmoe",), ("olmoe",), _olmoe),
)
