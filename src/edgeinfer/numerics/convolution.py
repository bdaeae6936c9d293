"""Convolutions, as a sum over kernel positions: no column buffer, one matrix product a position."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgeinfer.numerics.windows import SlidingWindow, extent
from edgeinfer.types import Array

_THIN = 32
"""With fewer channels a product per position is bound by memory; gathering windows is faster."""

_COLUMNS_BYTES = 16 << 20
"""Size of a column buffer where one is used; more output positions are done in parts."""


def convolved(x: Array, w: Array, bias: Array | None, window: SlidingWindow, group: int) -> Array:
    """Return a convolution of any spatial rank.

    Args:
        x: (batch, channels, *sizes).
        w: (filters, channels / group, *kernel).
        bias: (filters,).
        window: Where the kernel is applied.
        group: Groups of channels.
    """
    padded = window.pad(x, 0)
    per_group = w.shape[1]
    if per_group == 1 and group > 1:
        y = _depthwise(padded, w, window, group)
    elif per_group < _THIN and np.prod(w.shape[2:]) > 1:
        y = _columns(padded, w, window, group)
    else:
        y = _positions(padded, w, window, group)
    if bias is not None:
        y += bias.reshape(1, -1, *(1,) * len(window.out))
    return y


def _tap(offset: tuple[int, ...]) -> tuple[slice | int, ...]:
    """Index of all weights at one kernel position."""
    return (slice(None), slice(None), *offset)


def _positions(x: Array, w: Array, window: SlidingWindow, group: int) -> Array:
    batch, channels, maps = x.shape[0], w.shape[1], w.shape[0]
    y = np.zeros((batch, group, maps // group, int(np.prod(window.out))), x.dtype)
    for offset in window.offsets:
        seen = window.view(x, offset).reshape(batch, group, channels, -1)
        weights = w[_tap(offset)].reshape(group, maps // group, channels)
        y += weights @ seen
    return y.reshape(batch, maps, *window.out)


def _depthwise(x: Array, w: Array, window: SlidingWindow, group: int) -> Array:
    batch, maps = x.shape[0], w.shape[0]
    rank = len(window.out)
    y = np.zeros((batch, group, maps // group, *window.out), x.dtype)
    for offset in window.offsets:
        weights = w[_tap(offset)].reshape(1, group, maps // group, *(1,) * rank)
        y += weights * window.view(x, offset)[:, :, None]
    return y.reshape(batch, maps, *window.out)


def _columns(x: Array, w: Array, window: SlidingWindow, group: int) -> Array:
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


def transposed(
    x: Array,
    w: Array,
    bias: Array | None,
    strides: Sequence[int],
    dilations: Sequence[int],
    group: int,
    begin: Sequence[int],
    out: Sequence[int],
) -> Array:
    """Return a part of a transposed convolution; beyond the full result there are zeros.

    Args:
        x: (batch, channels, *sizes).
        w: (channels, filters / group, *kernel).
        bias: (filters,).
        strides: Elements between the results of neighbours.
        dilations: Elements between taps.
        group: Groups of channels.
        begin: Where the part begins on each axis.
        out: Its sizes.
    """
    rank, kernel = x.ndim - 2, w.shape[2:]
    full = transposed_sizes(x.shape[2:], kernel, strides, dilations)
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
    if bias is not None:
        y = y + bias.reshape(1, -1, *(1,) * rank)
    return np.ascontiguousarray(y)


def transposed_sizes(
    sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> list[int]:
    """Return the sizes of the full result of a transposed convolution."""
    rows = zip(sizes, kernel, strides, dilations, strict=True)
    return [(n - 1) * s + extent(k, d) for n, k, s, d in rows]
