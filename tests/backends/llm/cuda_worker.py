"""Runs small decoders on a GPU, or on the CPU that stands in for one, and tells what came out."""

from __future__ import annotations

import pickle
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np

from edgeinfer.backends.llm.backend import open_executor
from edgeinfer.backends.llm.cuda import CudaExecutor
from edgeinfer.backends.llm.sizes import ExecutorSizes
from edgeinfer.convert.llm import cuda_code, cuda_variant, oracle
from edgeinfer.convert.llm.adapters import PARTS
from edgeinfer.convert.llm.blocks import Factors, Integers
from edgeinfer.convert.llm.oracle import Oracle
from edgeinfer.convert.llm.pipeline import prepared
from edgeinfer.convert.llm.source import expected, floats
from edgeinfer.errors import ClosedError, EdgeInferError
from edgeinfer.llm import Experts, LlmConfig
from edgeinfer.llm.step import StepBatch
from edgeinfer.machine.cuda import compute_capability, cuda_devices
from edgeinfer.types import Array
from tests import cuda_emulator
from tests.backends.llm.small import CONFIG, batch, stored, weights
from tests.backends.llm.test_adapters import adapter, given, merged

KINDS = {"": "Q4_0", "attn_v": "Q5_0", "ffn_down": "Q4_1", "token_embd": "Q8_0"}
OTHER = replace(
    CONFIG,
    tied=False,
    qkv_bias=True,
    qk_norm=True,
    post_norms=True,
    attention_softcap=20.0,
    logit_softcap=30.0,
    activation="gelu_tanh",
    embedding_scale=8.0,
    head_dim=48,
    windows=(0, 7),
    layer_rope=(0, -1),
    vocab=119,
)
ROWS = replace(CONFIG, qk_norm_rows=True, kv_heads=1, heads=3, head_dim=32)
ROUTED = replace(CONFIG, experts=Experts(4, 2, 64, True))
SHARED = replace(ROWS, layers=1, layer_rope=(0,), windows=(0,), experts=Experts(3, 2, 2080, False))
"""Columns of its last products are cut into more slices, as those of ``LONG`` are."""
LONG = replace(CONFIG, ffn=2080, layers=1, layer_rope=(0,), windows=(0,))
"""Its columns are cut into more slices: a warp has one for few tokens, and several for many."""
IDS = [int(i) for i in np.random.default_rng(1).integers(0, 119, 36)]


