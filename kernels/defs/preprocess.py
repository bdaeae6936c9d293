"""A picture to the tensor that a model takes, in one pass: cut, resize, normalise, lay out.

The picture has any size; the rectangle of it that fills the output is given with each call, so that
stretching, cropping and letterboxing are the same kernel. Bilinear, between the four nearest pixels
(no average over what is left out, as OpenCV's ``INTER_LINEAR`` does it), computed in float32.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812

from edgeinfer.kernels.defs.emit import Buffer, Expr, function, load, loop, splat, store
from edgeinfer.types import Array

CHANNELS = 3


@dataclass(frozen=True, slots=True)
class Picture:
    """What comes out.

    Attributes:
        height: of the output.
        width: of the output.
        layout: ``NCHW`` or ``NHWC``.
        swap: channels in reverse order, BGR for RGB.
        parallel: rows are shared out among threads.
    """

    height: int
    width: int
    layout: str = "NCHW"
    swap: bool = False
    parallel: bool = True

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the output."""
        if self.layout == "NCHW":
            return (1, CHANNELS, self.height, self.width)
        return (1, self.height, self.width, CHANNELS)


def preprocess(picture: Picture) -> tirx.PrimFunc:
    """Build the kernel.

    Inputs: the picture (height, width, 3) of uint8; the rectangle (left, top, width, height) in its
    pixels, float32; factor, offset and the value around the picture, (3, 3) float32 by channel of
    the output: ``pixel * factor + offset``. Output: float32 of ``picture.shape``.
    """
    height, width = tirx.Var("h", "int32"), tirx.Var("w", "int32")
    buffers = {
        "source": ((height, width, CHANNELS), "uint8"),
        "box": ((4,), "float32"),
        "norm": ((3, CHANNELS), "float32"),
        "out": (picture.shape, "float32"),
    }

    def body(source: Buffer, box: Buffer, norm: Buffer, out: Buffer) -> None:
        near = T.alloc_buffer((picture.width, 2), "int32")
        share = T.alloc_buffer((picture.width,), "float32")
        beyond = T.alloc_buffer((picture.width,), "int32")
        some = T.alloc_buffer((1,), "int32")
        T.buffer_store(some, T.int32(0), [0])
        with T.serial(picture.width) as x:
            _taps(_place(box, 0, x, picture.width), width, (near, share, beyond), x)
            T.buffer_store(some, T.BufferLoad(some, [0]) + T.BufferLoad(beyond, [x]), [0])
        with loop(picture.height, picture.parallel) as y:
            rows = T.alloc_buffer((1, 2), "int32")
            part = T.alloc_buffer((1,), "float32")
            out_y = T.alloc_buffer((1,), "int32")
            # Four lanes to a pixel: one load takes its three channels and a byte of the next.
            line = T.alloc_buffer((picture.width, 4), "float32")
            _taps(_place(box, 1, y, picture.height), height, (rows, part, out_y), 0)
            blend = (source, (near, share), (rows, part), line)
            with T.If(T.BufferLoad(out_y, [0]) > 0):
                with T.Then(), T.serial(picture.width) as x:
                    _surround(picture, norm, line, x)
                with T.Else(), T.If(T.BufferLoad(rows, [0, 1]) < height - 1):
                    with T.Then(), T.serial(picture.width) as x:
                        _blend(*blend, x, (0, 4))
                    # There is no byte behind the last pixel.
                    with T.Else(), T.serial(picture.width) as x:
                        for c in range(CHANNELS):
                            _blend(*blend, x, (c, 1))
            with T.If(T.BufferLoad(some, [0]) > 0), T.Then(), T.serial(picture.width) as x:
                _surround_if(beyond, picture, norm, line, x)
            _store(picture, line, norm, out, y)

    return function("preprocess", buffers, body)


def _surround(picture: Picture, norm: Buffer, line: Buffer, x: Expr) -> None:
    for c in range(CHANNELS):
        place = CHANNELS - 1 - c if picture.swap else c
        T.buffer_store(line, T.BufferLoad(norm, [2, c]), [x, place])


def _surround_if(beyond: Buffer, picture: Picture, norm: Buffer, line: Buffer, x: Expr) -> None:
    with T.If(T.BufferLoad(beyond, [x]) > 0), T.Then():
        _surround(picture, norm, line, x)


