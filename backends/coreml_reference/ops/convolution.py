"""Convolutions in one, two or three dimensions."""

from __future__ import annotations

import itertools
import math

import numpy as np
from numpy.lib.stride_tricks import as_strided

from edgeinfer.backends.coreml_reference.program import TensorType
from edgeinfer.backends.coreml_reference.registry import Ints, op
from edgeinfer.types import Array

Pads = list[tuple[int, int]]

# Columns of a convolution are made for so many bytes of outputs at a time.
_COLUMN_BYTES = 8 << 20


@op("conv")
def conv(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    strides: Ints | None = None,
    pad_type: str = "valid",
    pad: Ints | None = None,
    dilations: Ints | None = None,
    groups: int = 1,
) -> Array:
    rank = x.ndim - 2
    strides = strides or (1,) * rank
    dilations = dilations or (1,) * rank
    kernel = weight.shape[2:]
    reach = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True))
    pads = padding(pad_type, pad, x.shape[2:], reach, strides)
    y = _convolve(padded(x, pads), weight, strides, dilations, groups)
    return y if bias is None else y + bias.reshape((1, -1) + (1,) * rank)


@op("conv_quantized")
def conv_quantized(
    x: Array,
    weight: Array,
    quantization_type: str,
    quant_scale: Array,
    quant_bias: Array,
    nbits: int = 8,
    bias: Array | None = None,
    strides: Ints | None = None,
    pad_type: str = "valid",
    pad: Ints | None = None,
    dilations: Ints | None = None,
    groups: int = 1,
) -> Array:
    if quantization_type != "linear":
        raise ValueError(f"weights of the type {quantization_type!r} are not known")
    column = (-1,) + (1,) * (weight.ndim - 1)
    real = weight * quant_scale.reshape(column) + quant_bias.reshape(column)
    return conv(x, real, bias, strides, pad_type, pad, dilations, groups)


@op("conv_transpose")
def conv_transpose(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    pad: Ints | None = None,
    output_shape: Ints | None = None,
    pad_type: str = "valid",
    strides: Ints | None = None,
    dilations: Ints | None = None,
    groups: int = 1,
    *,
    out: tuple[TensorType, ...],
) -> Array:
    rank = x.ndim - 2
    strides = strides or (1,) * rank
    dilations = dilations or (1,) * rank
    full = _spread(x, weight, strides, dilations, groups)
    declared = out[0].shape
    lengths = output_shape[2:] if output_shape else ()
    y = full
    for axis in range(rank):
        size = full.shape[2 + axis]
        begin, end = (pad[2 * axis], pad[2 * axis + 1]) if pad_type == "custom" and pad else (0, 0)
        length = lengths[axis] if lengths else None
        if length is None and pad_type in ("same", "same_lower"):
            length = x.shape[2 + axis] * strides[axis]
        if length is None and declared is not None and declared[2 + axis] is not None:
            length = declared[2 + axis]
        length = size - begin - end if length is None else length
        if pad_type in ("same", "same_lower"):
            cut = max(0, size - length)
            begin = cut // 2 if pad_type == "same" else cut - cut // 2
        y = _window(y, 2 + axis, begin, length)
    return y if bias is None else y + bias.reshape((1, -1) + (1,) * rank)