def _grouped(config: LlmConfig) -> dict[str, Any]:
    """Weights as of Q6_K, whose scales are of 16 neighbours, and of Q4_K, which has minima."""
    rng = np.random.default_rng(3)
    made: dict[str, Any] = dict(weights(config))
    for name, tensor in weights(config).items():
        if len(tensor.shape) == 1:
            continue
        rows, columns = tensor.shape
        spread = np.float32(2 / np.sqrt(columns))
        if name.endswith(("attn_output", "ffn_down")):
            scales = rng.uniform(0.5, 1, (rows, columns // 16)) * spread / 32
            values = rng.integers(-32, 32, tensor.shape, dtype=np.int8)
            made[name] = Integers(values, -32, 31, 16, Factors(scales.astype(np.float32)))
        else:
            scales = (rng.uniform(0.5, 1, (rows, columns // 32)) * spread / 8).astype(np.float32)
            values = rng.integers(0, 16, tensor.shape, dtype=np.int8)
            made[name] = Integers(values, 0, 15, 32, Factors(scales), Factors(-8 * scales))
    return made


CASES: dict[str, tuple[LlmConfig, Callable[[], dict[str, Any]]]] = {
    "types of a GGUF file": (CONFIG, lambda: dict(stored(CONFIG, KINDS))),
    "another family": (OTHER, lambda: prepared(weights(OTHER), "w4", 32)),
    "norms of rows": (ROWS, lambda: prepared(weights(ROWS), "w8", 64)),
    "narrow groups and minima": (CONFIG, lambda: _grouped(CONFIG)),
    "long columns": (LONG, lambda: prepared(weights(LONG), "w4", 32)),
    "experts": (ROUTED, lambda: prepared(weights(ROUTED), "w4", 32)),
    "experts of another family": (SHARED, lambda: prepared(weights(SHARED), "w8", 32)),
    "float32": (CONFIG, lambda: dict(weights(CONFIG))),
    "float16": (CONFIG, lambda: prepared(weights(CONFIG), "fp16", 32)),
    "bfloat16": (CONFIG, lambda: prepared(weights(CONFIG), "bf16", 32)),
    "a cache of bytes": (OTHER, lambda: prepared(weights(OTHER), "w4", 32)),
}
ADAPTED: dict[str, tuple[int, int, tuple[str, ...]]] = {
    "wide": (16, 1, ()),
    "odd": (3, 2, ()),
    "some": (8, 3, ("attn_q", "attn_v")),
}
"""Ranks, seeds, and matrices that have an adapter; none stand for all."""
OF_BYTES = ("a cache of bytes",)


def _opened(folder: Path, config: LlmConfig, cache: str = "float16") -> tuple[CudaExecutor, Array]:
    pages = 8 * config.context // 16
    room = ExecutorSizes(pages, max_tokens=96, max_sequences=8, cache=cache)
    executor = open_executor(folder, room)
    assert isinstance(executor, CudaExecutor)
    order = np.random.default_rng(5).permutation(executor.pages).astype(np.int32)
    return executor, order.reshape(8, -1)


def _whole(executor: CudaExecutor, table: Array, ids: list[int], adapter: int = -1) -> Array:
    return executor.step(given(batch(table, [(0, ids, 0, len(ids))]), adapter)).copy()


def logits(name: str, count: int) -> dict[str, Any]:
    """Of a prompt, read at once and its last tokens one by one, next to those of the definition."""
    config, make = CASES[name]
    tensors, ids = make(), IDS[:count]
    with tempfile.TemporaryDirectory() as folder:
        cuda_variant.write(config, tensors, [_arch()], Path(folder))
        executor, table = _opened(Path(folder), config, "uint8" if name in OF_BYTES else "float16")
    attended: Any = in_bytes if name in OF_BYTES else in_cache
    oracle.attended = attended
    right = Oracle(config, _of_experts(config, tensors)).logits([np.array(ids)])[0]
    found = _whole(executor, table, ids)
    best = None if executor.best is None else executor.best.copy()
    start = count - 5
    executor.step(batch(table, [(1, ids[:start], 0, 0)]))
    steps = (batch(table, [(1, ids[i : i + 1], i, 1)]) for i in range(start, count))
    single = [executor.step(step)[0].copy() for step in steps]
    executor.close()
    return {"right": right, "found": found, "best": best, "single": np.array(single)}


def _of_experts(config: LlmConfig, tensors: dict[str, Any]) -> dict[str, Any]:
    """With experts' matrices one by one, as the definition takes them."""
    shapes = {name: shape for name, shape in expected(config).items() if len(shape) == 3}
    return tensors | {n: floats(tensors[n].float32().reshape(s)) for n, s in shapes.items()}


def adapted(name: str, count: int) -> dict[str, Any]:
    """Of a model with adapters: logits next to those of merged weights, bits, what is refused."""
    config, make = CASES[name]
    tensors, ids, folder = make(), IDS[:count], Path(tempfile.mkdtemp())
    parts = PARTS if config.experts is None else PARTS[:4]
    added = {n: adapter(config, r, seed, p or parts) for n, (r, seed, p) in ADAPTED.items()}
    cuda_variant.write(config, tensors, [_arch()], folder, adapters=added)
    executor, table = _opened(folder, config)
    cuda_variant.write(config, tensors, [_arch()], folder)
    plain, _ = _opened(folder, config)
    shutil.rmtree(folder)
    attended: Any = in_cache
    oracle.attended = attended
    whole = {which: _whole(executor, table, ids, which) for which in range(-1, len(added))}
    oracles = [Oracle(config, merged(_of_experts(config, tensors), a)) for a in added.values()]
    right = [one.logits([np.array(ids)])[0] for one in oracles]
    found = {
        "right": right,
        "found": [whole[which] for which in range(len(added))],
        "none": np.array_equal(_whole(plain, table, ids), whole[-1]),
        "schedules": _schedules(executor, table, whole, 4),
        "fingerprints": executor.fingerprint != plain.fingerprint,
        "names": executor.adapters,
    }
    made = batch(table, [(0, IDS[:4], 0, 4)])
    (state,) = oracles[0].states([np.array(IDS[:4])])
    scale = np.sqrt(np.square(state).mean(-1, keepdims=True) + np.float32(config.norm_epsilon))
    state = state / scale * tensors["output_norm"].float32()
    states = executor.states(given(made, 0))
    found["states"] = float(np.linalg.norm(states - state) / np.linalg.norm(state))
    try:
        executor.step(given(made, len(added)))
    except EdgeInferError as e:
        found["refused"] = str(e)
    executor.close()
    plain.close()
    return found


def behaviour() -> dict[str, Any]:
    """Of one executor: whatever a sequence's bits might depend on, and what is refused."""
    config, make = CASES["types of a GGUF file"]
    tensors, attended = make(), cast(Any, in_cache)
    oracle.attended = attended
    with tempfile.TemporaryDirectory() as folder:
        cuda_variant.write(config, tensors, [_arch()], Path(folder))
        executor, table = _opened(Path(folder), config)
        other, _ = _opened(Path(folder), config, "uint8")
    found: dict[str, Any] = {"pages": (executor.page_bytes, other.page_bytes)}
    for name, one in (("bytes ", other), ("", executor)):
        nothing = np.full(one.page_bytes, 0xFF, np.uint8)
        for page in range(one.pages):
            one.write_page(page, nothing)
        whole = _whole(one, table, IDS)
        found[f"{name}schedules"] = _schedules(one, table, {-1: whole}, 2 if name else 4)
        found[f"{name}prefix"] = _prefix(one, table, whole)
    other.close()
    found["states"] = _states(executor, table, config, tensors)
    rows = tensors["token_embd"].float32()
    plain = batch(table, [(4, IDS[:9], 0, 9)])
    places, tokens = np.array([3, 8], np.int32), plain.tokens.copy()
    tokens[places] = 0
    mixed = StepBatch(
        *(tokens, plain.positions, plain.owner, plain.table, plain.rows),
        embedded=places,
        embeddings=rows[[IDS[i] for i in places]],
    )
    found["embedded"] = np.array_equal(executor.step(mixed), whole[:9])
    found["none wanted"] = executor.step(batch(table, [(5, IDS[:5], 0, 0)])).shape
    found["refused"] = _refused(executor, table)
    executor.close()
    executor.close()
    try:
        executor.step(plain)
    except ClosedError as e:
        found["closed"] = str(e)
    return found


def _schedules(
    executor: CudaExecutor, table: Array, whole: dict[int, Array], sequences: int
) -> int:
    """Rows of random schedules that differ from the whole prompt's, by the sequences' adapters."""
    rng, wrong, most = np.random.default_rng(7), 0, len(whole[-1])
    done = dict.fromkeys(range(sequences), 0)
    which = [int(a) for a in rng.permutation(np.resize(list(whole), len(table)))]
    while done:
        parts = []
        for sequence, start in done.items():
            if rng.random() < 0.6:
                count = min(int(rng.integers(1, 12)), most - start)
                parts.append((sequence, IDS[start : start + count], start, count))
        if not parts:
            continue
        rows, at = executor.step(given(batch(table, parts), *which)), 0
        for sequence, ids, start, count in parts:
            right = whole[which[sequence]][start : start + count]
            wrong += not np.array_equal(rows[at : at + count], right)
            at += len(ids)
            done[sequence] += count
        done = {s: n for s, n in done.items() if n < most}
    return wrong


def _prefix(executor: CudaExecutor, table: Array, whole: Array) -> list[bool]:
    """Whether a fork, and a page that was read and written, go on as their source."""
    executor.step(batch(table, [(0, IDS[:20], 0, 0)]))
    fork = table.copy()
    fork[1, 0] = table[0, 0]
    executor.copy_page(int(table[0, 1]), int(table[1, 1]))
    kept = np.zeros(executor.page_bytes, np.uint8)
    executor.read_page(int(table[0, 1]), kept)
    parts = [(0, [1, 2, 3], 20, 0), (1, IDS[20:], 20, 16)]
    first = np.array_equal(executor.step(batch(fork, parts)), whole[20:])
    executor.write_page(int(table[2, 1]), kept)
    fork[2, 0] = table[0, 0]
    last = executor.step(batch(fork, [(2, IDS[20:], 20, 16)]))
    return [first, np.array_equal(last, whole[20:])]


def _states(executor: CudaExecutor, table: Array, config: LlmConfig, tensors: Any) -> float:
    """How far states are from those of the definition."""
    (state,) = Oracle(config, tensors).states([np.array(IDS[:7])])
    scale = np.sqrt(np.square(state).mean(-1, keepdims=True) + np.float32(config.norm_epsilon))
    right = state / scale * tensors["output_norm"].float32()
    found = executor.states(batch(table, [(3, IDS[:7], 0, 7)]))
    return float(np.linalg.norm(found - right) / np.linalg.norm(right))


def _refused(executor: CudaExecutor, table: Array) -> dict[str, str]:
    """What is said of batches that point outside."""
    good = batch(table, [(0, [1, 2], 0, 1)])
    holes, beyond = table.copy(), table.copy()
    holes[0, 0], beyond[0, 0] = -1, executor.pages
    wide: Any = good.tokens.astype(np.int64)
    cases = {
        "outside": StepBatch(
            tokens=np.array([1, CONFIG.vocab], np.int32),
            positions=np.array([0, 96], np.int32),
            owner=good.owner,
            table=good.table,
            rows=np.array([2], np.int32),
        ),
        "holes": batch(holes, [(0, [1], 20, 1)]),
        "beyond": batch(beyond, [(0, [1], 0, 1)]),
        "many": batch(table, [(0, [1] * 97, 0, 1)]),
        "wide": StepBatch(wide, good.positions, good.owner, good.table, good.rows),
    }
    said = {}
    for name, wrong in cases.items():
        try:
            executor.step(wrong)
        except EdgeInferError as e:
            said[name] = str(e)
    return said


def _arch() -> str:
    return "sm_" + compute_capability().replace(".", "")


def in_cache(q: Array, k: Array, v: Array, *more: Any) -> Array:
    """Attention over keys and values in float16."""
    k, v = (a.astype(np.float16).astype(np.float32) for a in (k, v))
    return _ATTENDED(q, k, v, *more)


def in_bytes(q: Array, k: Array, v: Array, *more: Any) -> Array:
    """Attention over keys and values in bytes, with a scale and a zero for each token and head."""
    kept = []
    for x in (k, v):
        low, high = np.minimum(x.min(-1), 0), np.maximum(x.max(-1), 0)
        scale = ((high - low) / np.float32(255))[..., None]
        zero = np.rint(-low[..., None] / scale)
        kept.append((np.clip(np.rint(x / scale) + zero, 0, 255) - zero) * scale)
    return _ATTENDED(q, *kept, *more)


_ATTENDED = oracle.attended


def main(path: Path) -> None:
    """Answer the questions in a file there."""
    if not cuda_devices():
        cuda_devices.__globals__["_driver"].cache_clear()
        cuda_emulator.load_driver()
        compiled: Any = cache(lambda text, _: cuda_emulator.compiled(text, is_ours=True))
        cuda_code.compiled = compiled
    functions = (logits, adapted, behaviour)
    known: dict[str, Callable[..., Any]] = {f.__name__: f for f in functions}
    asked = pickle.loads(path.read_bytes())
    path.write_bytes(pickle.dumps([known[name](*given) for name, *given in asked]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
