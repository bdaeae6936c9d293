"""Attention, and the rotation of queries and keys by their positions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from edgeinfer.convert.lower.core.portable import Elements, Moved, Value
from edgeinfer.convert.lower.core.table import moved
from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.records import dataclass

_MASKED = {2: -3e4, 4: -3e38}
"""Added to hidden scores, by the size of an element: lower than any other, and sums of it stay
finite. Minus infinity would make NaN of a row that is hidden all along, where ONNX has zeros."""


@dataclass(frozen=True, slots=True)
class _Mask:
    """What keeps queries from keys; each part broadcasts to (batch, heads, queries, keys).

    Attributes:
        bias: Added to the scores; minus infinity hides a key; None for zero.
        shown: True where a key may be seen, for all the bias says; None where all may.
        visible: True where both let a key be seen; None where all may.
    """

    bias: Value | None
    shown: Value | None
    visible: Value | None


@moved("Attention")
def attention(
    g: Moved,
    q: Value,
    k: Value,
    v: Value,
    attn_mask: Value | None = None,
    past_key: Value | None = None,
    past_value: Value | None = None,
    nonpad_kv_seqlen: Value | None = None,
    *,
    is_causal: int,
    kv_num_heads: int | None,
    left_window_size: int,
    q_num_heads: int | None,
    qk_matmul_output_mode: int,
    right_window_size: int,
    scale: float | None,
    softcap: float,
) -> tuple[Value, ...]:
    """Products and a softmax; returns keys and values with those of the past, and the scores."""
    if q.dtype.kind != "f":
        raise Refusal(f"queries are {q.dtype.name}", "unsupported_dtype")
    flat = q.rank == 3
    if flat:
        q = _split_heads(g, q, q_num_heads)
        k, v = (_split_heads(g, x, kv_num_heads) for x in (k, v))
    key = k if past_key is None else g.concat([past_key, k], 2)
    value = v if past_value is None else g.concat([past_value, v], 2)
    past = None if past_key is None else g.extent(past_key, 2)
    window = left_window_size, 0 if is_causal else right_window_size
    mask = _mask(g, q, key, attn_mask, past, nonpad_kv_seqlen, window)

    # First what XNNPACK does not take, so that the rest is one part.
    seen, bias = _seen(g, mask, q.dtype), _bias(g, mask, q.dtype)
    scores = _scores(g, q, key, _scale(g, q, scale))
    if softcap > 0:
        scores = g.mul(g.tanh(g.mul(scores, 1 / softcap)), softcap)
    biased = scores if bias is None else g.add(scores, bias)
    weights = g.softmax(biased)
    y = _weighted(g, weights, value, q)
    if seen is not None:
        y = g.mul(y, seen)
    y = _join_heads(g, y) if flat else y

    if qk_matmul_output_mode == 2 and mask.visible is not None:
        # Without XNNPACK, a sum is never infinite.
        return y, key, value, g.select(mask.visible, biased, g.const(-np.inf, scores.dtype))
    if qk_matmul_output_mode == 3:
        return y, key, value, weights if seen is None else g.mul(weights, seen)
    return y, key, value, scores


def _scale(g: Moved, q: Value, scale: float | None) -> Any:
    if scale is not None:
        return float(scale)
    size = g.extent(q, 3)
    return 1 / math.sqrt(size) if isinstance(size, int) else g.rsqrt(g.cast(size, q.dtype))


def _split_heads(g: Moved, x: Value, heads: int | None) -> Value:
    """``(batch, sequence, heads * size)`` to ``(batch, heads, sequence, size)``."""
    if heads is None or not isinstance(x.shape[2], int):
        raise Refusal("the size of a head is not known", "dynamic_shape")
    sizes = [g.extent(x, 0), g.extent(x, 1), heads, x.shape[2] // heads]
    return g.transpose(g.reshape(x, sizes), [0, 2, 1, 3])


def _join_heads(g: Moved, x: Value) -> Value:
    heads, size = x.shape[1], x.shape[3]
    if not (isinstance(heads, int) and isinstance(size, int)):
        raise Refusal("the size of a head is not known", "dynamic_shape")
    last = g.transpose(x, [0, 2, 1, 3])
    return g.reshape(last, [g.extent(x, 0), g.extent(x, 2), heads * size])


def _share(q: Value, k: Value) -> bool:
    """Whether several heads of queries may have the same keys."""
    return not isinstance(q.shape[1], int) or q.shape[1] != k.shape[1]


def _rows(g: Moved, x: Value, k: Value) -> Value:
    """Put the queries of heads that share keys below each other."""
    return g.reshape(x, [g.extent(x, 0), g.extent(k, 1), -1, g.extent(x, 3)])


def _scores(g: Moved, q: Value, k: Value, scale: Any) -> Value:
    """Products of queries and keys: (batch, heads, queries, keys)."""
    scaled = q if isinstance(scale, float) and scale == 1 else g.mul(q, scale)
    if not _share(q, k):
        return g.product(scaled, k, transposed=True)
    found = g.product(_rows(g, scaled, k), k, transposed=True)
    return g.reshape(found, [*(g.extent(q, i) for i in range(3)), g.extent(k, 2)])


def _weighted(g: Moved, weights: Value, value: Value, q: Value) -> Value:
    """Weighted sums of values: (batch, heads, queries, size)."""
    if not _share(q, value):
        return g.product(weights, value)
    found = g.product(_rows(g, weights, value), value)
    return g.reshape(found, [*(g.extent(q, i) for i in range(3)), g.extent(value, 3)])


def _mask(
    g: Moved,
    q: Value,
    k: Value,
    given: Value | None,
    past: Any,
    lengths: Value | None,
    window: tuple[int, int],
) -> _Mask:
    bias, finite, shown = None, None, None
    if given is not None:
        given = _padded(g, given, k)
        if given.dtype == np.bool_:
            shown = given
        else:
            bias = g.cast(given, q.dtype)
            finite = g.folded(lambda e, b: e.greater(b, -math.inf), bias)
    if lengths is not None:
        lengths = g.reshape(g.cast(lengths, np.int32), [-1, 1, 1, 1])
        shown = _both(g, shown, g.map(lambda e, s, n: e.less(s, n), g.steps(k, 2), lengths))
        if past is None:
            # The queries are the last of the keys, for each sequence of the batch.
            past = g.sub(lengths, g.extent(q, 2))
    if max(window) >= 0:
        shown = _both(g, shown, _window(g, q, k, 0 if past is None else past, window))
    return _Mask(bias, shown, shown if finite is None else _both(g, shown, finite))


def _both(g: Moved, a: Value | None, b: Value) -> Value:
    return b if a is None else g.folded(lambda e, x, y: e.logical_and(x, y), a, b)


def _window(g: Moved, q: Value, k: Value, offset: Any, window: tuple[int, int]) -> Value:
    """True for the keys near each query's own position; -1 is no bound."""
    left, right = window

    def inside(e: Elements, columns: Value, rows: Value, start: Value) -> Value:
        position = e.add(rows, start)
        after = None if right < 0 else e.less_equal(columns, e.add(position, right))
        if left < 0:
            return after
        before = e.greater_equal(columns, e.sub(position, left))
        return before if after is None else e.logical_and(after, before)

    return g.folded(inside, g.steps(k, 2), g.expand_dims(g.steps(q, 2), 1), offset)