def padding(
    pad_type: str, pad: Ints | None, sizes: tuple[int, ...], reach: Ints, strides: Ints
) -> Pads:
    """Return what to add before and after each spatial axis.

    Args:
        pad_type: ``valid``, ``custom``, ``same`` or ``same_lower``.
        pad: begin and end of each axis, for ``custom``.
        sizes: Sizes of the input.
        reach: Range of the kernel with its dilation.
        strides: Strides of the kernel.
    """
    if pad_type == "valid":
        return [(0, 0)] * len(sizes)
    if pad_type == "custom":
        pad = pad or (0, 0) * len(sizes)
        return [(pad[2 * i], pad[2 * i + 1]) for i in range(len(sizes))]
    if pad_type not in ("same", "same_lower"):
        raise ValueError(f"the pad_type {pad_type!r} is not known")
    pads = []
    for size, width, stride in zip(sizes, reach, strides, strict=True):
        total = max(0, (-(-size // stride) - 1) * stride + width - size)
        small, large = total // 2, total - total // 2
        pads.append((small, large) if pad_type == "same" else (large, small))
    return pads


def padded(x: Array, pads: Pads, value: float = 0.0) -> Array:
    """Return ``x`` with its spatial axes extended."""
    if not any(itertools.chain.from_iterable(pads)):
        return x
    shape = list(x.shape[:2])
    place = [slice(None), slice(None)]
    for size, (before, after) in zip(x.shape[2:], pads, strict=True):
        shape.append(before + size + after)
        place.append(slice(before, before + size))
    wide = np.full(shape, value, x.dtype)
    wide[tuple(place)] = x
    return wide


def windows(x: Array, kernel: Ints, strides: Ints, dilations: Ints) -> Array:
    """Return a view (batch, channels, *kernel, *outputs) of all windows."""
    lengths = [
        (size - (k - 1) * d - 1) // s + 1
        for size, k, s, d in zip(x.shape[2:], kernel, strides, dilations, strict=True)
    ]
    if min(lengths) < 1:
        raise ValueError(f"a window of {kernel} does not fit into {x.shape[2:]}")
    steps = x.strides[2:]
    return as_strided(
        x,
        (*x.shape[:2], *kernel, *lengths),
        (
            *x.strides[:2],
            *(step * d for step, d in zip(steps, dilations, strict=True)),
            *(step * s for step, s in zip(steps, strides, strict=True)),
        ),
        writeable=False,
    )


def _convolve(x: Array, weight: Array, strides: Ints, dilations: Ints, groups: int) -> Array:
    batch, channels = x.shape[:2]
    count, per_group = weight.shape[:2]
    if channels != per_group * groups or count % groups:
        raise ValueError(f"{channels} channels do not fit weights {weight.shape}, {groups} groups")
    view = windows(x, weight.shape[2:], strides, dilations)
    rank = x.ndim - 2
    out = view.shape[2 + rank :]
    if per_group == 1 and count == groups:
        return _depthwise(view, weight, rank)
    y = np.empty((batch, count, *out), np.float32)
    rows = per_group * math.prod(weight.shape[2:])
    filters = weight.reshape(groups, count // groups, rows)
    flat = y.reshape(batch, groups, count // groups, -1)
    # Strips along the first spatial axis keep the columns in the cache.
    strip = max(1, _COLUMN_BYTES // max(1, 4 * rows * math.prod(out[1:])))
    line = math.prod(out[1:])
    for item, group in itertools.product(range(batch), range(groups)):
        source = view[item, group * per_group : (group + 1) * per_group]
        for start in range(0, out[0], strip):
            stop = min(out[0], start + strip)
            part = source[(slice(None),) * (1 + rank) + (slice(start, stop),)]
            columns = part.reshape(rows, -1)
            flat[item, group, :, start * line : stop * line] = filters[group] @ columns
    return y


def _depthwise(view: Array, weight: Array, rank: int) -> Array:
    tail = (1,) * rank
    total: Array | None = None
    for tap in np.ndindex(*weight.shape[2:]):
        index = (slice(None), slice(None), *tap)
        factor = weight[(slice(None), 0, *tap)].reshape(-1, *tail)
        product = view[index] * factor
        total = product if total is None else np.add(total, product, out=total)
    if total is None:
        raise ValueError("the weights are empty")
    return total


def _spread(x: Array, weight: Array, strides: Ints, dilations: Ints, groups: int) -> Array:
    """Return the transposed convolution without any padding cut off."""
    batch, channels = x.shape[:2]
    per_group, kernel = weight.shape[1], weight.shape[2:]
    into = channels // groups
    sizes = [
        (n - 1) * s + (k - 1) * d + 1
        for n, s, k, d in zip(x.shape[2:], strides, kernel, dilations, strict=True)
    ]
    full = np.zeros((batch, per_group * groups, *sizes), np.float32)
    for item, group in itertools.product(range(batch), range(groups)):
        source = x[item, group * into : (group + 1) * into].reshape(into, -1)
        filters = weight[group * into : (group + 1) * into].reshape(into, -1)
        taps = (filters.T @ source).reshape(per_group, *kernel, *x.shape[2:])
        target = full[item, group * per_group : (group + 1) * per_group]
        for tap in np.ndindex(*kernel):
            place = tuple(
                slice(t * d, t * d + (n - 1) * s + 1, s)
                for t, d, n, s in zip(tap, dilations, x.shape[2:], strides, strict=True)
            )
            target[(slice(None), *place)] += taps[(slice(None), *tap)]
    return full


def _window(x: Array, axis: int, begin: int, length: int) -> Array:
    """Return ``length`` elements from ``begin`` on; what lies outside is zero."""
    missing = begin + length - x.shape[axis]
    if missing > 0:
        x = np.pad(x, [(0, missing if a == axis else 0) for a in range(x.ndim)])
    return x[(slice(None),) * axis + (slice(begin, begin + length),)]
