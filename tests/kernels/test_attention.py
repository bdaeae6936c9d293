"""Attention over pages, against float64 over the values that the cache holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.kernels.run import HERE, Array, compiled, misaligned

from edgeinfer.kernels.defs.attention import PAGE, AttentionCall, LayerCache, append, attention  # isort: skip

CASES = [
    # kind, tokens, heads, heads of keys, size, window, context
    ("float16", 1, 4, 4, 16, 0, 1),
    ("float16", 1, 8, 2, 64, 0, 45),
    ("float16", 6, 4, 2, 32, 0, 37),
    ("float16", 5, 6, 2, 16, 7, 50),
    ("uint8", 1, 4, 1, 64, 0, 33),
    ("uint8", 7, 4, 4, 16, 20, 64),
    ("uint4", 1, 9, 3, 32, 0, 47),
    ("uint4", 4, 2, 1, 64, 5, 16),
]


def _write(cache: LayerCache, keys: Array, values: Array, table: Array) -> dict[str, Array]:
    """Fill a cache with a context, some tokens at a time; its memory held something else before."""
    held = {name: misaligned(np.zeros(*what)) for name, what in cache.buffers().items()}
    for array in held.values():
        # Of floats all bits are NaN.
        array[...] = np.nan if array.dtype.kind == "f" else 255
    done = 0
    for count in (1, len(keys) - 1):
        if count:
            call = compiled(append(cache, count, len(table)), HERE[-1])
            part = slice(done, done + count)
            done += count
            length = np.array([done], np.int32)
            call(keys[part].copy(), values[part].copy(), table, length, *held.values())
    return held


def _read(
    cache: LayerCache, held: dict[str, Array], table: Array, count: int
) -> tuple[Array, Array]:
    """The tokens of a cache as float64, (tokens, heads, size) each."""
    found = []
    for which, name in enumerate(("k", "v")):
        pages = held[name][table]
        tokens = np.moveaxis(pages, (1, 2, 3), (2, 1, 3) if which else (2, 3, 1))
        flat = tokens.reshape(-1, *tokens.shape[2:])
        if cache.kind == "uint4":
            flat = np.concatenate([flat & 15, flat >> 4], -1)
        wide = flat.astype(np.float64)
        if cache.quantized:
            factors = np.moveaxis(held["factors"][table][:, :, which], -1, 1)
            scale, zero = np.moveaxis(factors, -1, 0).reshape(2, -1, cache.heads, 1)
            wide = (wide - zero) * scale
        found.append(wide[:count])
    return found[0], found[1]


def _attend(q: Array, keys: Array, values: Array, window: int) -> Array:
    group = q.shape[1] // keys.shape[1]
    keys, values = (np.repeat(a, group, axis=1) for a in (keys, values))
    scores = np.einsum("mhd,nhd->hmn", q.astype(np.float64), keys) * q.shape[2] ** -0.5
    at = len(keys) - len(q) + np.arange(len(q))[:, None]
    n = np.arange(len(keys))[None]
    seen = (n <= at) & ((n > at - window) if window else True)
    weights = np.where(seen, np.exp(scores - np.where(seen, scores, -np.inf).max(-1)[..., None]), 0)
    found: Array = np.einsum("hmn,nhd->mhd", weights / weights.sum(-1, keepdims=True), values)
    return found


@pytest.mark.sample(3)
@pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join(map(str, c)))
def test_attention(case: tuple[Any, ...]) -> None:
    kind, tokens, heads, shared, size, window, context = case
    rng = np.random.default_rng(0)
    needed = -(-context // PAGE)
    cache = LayerCache(needed + 3, shared, size, kind)
    # Pages out of order, and more of the table than the context fills.
    table = rng.permutation(needed + 3).astype(np.int32)
    keys, values = rng.standard_normal((2, context, shared, size)).astype(np.float32) * 2
    held = _write(cache, keys, values, table)
    stored = _read(cache, held, table, context)
    q = rng.standard_normal((tokens, heads, size)).astype(np.float32) * 3
    what = AttentionCall(cache, tokens, heads, len(table), window=window)
    out = misaligned(np.full(q.shape, np.nan, np.float32))
    length = np.array([context], np.int32)
    compiled(attention(what), HERE[-1])(misaligned(q), *held.values(), table, length, out)
    want = _attend(q, *stored, window)
    assert np.abs(out - want).max() <= 2e-6 * max(1.0, np.abs(want).max())


@pytest.mark.parametrize(
    ("kind", "step"), [("float16", 2**-11), ("uint8", 1 / 255), ("uint4", 1 / 15)]
)
def test_append_rounds_to_half_a_step(kind: str, step: float) -> None:
    rng = np.random.default_rng(1)
    cache = LayerCache(3, 2, 32, kind)
    keys, values = rng.standard_normal((2, 20, 2, 32)).astype(np.float32)
    keys[3], values[4], keys[5, 0] = 0, 7, -5
    table = np.array([2, 0, 1], np.int32)
    for given, stored in zip(
        (keys, values), _read(cache, _write(cache, keys, values, table), table, 20), strict=True
    ):
        zero = np.zeros((20, 2, 1), np.float32)
        span = np.maximum(given.max(-1, keepdims=True), zero) - np.minimum(
            given.min(-1, keepdims=True), zero
        )
        size = np.abs(given) if kind == "float16" else span
        # Half a step, and half a one more where the zero itself was rounded at an end.
        assert (np.abs(stored - given) <= step * size + 1e-7).all()


def test_new_tokens_leave_old_ones_alone() -> None:
    cache = LayerCache(2, 1, 32, "uint4")
    rng = np.random.default_rng(2)
    keys, values = rng.standard_normal((2, 20, 1, 32)).astype(np.float32)
    table = np.array([1, 0], np.int32)
    before = {k: v.copy() for k, v in _write(cache, keys[:19], values[:19], table).items()}
    after = _write(cache, keys, values, table)
    for whole, part in zip(
        _read(cache, after, table, 19), _read(cache, before, table, 19), strict=True
    ):
        np.testing.assert_array_equal(whole, part)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LayerCache(1, 1, 24), "heads of 24 elements: a multiple of 16"),
        (lambda: LayerCache(1, 1, 16, "uint4"), "a multiple of 32"),
        (lambda: LayerCache(1, 1, 16, "int8"), "float16, uint8 or uint4"),
        (lambda: AttentionCall(LayerCache(1, 2, 16), 1, 3, 1), "3 heads of queries over 2 of keys"),
        (lambda: AttentionCall(LayerCache(1, 2, 16), 0, 2, 1), "are counts"),
    ],
)
def test_other_sizes_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
