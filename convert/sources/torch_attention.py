"""PyTorch's attention on tensors of any rank; of four axes, as the exporter (2.13) writes it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from edgeinfer.convert.sources.torch_script import like, opset, whole

FLOAT, BOOL = 1, 9


def attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """``aten::scaled_dot_product_attention``; a query that may attend to nothing gets zeros.

    Args:
        query: (..., heads, queries, width), where what comes before the queries may be missing.
        key: (..., heads, keys, width).
        value: (..., heads, keys, width of values).
        attn_mask: broadcasts to (..., heads, queries, keys); bool or added.
        dropout_p: zero in evaluation.
        is_causal: Whether a query sees no keys behind its own place.
        scale: Factor of the scores; one over the root of the width by default.
        enable_gqa: fewer heads of keys than of queries.
    """
    from onnxscript.function_libs.torch_lib.ops import nn

    op = opset()
    if all(len(x.shape) == 4 for x in (query, key, value)):
        settings = (dropout_p, is_causal, scale, enable_gqa)
        found = nn.aten_scaled_dot_product_attention(query, key, value, attn_mask, *settings)
    else:
        found = _written_out(query, key, value, attn_mask, is_causal, scale, enable_gqa)
    if attn_mask is None or attn_mask.dtype != BOOL:
        return found
    allowed = op.ReduceMax(op.Cast(attn_mask, to=FLOAT), whole(-1), keepdims=1)
    return op.Where(op.Cast(allowed, to=BOOL), found, like(0.0, found))


def _written_out(
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> Any:
    op = opset()
    if scale is None:
        width = query.shape[-1]
        if not isinstance(width, int):
            raise NotImplementedError("scaled_dot_product_attention of an open width")
        scale = 1.0 / math.sqrt(width)
    root = like(math.sqrt(abs(scale)), query)
    axes = [*range(len(key.shape))]
    axes[-2:] = reversed(axes[-2:])
    repeats = _repeats(query, key) if enable_gqa else 1
    columns = op.Transpose(_repeated(key, repeats), perm=axes)
    left = op.Mul(query, root if scale >= 0 else op.Neg(root))
    scores = op.MatMul(left, op.Mul(columns, root))
    if is_causal:
        sizes = (op.Shape(x, start=-2, end=-1) for x in (query, key))
        ones = op.Expand(op.Constant(value_float=1.0), op.Concat(*sizes, axis=0))
        mask = op.Cast(op.Trilu(ones, upper=0), to=BOOL)
    if mask is not None and (is_causal or mask.dtype == BOOL):
        scores = op.Where(mask, scores, like(-np.inf, query))
    elif mask is not None:
        scores = op.Add(scores, mask)
    return op.MatMul(op.Softmax(scores, axis=-1), _repeated(value, repeats))


def _repeats(query: Any, key: Any) -> int:
    heads = [x.shape[-3] for x in (query, key)]
    if not all(isinstance(count, int) for count in heads):
        raise NotImplementedError("scaled_dot_product_attention of an open number of heads")
    return int(heads[0] // heads[1])


def _repeated(x: Any, times: int) -> Any:
    """Each head so many times, one after the other."""
    if times == 1:
        return x
    op = opset()
    wide = op.Expand(op.Unsqueeze(x, whole(-3)), whole(times, 1, 1))
    heads = whole(x.shape[-3] * times)
    kept = (op.Shape(x, end=-3), heads, op.Shape(x, start=-2))
    return op.Reshape(wide, op.Concat(*kept, axis=0))
