"""Convolutions with few output channels compute several neighbours at once.

CPU kernels compute 8 or 16 output channels in one go and throw away what is not requested. A
convolution with one channel does the work of eight. Neighbours along the width can fill the
other seven: a window that is wide enough for all of them, and one filter per neighbour that is the
original one, shifted.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from edgeinfer.convert.lower.core.window import same_total
from edgeinfer.convert.lower.tflite.graph import Graph, Op, Tensor
from edgeinfer.convert.lower.tflite.simplify import part_of
from edgeinfer.convert.lower.tflite.window import SAME, VALID
from edgeinfer.types import Array

LANES = 8
"""Output channels that the kernels compute at once; 16 on wide machines."""

WORTH = 0.6
"""Part of the work above which nothing is changed."""


def widen_thin(graph: Graph) -> None:
    """Rewrite, in place, the convolutions that gain from it.

    Given::

        y = CONV_2D<stride_w=s>(x, w)        w: (1, kh, kw, c), y: (n, h, width, 1)

    Result::

        p = PAD(x)
        z = CONV_2D<stride_w=8*s>(p, v)      v: (8, kh, kw + 7*s, c), z: (n, h, width / 8, 8)
        y = RESHAPE(z)
    """
    ops: list[Op] = []
    for op in graph.ops:
        count = _neighbours(op)
        if count > 1:
            ops.extend(_widened(graph, op, count))
        else:
            ops.append(op)
    graph.ops = ops


def _neighbours(op: Op) -> int:
    """How many results to compute at once; 1 leaves the convolution alone."""
    if op.code != "CONV_2D":
        return 1
    x, w, b = op.inputs[0], op.inputs[1], op.inputs[2] if len(op.inputs) > 2 else None
    out = op.outputs[0]
    if x is None or w is None or w.data is None or (b is not None and b.data is None):
        return 1
    floats = w.dtype == np.float32 and out.dtype == np.float32
    plain = op.options["dilation_w_factor"] == op.options["dilation_h_factor"] == 1
    if (
        not floats
        or not plain
        or None in (*out.shape[1:], *x.shape[1:])
        or x.shape[3] != w.shape[3]
    ):
        return 1
    channels, _, taps, _ = w.static_shape
    if channels > LANES // 2:
        return 1
    count = LANES // channels
    stride, width = int(op.options["stride_w"]), _planes(out)[1]
    if width < 2 * count or taps == 1:
        return 1
    blocks = -(-width // count)
    span = taps + (count - 1) * stride
    work = blocks * count * channels * span / (width * LANES * taps)
    return count if work < WORTH else 1


def _widened(graph: Graph, op: Op, count: int) -> list[Op]:
    x, w, out = op.inputs[0], op.inputs[1], op.outputs[0]
    if x is None or w is None:
        raise ValueError("a convolution has data and weights")
    n, (height, width, channels) = out.shape[0], _planes(out)
    stride_h, stride_w = int(op.options["stride_h"]), int(op.options["stride_w"])
    blocks = -(-width // count)
    made: list[Op] = []
    rows, columns, _ = _planes(x)
    taps_h, taps_w = w.static_shape[1:3]
    top, bottom = _pads(op, rows, taps_h, stride_h)
    left, _ = _pads(op, columns, taps_w, stride_w)
    needed = (blocks * count - 1) * stride_w + taps_w
    # Columns beyond the last window are left out by VALID.
    right = max(needed - columns - left, 0)
    pads = [(0, 0), (top, bottom), (left, right), (0, 0)]
    if any(any(p) for p in pads):
        shape = [s + lo + hi for s, (lo, hi) in zip(_planes(x), pads[1:], strict=True)]
        padded = graph.tensor([n, *shape], x.dtype)
        made.append(Op("PAD", [x, graph.const(pads, np.int32)], [padded]))
        x = padded
    wide = graph.tensor([n, height, blocks, count * channels], out.dtype)
    options = {**op.options, "padding": VALID, "stride_w": stride_w * count}
    weights = graph.const(_shifted(w.value, count, stride_w))
    bias = [graph.const(np.tile(i.value, count)) for i in op.inputs[2:] if i is not None]
    made.append(Op("CONV_2D", [x, weights, *bias], [wide], options))
    return [*made, *_narrowed(graph, wide, out, blocks * count)]


def _narrowed(graph: Graph, wide: Tensor, out: Tensor, width: int) -> list[Op]:
    """Put the neighbours side by side again; those beyond the end are cut off."""
    n, (height, wanted, channels) = out.shape[0], _planes(out)
    exact = width == wanted
    flat = out if exact else graph.tensor([n, height, width, channels], out.dtype)
    shape = [-1 if n is None else n, height, width, channels]
    ops = [Op("RESHAPE", [wide, graph.const(shape, np.int32)], [flat], {"new_shape": shape})]
    if not exact:
        ops.append(part_of(graph, flat, [0] * 4, out.shape, out))
    return ops


def _planes(tensor: Tensor) -> list[int]:
    """Height, width and channels, which are known; the batch need not be."""
    return [s for s in tensor.shape[1:] if s is not None]


def _pads(op: Op, size: int, taps: int, stride: int) -> tuple[int, int]:
    total = same_total(size, stride, taps) if op.options["padding"] == SAME else 0
    return total // 2, total - total // 2


def _shifted(weights: Array, count: int, stride: int) -> Array:
    channels, height, taps, depth = weights.shape
    wide: Any = np.zeros((count, channels, height, taps + (count - 1) * stride, depth), np.float32)
    for index in range(count):
        wide[index, :, :, index * stride : index * stride + taps] = weights
    result: Array = wide.reshape(count * channels, height, -1, depth)
    return result
