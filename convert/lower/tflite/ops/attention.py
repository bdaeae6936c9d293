"""Attention and what goes with it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.lower.tflite.builder import Builder, Extent
from edgeinfer.convert.lower.tflite.graph import Tensor
from edgeinfer.convert.lower.tflite.ops.compare import steps
from edgeinfer.convert.lower.tflite.ops.integer import select
from edgeinfer.convert.lower.tflite.ops.matrix import expand, product
from edgeinfer.convert.lower.tflite.registry import INTEGERS, OPS
from edgeinfer.convert.lower.tflite.widen import REALS, widened

_MASKED = -3e38
"""What a masked score gets added: no other one is as low, and sums of it stay finite. Minus
infinity would make NaN of a row that is masked all along, where ONNX has zeros."""


_ELEMENTS = REALS | INTEGERS | {ir.DataType.BOOL}
"""Of queries, masks and lengths."""


@dataclass(frozen=True, slots=True)
class _Mask:
    """What keeps queries from keys; each part broadcasts to (batch, heads, queries, keys).

    Attributes:
        bias: added to the scores; minus infinity hides a key; None for zero.
        shown: True where a key may be seen, for all the bias says; None where all may.
        visible: where both let a key be seen; None where all may.
    """

    bias: Tensor | None = None
    shown: Tensor | None = None
    visible: Tensor | None = None


@dataclass(frozen=True, slots=True)
class _Options:
    """Attributes of ``Attention``; a window of -1 has no end on its side."""

    causal: bool
    kv_heads: int | None
    q_heads: int | None
    shown: int
    scale: float | None
    softcap: float
    left: int = -1
    right: int = -1


@OPS.lower("Attention", since=24, dtypes=_ELEMENTS)
@widened
def attention(
    g: Builder,
    q: Tensor,
    k: Tensor,
    v: Tensor,
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
    """Attention, in products and a softmax."""
    options = _Options(
        bool(is_causal), kv_num_heads, q_num_heads, qk_matmul_output_mode, scale, softcap
    )
    return _attention(g, q, k, v, attn_mask, past_key, past_value, nonpad_kv_seqlen, options)


@OPS.lower("Attention", since=25, dtypes=_ELEMENTS)
@widened
def attention_25(
    g: Builder,
    q: Tensor,
    k: Tensor,
    v: Tensor,
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
        bool(is_causal),
        kv_num_heads,
        q_num_heads,
        qk_matmul_output_mode,
        scale,
        softcap,
        left_window_size,
        right_window_size,
    )
    return _attention(g, q, k, v, attn_mask, past_key, past_value, nonpad_kv_seqlen, options)


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
    """Return the result, the keys and values with those of the past, and the scores."""
    if q.dtype != np.float32:
        raise Refusal(f"queries are {q.dtype.name}", "unsupported_dtype")
    flat = q.rank == 3
    if flat:
        q = _split_heads(g, q, options.q_heads)
        k, v = (_split_heads(g, x, options.kv_heads) for x in (k, v))
    key = k if past_key is None else g.concat([past_key, k], 2)
    value = v if past_value is None else g.concat([past_value, v], 2)
    past = None if past_key is None else g.extent(past_key, 2)
    mask = _mask(g, q, key, given, past, lengths, options)

    # First what XNNPACK does not take, so that the rest is one part.
    seen, bias = _seen(g, mask), _bias(g, mask)
    scores = _scores(g, q, key, _scale(g, q, options.scale))
    if options.softcap > 0:
        scaled = g.unary("TANH", g.binary("MUL", scores, 1 / options.softcap))
        scores = g.binary("MUL", scaled, options.softcap)
    biased = scores if bias is None else g.binary("ADD", scores, bias)
    weights = g.unary("SOFTMAX", biased, beta=1.0)
    y = _grouped(g, weights, value, q)
    if seen is not None:
        y = g.binary("MUL", y, seen)

    shown = scores
    if options.shown == 2 and mask.visible is not None:
        # Without XNNPACK, a sum is never infinite.
        shown = select(g, mask.visible, biased, g.const(-np.inf, scores.dtype))
    elif options.shown == 3:
        shown = weights if seen is None else g.binary("MUL", weights, seen)
    return _join_heads(g, y) if flat else y, key, value, shown


def _scale(g: Builder, q: Tensor, scale: float | None) -> float | Tensor:
    if scale is not None:
        return scale
    size = g.extent(q, 3)
    if isinstance(size, int):
        return 1 / math.sqrt(size)
    return g.unary("RSQRT", g.cast(size, np.float32))


def _split_heads(g: Builder, x: Tensor, heads: int | None) -> Tensor:
    """``(batch, sequence, heads * size)`` to ``(batch, heads, sequence, size)``."""
    if heads is None or x.shape[2] is None:
        raise Refusal("the size of a head is not known", "dynamic_shape")
    split = g.reshape(x, [g.extent(x, 0), g.extent(x, 1), heads, x.shape[2] // heads])
    return g.transpose(split, [0, 2, 1, 3])


def _join_heads(g: Builder, x: Tensor) -> Tensor:
    heads, size = x.shape[1], x.shape[3]
    if heads is None or size is None:
        raise Refusal("the size of a head is not known", "dynamic_shape")
    last = g.transpose(x, [0, 2, 1, 3])
    return g.reshape(last, [g.extent(x, 0), g.extent(x, 2), heads * size])


def _share(q: Tensor, k: Tensor) -> bool:
    """Whether several heads of queries may have the same keys."""
    return q.shape[1] is None or q.shape[1] != k.shape[1]


def _rows(g: Builder, x: Tensor, k: Tensor) -> Tensor:
    """Put the queries of heads that share keys below each other."""
    return g.reshape(x, [g.extent(x, 0), g.extent(k, 1), -1, g.extent(x, 3)])


def _scores(g: Builder, q: Tensor, k: Tensor, scale: float | Tensor) -> Tensor:
    """Products of queries and keys: (batch, heads, queries, keys)."""
    scaled = q if scale == 1 else g.binary("MUL", q, scale)
    if not _share(q, k):
        return product(g, scaled, k, adj_y=True)
    found = product(g, _rows(g, scaled, k), k, adj_y=True)
    return g.reshape(found, [g.extent(q, 0), g.extent(q, 1), g.extent(q, 2), g.extent(k, 2)])


def _grouped(g: Builder, weights: Tensor, value: Tensor, q: Tensor) -> Tensor:
    """Weighted sums of values: (batch, heads, queries, size)."""
    if not _share(q, value):
        return product(g, weights, value)
    found = product(g, _rows(g, weights, value), value)
    return g.reshape(found, [g.extent(q, 0), g.extent(q, 1), g.extent(q, 2), g.extent(value, 3)])


def _mask(
    g: Builder,
    q: Tensor,
    k: Tensor,
    given: Tensor | None,
    past: Extent | None,
    lengths: Tensor | None,
    options: _Options,
) -> _Mask:
    bias, finite, shown = None, None, None
    if given is not None:
        given = _padded(g, given, k)
        if given.dtype == np.bool_:
            shown = given
        else:
            bias, finite = given, _finite(g, given)
    if lengths is not None:
        lengths = g.reshape(g.cast(lengths, np.int32), [-1, 1, 1, 1], (lengths.shape[0], 1, 1, 1))
        shown = _both(g, shown, g.binary("LESS", steps(g, k, 2), lengths))
        if past is None:
            # The queries are the last of the keys, for each sequence of the batch.
            past = g.binary("SUB", lengths, g.extent(q, 2))
    right = 0 if options.causal else options.right
    if options.left >= 0 or right >= 0:
        near = _window(g, q, k, 0 if past is None else past, options.left, right)
        shown = _both(g, shown, near)
    return _Mask(bias, shown, shown if finite is None else _both(g, shown, finite))


def _finite(g: Builder, mask: Tensor) -> Tensor:
    """Where a bias does not hide a key."""
    if mask.data is not None:
        return g.const(mask.data > -np.inf)
    return g.binary("GREATER", mask, -np.inf)


def _both(g: Builder, a: Tensor | None, b: Tensor) -> Tensor:
    if a is None:
        return b
    if a.data is not None and b.data is not None:
        return g.const(a.data & b.data)
    return g.binary("LOGICAL_AND", a, b)


def _window(g: Builder, q: Tensor, k: Tensor, offset: Extent, left: int, right: int) -> Tensor:
    """True for the keys near each query's own place; -1 is no bound."""
    columns, rows = steps(g, k, 2), steps(g, q, 2)
    if columns.data is not None and rows.data is not None and isinstance(offset, int):
        ahead = columns.data[None, :] - (rows.data[:, None] + offset)
        inside = np.ones(ahead.shape, np.bool_)
        if right >= 0:
            inside &= ahead <= right
        if left >= 0:
            inside &= -ahead <= left
        return g.const(inside)
    place = g.binary("ADD", expand(g, rows, 1), offset)
    near: Tensor | None = None
    if right >= 0:
        near = g.binary("LESS_EQUAL", columns, g.binary("ADD", place, right))
    if left >= 0:
        near = _both(g, near, g.binary("GREATER_EQUAL", columns, g.binary("SUB", place, left)))
    if near is None:
        raise ValueError("a window has an end")
    return near


