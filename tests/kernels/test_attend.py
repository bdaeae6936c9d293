"""Attention of a few tokens to many in one piece, against float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.kernels.run import HERE, Array, compiled, misaligned

from edgeinfer.kernels.defs.attend import Short, attend  # isort: skip


def _numbers(what: Short, seed: int) -> tuple[Array, Array, Array]:
    rng, count = np.random.default_rng(seed), what.batch * what.heads
    sizes = ((what.rows, what.size), (what.slots, what.size), (what.slots, what.width))
    q, k, v = (rng.standard_normal((count, *s)).astype(np.float32) for s in sizes)
    return q * 3, k, v


def _run(what: Short, arrays: list[Array], machine: str) -> Array:
    out: Array = misaligned(np.full((*arrays[0].shape[:2], what.width), np.nan, np.float32))
    compiled(attend(what), machine)(*map(misaligned, arrays), out)
    return out


def _want(what: Short, q: Array, k: Array, v: Array, length: Array | None) -> Array:
    found = np.zeros((*q.shape[:2], what.width))
    for head, row in np.ndindex(q.shape[:2]):
        seen = what.slots
        if length is not None:
            seen = int(np.clip(length[head // what.heads], 0, what.slots))
        past = seen - what.tokens if length is not None else 0
        if what.causal:
            seen = min(seen, past + row % what.tokens + 1)
        if seen <= 0:
            continue
        scores = k[head, :seen].astype(np.float64) @ q[head, row] * what.scale
        weights = np.exp(scores - scores.max())
        found[head, row] = weights / weights.sum() @ v[head, :seen]
    return found


CASES = [
    # batch, heads, group, tokens, slots, size, width, scale, causal, counted; lengths
    (Short(1, 2, 4, 1, 33, 32, 16, 0.2, causal=True, counted=True), [33]),
    (Short(3, 1, 3, 1, 16, 16, 16, 0.25, causal=False, counted=True), [1, 16, 7]),
    (Short(2, 2, 5, 3, 40, 16, 48, 0.1, causal=True, counted=True), [3, 39]),
    (Short(4, 1, 1, 4, 20, 48, 32, 0.3, causal=True, counted=True), [0, -5, 99, 2]),
    (Short(1, 3, 1, 2, 65, 64, 64, 0.125, causal=False, counted=False), None),
    (Short(1, 1, 7, 2, 17, 16, 16, 1.0, causal=True, counted=False), None),
]


@pytest.mark.sample(3)
@pytest.mark.parametrize(("what", "lengths"), CASES, ids=lambda c: "")
def test_attend(what: Short, lengths: list[int] | None) -> None:
    q, k, v = _numbers(what, 0)
    length = None if lengths is None else np.array(lengths, np.int32)
    given = [q, k, v] if length is None else [q, k, v, length]
    want = _want(what, q, k, v, length)
    got = _run(what, given, HERE[-1])
    assert np.abs(got - want).max() <= 2e-6 * max(1.0, np.abs(want).max())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_any_size(seed: int) -> None:
    rng = np.random.default_rng(seed)
    batch, heads, group, tokens = map(int, rng.integers(1, 5, 4))
    size, width = (int(n) * 16 for n in rng.integers(1, 6, 2))
    what = Short(
        *(batch, heads, group, tokens, int(rng.integers(1, 90)), size, width, 0.2),
        causal=bool(seed % 2),
        counted=bool(seed % 3),
    )
    q, k, v = _numbers(what, seed)
    length = rng.integers(-1, what.slots + 2, what.batch).astype(np.int32)
    given = [q, k, v, length] if what.counted else [q, k, v]
    want = _want(what, q, k, v, length if what.counted else None)
    for machine in HERE:
        got = _run(what, given, machine)
        assert np.abs(got - want).max() <= 2e-6 * max(1.0, np.abs(want).max())


def test_what_lies_behind_the_last_token_is_not_read() -> None:
    what = Short(1, 1, 2, 1, 30, 16, 16, 0.3, causal=True, counted=True)
    q, k, v = _numbers(what, 1)
    want = _want(what, q, k, v, np.array([19]))
    k[:, 19:], v[:, 19:] = np.nan, np.inf
    got = _run(what, [q, k, v, np.array([19], np.int32)], HERE[-1])
    assert np.abs(got - want).max() <= 2e-6


def test_scores_of_any_size_and_none() -> None:
    what = Short(1, 4, 1, 1, 40, 16, 16, 1.0, causal=False, counted=False)
    q, k, v = _numbers(what, 2)
    q[0] *= 1e30  # Far beyond what an exponential takes.
    q[1] *= 1e-42
    k[2, 35, 0] = np.nan
    v[3, 3, 5] = np.inf
    with np.errstate(all="ignore"):
        want = _want(what, q, k, v, None)
    got = _run(what, [q, k, v], HERE[-1])
    assert np.abs(got[:2] - want[:2]).max() <= 1e-5
    assert np.isnan(got[2]).all()
    assert got[3, 0, 5] == np.inf
    assert np.isfinite(np.delete(got[3, 0], 5)).all()


@pytest.mark.parametrize("wrong", [{"size": 24}, {"width": 8}, {"slots": 0}, {"tokens": 0}])
def test_sizes_without_a_kernel(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        replace(CASES[0][0], **wrong)
