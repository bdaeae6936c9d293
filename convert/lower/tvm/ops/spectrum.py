"""Convolutions that are Fourier transforms: exporters write them so."""

from __future__ import annotations

import numpy as np
from tvm import relax

from edgeinfer.convert.lower.core.window import Windows
from edgeinfer.convert.lower.tvm.builder import Builder, Tensor
from edgeinfer.convert.lower.tvm.ops.matrix import reshape
from edgeinfer.kernels.defs import fourier
from edgeinfer.kernels.defs.frames import Frames, transform, window_of
from edgeinfer.types import Array

_LEAST = 64
"""Samples of a frame below which a product takes no longer."""


def as_transform(g: Builder, x: Tensor, weight: Array, w: Windows, group: int) -> Tensor | None:
    """Write a convolution over one channel as a transform of its frames, if that is what it is."""
    *rest, size = weight.shape[1:]
    if not g.on_cpu or group != 1 or set(rest) != {1} or size < _LEAST:
        return None
    lines = x.shape[2:-1]
    if any(n != 1 for n in lines) or w.dilations[-1] != 1 or w.padded:
        return None
    found = window_of(weight.reshape(len(weight), size))
    if found is None:
        return None
    window, parts = found
    frames = Frames(x.shape[0], x.shape[-1], size, w.strides[-1], parts)
    made = frames_of(g, x, frames, window)
    return reshape(g, made, (x.shape[0], len(weight), *lines, frames.count))


def frames_of(g: Builder, x: Tensor, frames: Frames, window: Array) -> Tensor:
    """Transform frames; the elements are a batch of recordings."""
    operands = [
        g.expr(reshape(g, x, (frames.batch, frames.samples))),
        relax.const(np.ascontiguousarray(window), "float32"),
        relax.const(fourier.factors(frames.size), "float32"),
    ]
    return g.wrap(g.tir(transform(g.cpu, frames), operands, frames.shape))