def _padded(g: Builder, mask: Tensor, k: Tensor) -> Tensor:
    """Hide the keys that a shorter mask says nothing of."""
    have, want = g.extent(mask, mask.rank - 1), g.extent(k, 2)
    if isinstance(have, int) and have == want:
        return mask
    hidden = False if mask.dtype == np.bool_ else -np.inf
    before = [(0, 0)] * (mask.rank - 1)
    if isinstance(have, int) and isinstance(want, int):
        return g.pad(mask, [*before, (0, want - have)], hidden)
    missing = g.binary("SUB", want, have)
    zeros = [g.const(0, np.int32)] * (2 * mask.rank - 1)
    amounts = g.reshape(g.shape_vector([*zeros, missing]), [mask.rank, 2])
    shape = (*mask.shape[:-1], k.shape[2])
    return g.emit("PADV2", [mask, amounts, g.const(hidden, mask.dtype)], shape)


def _bias(g: Builder, mask: _Mask) -> Tensor | None:
    """What is added to the scores: the bias, and what hides keys."""
    bias, shown = mask.bias, mask.shown
    if bias is not None and bias.data is not None:
        bias = g.const(np.maximum(bias.data, np.float32(_MASKED)))
    elif bias is not None:
        bias = g.binary("MAXIMUM", bias, _MASKED)
    if shown is not None and shown.data is None:
        zero = g.const(0, np.float32)
        bias = select(g, shown, zero if bias is None else bias, g.const(_MASKED, np.float32))
    elif shown is not None:
        limit = np.where(shown.value, 0 if bias is None else -_MASKED, _MASKED).astype(np.float32)
        if bias is None:
            bias = g.const(limit)
        elif bias.data is not None:
            bias = g.const(np.minimum(bias.data, limit))
        else:
            bias = g.binary("MINIMUM", bias, g.const(limit))
    return bias


