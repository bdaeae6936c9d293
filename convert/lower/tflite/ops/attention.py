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


@dataclass(frozen=True, slots=True)
class _Mask:
    """What keeps queries from keys; each part broadcasts to (batch, heads, queries, keys).

    Attributes:
        allowed: True where a key may be seen.
        bias: added to the scores; minus infinity hides a key.
    """

    allowed: Tensor | None
    bias: Tensor | None


@OPS.lower("Attention", since=24, dtypes=REALS | INTEGERS | {ir.DataType.BOOL})
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
    flat = q.rank == 3
    if flat:
        q = _split_heads(g, q, q_num_heads)
        k, v = (_split_heads(g, x, kv_num_heads) for x in (k, v))
    key = k if past_key is None else g.concat([past_key, k], 2)
    value = v if past_value is None else g.concat([past_value, v], 2)
    offset = None if past_key is None else g.extent(past_key, 2)
    mask = _mask(g, q, key, attn_mask, offset, nonpad_kv_seqlen, bool(is_causal))

    scores = _scores(g, q, key, _scale(q, scale))
    if softcap > 0:
        scaled = g.unary("TANH", g.binary("MUL", scores, 1 / softcap))
        scores = g.binary("MUL", scaled, softcap)
    weights = g.unary("SOFTMAX", _biased(g, scores, mask, _MASKED), beta=1.0)
    seen = _seen(g, mask)
    y = _grouped(g, weights, value, q)
    if seen is not None:
        y = g.binary("MUL", y, seen)

    shown = scores
    if qk_matmul_output_mode == 2:
        shown = _biased(g, scores, mask, -np.inf)
    elif qk_matmul_output_mode == 3:
        shown = weights if seen is None else g.binary("MUL", weights, seen)
    if flat:
        y = _join_heads(g, y)
    return y, key, value, shown


def _scale(q: Tensor, scale: float | None) -> float:
    if scale is not None:
        return scale
    if q.shape[3] is None:
        raise Refusal("the size of a head is not known", "dynamic_shape")
    return 1 / math.sqrt(q.shape[3])


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


def _heads(q: Tensor, k: Tensor) -> tuple[int, int]:
    """The numbers of heads; the second is that of keys and values."""
    if q.shape[1] is None or k.shape[1] is None:
        raise Refusal("the number of heads is not known", "dynamic_shape")
    return q.shape[1], k.shape[1]


def _rows(g: Builder, x: Tensor, heads: int, groups: int) -> Tensor:
    """Put the queries of heads that share keys below each other."""
    length = g.extent(x, 2)
    rows: Extent = groups * length if isinstance(length, int) else g.binary("MUL", length, groups)
    return g.reshape(x, [g.extent(x, 0), heads, rows, g.extent(x, 3)])


def _scores(g: Builder, q: Tensor, k: Tensor, scale: float) -> Tensor:
    """Products of queries and keys: (batch, heads, queries, keys)."""
    many, few = _heads(q, k)
    scaled = q if scale == 1 else g.binary("MUL", q, scale)
    if many == few:
        return product(g, scaled, k, adj_y=True)
    found = product(g, _rows(g, scaled, few, many // few), k, adj_y=True)
    return g.reshape(found, [g.extent(q, 0), many, g.extent(q, 2), g.extent(k, 2)])


def _grouped(g: Builder, weights: Tensor, value: Tensor, q: Tensor) -> Tensor:
    """Weighted sums of values: (batch, heads, queries, size)."""
    many, few = _heads(q, value)
    if many == few:
        return product(g, weights, value)
    found = product(g, _rows(g, weights, few, many // few), value)
    return g.reshape(found, [g.extent(q, 0), many, g.extent(q, 2), g.extent(value, 3)])


def _mask(
    g: Builder,
    q: Tensor,
    k: Tensor,
    given: Tensor | None,
    past: Extent | None,
    lengths: Tensor | None,
    causal: bool,
) -> _Mask:
    allowed, bias = None, None
    if given is not None:
        given = _padded(g, given, k)
        if given.dtype == np.bool_:
            allowed = given
        else:
            bias = given
    if lengths is not None:
        lengths = g.reshape(g.cast(lengths, np.int32), [-1, 1, 1, 1], (lengths.shape[0], 1, 1, 1))
        filled = g.binary("LESS", steps(g, k, 2), lengths)
        allowed = filled if allowed is None else g.binary("LOGICAL_AND", allowed, filled)
    if causal:
        past = _past(g, q, lengths) if past is None and lengths is not None else past
        earlier = _earlier(g, q, k, 0 if past is None else past)
        allowed = earlier if allowed is None else g.binary("LOGICAL_AND", allowed, earlier)
    return _Mask(allowed, bias)


def _past(g: Builder, q: Tensor, lengths: Tensor) -> Tensor:
    """How many keys precede the first query, for each sequence of the batch."""
    return g.binary("SUB", lengths, g.extent(q, 2))


def _earlier(g: Builder, q: Tensor, k: Tensor, offset: Extent) -> Tensor:
    """True for the keys up to each query's own place."""
    columns, rows = steps(g, k, 2), steps(g, q, 2)
    if columns.data is not None and rows.data is not None and isinstance(offset, int):
        return g.const(columns.data[None, :] <= rows.data[:, None] + offset)
    edge = g.binary("ADD", expand(g, rows, 1), offset)
    return g.binary("LESS_EQUAL", columns, edge)


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


def _biased(g: Builder, scores: Tensor, mask: _Mask, hidden: float) -> Tensor:
    """Scores with what is hidden at least as low as ``hidden``."""
    bias = mask.bias
    if bias is not None and hidden != -np.inf:
        if bias.data is None:
            bias = g.binary("MAXIMUM", bias, hidden)
        else:
            bias = g.const(np.maximum(bias.data, np.float32(hidden)))
    if mask.allowed is not None:
        shut = g.const(hidden, scores.dtype)
        if mask.allowed.data is not None and bias is None:
            bias = g.const(np.where(mask.allowed.data, 0, hidden), scores.dtype)
        else:
            open_ = g.const(0, scores.dtype) if bias is None else bias
            bias = select(g, mask.allowed, open_, shut)
    return scores if bias is None else g.binary("ADD", scores, bias)


def _seen(g: Builder, mask: _Mask) -> Tensor | None:
    """1 for each query that sees a key, 0 for others; None where all are sure to."""
    if mask.allowed is None and mask.bias is None:
        return None
    allowed = mask.allowed
    if mask.bias is not None:
        finite = g.binary("GREATER", mask.bias, -np.inf)
        if mask.bias.data is not None:
            finite = g.const(mask.bias.data > -np.inf)
        allowed = finite if allowed is None else g.binary("LOGICAL_AND", allowed, finite)
    if allowed is None:
        raise ValueError("a mask has parts")
    if allowed.data is not None:
        rows = allowed.data.any(axis=-1, keepdims=True)
        return None if rows.all() else g.const(rows, np.float32)
    return g.cast(g.reduce("REDUCE_ANY", allowed, [allowed.rank - 1], True), np.float32)


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