def _store(picture: Picture, line: Buffer, norm: Buffer, out: Buffer, y: Expr) -> None:
    """Normalise a row and lay it out."""

    def one(x: Expr, c: int) -> None:
        value = T.BufferLoad(line, [x, CHANNELS - 1 - c if picture.swap else c])
        done = value * T.BufferLoad(norm, [0, c]) + T.BufferLoad(norm, [1, c])
        T.buffer_store(out, done, [0, c, y, x] if picture.layout == "NCHW" else [0, y, x, c])

    if picture.layout == "NCHW":
        for c in range(CHANNELS):
            with T.serial(picture.width) as x:
                one(x, c)
    else:
        with T.serial(picture.width) as x:
            for c in range(CHANNELS):
                one(x, c)


def _place(box: Buffer, axis: int, index: Expr, count: int) -> Expr:
    """Where an output element's centre lies in the picture; float32 would be off by its width."""

    def wide(i: int) -> Expr:
        return tirx.Cast("float64", T.BufferLoad(box, [i]))

    middle = tirx.Cast("float64", index) + T.float64(0.5)
    return wide(axis) + middle * (wide(axis + 2) / T.float64(count)) - T.float64(0.5)


def _taps(place: Expr, size: Expr, to: tuple[Buffer, Buffer, Buffer], index: Expr) -> None:
    """Store the two neighbours of a place, the second one's share, and whether it lies outside."""
    near, share, beyond = to
    end = tirx.Cast("float64", size)
    inside = tirx.all(place > T.float64(-0.5), place < end - T.float64(0.5))
    held = tirx.Min(tirx.Max(place, T.float64(0)), end - T.float64(1))
    low = tirx.Cast("int32", tirx.floor(held))
    T.buffer_store(share, tirx.Cast("float32", held - tirx.Cast("float64", low)), [index])
    T.buffer_store(near, low, [index, 0])
    T.buffer_store(near, tirx.Min(low + 1, size - 1), [index, 1])
    T.buffer_store(beyond, tirx.Select(inside, T.int32(0), T.int32(1)), [index])


def _blend(
    source: Buffer,
    columns: tuple[Buffer, Buffer],
    rows: tuple[Buffer, Buffer],
    line: Buffer,
    x: Expr,
    part: tuple[int, int],
) -> None:
    """Blend some channels of four pixels."""
    channel, width = part

    def pixel(row: int, column: int) -> Expr:
        where = [T.BufferLoad(rows[0], [0, row]), T.BufferLoad(columns[0], [x, column]), channel]
        kind = "float32" if width == 1 else f"float32x{width}"
        return tirx.Cast(kind, load(source, where, width))

    fx = splat(T.BufferLoad(columns[1], [x]), width)
    fy = splat(T.BufferLoad(rows[1], [0]), width)
    above = pixel(0, 0) + (pixel(0, 1) - pixel(0, 0)) * fx
    below = pixel(1, 0) + (pixel(1, 1) - pixel(1, 0)) * fx
    store(line, [x, channel], above + (below - above) * fy, width)


def reference(
    source: Array, box: Array, norm: Array, picture: Picture, dtype: str = "float64"
) -> Array:
    """The same in NumPy."""
    taps = []
    for axis, count, size in (
        (0, picture.width, source.shape[1]),
        (1, picture.height, source.shape[0]),
    ):
        place = box[axis] + (np.arange(count, dtype=dtype) + 0.5) * box[axis + 2] / count - 0.5
        inside = (place > -0.5) & (place < size - 0.5)
        held = np.clip(place, 0, size - 1)
        low = np.floor(held).astype(int)
        taps.append((low, np.minimum(low + 1, size - 1), held - low, inside))
    (x0, x1, fx, in_x), (y0, y1, fy, in_y) = taps
    pixels = source[..., ::-1] if picture.swap else source
    pixels = pixels.astype(dtype)
    fx, fy = fx[None, :, None], fy[:, None, None]
    above = pixels[y0][:, x0] * (1 - fx) + pixels[y0][:, x1] * fx
    below = pixels[y1][:, x0] * (1 - fx) + pixels[y1][:, x1] * fx
    value = above * (1 - fy) + below * fy
    value = np.where((in_y[:, None] & in_x[None])[..., None], value, norm[2])
    value = (value * norm[0] + norm[1])[None]
    return np.asarray(value.transpose(0, 3, 1, 2) if picture.layout == "NCHW" else value)
