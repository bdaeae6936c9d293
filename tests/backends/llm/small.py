"""A small decoder with random weights, compiled, and batches for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from edgeinfer.backends.llm.backend import open_native
from edgeinfer.backends.llm.executor import NativeExecutor
from edgeinfer.backends.llm.sizes import ExecutorSizes
from edgeinfer.convert.llm.blocks import StoredTensor
from edgeinfer.convert.llm.source import expected, floats
from edgeinfer.llm import LlmConfig, Rope
from edgeinfer.llm.step import StepBatch
from edgeinfer.types import Array
from tests.llm.small import small

CONFIG = small(
    head_dim=32,
    vocab=120,
    context=96,
    ropes=(Rope(tuple(100.0 ** -(i / 8) for i in range(8))),),
    windows=(0, 40),
)


def weights(config: LlmConfig, seed: int = 0) -> dict[str, StoredTensor]:
    rng = np.random.default_rng(seed)
    made = {}
    for name, shape in expected(config).items():
        if name.endswith("norm"):
            values = rng.uniform(0.5, 1.5, shape)
        else:
            values = rng.standard_normal(shape) * 2 / np.sqrt(shape[-1])
        made[name] = floats(values)
    return made


def stored(config: LlmConfig, kinds: dict[str, str], seed: int = 0) -> dict[str, StoredTensor]:
    """Random matrices in types of GGUF files, by the last part of their names."""
    rng = np.random.default_rng(seed)
    made = weights(config, seed)
    for name, tensor in made.items():
        kind = kinds.get(name.rpartition(".")[2], kinds.get("", "F32"))
        if len(tensor.shape) > 1 and kind != "F32":
            made[name] = random_blocks(rng, kind, tensor.shape)
    return made


def random_blocks(rng: Any, kind: str, shape: tuple[int, ...]) -> StoredTensor:
    sizes = {"Q4_0": 18, "Q4_1": 20, "Q5_0": 22, "Q8_0": 34}
    rows, columns = shape
    data = rng.integers(0, 256, (rows, columns // 32, sizes[kind]), dtype=np.uint8)
    top = {"Q4_0": 8, "Q4_1": 8, "Q5_0": 16, "Q8_0": 128}[kind]
    spread = 4 / np.sqrt(columns) / top
    scales = rng.uniform(0.5, 1, data.shape[:2]) * spread
    data[..., :2] = scales.astype(np.float16)[..., None].view(np.uint8)
    if kind == "Q4_1":
        data[..., 2:4] = (-8 * scales).astype(np.float16)[..., None].view(np.uint8)
    return StoredTensor(kind, shape, data.reshape(rows, -1))


def batch(table: Array, parts: Sequence[tuple[int, Sequence[int], int, int]]) -> StepBatch:
    """Of each part: its row of the table, tokens, first position, last tokens that are wanted."""
    tokens: list[int] = []
    positions: list[int] = []
    owner: list[int] = []
    rows: list[int] = []
    for sequence, ids, first, wanted in parts:
        tokens += ids
        rows += range(len(tokens) - wanted, len(tokens))
        positions += range(first, first + len(ids))
        owner += [sequence] * len(ids)
    arrays = (np.array(v, np.int32) for v in (tokens, positions, owner, rows))
    t, p, o, r = arrays
    return StepBatch(tokens=t, positions=p, owner=o, table=table, rows=r)


def opened(folder: Path, config: LlmConfig, **sizes: Any) -> tuple[NativeExecutor, Array]:
    """An executor with eight sequences whose pages lie in no order."""
    room = ExecutorSizes(pages=8 * config.context // 16, max_tokens=96, max_sequences=8, threads=1)
    executor = open_native(folder, replace(room, **sizes))
    order = np.random.default_rng(5).permutation(executor.pages).astype(np.int32)
    return executor, order.reshape(8, -1)
