"""Qwen2, 2.5 and 3, with experts too, and OLMoE, which norms queries and keys by rows."""

from __future__ import annotations

from edgeinfer.convert.llm.families.base import Family, Shape, hf_windows
from edgeinfer.llm import Experts, LlmConfig


def _windows(shape: Shape) -> tuple[int, ...]:
    if not shape.keys.get("use_sliding_window", False):
        return (0,) * shape.layers
    first = shape.keys.get("max_window_layers", shape.layers)
    return hf_windows(shape, lambda i: i >= first)


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
    return shape.make("qwen3moe", windows=_windows(shape), qk_norm=True, experts=experts)


def _olmoe(shape: Shape) -> LlmConfig:
    shape.keys.refuse("attention_bias")
    return shape.make("olmoe", qk_norm_rows=True, experts=_experts(shape, normalised=False))


FAMILIES = (
    Family("qwen2", ("qwen2",), ("qwen2",), _qwen2),
    Family("qwen3", ("qwen3",), ("qwen3",), _qwen3),
    Family("qwen3moe", ("qwen3moe",), ("qwen3_moe",), _qwen3moe),
    Family("olmoe", ("olmoe",), ("olmoe",), _olmoe),
)
