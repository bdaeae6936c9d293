"""Steps of a language model on an NVIDIA GPU, next to the same shape in PyTorch.

    python -m benchmarks.llm_cuda [--context 64] [--rounds 15] [--batches 1 2 4 8 16]

A decoder of 1.2 billion random weights is laid out in 4 bits (its token table in 8). Whole steps,
logits on the host, are timed in turns with PyTorch: float16, and 4 bits by its own kernels, each as
a CUDA graph that gives only the chosen tokens back.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from edgeinfer.backends.llm.backend import open_executor
from edgeinfer.backends.llm.sizes import ExecutorSizes
from edgeinfer.convert.llm import cuda_variant
from edgeinfer.convert.llm.blocks import Factors, Integers
from edgeinfer.convert.llm.source import expected, floats
from edgeinfer.llm import LlmConfig, Rope
from edgeinfer.llm.step import StepBatch
from edgeinfer.machine.cuda import compute_capability

_SEQUENCES, _MOST_CONTEXT, _STEP_TOKENS = 32, 1024, 512
_HEAD = 64

CONFIG = LlmConfig(
    family="llama",
    hidden=2048,
    layers=16,
    heads=32,
    kv_heads=8,
    head_dim=_HEAD,
    ffn=8192,
    vocab=128256,
    context=_MOST_CONTEXT,
    norm_epsilon=1e-5,
    activation="silu",
    tied=True,
    ropes=(Rope(tuple(500000.0 ** -(2 * i / _HEAD) for i in range(_HEAD // 2))),),
    layer_rope=(0,) * 16,
    windows=(0,) * 16,
    attention_scale=_HEAD**-0.5,
)

Work = Callable[[], Any]


def weights(config: LlmConfig) -> dict[str, Any]:
    """Random weights, with a scale for 32 of them."""
    rng = np.random.default_rng(0)
    made: dict[str, Any] = {}
    for name, shape in expected(config).items():
        if len(shape) == 1:
            made[name] = floats(rng.uniform(0.5, 1.5, shape))
            continue
        rows, columns = shape
        high = 127 if name == "token_embd" else 7
        values = np.frombuffer(rng.bytes(rows * columns), np.int8).reshape(shape)
        scales = rng.uniform(0.5, 1, (rows, columns // 32)) * (2 / np.sqrt(columns) / high)
        parts = Factors(scales.astype(np.float16))
        made[name] = Integers(values if high > 7 else values >> 4, -high - 1, high, 32, parts)
    return made


def batch(table: Any, sequences: int, first: int, count: int, wanted: int) -> StepBatch:
    """The same number of tokens of each sequence."""
    ids = np.random.default_rng(first).integers(0, CONFIG.vocab, sequences * count)
    places = np.arange(first, first + count, dtype=np.int32)
    rows = np.arange(sequences * count, dtype=np.int32).reshape(sequences, count)
    return StepBatch(
        tokens=ids.astype(np.int32),
        positions=np.tile(places, sequences),
        owner=np.repeat(np.arange(sequences, dtype=np.int32), count),
        table=table,
        rows=np.ascontiguousarray(rows[:, count - wanted :].reshape(-1)),
    )


class Peer:
    """The same shape in PyTorch, with a cache of a fixed size.

    Args:
        kind: ``fp16`` or ``int4``.
        sequences: Sequences of the cache.
        context: tokens of each.
    """

    def __init__(self, kind: str, sequences: int, context: int) -> None:
        import torch

        self.torch, self.kind = torch, kind
        self.dtype = torch.float16 if kind == "fp16" else torch.bfloat16
        config, size = CONFIG, CONFIG.head_dim
        heads = config.heads + 2 * config.kv_heads
        shape = (sequences, config.kv_heads, context, size)
        self.layers = [
            {
                "qkv": self._matrix(heads * size, config.hidden),
                "out": self._matrix(config.hidden, config.heads * size),
                "inner": self._matrix(2 * config.ffn, config.hidden),
                "down": self._matrix(config.hidden, config.ffn),
                "norm": self._norm(),
                "ffn_norm": self._norm(),
                "k": torch.zeros(shape, device="cuda", dtype=self.dtype),
                "v": torch.zeros(shape, device="cuda", dtype=self.dtype),
            }
            for _ in range(config.layers)
        ]
        self.head = torch.randn(config.vocab, config.hidden, device="cuda").to(self.dtype)
        self.norm = self._norm()
        tables = config.ropes[0].tables(context)
        wide = [np.concatenate([t, t], axis=1) for t in tables]
        self.cos, self.sin = (torch.from_numpy(t).to("cuda", self.dtype) for t in wide)
        self.places = torch.arange(context, device="cuda")

    def _norm(self) -> Any:
        return self.torch.rand(CONFIG.hidden, device="cuda", dtype=self.dtype)

    def _matrix(self, rows: int, columns: int) -> Any:
        torch, spread = self.torch, columns**-0.5
        if self.kind == "fp16":
            return torch.randn(rows, columns, device="cuda", dtype=self.dtype) * spread
        q = torch.randint(0, 256, (rows, columns // 2), device="cuda", dtype=torch.uint8)
        scales = torch.rand(columns // 32, rows, 2, device="cuda", dtype=self.dtype) * spread
        return torch.ops.aten._convert_weight_to_int4pack(q, 8), scales

    def _product(self, x: Any, matrix: Any) -> Any:
        if self.kind == "fp16":
            return self.torch.nn.functional.linear(x, matrix)
        return self.torch.ops.aten._weight_int4pack_mm(x, matrix[0], 32, matrix[1])

    def _turned(self, x: Any, place: Any) -> Any:
        half = CONFIG.head_dim // 2
        turned = self.torch.cat([-x[..., half:], x[..., :half]], -1)
        return x * self.cos[place] + turned * self.sin[place]

    def __call__(self, tokens: Any, place: Any) -> Any:
        """The next tokens."""
        f, config, count = self.torch.nn.functional, CONFIG, len(tokens)
        size, kept = config.head_dim, config.kv_heads * config.head_dim
        x, shape = self.head[tokens], (config.hidden,)
        mask = (self.places <= place)[None, None, None]
        for layer in self.layers:
            y = self._product(f.rms_norm(x, shape, layer["norm"], 1e-5), layer["qkv"])
            parts = y.split([config.heads * size, kept, kept], -1)
            q, k, v = (p.reshape(count, -1, 1, size) for p in parts)
            layer["k"][:count].index_copy_(2, place, self._turned(k, place))
            layer["v"][:count].index_copy_(2, place, v)
            seen = layer["k"][:count], layer["v"][:count]
            y = f.scaled_dot_product_attention(
                self._turned(q, place), *seen, attn_mask=mask, enable_gqa=True
            )
            x = x + self._product(y.reshape(count, -1), layer["out"])
            y = self._product(f.rms_norm(x, shape, layer["ffn_norm"], 1e-5), layer["inner"])
            gate, up = y.chunk(2, -1)
            x = x + self._product(f.silu(gate) * up, layer["down"])
        return f.linear(f.rms_norm(x, shape, self.norm, 1e-5), self.head).argmax(-1)

    def recorded(self, count: int, position: int) -> Work:
        """A step as a CUDA graph."""
        torch = self.torch
        tokens = torch.zeros(count, dtype=torch.long, device="cuda")
        place = torch.tensor([position], device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.inference_mode():
            for _ in range(3):
                self(tokens, place)
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                found = self(tokens, place)
        held = self, tokens, place

        def step() -> Any:
            # The graph reads what these own.
            _ = held
            graph.replay()
            return found.cpu()

        return step


def works(executor: Any, table: Any, context: int, batches: list[int]) -> dict[Any, Work]:
    """Steps to be timed, by who takes them and how many tokens."""
    for first in range(0, context, 16):
        count = min(16, context - first)
        executor.step(batch(table, max(batches), first, count, 0))
    made: dict[Any, Work] = {}
    for count in batches:
        given = batch(table, count, context, 1, 1)
        made["ours", count] = lambda given=given: executor.step(given)  # type: ignore[misc]
    try:
        import torch  # noqa: F401
    except ImportError:
        return made
    for kind in ("fp16", "int4"):
        peer = Peer(kind, max(batches), 256 if context < 256 else _MOST_CONTEXT)
        made |= {(f"torch {kind}", count): peer.recorded(count, context) for count in batches}
    return made


def timed(work: Work, count: int = 20) -> float:
    """Milliseconds."""
    begin = time.perf_counter()
    for _ in range(count):
        work()
    return (time.perf_counter() - begin) / count * 1e3


def rows(made: dict[Any, Work], batches: list[int], rounds: int) -> Iterator[str]:
    """Lines of a table."""
    for count in batches:
        own = {who: work for (who, n), work in made.items() if n == count}
        times: dict[str, list[float]] = {who: [] for who in own}
        for work in own.values():
            timed(work, 3)
        for _ in range(rounds):
            for who, work in own.items():
                times[who].append(timed(work))
        parts = []
        for who, taken in times.items():
            ratios = [a / b for a, b in zip(taken, times["ours"], strict=True)]
            low, middle, high = statistics.quantiles(ratios, n=4)
            spread = "" if who == "ours" else f", {middle:.2f} ({low:.2f}-{high:.2f})"
            parts.append(f"{who} {statistics.median(taken):.3f} ms{spread}")
        yield f"batch {count}: " + "; ".join(parts)


def main() -> None:
    """Print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, arch = Path(name), "sm_" + compute_capability().replace(".", "")
        for line in cuda_variant.write(CONFIG, weights(CONFIG), [arch], folder):
            print(line)
        pages = _SEQUENCES * _MOST_CONTEXT // 16
        room = ExecutorSizes(pages, _STEP_TOKENS, _SEQUENCES, _MOST_CONTEXT)
        executor = open_executor(folder, room)
    table = np.arange(pages, dtype=np.int32).reshape(_SEQUENCES, -1)
    made = works(executor, table, given.context, given.batches)
    for line in rows(made, given.batches, given.rounds):
        print(line)
    executor.close()


if __name__ == "__main__":
    main()
