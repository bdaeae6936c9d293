"""A tiny decoder with random weights, and engines that run it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from edgeinfer.llm.config import LlmConfig
from edgeinfer.runtime.llm.engine import Engine
from edgeinfer.runtime.llm.executor import Floats
from edgeinfer.runtime.llm.options import EngineOptions
from edgeinfer.runtime.llm.vocabulary import Vocabulary
from tests.llm.small import small
from tests.runtime.llm.reference import ReferenceExecutor
from tests.runtime.llm.toy import Clock

VOCABULARY = Vocabulary(tuple(chr(33 + i).encode() for i in range(64)), frozenset(), 0)


def tiny_config(**changes: Any) -> LlmConfig:
    sizes = {"hidden": 24, "head_dim": 8, "ffn": 40, "vocab": 64, "context": 256}
    return replace(small(**sizes, attention_scale=8**-0.5), **changes)


def tiny_weights(config: LlmConfig, seed: int = 0) -> dict[str, Floats]:
    rng = np.random.default_rng(seed)
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (config.vocab, config.hidden)}
    shapes["output_norm"] = (config.hidden,)
    for layer in range(config.layers):
        block = {
            "attn_norm": (config.hidden,),
            "ffn_norm": (config.hidden,),
            "attn_q": (queries, config.hidden),
            "attn_k": (keys, config.hidden),
            "attn_v": (keys, config.hidden),
            "attn_output": (config.hidden, queries),
            "ffn_gate": (config.ffn, config.hidden),
            "ffn_up": (config.ffn, config.hidden),
            "ffn_down": (config.hidden, config.ffn),
        }
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in block.items()}
    return {
        name: (
            rng.uniform(0.5, 1.5, shape)
            if name.endswith("norm")
            else rng.standard_normal(shape) * 2 / np.sqrt(shape[-1])
        ).astype(np.float32)
        for name, shape in shapes.items()
    }


def tiny_executor(seed: int = 0, **sizes: Any) -> ReferenceExecutor:
    config = tiny_config()
    return ReferenceExecutor(config, tiny_weights(config, seed), **{"pages": 64, **sizes})


@pytest.fixture
def tiny() -> Callable[..., Engine]:
    def make(options: EngineOptions | None = None, **sizes: Any) -> Engine:
        make_executor = partial(tiny_executor, **sizes)
        return Engine(make_executor, VOCABULARY, (), options=options, clock=Clock())

    return make
