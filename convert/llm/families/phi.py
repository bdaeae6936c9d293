"""Phi-3 and Phi-4 mini: queries, keys and values in one matrix, gates and inputs in another."""

from __future__ import annotations

import numpy as np

from edgeinfer.convert.llm.families.base import Family, Shape, Tensors, one_window
from edgeinfer.llm import LlmConfig

_NAMES = {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}


def _phi3(shape: Shape) -> LlmConfig:
    shape.keys.refuse("attention_bias")
    rope = shape.rope(partial=True, scalings=("default", "longrope", "su"))
    return shape.make("phi3", ropes=(rope,), windows=one_window(shape))


def _split(tensors: Tensors, config: LlmConfig) -> Tensors:
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    made: Tensors = {}
    for name, tensor in tensors.items():
        layer, _, part = name.rpartition(".")
        if part == "attn_qkv":
            ends = np.cumsum([0, queries, keys, keys])
            for i, to in enumerate(("attn_q", "attn_k", "attn_v")):
                made[f"{layer}.{to}"] = tensor.rows(slice(int(ends[i]), int(ends[i + 1])))
        elif part == "ffn_up" and tensor.shape[0] == 2 * config.ffn:
            made[f"{layer}.ffn_gate"] = tensor.rows(slice(0, config.ffn))
            made[name] = tensor.rows(slice(config.ffn, 2 * config.ffn))
        else:
            made[name] = tensor
    return made


_USUAL = {"original_max_position_embeddings": 4096}

FAMILIES = (Family("phi3", ("phi3",), ("phi3",), _phi3, _NAMES, split=_split, usual=_USUAL),)