def _seen(g: Builder, mask: _Mask) -> Tensor | None:
    """1 for each query that sees a key, 0 for others; None where all are sure to."""
    visible = mask.visible
    if visible is None:
        return None
    if visible.data is not None:
        rows = visible.data.any(axis=-1, keepdims=True)
        return None if rows.all() else g.const(rows, np.float32)
    return g.cast(g.reduce("REDUCE_ANY", visible, [visible.rank - 1], True), np.float32)


@OPS.lower("RotaryEmbedding", since=23, dtypes=REALS | INTEGERS)
@widened
def rotary_embedding(
    g: Builder,
    x: Tensor,
    cos_cache: Tensor,
    sin_cache: Tensor,
    position_ids: Tensor | None = None,
    *,
    interleaved: int = 0,
    num_heads: int | None = None,
    rotary_embedding_dim: int = 0,
) -> Tensor:
    """Turn pairs of elements by angles of their positions."""
    shape = x
    if x.rank == 3:
        if not num_heads or x.shape[2] is None:
            raise Refusal("three axes need num_heads and a known size")
        sizes = [g.extent(x, 0), g.extent(x, 1), num_heads, x.shape[2] // num_heads]
        x = g.reshape(x, sizes)
    size = x.shape[3]
    if size is None:
        raise Refusal("the size of a head is not known", "dynamic_shape")
    caches = [cos_cache, sin_cache]
    if position_ids is not None:
        places = g.cast(position_ids, np.int32)
        caches = [g.gather(c, places, 0) for c in caches]
    # Heads come before the sequence with four axes, after it with three.
    cos, sin = (expand(g, c, 1 if shape.rank == 4 else 2) for c in caches)
    turned = rotary_embedding_dim or size
    y = _turn(g, x, cos, sin, turned, bool(interleaved))
    if turned < size:
        y = g.concat([y, _last(g, x, turned, size, 1)], 3)
    if shape.rank == 4:
        return y
    return g.reshape(y, [g.extent(shape, 0), g.extent(shape, 1), size * (num_heads or 1)])


def _turn(g: Builder, x: Tensor, cos: Tensor, sin: Tensor, size: int, interleaved: bool) -> Tensor:
    if interleaved:
        a, b = (_last(g, x, start, size, 2) for start in (0, 1))
    else:
        a, b = (_last(g, x, start, start + size // 2, 1) for start in (0, size // 2))
    real = g.binary("SUB", g.binary("MUL", cos, a), g.binary("MUL", sin, b))
    imaginary = g.binary("ADD", g.binary("MUL", sin, a), g.binary("MUL", cos, b))
    if not interleaved:
        return g.concat([real, imaginary], 3)
    pairs = g.concat([expand(g, real, 4), expand(g, imaginary, 4)], 4)
    return g.reshape(pairs, [*(g.extent(x, i) for i in range(3)), size])


def _last(g: Builder, x: Tensor, start: int, stop: int, step: int) -> Tensor:
    """A strided part of the last axis."""
    if (start, stop, step) == (0, x.shape[3], 1):
        return x
    return g.slice(x, [0, 0, 0, start], [None, None, None, stop], [1, 1, 1, step])
