"""Convolutions by ONNX's attributes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgeinfer.convert.verify.operators.window import window_of
from edgeinfer.numerics.convolution import convolved, transposed, transposed_sizes
from edgeinfer.types import Array


def conv(attrs: Mapping[str, Any], version: int, inputs: list[Array | None]) -> tuple[Array, ...]:
    """Conv of any spatial rank."""
    x, w, *rest = inputs
    if x is None or w is None:
        raise ValueError("Conv needs data and weights")
    group = attrs.get("group", 1)
    window = window_of(attrs, x.shape[2:], w.shape[2:])
    return (convolved(x, w, rest[0] if rest else None, window, group),)


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
    full = transposed_sizes(x.shape[2:], w.shape[2:], strides, dilations)
    begin, out = _transposed_size(attrs, x.shape[2:], full, strides, extra)
    bias = rest[0] if rest else None
    return (transposed(x, w, bias, strides, dilations, group, begin, out),)


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
