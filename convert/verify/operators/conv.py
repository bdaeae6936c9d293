"""Convolutions, as a sum over kernel positions: no column buffer, one matrix product a position."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from edgeinfer.convert.verify.operators.window import PoolWindow, window_of
from edgeinfer.types import Array

_THIN = 32
"""With fewer channels a product per position is bound by memory; gathering windows is faster."""

_COLUMNS_BYTES = 16 << 20
"""Size of a column buffer where one is used; more output positions are done in parts."""


def conv(attrs: Mapping[str, Any], version: int, inputs: list[Array | None]) -> tuple[Array, ...]:
    """Conv of any spatial rank."""
    x, w, *rest = inputs
    if x is None or w is None:
        raise ValueError("Conv needs data and weights")
    group = attrs.get("group", 1)
    window = window_of(attrs, x.shape[2:], w.shape[2:])
    padded = window.pad(x, 0)
    per_group = w.shape[1]
    if per_group == 1 and group > 1:
        y = _depthwise(padded, w, window, group)
    elif per_group < _THIN and np.prod(w.shape[2:]) > 1:
        y = _columns(padded, w, window, group)
    else:
        y = _positions(padded, w, window, group)
    if rest and rest[0] is not None:
        y += rest[0].reshape(1, -1, *(1,) * len(window.out))
    return (y,)


def _tap(offset: tuple[int, ...]) -> tuple[slice | int, ...]:
    """Index of all weights at one kernel position."""
    return (slice(None), slice(None), *offset)


def _positions(x: Array, w: Array, window: PoolWindow, group: int) -> Array:
    batch, channels, maps = x.shape[0], w.shape[1], w.shape[0]
    y = np.zeros((batch, group, maps // group, int(np.prod(window.out))), x.dtype)
    for offset in window.offsets:
        seen = window.view(x, offset).reshape(batch, group, channels, -1)
        weights = w[_tap(offset)].reshape(group, maps // group, channels)
        y += weights @ seen
    return y.reshape(batch, maps, *window.out)


def _depthwise(x: Array, w: Array, window: PoolWindow, group: int) -> Array:
    batch, maps = x.shape[0], w.shape[0]
    rank = len(window.out)
    y = np.zeros((batch, group, maps // group, *window.out), x.dtype)
    for offset in window.offsets:
        weights = w[_tap(offset)].reshape(1, group, maps // group, *(1,) * rank)
        y += weights * window.view(x, offset)[:, :, None]
    return y.reshape(batch, maps, *window.out)


def _columns(x: Array, w: Array, window: PoolWindow, group: int) -> Array:
    """Few input channels: gather windows first, or each product would be a thin one."""
    batch, channels, maps = x.shape[0], w.shape[1], w.shape[0]
    rank = len(window.out)
    spans = tuple(window.extent(a) for a in range(rank))
    spatial = tuple(range(2, 2 + rank))
    windows = np.lib.stride_tricks.sliding_window_view(x, spans, axis=spatial)
    steps = tuple(
        slice(None, (o - 1) * s + 1, s) for o, s in zip(window.out, window.strides, strict=True)
    )
    taps = tuple(slice(None, None, d) for d in window.dilations)
    windows = windows[(slice(None), slice(None), *steps, *taps)]
    y = np.empty((batch, maps, *window.out), x.dtype)
    row = channels * int(np.prod(window.kernel)) * int(np.prod(window.out[1:])) * x.itemsize
    part = max(1, _COLUMNS_BYTES // max(1, row))
    for n in range(batch):
        for g in range(group):
            picked = slice(g * channels, (g + 1) * channels)
            filters = slice(g * (maps // group), (g + 1) * (maps // group))
            weights = w[filters].reshape(maps // group, -1)
            for start in range(0, window.out[0], part):
                block = windows[n, picked, start : start + part]
                # (C, *out, *kernel) -> (C, *kernel, *out)
                order = (0, *range(1 + rank, 1 + 2 * rank), *range(1, 1 + rank))
                columns = block.transpose(order).reshape(weights.shape[1], -1)
                shape = (maps // group, *block.shape[1 : 1 + rank])
                y[n, filters, start : start + part] = (weights @ columns).reshape(shape)
    return y


def conv_transpose(
    attrs: Mapping[str, Any], version: int, inputs: list[Array | None]
) -> tuple[Array, ...]:
    """ConvTranspose of any spatial rank."""
    x, w, *rest = inputs
    if x is None or w is None:
        raise ValueError("ConvTranspose needs data and weights")
    group, rank = attrs.get("group", 1), x.ndim - 2
    strides = tuple(attrs.get("strides") or (1,) * rank)
    dilations = tuple(attrs.get("dilations") or (1,) * rank)
    extra = tuple(attrs.get("output_padding") or (0,) * rank)
    kernel = w.shape[2:]
    full = [
        (x.shape[2 + a] - 1) * strides[a] + (kernel[a] - 1) * dilations[a] + 1 for a in range(rank)
    ]
    begin, out = _transposed_size(attrs, x.shape[2:], full, strides, extra)
    batch, channels, maps = x.shape[0], x.shape[1] // group, w.shape[1]
    # One canvas large enough for both what is written and what is cut out of it.
    canvas = [max(full[a], begin[a] + out[a]) for a in range(rank)]
    y = np.zeros((batch, group * maps, *canvas), x.dtype)
    flat = x.reshape(batch, group, channels, -1)
    for offset in np.ndindex(*kernel):
        weights = w[_tap(offset)].reshape(group, channels, maps)
        product = weights.transpose(0, 2, 1) @ flat
        index = [slice(None), slice(None)]
        for a in range(rank):
            start = offset[a] * dilations[a]
            index.append(slice(start, start + (x.shape[2 + a] - 1) * strides[a] + 1, strides[a]))
        y[tuple(index)] += product.reshape(batch, group * maps, *x.shape[2:])
    cut = tuple(slice(begin[a], begin[a] + out[a]) for a in range(rank))
    y = y[(slice(None), slice(None), *cut)]
    if rest and rest[0] is not None:
        y = y + rest[0].reshape(1, -1, *(1,) * rank)
    return (np.ascontiguousarray(y),)


def _transposed_size(
    attrs: Mapping[str, Any],
    size: tuple[int, ...],
    full: list[int],
    strides: tuple[int, ...],
    extra: tuple[int, ...],
) -> tuple[list[int], list[int]]:
    """Return what is cut off before each axis, and the output sizes (ConvTranspose, pads)."""
    rank = len(size)
    mode = attrs.get("auto_pad", "NOTSET") or "NOTSET"
    pads = tuple(attrs.get("pads") or (0,) * (2 * rank))
    wanted = attrs.get("output_shape")
    if mode in ("SAME_UPPER", "SAME_LOWER") and not wanted:
        wanted = [size[a] * strides[a] for a in range(rank)]
    if not wanted:
        if mode == "VALID":
            pads = (0,) * (2 * rank)
        out = [full[a] + extra[a] - pads[a] - pads[rank + a] for a in range(rank)]
        return list(pads[:rank]), out
    out = list(wanted)[-rank:]
    begin = []
    for a in range(rank):
        total = max(0, full[a] + extra[a] - out[a])
        begin.append(total // 2 if mode == "SAME_UPPER" else total - total // 2)
    return begin, out
