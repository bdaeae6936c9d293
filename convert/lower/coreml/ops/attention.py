# ruff: noqa: N803  (arguments have ONNX's names)
"""Attention and what goes with it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from edgeinfer.convert.lower.coreml.builder import Builder, Extent
from edgeinfer.convert.lower.coreml.ops.matrix import batched
from edgeinfer.convert.lower.coreml.registry import ALL, FLOATS, INTEGERS, OPS
from edgeinfer.convert.lower.coreml.tensor import Tensor
from edgeinfer.convert.lower.registry import Refusal

_MASKED = {"float32": -3e38, "float16": -3e4}
"""What a hidden score gets added: lower than any other, and sums of it stay finite. Minus infinity
would make NaN of a row that is hidden all along, where ONNX has zeros."""


@dataclass(frozen=True, slots=True)
class _Options:
    """Attributes of ``Attention``; a window of -1 has no end on its side."""

    causal: bool
    kv_heads: int | None
    q_heads: int | None
    scale: float | None
    softcap: float
    left: int = -1
    right: int = -1


@OPS.lower("Attention", since=24, dtypes=ALL)
def attention(
    g: Builder,
    Q: Tensor,
    K: Tensor,
    V: Tensor,
    attn_mask: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    nonpad_kv_seqlen: Tensor | None = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int | None = None,
    q_num_heads: int | None = None,
    qk_matmul_output_mode: int = 0,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,
) -> tuple[Tensor, ...]:
    """Attention, in products and a softmax; the scores themselves are left to its definition."""
    options = _Options(bool(is_causal), kv_num_heads, q_num_heads, scale, softcap)
    return _attention(g, Q, K, V, attn_mask, past_key, past_value, nonpad_kv_seqlen, options)


@OPS.lower("Attention", since=25, dtypes=ALL)
def attention_25(
    g: Builder,
    Q: Tensor,
    K: Tensor,
    V: Tensor,
    attn_mask: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    nonpad_kv_seqlen: Tensor | None = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int | None = None,
    left_window_size: int = -1,
    q_num_heads: int | None = None,
    qk_matmul_output_mode: int = 0,
    right_window_size: int = -1,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,
) -> tuple[Tensor, ...]:
    """Attention with a window."""
    options = _Options(
        *(bool(is_causal), kv_num_heads, q_num_heads, scale, softcap),
        *(left_window_size, right_window_size),
    )
    return _attention(g, Q, K, V, attn_mask, past_key, past_value, nonpad_kv_seqlen, options)


def _attention(
    g: Builder,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    given: Tensor | None,
    past_key: Tensor | None,
    past_value: Tensor | None,
    lengths: Tensor | None,
    options: _Options,
) -> tuple[Tensor, ...]:
    if g.wants(3):
        raise Refusal("gives out its scores")
    flat = q.rank == 3
    if flat:
        q = _split_heads(g, q, options.q_heads)
        k, v = (_split_heads(g, x, options.kv_heads) for x in (k, v))
    key = k if past_key is None else g.concat([past_key, k], 2)
    value = v if past_value is None else g.concat([past_value, v], 2)
    past: Extent | None = None if past_key is None else g.extent(past_key, 2)
    shown, bias = _mask(g, q, key, given, past, lengths, options)
    scores = _scores(g, q, key, options.scale)
    if options.softcap > 0:
        bent = g.unary("tanh", g.binary("mul", scores, 1 / options.softcap))
        scores = g.binary("mul", bent, float(options.softcap))
    visible = _visible(g, shown, bias, q.dtype)
    added = _added(g, shown, bias, q.dtype)
    biased = scores if added is None else g.binary("add", scores, added)
    weights = g.emit("softmax", x=biased, axis=3)
    y = _weighted(g, weights, value, q)
    if visible is not None:
        y = g.binary("mul", y, visible)
    return (_join_heads(g, y) if flat else y), key, value


def _split_heads(g: Builder, x: Tensor, heads: int | None) -> Tensor:
    """``(batch, sequence, heads * size)`` to ``(batch, heads, sequence, size)``."""
    if heads is None or not isinstance(x.shape[2], int):
        raise Refusal("the size of a head is not known", "dynamic_shape")
    split = g.reshape(x, [g.extent(x, 0), g.extent(x, 1), heads, x.shape[2] // heads])
    return g.transpose(split, [0, 2, 1, 3])


def _join_heads(g: Builder, x: Tensor) -> Tensor:
    heads, size = x.shape[1], x.shape[3]
    if not (isinstance(heads, int) and isinstance(size, int)):
        raise Refusal("the size of a head is not known", "dynamic_shape")
    last = g.transpose(x, [0, 2, 1, 3])
    return g.reshape(last, [g.extent(x, 0), g.extent(x, 2), heads * size])


def _shares(q: Tensor, k: Tensor) -> bool:
    """Whether several heads of queries have the same keys."""
    if not (isinstance(q.shape[1], int) and isinstance(k.shape[1], int)):
        raise Refusal("the number of heads is not known", "dynamic_shape")
    return bool(q.shape[1] != k.shape[1])


def _scores(g: Builder, q: Tensor, k: Tensor, scale: float | None) -> Tensor:
    size = q.shape[3]
    if scale is None and not isinstance(size, int):
        raise Refusal("the size of a head is not known", "dynamic_shape")
    factor = 1 / math.sqrt(size) if scale is None else float(scale)
    scaled = q if factor == 1 else g.binary("mul", q, factor)
    if not _shares(q, k):
        return batched(g, scaled, k, transpose_b=True)
    rows = g.reshape(scaled, [g.extent(q, 0), g.extent(k, 1), -1, g.extent(q, 3)])
    found = batched(g, rows, k, transpose_b=True)
    return g.reshape(found, [g.extent(q, 0), g.extent(q, 1), g.extent(q, 2), g.extent(k, 2)])


def _weighted(g: Builder, weights: Tensor, value: Tensor, q: Tensor) -> Tensor:
    if not _shares(q, value):
        return batched(g, weights, value)
    rows = g.reshape(weights, [g.extent(q, 0), g.extent(value, 1), -1, g.extent(value, 2)])
    found = batched(g, rows, value)
    return g.reshape(found, [g.extent(q, 0), g.extent(q, 1), g.extent(q, 2), g.extent(value, 3)])


def _mask(
    g: Builder,
    q: Tensor,
    k: Tensor,
    given: Tensor | None,
    past: Extent | None,
    lengths: Tensor | None,
    options: _Options,
) -> tuple[Tensor | None, Tensor | None]:
    """Return where a key may be seen, and what is added to the scores; None for all and nothing."""
    shown, bias = None, None
    if given is not None:
        given = _padded(g, given, k)
        if given.dtype == np.bool_:
            shown = given
        else:
            bias = g.cast(given, q.dtype)
    if lengths is not None:
        counts = g.reshape(g.cast(lengths, np.int32), [-1, 1, 1, 1])
        shown = _both(g, shown, g.binary("less", counted(g, k, 2), counts))
        if past is None:
            # The queries are the last of the keys, for each sequence of the batch.
            size = g.extent(q, 2)
            past = g.binary("sub", counts, size)
    right = 0 if options.causal else options.right
    if options.left >= 0 or right >= 0:
        near = _window(g, q, k, 0 if past is None else past, options.left, right)
        shown = _both(g, shown, near)
    return shown, bias


def counted(g: Builder, x: Tensor, axis: int) -> Tensor:
    """0, 1, 2, ... along an axis."""
    size = g.extent(x, axis)
    if isinstance(size, int):
        return g.const(np.arange(size), np.int32)
    return g.emit("range_1d", np.int32, start=0, end=size, step=1)


def _both(g: Builder, a: Tensor | None, b: Tensor) -> Tensor:
    if a is None:
        return b
    if a.data is not None and b.data is not None:
        return g.const(a.data & b.data, np.bool_)
    return g.binary("logical_and", a, b)


def _window(g: Builder, q: Tensor, k: Tensor, offset: Extent, left: int, right: int) -> Tensor:
    """True for the keys near each query's own place; -1 is no bound."""
    columns, rows = counted(g, k, 2), counted(g, q, 2)
    if columns.data is not None and rows.data is not None and isinstance(offset, int):
        ahead = columns.data[None, :] - (rows.data[:, None] + offset)
        inside = np.ones(ahead.shape, np.bool_)
        if right >= 0:
            inside &= ahead <= right
        if left >= 0:
            inside &= -ahead <= left
        return g.const(inside, np.bool_)
    place = g.binary("add", g.insert_axes(rows, [1]), offset)
    near: Tensor | None = None
    if right >= 0:
        bound = g.binary("add", place, right) if right else place
        near = g.binary("less_equal", columns, bound)
    if left >= 0:
        near = _both(g, near, g.binary("greater_equal", columns, g.binary("sub", place, left)))
    if near is None:
        raise ValueError("a window has an end")
    return near


