"""Convolutions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgeinfer.convert.lower.coreai.builder import Builder
from edgeinfer.convert.lower.coreai.registry import FLOATS, OPS
from edgeinfer.convert.lower.coreai.tensor import Tensor
from edgeinfer.convert.lower.coreai.window import padding
from edgeinfer.convert.lower.registry import Refusal


def _pair(value: Sequence[int], fill: int) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    """Axes of a line become those of a picture of height 1."""
    return np.array([fill, *value] if len(value) == 1 else list(value), np.uint32)


def _line(g: Builder, x: Tensor, spatial: int) -> Tensor:
    return g.insert_axes(x, [2]) if spatial == 1 else x


def biased(g: Builder, x: Tensor, bias: Tensor | None) -> Tensor:
    """Add a value to each channel."""
    if bias is None:
        return x
    return g.binary("add", x, g.insert_axes(bias, list(range(1, x.rank - 1))))


@OPS.lower("Conv", dtypes=FLOATS)
def conv(
    g: Builder,
    X: Tensor,
    W: Tensor,
    B: Tensor | None = None,
    *,
    auto_pad: str,
    dilations: tuple[int, ...] | None,
    group: int,
    pads: tuple[int, ...] | None,
    strides: tuple[int, ...] | None,
) -> Tensor:
    spatial = X.rank - 2
    if not 1 <= spatial <= 3:
        raise Refusal(f"{spatial} spatial axes", "unsupported_rank")
    kernel = [s for s in W.shape[2:] if s is not None]
    step, spread = strides or (1,) * spatial, dilations or (1,) * spatial
    before, after = padding(X.shape[2:], kernel, step, spread, auto_pad, pads)
    X = g.pad(X, [0, 0, *before], [0, 0, *after])
    name = "conv3d" if spatial == 3 else "conv2d"
    X, W = _line(g, X, spatial), _line(g, W, spatial)
    made = g.call(name, X, W, _pair(step, 1), _pair(spread, 1), np.uint32(group))
    return biased(g, g.drop_axes(made, [2]) if spatial == 1 else made, B)


@OPS.lower("ConvTranspose", dtypes=FLOATS)
def conv_transpose(
    g: Builder,
    X: Tensor,
    W: Tensor,
    B: Tensor | None = None,
    *,
    auto_pad: str,
    dilations: tuple[int, ...] | None,
    group: int,
    output_padding: tuple[int, ...] | None,
    output_shape: tuple[int, ...] | None,
    pads: tuple[int, ...] | None,
    strides: tuple[int, ...] | None,
) -> Tensor:
    spatial = X.rank - 2
    if not 1 <= spatial <= 3:
        raise Refusal(f"{spatial} spatial axes", "unsupported_rank")
    kernel = [s for s in W.shape[2:] if s is not None]
    step, spread = strides or (1,) * spatial, dilations or (1,) * spatial
    extra = output_padding or (0,) * spatial
    full = [(k - 1) * d + 1 for k, d in zip(kernel, spread, strict=True)]
    begin, end = list((pads or (0,) * 2 * spatial)[:spatial]), list((pads or ())[spatial:])
    end = end or [0] * spatial
    if output_shape is not None or auto_pad.startswith("SAME"):
        begin, end = _wanted(X, full, step, extra, output_shape, auto_pad)
    # All is computed, then the edges are cut: padding on two sides may differ.
    name = "conv_transpose3d" if spatial == 3 else "conv_transpose2d"
    whole = g.call(
        name,
        _line(g, X, spatial),
        _line(g, W, spatial),
        _pair(step, 1),
        _pair((0,) * spatial, 0),
        _pair(spread, 1),
        _pair((0,) * spatial, 0),
        np.uint32(group),
    )
    if spatial == 1:
        whole = g.drop_axes(whole, [2])
    # What lies beyond the last window is zero.
    more = [max(e - p, 0) for e, p in zip(extra, end, strict=True)]
    whole = g.pad(whole, [0] * whole.rank, [0, 0, *more])
    cut = [max(p - e, 0) for e, p in zip(extra, end, strict=True)]
    for axis, (b, c) in enumerate(zip(begin, cut, strict=True)):
        if b or c:
            size = g.extent(whole, axis + 2)
            stop = size - c if isinstance(size, int) else g.binary("sub", size, c)
            whole = g.part(whole, axis + 2, b, stop)
    return biased(g, whole, B)


def _wanted(
    x: Tensor,
    full: Sequence[int],
    step: Sequence[int],
    extra: Sequence[int],
    shape: tuple[int, ...] | None,
    auto_pad: str,
) -> tuple[list[int], list[int]]:
    """The padding that gives an output of a wanted size."""
    begin, end = [], []
    for axis, size in enumerate(x.shape[2:]):
        if size is None:
            raise Refusal("padding by output size needs known sizes", "dynamic_shape")
        out = shape[len(shape) - len(full) + axis] if shape else size * step[axis]
        total = step[axis] * (size - 1) + extra[axis] + full[axis] - out
        if total < 0:
            raise Refusal(f"output_shape {shape} is larger than what is computed")
        first = total // 2 if auto_pad == "SAME_UPPER" else total - total // 2
        begin.append(first)
        end.append(total - first)
    return begin, end
