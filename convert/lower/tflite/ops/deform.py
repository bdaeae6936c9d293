"""Convolution at positions that are moved."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.lower.tflite.builder import Builder
from edgeinfer.convert.lower.tflite.graph import Tensor
from edgeinfer.convert.lower.tflite.ops.image import axis_taps, joined
from edgeinfer.convert.lower.tflite.registry import OPS
from edgeinfer.convert.lower.tflite.widen import REALS, widened
from edgeinfer.types import Array


# The definition takes 1.23 times as long (LiteRT, x86-64, 16 channels of 32x32).
@OPS.lower("DeformConv", dtypes=REALS)
@widened
def deform_conv(
    g: Builder,
    x: Tensor,
    w: Tensor,
    offset: Tensor,
    b: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    dilations: Sequence[int] | None,
    group: int,
    offset_group: int,
    pads: Sequence[int] | None,
    strides: Sequence[int] | None,
) -> Tensor:
    """Gather four neighbours for every tap, weigh them, multiply by the weights."""
    if x.rank != 4:
        raise Refusal(f"{x.rank - 2} spatial axes: takes 2", "unsupported_rank")
    if not (x.is_static and w.is_static and offset.is_static):
        raise Refusal("sizes must be known", "dynamic_shape")
    batch, channels, *sizes = x.static_shape
    kernel = w.static_shape[2:]
    out = offset.static_shape[2:]
    taps, indices = math.prod(kernel), math.prod(out)
    moved = g.reshape(offset, [batch, offset_group, taps, 2, *out])
    full = (batch, offset_group, taps, *out)
    axes = []
    for axis in range(2):
        start = (pads or [0] * 4)[axis]
        step, gap = (strides or [1, 1])[axis], (dilations or [1, 1])[axis]
        at = _places(kernel, out, axis, step, gap, start)
        begin, end = [0] * 6, [None, None, None, axis + 1, None, None]
        begin[3] = axis
        own = _part(g, moved, begin, end, full)
        place = g.binary("ADD", own, g.const(np.broadcast_to(at, full).reshape(-1), np.float32))
        axes.append(axis_taps(g, place, sizes[axis], "linear", "zeros", False))
    inner = channels // offset_group
    image = g.reshape(x, [batch, offset_group, inner, math.prod(sizes)])
    rows = g.reshape(g.transpose(image, [0, 1, 3, 2]), [-1, inner])
    first = np.arange(batch * offset_group, dtype=np.int32) * math.prod(sizes)
    starts = g.const(np.repeat(first, taps * indices))
    total: Tensor | None = None
    for choice in itertools.product(*axes):
        index, weight = joined(g, choice, sizes)
        part = g.gather(rows, g.binary("ADD", index, starts), 0)
        if weight is not None:
            part = g.binary("MUL", part, g.insert_axis(weight, 1))
        total = part if total is None else g.binary("ADD", total, part)
    if total is None:
        raise Refusal("no neighbours")
    if mask is not None:
        total = g.binary("MUL", total, g.reshape(mask, [math.prod(full), 1]))
    columns = g.reshape(total, [batch, offset_group, taps, indices, inner])
    columns = g.transpose(columns, [0, 3, 1, 4, 2])
    return _multiplied(g, columns, w, b, group, (batch, *out))


def _places(
    kernel: Sequence[int], out: Sequence[int], axis: int, step: int, gap: int, start: int
) -> Array:
    """Where each tap of each result is along one axis, before it is moved: (taps, *out)."""
    tap = np.indices(kernel)[axis].reshape(-1, 1, 1)
    indices: Array = tap * gap + np.indices(out)[axis][None] * step - start
    return indices


def _part(
    g: Builder, x: Tensor, begin: list[int], end: list[int | None], full: Sequence[int]
) -> Tensor:
    """One coordinate of every offset, in one row."""
    batch, groups, taps, *out = full
    flat = g.reshape(x, [batch * groups * taps, 2, math.prod(out)])
    return g.reshape(
        g.slice(flat, [0, begin[3], 0], [None, end[3], None], [1, 1, 1]), [math.prod(full)]
    )


def _multiplied(
    g: Builder,
    columns: Tensor,
    w: Tensor,
    bias: Tensor | None,
    group: int,
    sizes: tuple[int, ...],
) -> Tensor:
    """``columns`` is (batch, positions, offset groups, channels of each, taps)."""
    batch, *out = sizes
    features, depth = w.static_shape[0], math.prod(w.static_shape[1:])
    left = g.reshape(columns, [batch * math.prod(out), group, depth])
    left = g.transpose(left, [1, 0, 2])
    right = g.reshape(w, [group, features // group, depth])
    shape = (group, batch * math.prod(out), features // group)
    options = {"adj_x": False, "adj_y": True, "asymmetric_quantize_inputs": False}
    y = g.emit("BATCH_MATMUL", [left, right], shape, **options)
    y = g.reshape(g.transpose(y, [1, 0, 2]), [batch, math.prod(out), features])
    if bias is not None:
        y = g.binary("ADD", y, bias)
    return g.reshape(g.transpose(y, [0, 2, 1]), [batch, features, *out])