def _padded(g: Builder, mask: Tensor, k: Tensor) -> Tensor:
    """Hide the keys that a shorter mask says nothing of."""
    have, want = mask.shape[-1], k.shape[2]
    if have == want or not (isinstance(have, int) and isinstance(want, int)):
        return mask
    shape = [*mask.shape[:-1], want - have]
    if not all(isinstance(s, int) for s in shape):
        raise Refusal("a mask of unknown sizes is shorter than the keys", "dynamic_shape")
    hidden = np.full(shape, False if mask.dtype == np.bool_ else -np.inf)
    return g.concat([mask, g.const(hidden, mask.dtype)], mask.rank - 1)


def _visible(
    g: Builder, shown: Tensor | None, bias: Tensor | None, dtype: np.dtype[np.floating]
) -> Tensor | None:
    """1 for each query that sees a key, 0 for others; None where all are sure to."""
    if bias is not None:
        finite = (
            g.const(bias.data > -np.inf, np.bool_)
            if bias.data is not None
            else g.binary("greater", bias, -np.inf)
        )
        shown = _both(g, shown, finite)
    if shown is None:
        return None
    if shown.data is not None:
        rows = shown.data.any(axis=-1, keepdims=True)
        return None if rows.all() else g.const(rows, dtype)
    return g.reduce("reduce_max", g.cast(shown, dtype), [-1], True)


