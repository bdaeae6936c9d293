from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgeinfer.convert.llm import gptq, pack
from edgeinfer.convert.llm.oracle import Oracle
from edgeinfer.convert.llm.source import floats
from edgeinfer.errors import UsageError
from tests.backends.llm.small import CONFIG, weights


def related(rng: np.random.Generator, count: int, columns: int) -> np.ndarray:
    """Inputs of which a few directions are most."""
    base = rng.standard_normal((count, 8)) @ rng.standard_normal((8, columns))
    return (base + 0.3 * rng.standard_normal((count, columns))).astype(np.float32)


@pytest.mark.parametrize("block", [32, 64])
def test_products_lose_less_than_by_nearest_weights(block: int) -> None:
    rng = np.random.default_rng(0)
    w = rng.standard_normal((48, 192)).astype(np.float32)
    x = related(rng, 2000, 192)
    x, fresh = x[:1500], x[1500:]
    found = gptq.rounded(w, gptq.inverse_root(x.T @ x), 4, block)
    assert (found.low, found.high, found.group) == (-8, 7, block)
    lost = [
        np.square((r.float32() - w) @ fresh.T).sum() for r in (found, pack.rounded(w, 4, block))
    ]
    assert lost[0] < 0.5 * lost[1]


def test_where_inputs_say_nothing_it_is_the_nearest() -> None:
    rng = np.random.default_rng(1)
    w = rng.standard_normal((16, 64)).astype(np.float32)
    plain = pack.rounded(w, 4, 32)
    for gram in (np.eye(64, dtype=np.float32), np.zeros((64, 64), np.float32)):
        found = gptq.rounded(w, gptq.inverse_root(gram), 4, 32)
        assert np.array_equal(found.values, plain.values)
        assert np.array_equal(found.scales.numbers, plain.scales.numbers)


def test_all_matrices_of_layers_are_rounded_by_what_they_meet() -> None:
    tensors = weights(CONFIG)
    oracle = Oracle(CONFIG, tensors)
    rng = np.random.default_rng(2)
    ids = [rng.integers(0, CONFIG.vocab, 90).astype(np.int32) for _ in range(8)]
    made = gptq.rounded_layers(oracle, ids, 4, 32)
    assert set(made) == {n for n in tensors if n.startswith("blk.") and "norm" not in n}
    assert oracle.grams is None
    plain = {n: pack.rounded(tensors[n].float32(), 4, 32) for n in made}
    right = oracle.logits(ids[:2])
    errors = []
    for rounded in (made, plain):
        other = {**tensors, **{n: floats(r.float32()) for n, r in rounded.items()}}
        found = Oracle(CONFIG, other).logits(ids[:2])
        errors.append(sum(np.square(a - b).sum() for a, b in zip(found, right, strict=True)))
    assert errors[0] < errors[1]


def test_what_is_no_text_or_too_short_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="expected a file of text"):
        gptq.read(path, b"")
    with pytest.raises(UsageError, match="expected a file of text"):
        gptq.read(tmp_path, b"")