def _padded(g: Moved, mask: Value, k: Value) -> Value:
    """Hide the keys that a shorter mask says nothing of."""
    have, want = mask.shape[-1], k.shape[2]
    if have == want and isinstance(have, int):
        return mask
    return g.pad_last(mask, g.extent(k, 2), False if mask.dtype == np.bool_ else -math.inf)


def _bias(g: Moved, mask: _Mask, dtype: np.dtype[Any]) -> Value | None:
    """What is added to the scores: the bias, and what hides keys."""
    low, bias = _MASKED[dtype.itemsize], mask.bias
    if bias is not None:
        bias = g.folded(lambda e, b: e.maximum(b, np.asarray(low, dtype)[()]), bias)
    if mask.shown is None:
        return bias
    if mask.shown.data is None:
        zero = g.const(0, dtype) if bias is None else bias
        return g.select(mask.shown, zero, g.const(low, dtype))
    limit = g.const(np.where(mask.shown.data, 0 if bias is None else -low, low), dtype)
    return limit if bias is None else g.folded(lambda e, b, n: e.minimum(b, n), bias, limit)


def _seen(g: Moved, mask: _Mask, dtype: np.dtype[Any]) -> Value | None:
    """1 for each query that sees a key, 0 for others; None where all are sure to."""
    visible = mask.visible
    if visible is None:
        return None
    if visible.data is None:
        return g.any_last(visible, dtype)
    rows = visible.data.any(axis=-1, keepdims=True)
    return None if rows.all() else g.const(rows, dtype)


@moved("RotaryEmbedding")
def rotary_embedding(
    g: Moved,
    x: Value,
    cos_cache: Value,
    sin_cache: Value,
    position_ids: Value | None = None,
    *,
    interleaved: int,
    num_heads: int | None,
    rotary_embedding_dim: int,
) -> Value:
    """Rotate pairs of elements by angles of their positions."""
    given, heads_first = x, x.rank == 4
    if not heads_first:
        if not num_heads or not isinstance(x.shape[2], int):
            raise Refusal("three axes need num_heads and a known size")
        sizes = [g.extent(x, 0), g.extent(x, 1), num_heads, x.shape[2] // num_heads]
        x = g.reshape(x, sizes)
    size = x.shape[3]
    if not isinstance(size, int):
        raise Refusal("the size of a head is not known", "dynamic_shape")
    caches = [cos_cache, sin_cache]
    if position_ids is not None:
        rows = g.cast(position_ids, np.int32)
        caches = [g.take(c, rows, 0) for c in caches]
    cos, sin = (g.expand_dims(c, 1 if heads_first else 2) for c in caches)
    rotated = rotary_embedding_dim or size
    y = _rotated(g, x, cos, sin, rotated, bool(interleaved))
    if rotated < size:
        y = g.concat([y, g.part(x, 3, rotated, size)], 3)
    if heads_first:
        return y
    return g.reshape(y, [g.extent(given, 0), g.extent(given, 1), size * (num_heads or 1)])


def _rotated(g: Moved, x: Value, cos: Value, sin: Value, size: int, interleaved: bool) -> Value:
    if interleaved:
        a, b = (g.part(x, 3, start, size, 2) for start in (0, 1))
    else:
        a, b = (g.part(x, 3, start, start + size // 2) for start in (0, size // 2))
    real = g.sub(g.mul(cos, a), g.mul(sin, b))
    imaginary = g.add(g.mul(sin, a), g.mul(cos, b))
    if not interleaved:
        return g.concat([real, imaginary], 3)
    pairs = g.concat([g.expand_dims(real, 4), g.expand_dims(imaginary, 4)], 4)
    return g.reshape(pairs, [*(g.extent(x, i) for i in range(3)), size])
