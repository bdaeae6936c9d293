"""Products of matrices."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.lower.tflite.builder import Builder, Extent, broadcast
from edgeinfer.convert.lower.tflite.graph import Size, Tensor
from edgeinfer.convert.lower.tflite.registry import INTEGERS, OPS
from edgeinfer.convert.lower.tflite.widen import DOUBLES, widened

_ELEMENTS = DOUBLES | INTEGERS | {ir.DataType.UINT32}
_MAX_RANK = 6
"""Of what XNNPACK takes; with more it fails instead of leaving the operator alone."""


@OPS.lower("MatMul", dtypes=_ELEMENTS)
@widened
def matmul(g: Builder, a: Tensor, b: Tensor) -> Tensor:
    """Product over the last two axes, or of vectors."""
    if b.data is not None and b.rank == 2 and a.dtype == np.float32:
        return linear(g, a, g.transpose(b, [1, 0]))
    left = expand(g, a, 0) if a.rank == 1 else a
    right = expand(g, b, 1) if b.rank == 1 else b
    y = product(g, left, right)
    if a.rank == 1:
        y = squeeze(g, y, y.rank - 2)
    return squeeze(g, y, y.rank - 1) if b.rank == 1 else y


@OPS.lower("Gemm", dtypes=_ELEMENTS)
@widened
def gemm(
    g: Builder,
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    *,
    alpha: float,
    beta: float,
    transA: int,
    transB: int,
) -> Tensor:
    """Product of two matrices, with a sum."""
    if a.dtype != np.float32 and not (alpha == int(alpha) and beta == int(beta)):
        raise Refusal(f"alpha={alpha}, beta={beta} for integers")
    c = None if c is None or beta == 0 else _scaled(g, c, beta)
    if b.data is not None and a.dtype == np.float32:
        weights = _scaled(g, b if transB else g.transpose(b, [1, 0]), alpha)
        x = g.transpose(a, [1, 0]) if transA else a
        if c is None or (bias := _as_bias(g, c, weights)) is not None:
            return linear(g, x, weights, None if c is None else bias)
        return g.binary("ADD", linear(g, x, weights), c)
    y = _scaled(g, product(g, a, b, adj_x=bool(transA), adj_y=bool(transB)), alpha)
    return y if c is None else g.binary("ADD", y, c)


def _scaled(g: Builder, x: Tensor, factor: float) -> Tensor:
    if factor == 1:
        return x
    if x.data is not None:
        return g.const(x.data * x.dtype.type(factor), x.dtype)
    return g.binary("MUL", x, factor)


def _as_bias(g: Builder, c: Tensor, weights: Tensor) -> Tensor | None:
    """A constant that is the same for every row, as one value for each column."""
    if c.data is None or (c.rank == 2 and c.shape[0] != 1):
        return None
    return g.const(np.broadcast_to(c.data.reshape(-1), (weights.static_shape[0],)))


def linear(g: Builder, x: Tensor, weights: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x @ weights.T + bias`` over the last axis.

    Args:
        g: the graph.
        x: (..., in).
        weights: (out, in), constant.
        bias: (out,), constant.
    """
    shape = (*x.shape[:-1], weights.shape[0])
    if 0 in x.shape or 0 in weights.shape:
        return _zeros(g, shape, x.dtype, bias)
    flat = x
    if x.rank > _MAX_RANK:
        flat = g.reshape(x, [-1, weights.static_shape[1]])
    operands = [flat, weights] if bias is None else [flat, weights, bias]
    y = g.emit(
        "FULLY_CONNECTED",
        operands,
        (*flat.shape[:-1], weights.shape[0]),
        fused_activation_function=0,
        weights_format=0,
        keep_num_dims=flat.rank != 2,
        asymmetric_quantize_inputs=False,
        quantized_bias_type=0,
    )
    return y if flat is x else _as_shape_of(g, y, x, weights.static_shape[0])


def _as_shape_of(g: Builder, y: Tensor, x: Tensor, last: int) -> Tensor:
    sizes: list[Extent] = [g.extent(x, i) for i in range(x.rank - 1)]
    return g.reshape(y, [*sizes, last])


