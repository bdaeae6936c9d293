"""The executor by definition keeps the contract, and is right."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from edgeinfer.llm.config import Experts
from edgeinfer.runtime.llm.executor import StepBatch
from tests.runtime.llm.conftest import tiny_config, tiny_executor, tiny_weights
from tests.runtime.llm.reference import ReferenceExecutor

PAGES = list(range(10, 20))


def batch(
    tokens: list[int], start: int, rows: list[int], pages: list[int], **more: Any
) -> StepBatch:
    size = len(tokens)
    return StepBatch(
        np.array(tokens, np.int32),
        np.arange(start, start + size, dtype=np.int32),
        np.zeros(size, np.int32),
        np.array([pages], np.int32),
        np.array(rows, np.int32),
        **more,
    )


def whole(executor: ReferenceExecutor, tokens: list[int], **more: Any) -> Any:
    return executor.step(batch(tokens, 0, list(range(len(tokens))), PAGES, **more)).copy()


def test_dense_attention_gives_the_same() -> None:
    """Written once more: all tokens at once, a mask, no pages."""
    config = tiny_config()
    weights = tiny_weights(config)
    tokens = [random.Random(0).randrange(64) for _ in range(40)]
    x = weights["token_embd"][tokens].astype(np.float64)
    mask = np.tril(np.ones((40, 40), bool))
    turn = np.exp(1j * np.outer(np.arange(40), config.ropes[0].frequencies))

    def norm(x: Any, name: str) -> Any:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weights[name]

    def turned(x: Any) -> Any:
        pairs = (x[..., :4] + 1j * x[..., 4:]) * turn[:, None]
        return np.concatenate([pairs.real, pairs.imag], -1)

    for layer in range(2):
        name = f"blk.{layer}."
        y = norm(x, name + "attn_norm")
        q, k, v = (y @ weights[f"{name}attn_{n}"].T for n in "qkv")
        q, k = turned(q.reshape(40, 4, 8)), turned(k.reshape(40, 2, 8))
        k, v = np.repeat(k, 2, 1), np.repeat(v.reshape(40, 2, 8), 2, 1)
        scores = np.einsum("ahd,bhd->hab", q, k) * 8**-0.5
        scores = np.exp(np.where(mask, scores, -np.inf))
        shares = scores / scores.sum(-1, keepdims=True)
        out = np.einsum("hab,bhd->ahd", shares, v).reshape(40, 32)
        x = x + out @ weights[name + "attn_output"].T
        y = norm(x, name + "ffn_norm")
        gate, up = (y @ weights[f"{name}ffn_{n}"].T for n in ("gate", "up"))
        x = x + (gate / (1 + np.exp(-gate)) * up) @ weights[name + "ffn_down"].T
    expected = norm(x, "output_norm") @ weights["token_embd"].T
    np.testing.assert_allclose(whole(tiny_executor(), tokens), expected, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("seed", range(4))
def test_bits_do_not_depend_on_the_schedule(seed: int) -> None:
    rng = random.Random(seed)
    texts = [[rng.randrange(64) for _ in range(rng.randint(1, 50))] for _ in range(4)]
    executor = tiny_executor(adapters=_adapters())
    pages = list(range(64))
    rng.shuffle(pages)
    table = np.full((4, 16), -1, np.int32)
    for i in range(4):
        table[i, :4] = pages[4 * i : 4 * i + 4]
    done = [0] * 4
    found: list[list[Any]] = [[] for _ in texts]
    while any(done[i] < len(text) for i, text in enumerate(texts)):
        tokens: list[int] = []
        positions: list[int] = []
        owner: list[int] = []
        for i, text in enumerate(texts):
            count = min(rng.randint(0, 9), len(text) - done[i])
            tokens += text[done[i] : done[i] + count]
            positions += range(done[i], done[i] + count)
            owner += [i] * count
            done[i] += count
        if not tokens:
            continue
        ids, places, owners = (np.array(a, np.int32) for a in (tokens, positions, owner))
        adapter = np.array([o % 3 - 1 for o in owner], np.int32)
        rows = np.arange(len(tokens), dtype=np.int32)
        logits = executor.step(StepBatch(ids, places, owners, table, rows, adapter))
        for row, i in zip(logits, owner, strict=True):
            found[i].append(row.copy())
    for i, text in enumerate(texts):
        alone = tiny_executor(adapters=_adapters())
        adapter = np.full(len(text), i % 3 - 1, np.int32)
        assert (np.array(found[i]) == whole(alone, text, adapter=adapter)).all()


def _adapters() -> dict[str, Any]:
    rng = np.random.default_rng(5)
    made = {}
    for name in ("x", "y"):
        low, high = rng.standard_normal((3, 24)), rng.standard_normal((32, 3))
        made[name] = {"blk.0.attn_q": (low.astype(np.float32), high.astype(np.float32))}
    return made


def test_adapter_is_its_product_added_to_the_weight() -> None:
    low, high = _adapters()["x"]["blk.0.attn_q"]
    weights = tiny_weights(tiny_config())
    weights["blk.0.attn_q"] = weights["blk.0.attn_q"] + high @ low
    merged = ReferenceExecutor(tiny_config(), weights, pages=64)
    tokens = list(range(20))
    adapted = whole(tiny_executor(adapters=_adapters()), tokens, adapter=np.zeros(20, np.int32))
    np.testing.assert_allclose(adapted, whole(merged, tokens), rtol=1e-3, atol=1e-3)
    plain = whole(tiny_executor(), tokens)
    assert abs(adapted - plain).max() > 0.1


def test_page_moves_with_all_that_it_holds() -> None:
    executor = tiny_executor()
    tokens = list(range(30))
    expected = whole(executor, tokens)
    executor.copy_page(10, 30)
    data = np.empty(executor.page_bytes, np.uint8)
    executor.read_page(11, data)
    other = tiny_executor()
    other.write_page(31, data)
    executor.write_page(31, data)
    again = executor.step(batch([tokens[-1]], 29, [0], [30, 31]))
    assert (again[0] == expected[-1]).all()
    assert other.fingerprint == executor.fingerprint != tiny_executor(1).fingerprint


def test_given_embeddings_take_the_place_of_tokens() -> None:
    executor = tiny_executor()
    tokens = list(range(8))
    given = tiny_weights(tiny_config())["token_embd"][[5, 6]]
    more = {"embedded": np.array([2, 3], np.int32), "embeddings": given}
    found = whole(executor, [0, 1, 0, 0, 4, 5, 6, 7], **more)
    assert (found == whole(executor, [0, 1, 5, 6, 4, 5, 6, 7])).all()
    assert (found != whole(executor, tokens)).any()


def test_window_hides_what_lies_before_it() -> None:
    config = tiny_config(windows=(5, 5))
    executor = ReferenceExecutor(config, tiny_weights(config), pages=64)
    assert executor.window == 5
    base = [7] * 30
    found = whole(executor, base)
    # Two layers look back four tokens each.
    changed = whole(executor, [*base[:10], 9, *base[11:]])
    differs = (found != changed).any(axis=1)
    assert differs[10:19].all()
    assert not differs[:10].any()
    assert not differs[19:].any()
    assert tiny_executor().window == 0


def test_experts_share_the_work() -> None:
    experts = Experts(count=4, used=4, ffn=40, normalised=True)
    config = tiny_config(experts=experts)
    weights = tiny_weights(config)
    for layer in range(2):
        name = f"blk.{layer}."
        weights[name + "ffn_gate_inp"] = np.zeros((4, 24), np.float32)
        for part in ("gate", "up", "down"):
            weights[f"{name}ffn_{part}_exps"] = np.stack([weights[f"{name}ffn_{part}"]] * 4)
    executor = ReferenceExecutor(config, weights, pages=64)
    # Four equal experts with equal shares are one.
    tokens = list(range(20))
    np.testing.assert_allclose(
        whole(executor, tokens), whole(tiny_executor(), tokens), rtol=1e-3, atol=1e-4
    )
