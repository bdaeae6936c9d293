"""Convolutions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgeinfer.convert.lower.core import window as sliding
from edgeinfer.convert.lower.core.window import TransposedWindow, Windows
from edgeinfer.convert.lower.coreai.builder import Builder
from edgeinfer.convert.lower.coreai.registry import FLOATS, OPS
from edgeinfer.convert.lower.coreai.tensor import Tensor
from edgeinfer.convert.lower.registry import Refusal


def _pair(value: Sequence[int], fill: int) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    """Axes of a line become those of an image of height 1."""
    return np.array([fill, *value] if len(value) == 1 else list(value), np.uint32)


def _line(g: Builder, x: Tensor, spatial: int) -> Tensor:
    return g.insert_axes(x, [2]) if spatial == 1 else x


def _checked(spatial: int) -> int:
    if not 1 <= spatial <= 3:
        raise Refusal(f"{spatial} spatial axes", "unsupported_rank")
    return spatial


def biased(g: Builder, x: Tensor, bias: Tensor | None) -> Tensor:
    """Add a value to each channel."""
    if bias is None:
        return x
    return g.binary("add", x, g.insert_axes(bias, list(range(1, x.rank - 1))))


@sliding.conv(OPS, "Conv", dtypes=FLOATS)
def conv(
    g: Builder, X: Tensor, W: Tensor, B: Tensor | None, asked: Windows, *, group: int
) -> Tensor:
    spatial = _checked(len(asked))
    at = asked.explicit()
    X = g.pad(X, [0, 0, *at.begin], [0, 0, *at.end])
    name = "conv3d" if spatial == 3 else "conv2d"
    X, W = _line(g, X, spatial), _line(g, W, spatial)
    made = g.call(name, X, W, _pair(at.strides, 1), _pair(at.dilations, 1), np.uint32(group))
    return biased(g, g.drop_axes(made, [2]) if spatial == 1 else made, B)


@sliding.conv(OPS, "ConvTranspose", dtypes=FLOATS)
def conv_transpose(
    g: Builder, X: Tensor, W: Tensor, B: Tensor | None, at: list[TransposedWindow], *, group: int
) -> Tensor:
    spatial = _checked(len(at))
    # All is computed, then the edges are cut: padding on two sides may differ.
    name = "conv_transpose3d" if spatial == 3 else "conv_transpose2d"
    whole = g.call(
        name,
        _line(g, X, spatial),
        _line(g, W, spatial),
        _pair([w.stride for w in at], 1),
        _pair((0,) * spatial, 0),
        _pair([w.dilation for w in at], 1),
        _pair((0,) * spatial, 0),
        np.uint32(group),
    )
    if spatial == 1:
        whole = g.drop_axes(whole, [2])
    # What lies beyond the last window is zero.
    more = [max(-w.cut, 0) for w in at]
    whole = g.pad(whole, [0] * whole.rank, [0, 0, *more])
    for axis, w in enumerate(at):
        cut = max(w.cut, 0)
        if w.begin or cut:
            size = g.extent(whole, axis + 2)
            stop = size - cut if isinstance(size, int) else g.binary("sub", size, cut)
            whole = g.part(whole, axis + 2, w.begin, stop)
    return biased(g, whole, B)