def _zeros(
    g: Builder, shape: tuple[Size, ...], dtype: np.dtype[np.generic], bias: Tensor | None = None
) -> Tensor:
    if None in shape:
        raise Refusal(
            "no elements along one axis, an unknown number along another", "dynamic_shape"
        )
    zeros = np.zeros([s for s in shape if s is not None], dtype)
    return g.const(zeros if bias is None else zeros + bias.value)


def product(
    g: Builder, a: Tensor, b: Tensor, *, adj_x: bool = False, adj_y: bool = False
) -> Tensor:
    """``a @ b`` over the last two axes, those before broadcast.

    Args:
        g: the graph.
        a: (..., m, k), or (..., k, m) with ``adj_x``.
        b: (..., k, n), or (..., n, k) with ``adj_y``.
        adj_x: swap the last two axes of ``a`` first.
        adj_y: likewise of ``b``.
    """
    rows, columns = a.shape[-1 if adj_x else -2], b.shape[-2 if adj_y else -1]
    shape = (*broadcast(a.shape[:-2], b.shape[:-2]), rows, columns)
    if 0 in a.shape or 0 in b.shape:
        return _zeros(g, shape, a.dtype)
    if a.dtype != np.float32:
        return _integer_product(g, _swapped(g, a, adj_x), _swapped(g, b, adj_y))
    # The kernel without XNNPACK takes up to 5 axes.
    if max(a.rank, b.rank) > 5:
        return _flat_product(g, a, b, shape, adj_x, adj_y)
    options = {"adj_x": adj_x, "adj_y": adj_y, "asymmetric_quantize_inputs": False}
    return g.emit("BATCH_MATMUL", [a, b], shape, **options)


def _flat_product(
    g: Builder, a: Tensor, b: Tensor, shape: tuple[Size, ...], adj_x: bool, adj_y: bool
) -> Tensor:
    """Join the axes before the matrices."""
    if not (a.is_static and b.is_static):
        raise Refusal("more than 5 axes of unknown sizes", "unsupported_rank")
    known = [s for s in shape if s is not None]
    parts = []
    for x in (a, b):
        full = [*known[:-2], *x.static_shape[-2:]]
        if list(x.shape) != full:
            x = g.emit("BROADCAST_TO", [x, g.const(full, np.int32)], full)
        parts.append(g.reshape(x, [int(np.prod(full[:-2])), *full[-2:]]))
    y = product(g, *parts, adj_x=adj_x, adj_y=adj_y)
    return g.reshape(y, known)


def _swapped(g: Builder, x: Tensor, swap: bool) -> Tensor:
    if not swap:
        return x
    return g.transpose(x, [*range(x.rank - 2), x.rank - 1, x.rank - 2])


def _integer_product(g: Builder, a: Tensor, b: Tensor) -> Tensor:
    """Multiply and add up: there is no kernel, and float32 would not hold the sums."""
    if max(a.rank, b.rank) > 5:
        raise Refusal("more than 5 axes of integers", "unsupported_rank")
    wide = g.binary("MUL", expand(g, a, a.rank), expand(g, b, b.rank - 2))
    return g.reduce("SUM", wide, [wide.rank - 2], False)


def expand(g: Builder, x: Tensor, axis: int) -> Tensor:
    """Insert an axis of size one; ``axis`` is not negative."""
    shape = (*x.shape[:axis], 1, *x.shape[axis:])
    if x.data is not None:
        return g.const(np.expand_dims(x.data, axis))
    return g.emit("EXPAND_DIMS", [x, g.const(axis, np.int32)], shape)


def squeeze(g: Builder, x: Tensor, axis: int) -> Tensor:
    """Drop an axis of size one; ``axis`` is not negative."""
    shape = (*x.shape[:axis], *x.shape[axis + 1 :])
    if x.data is not None:
        return g.const(x.data.reshape(x.data.shape[:axis] + x.data.shape[axis + 1 :]))
    return g.emit("SQUEEZE", [x], shape, squeeze_dims=[axis])
