"""Convolutions; weights are put into ONNX's order where they are stored."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.sources.tflite.importer import Importer
from edgeinfer.convert.sources.tflite.operand import Operand, Options
from edgeinfer.convert.sources.tflite.ops.window import (
    SAME,
    channels_first,
    channels_last,
    window,
)
from edgeinfer.convert.sources.tflite.registry import READERS

HYBRID = (
    "operators with 8-bit weights and float data were read as float: the file's kernels round "
    "the data to 8 bits when they run"
)


@READERS.reader("CONV_2D")
def conv_2d(g: Importer, o: Options, x: Operand, w: Operand, b: Operand | None = None) -> ir.Value:
    """Conv, in groups where the weights have fewer channels than the data."""
    outs, height, width, depth = sizes_of(w, 4)
    channels = x.shape[3]
    if channels is None or depth < 1 or channels % depth or outs % (channels // depth):
        raise Refusal(f"weights for {depth} of {channels} channels")
    group = channels // depth
    return _planar(g, o, x, w, b, (0, 3, 1, 2), (height, width), group)


@READERS.reader("DEPTHWISE_CONV_2D")
def depthwise_conv_2d(
    g: Importer, o: Options, x: Operand, w: Operand, b: Operand | None = None
) -> ir.Value:
    """Conv with a group for each channel."""
    _, height, width, outs = sizes_of(w, 4)
    channels = x.shape[3]
    if not channels or outs % channels:
        raise Refusal(f"{outs} results of {channels} channels")
    return _planar(g, o, x, w, b, (3, 0, 1, 2), (height, width), channels)


def _planar(
    g: Importer,
    o: Options,
    x: Operand,
    w: Operand,
    b: Operand | None,
    perm: tuple[int, ...],
    kernel: tuple[int, int],
    group: int,
) -> ir.Value:
    note_hybrid(g, x, w)
    placed = window(
        o.padding,
        x.shape[1:3],
        kernel,
        (o.stride_h, o.stride_w),
        (o.dilation_h_factor or 1, o.dilation_w_factor or 1),
    )
    data = channels_first(g, x, 4)
    y = g.emit("Conv", data, w.transposed(perm), b, group=group, **placed)
    return channels_last(g, g.activate(y, o), 4)


@READERS.reader("CONV_3D")
def conv_3d(g: Importer, o: Options, x: Operand, w: Operand, b: Operand | None = None) -> ir.Value:
    """Conv over three axes."""
    *kernel, depth, _ = sizes_of(w, 5)
    channels = x.shape[4]
    if not channels or depth < 1 or channels % depth:
        raise Refusal(f"weights for {depth} of {channels} channels")
    placed = window(
        o.padding,
        x.shape[1:4],
        kernel,
        (o.stride_d, o.stride_h, o.stride_w),
        (o.dilation_d_factor or 1, o.dilation_h_factor or 1, o.dilation_w_factor or 1),
    )
    data, taps = channels_first(g, x, 5), w.transposed((4, 3, 0, 1, 2))
    y = g.emit("Conv", data, taps, b, group=channels // depth, **placed)
    return channels_last(g, g.activate(y, o), 5)


@READERS.reader("TRANSPOSE_CONV")
def transpose_conv(
    g: Importer, o: Options, shape: Operand, w: Operand, x: Operand, b: Operand | None = None
) -> ir.Value:
    """ConvTranspose, cut to the shape that is requested."""
    outs, *kernel, _ = sizes_of(w, 4)
    note_hybrid(g, x, w)
    return _transposed(
        g, o, shape, x, w.transposed((3, 0, 1, 2)), b, outs, kernel, (o.stride_h, o.stride_w)
    )


@READERS.reader("CONV_3D_TRANSPOSE")
def conv_3d_transpose(
    g: Importer, o: Options, shape: Operand, w: Operand, x: Operand, b: Operand | None = None
) -> ir.Value:
    """ConvTranspose over three axes."""
    *kernel, outs, _ = sizes_of(w, 5)
    strides = (o.stride_d, o.stride_h, o.stride_w)
    if {o.dilation_d_factor, o.dilation_h_factor, o.dilation_w_factor} - {0, 1}:
        raise Refusal("dilated transposed convolutions")
    return _transposed(g, o, shape, x, w.transposed((4, 3, 0, 1, 2)), b, outs, kernel, strides)


def _transposed(
    g: Importer,
    o: Options,
    shape: Operand,
    x: Operand,
    taps: ir.Value,
    b: Operand | None,
    outs: int,
    kernel: Sequence[int],
    strides: Sequence[int],
) -> ir.Value:
    """The full result is ``(size - 1) * stride + kernel`` long; SAME centres what is kept."""
    data = channels_first(g, x, x.rank)
    wanted = shape.ints()
    sizes = x.shape[1:-1]
    if min(*strides, *kernel) < 1:
        raise ValueError(f"strides {list(strides)}, kernel {list(kernel)}")
    bias = b
    if wanted is not None and None not in sizes:
        spans = [(i or 0) * s - s + k for i, s, k in zip(sizes, strides, kernel, strict=True)]
        totals = [max(f - n, 0) for f, n in zip(spans, wanted[1:-1], strict=True)]
        begins = [t // 2 if o.padding == SAME else 0 for t in totals]
        ends = [f - n - lo for f, n, lo in zip(spans, wanted[1:-1], begins, strict=True)]
        extra = [max(-e, 0) for e in ends]
        if any(e >= s for e, s in zip(extra, strides, strict=True)):
            raise Refusal("a result longer than the strides allow")
        pads = [*begins, *(max(e, 0) for e in ends)]
        y = g.emit(
            "ConvTranspose",
            data,
            taps,
            bias,
            strides=list(strides),
            kernel_shape=list(kernel),
            pads=pads if any(pads) else None,
            output_padding=extra if any(extra) else None,
        )
    else:
        y = g.emit("ConvTranspose", data, taps, strides=list(strides), kernel_shape=list(kernel))
        y = _cut(g, y, shape, len(kernel), o.padding == SAME)
        if bias is not None:
            y = g.emit("Add", y, g.emit("Reshape", bias, g.shape([outs, *[1] * len(kernel)])))
    return channels_last(g, g.activate(y, o), x.rank)


def _cut(g: Importer, y: ir.Value, shape: Operand, axes: int, centre: bool) -> ir.Value:
    """Take the part of a full result that a shape known at run time asks for."""
    last = np.iinfo(np.int64).max
    spatial = g.shape(range(2, 2 + axes))
    sizes = g.emit("Slice", shape.int64(), g.shape([1]), g.shape([1 + axes]), g.shape([0]))
    full = g.emit("Slice", g.emit("Shape", y), g.shape([2]), g.shape([last]), g.shape([0]))
    spare = g.emit("Sub", full, sizes)
    zero = g.shape([0])
    missing = g.emit("Neg", g.emit("Min", spare, zero))
    nothing = g.const(np.zeros(axes, np.int64))
    y = g.emit("Pad", y, g.emit("Concat", nothing, missing, axis=0), np.float32(0), spatial)
    begin = nothing
    if centre:
        begin = g.emit("Div", g.emit("Max", spare, zero), g.shape([2]))
    return g.emit("Slice", y, begin, g.emit("Add", begin, sizes), spatial)


def sizes_of(w: Operand, rank: int) -> tuple[int, ...]:
    """The shape of weights, which must be known."""
    sizes = tuple(s for s in w.shape if s is not None)
    if len(w.shape) != rank or len(sizes) != rank:
        raise Refusal(f"weights of shape {list(w.shape)}", "dynamic_shape")
    return sizes


def note_hybrid(g: Importer, x: Operand, w: Operand) -> None:
    """Say once that data is not rounded although the weights are."""
    direct = w.tensor.scale is not None and w.tensor.kind.startswith(("INT", "UINT"))
    if direct and x.tensor.scale is None and HYBRID not in g.notes.lines:
        g.notes.add(HYBRID)