def _added(
    g: Builder, shown: Tensor | None, bias: Tensor | None, dtype: np.dtype[np.floating]
) -> Tensor | None:
    """What is added to the scores: the bias, and what hides keys."""
    low = dtype.type(_MASKED[dtype.name])
    if bias is not None and bias.data is not None:
        bias = g.const(np.maximum(bias.data, low), dtype)
    elif bias is not None:
        bias = g.binary("maximum", bias, float(low))
    if shown is None:
        return bias
    hidden, zero = g.const(low, dtype), g.const(0, dtype)
    if shown.data is not None and (bias is None or bias.data is not None):
        base = np.zeros((), dtype) if bias is None or bias.data is None else bias.data
        return g.const(np.where(shown.data, base, low), dtype)
    return g.select(shown, zero if bias is None else bias, hidden)


@OPS.lower("RotaryEmbedding", since=23, dtypes=FLOATS | INTEGERS)
def rotary_embedding(
    g: Builder,
    X: Tensor,
    cos_cache: Tensor,
    sin_cache: Tensor,
    position_ids: Tensor | None = None,
    *,
    interleaved: int = 0,
    num_heads: int | None = None,
    rotary_embedding_dim: int = 0,
) -> Tensor:
    """Turn pairs of elements by angles of their positions."""
    x = X
    if X.rank == 3:
        if not num_heads or not isinstance(X.shape[2], int):
            raise Refusal("three axes need num_heads and a known size")
        x = g.reshape(X, [g.extent(X, 0), g.extent(X, 1), num_heads, X.shape[2] // num_heads])
    size = x.shape[3]
    if not isinstance(size, int):
        raise Refusal("the size of a head is not known", "dynamic_shape")
    caches = [cos_cache, sin_cache]
    if position_ids is not None:
        places = g.cast(position_ids, np.int32)
        caches = [g.emit("gather", x=c, indices=places, axis=0) for c in caches]
    # Heads come before the sequence with four axes, after it with three.
    cos, sin = (g.insert_axes(c, [1 if X.rank == 4 else 2]) for c in caches)
    turned = rotary_embedding_dim or size
    y = _turn(g, x, cos, sin, turned, bool(interleaved))
    if turned < size:
        y = g.concat([y, _last(g, x, turned, size, 1)], 3)
    if X.rank == 4:
        return y
    return g.reshape(y, [g.extent(X, 0), g.extent(X, 1), size * (num_heads or 1)])


def _turn(g: Builder, x: Tensor, cos: Tensor, sin: Tensor, size: int, interleaved: bool) -> Tensor:
    if interleaved:
        a, b = (_last(g, x, start, size, 2) for start in (0, 1))
    else:
        a, b = (_last(g, x, start, start + size // 2, 1) for start in (0, size // 2))
    real = g.binary("sub", g.binary("mul", cos, a), g.binary("mul", sin, b))
    imaginary = g.binary("add", g.binary("mul", sin, a), g.binary("mul", cos, b))
    if not interleaved:
        return g.concat([real, imaginary], 3)
    pairs = g.concat([g.insert_axes(real, [4]), g.insert_axes(imaginary, [4])], 4)
    return g.reshape(pairs, [*(g.extent(x, i) for i in range(3)), size])


def _last(g: Builder, x: Tensor, start: int, stop: int, step: int) -> Tensor:
    """A strided part of the last axis."""
    if (start, stop, step) == (0, x.shape[3], 1):
        return x
    return g.slice(x, [0, 0, 0, start], [None, None, None, stop], [1, 1, 1, step])
