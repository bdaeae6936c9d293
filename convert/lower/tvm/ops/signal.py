"""Fourier transforms: fast ones of real frames, products with constant matrices else."""

from __future__ import annotations

import numpy as np

from edgeinfer.convert.lower.core.window import windows
from edgeinfer.convert.lower.fourier import StftPlan, dft_plan, stft
from edgeinfer.convert.lower.registry import Const
from edgeinfer.convert.lower.tvm.builder import Builder, Tensor
from edgeinfer.convert.lower.tvm.ops.arith import convert
from edgeinfer.convert.lower.tvm.ops.conv import convolve
from edgeinfer.convert.lower.tvm.ops.matrix import product, reshape, transpose
from edgeinfer.convert.lower.tvm.ops.spectrum import frames_of
from edgeinfer.convert.lower.tvm.registry import FLOATS, OPS
from edgeinfer.kernels.defs import fourier
from edgeinfer.kernels.defs.frames import Frames


@OPS.lower("DFT", dtypes=FLOATS)
def dft(
    g: Builder,
    input: Tensor,
    dft_length: Const | None = None,
    axis: Const | None = None,
    *,
    inverse: int,
    onesided: int,
) -> Tensor:
    """A product over the axis and the parts."""
    plan = dft_plan(input.shape, dft_length, axis, inverse, onesided)
    x = convert(g, input, "float32") if input.dtype == "float16" else input
    others = tuple(x.shape[a] for a in plan.others)
    flat = reshape(g, transpose(g, x, tuple(plan.order)), (*others, plan.weights.shape[1]))
    weights = g.const(np.ascontiguousarray(plan.weights.T), x.dtype)
    made = reshape(g, product(g, flat, weights), (*others, plan.results, plan.parts))
    return convert(g, transpose(g, made, tuple(plan.back)), input.dtype)


@stft(OPS, FLOATS)
def stft_(g: Builder, signal: Tensor, frames: StftPlan) -> Tensor:
    """Transforms of frames; what has no fast one is a convolution with the windowed waves."""
    waves, hop, window = frames.waves, frames.step, frames.window
    size, batch, samples = waves.shape[1], signal.shape[0], signal.shape[1]
    is_fast = frames.onesided and fourier.possible(size) and g.on_cpu and signal.dtype == "float32"
    if is_fast and signal.is_static and samples >= size and batch:
        factors = np.ones(size) if window is None else window
        sizes = Frames(batch, samples, size, hop)
        return frames_of(g, signal, sizes, factors.astype(np.float32))
    x = convert(g, signal, "float32") if signal.dtype == "float16" else signal
    line = transpose(g, reshape(g, x, (batch, samples, frames.parts)), (0, 2, 1))
    weights = g.const(np.ascontiguousarray(waves.transpose(0, 2, 1)), x.dtype)
    w = windows(line.shape[2:], weights.shape[2:], [hop], None, None, "NOTSET")
    made = transpose(g, convolve(g, line, weights, w, 1), (0, 2, 1))
    shape = (*made.shape[:2], len(waves) // 2, 2)
    return convert(g, reshape(g, made, shape), signal.dtype)
