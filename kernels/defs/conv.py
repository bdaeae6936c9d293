"""Convolutions over (batch, channels, height, width) with constant weights.

A convolution is a matrix product whose right side is gathered from the image. It is gathered for
as many whole output rows as fill a block, so that results are stored in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812

from edgeinfer.kernels.defs.emit import (
    Buffer,
    Expr,
    KernelCpu,
    Piece,
    function,
    load,
    loop,
    pieces,
    splat,
    store,
)
from edgeinfer.kernels.defs.gemm import PARALLEL_ABOVE, Finish, block, pack_rows, tile_for
from edgeinfer.records import dataclass
from edgeinfer.types import Array

_PANEL = 128
"""Output elements of one panel: with a thousand rows it still fits a core's second cache."""


STRAIGHT_UP_TO = 2048
"""Products written one behind the other. A row of audio has tens of thousands of elements: with 256
taps its convolution would be 700,000, over which LLVM takes minutes."""

BLOCKS_UP_TO = 16
"""Blocks of a row that are written one behind the other."""

TAPS_UP_TO = 16
"""Taps along an axis that are gathered one behind the other; more are a loop, or a filter of 256
taps over a recording would be 512 lines before the first product."""

WINDOW_UP_TO = 64
"""Taps of a window that are: LLVM takes minutes over the 256 copies of a vision transformer's first
layer, each of a row of 14."""

DEPTHWISE_UP_TO = 4
"""Filters of one input channel that are written one behind the other, whatever their size."""

DEPTHWISE_TAPS_UP_TO = 160
"""Elements of the filters of one input channel that are: eight of 3 x 3 over 28 x 28 take 1.0 us as
straight code and 2.2 as a product of matrices."""


@dataclass(frozen=True, slots=True)
class ConvWindow:
    """Sizes of a two-dimensional convolution.

    Attributes:
        batch: images.
        channels: Channels of the input.
        filters: channels of the output.
        groups: parts that do not see one another.
        size: height and width of the input.
        kernel: height and width of the window.
        strides: Strides of the window.
        dilations: distance of the window's elements.
        pads: above, left, below, right.
    """

    batch: int
    channels: int
    filters: int
    groups: int
    size: tuple[int, int]
    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    pads: tuple[int, int, int, int]

    @property
    def out(self) -> tuple[int, int]:
        """Height and width of the output."""
        sizes = []
        for axis in (0, 1):
            reach = self.dilations[axis] * (self.kernel[axis] - 1) + 1
            padded = self.size[axis] + self.pads[axis] + self.pads[axis + 2]
            sizes.append((padded - reach) // self.strides[axis] + 1)
        return sizes[0], sizes[1]

    @property
    def depth(self) -> int:
        """Products in each sum."""
        return self.channels // self.groups * self.kernel[0] * self.kernel[1]

    @property
    def is_depthwise(self) -> bool:
        """Whether each output channel sees one input channel, of which few see the same one.

        Many filters over one channel, as in a Fourier transform of audio, are a matrix product; in
        straight code they would be tens of thousands of lines.
        """
        each = self.filters // self.channels
        few = each <= DEPTHWISE_UP_TO or each * self.depth <= DEPTHWISE_TAPS_UP_TO
        return self.groups == self.channels and few

    @property
    def is_pointwise(self) -> bool:
        """Whether the right side is the image as it lies."""
        plain = self.kernel == (1, 1) and self.strides == (1, 1)
        return plain and not any(self.pads)

    def valid(self, axis: int, tap: int) -> tuple[int, int]:
        """First and last + 1 output index along an axis whose input at a tap is not padding."""
        shift = tap * self.dilations[axis] - self.pads[axis]
        stride, size = self.strides[axis], self.size[axis]
        first = min(max(0, -(shift // stride)), self.out[axis])
        last = min(self.out[axis], (size - 1 - shift) // stride + 1)
        return first, max(first, last)

    def covers(self, axis: int) -> bool:
        """Whether every tap along an axis stays inside the input."""
        last = (self.kernel[axis] - 1) * self.dilations[axis]
        reach = (self.out[axis] - 1) * self.strides[axis] + last
        return self.pads[axis] <= 0 and reach - self.pads[axis] < self.size[axis]


def pack(weights: Array, window: ConvWindow, cpu: KernelCpu) -> Array:
    """Lay weights (filters, channels of a group, kh, kw) out as the kernel reads them."""
    if window.is_depthwise:
        return np.ascontiguousarray(weights.reshape(window.filters, -1))
    per = window.filters // window.groups
    tile = tile_for(cpu, max(2, per))
    flat = weights.reshape(window.groups, per, -1)
    return np.stack([pack_rows(w, tile.rows) for w in flat])


def conv(
    cpu: KernelCpu,
    window: ConvWindow,
    *,
    extra: dict[str, tuple[Sequence[int], str]],
    finish: Callable[..., Finish],
) -> tirx.PrimFunc:
    """Convolve; ``finish`` gets (value, output channel, position in the plane, width)."""
    return (_depthwise if window.is_depthwise else _dense)(cpu, window, extra, finish)


def _buffers(
    w: ConvWindow, packed: Sequence[int], extra: dict[str, tuple[Sequence[int], str]]
) -> dict[str, tuple[Sequence[int], str]]:
    return {
        "x": ((w.batch, w.channels, w.size[0] * w.size[1]), "float32"),
        "w": (packed, "float32"),
        **extra,
        "out": ((w.batch, w.filters, w.out[0] * w.out[1]), "float32"),
    }


@dataclass(frozen=True, slots=True)
class _Cut:
    """How the output's plane is cut into panels.

    Attributes:
        step: elements of one panel.
        unit: what a panel's place counts: elements, or rows of the output.
    """

    step: int
    unit: int


def _cut(w: ConvWindow) -> _Cut:
    height, width = w.out
    if w.is_pointwise:
        # The plane is cut anywhere.
        step = min(_PANEL, height * width)
        return _Cut(step, step)
    rows = max(1, min(height, _PANEL // width))
    return _Cut(rows * width, rows)


def _dense(
    cpu: KernelCpu,
    w: ConvWindow,
    extra: dict[str, tuple[Sequence[int], str]],
    finish: Callable[..., Finish],
) -> tirx.PrimFunc:
    height, width = w.out
    per = w.filters // w.groups
    tile = tile_for(cpu, max(2, per))
    packed = (w.groups, -(-per // tile.rows), w.depth, tile.rows)
    parallel = w.batch * w.filters * w.depth * height * width >= PARALLEL_ABOVE
    cut, total = _cut(w), height * width
    full = total // cut.step

    def body(x: Buffer, weights: Buffer, *rest: Buffer) -> None:
        *others, out = rest
        end = finish(*others)

        def panel_block(n: Expr, group: Expr, first: Expr, count: int) -> None:
            panel = None
            if not w.is_pointwise:
                panel = T.alloc_buffer((w.depth, cut.step), "float32")
                _gather(x, panel, w, n, group, (first, count // width))
            where = first if panel is None else first * width

            def one(start: Expr | int, columns: int) -> None:
                parts = pieces(columns, cpu.lanes)

                def right(k: Expr, p: Piece) -> Expr:
                    if panel is not None:
                        return load(panel, [k, start + p.start], p.width)
                    channel = group * (w.channels // w.groups) + k
                    return load(x, [n, channel, first + start + p.start], p.width)

                place = (n, group, where + start)
                _filters(w, (weights, out), tile.rows, place, (parts, right, end))

            _along(count, tile.columns, count > BLOCKS_UP_TO * tile.columns, one)

        with T.serial(w.batch) as n, T.serial(w.groups) as group:
            with loop(full, parallel and full > 1) as at:
                panel_block(n, group, at * cut.unit, cut.step)
            if total % cut.step:
                panel_block(n, group, full * cut.unit, total % cut.step)

    return function("conv", _buffers(w, packed, extra), body)


def _along(count: int, step: int, in_loop: bool, one: Callable[[Expr | int, int], None]) -> None:
    """Emit a row in steps, one behind the other or in a loop; ``one`` gets start and length."""
    whole = count // step
    if in_loop and whole > 1:
        with T.serial(whole) as at:
            one(at * step, step)
    else:
        for at in range(whole):
            one(at * step, step)
    if count % step:
        one(whole * step, count % step)


def _filters(
    w: ConvWindow,
    memory: tuple[Buffer, Buffer],
    height: int,
    place: tuple[Expr, Expr, Expr],
    how: tuple[list[Piece], Callable[[Expr, Piece], Expr], Finish],
) -> None:
    """All filters of a group over some columns of a panel."""
    weights, out = memory
    n, group, where = place
    parts, right, end = how
    per = w.filters // w.groups

    def some(mb: Expr, tall: int) -> None:
        base = group * per + mb * height
        block(
            tall,
            parts,
            w.depth,
            lambda i, k: T.BufferLoad(weights, [group, mb, k, i]),
            right,
            lambda i, p, value: store(
                out,
                [n, base + i, where + p.start],
                end(value, n * w.filters + base + i, where + p.start, p.width),
                p.width,
            ),
        )

    if per // height:
        with T.serial(per // height) as mb:
            some(mb, height)
    if per % height:
        some(per // height, per % height)


def _gather(
    x: Buffer, panel: Buffer, w: ConvWindow, n: Expr, group: Expr, where: tuple[Expr, int]
) -> None:
    """Fill a panel: for each channel and tap the inputs of some output rows, zeros beyond."""
    first, rows = where
    width = w.out[1]
    per = w.channels // w.groups
    kh, kw = w.kernel
    with T.serial(per) as c, T.serial(rows) as r:

        def tap_row(i: Expr | int) -> None:
            row = (first + r) * w.strides[0] + (i * w.dilations[0] - w.pads[0])

            def taps(fill: Callable[[Expr, Expr | int], None]) -> None:
                _taps(kw, lambda j: fill((c * kh + i) * kw + j, j))

            def copy(k: Expr, j: Expr | int) -> None:
                low, high = _bounds(w, j)
                _fill(panel, k, r * width, low)
                _fill(panel, k, r * width + high, width - high)
                source = row * w.size[1] + (j * w.dilations[1] - w.pads[1])
                if isinstance(high, int) and high == low:
                    return
                with T.serial(high - low) as at:
                    place = source + (at + low) * w.strides[1]
                    value = T.BufferLoad(x, [n, group * per + c, place])
                    T.buffer_store(panel, value, [k, r * width + low + at])

            is_inside = isinstance(i, int) and w.valid(0, i) == (0, w.out[0])
            if is_inside or w.covers(0):
                taps(copy)
                return
            with T.If(tirx.all(row >= 0, row < w.size[0])):
                with T.Then():
                    taps(copy)
                with T.Else():
                    taps(lambda k, j: _fill(panel, k, r * width, width))

        _taps(kh, tap_row, most=WINDOW_UP_TO // kw)


def _taps(count: int, one: Callable[[Expr | int], None], most: int = TAPS_UP_TO) -> None:
    """Emit something for each tap, one behind the other where they are few."""
    if count > min(most, TAPS_UP_TO):
        with T.serial(count) as tap:
            one(tap)
    else:
        for tap in range(count):
            one(tap)


def _bounds(w: ConvWindow, tap: Expr | int) -> tuple[Expr | int, Expr | int]:
    """First and last + 1 column whose input at a tap is not padding."""
    if isinstance(tap, int):
        return w.valid(1, tap)
    if w.covers(1):
        return 0, w.out[1]
    shift = tap * w.dilations[1] - w.pads[1]
    first = tirx.max(0, 0 - tirx.floordiv(shift, w.strides[1]))
    last = tirx.min(w.out[1], tirx.floordiv(w.size[1] - 1 - shift, w.strides[1]) + 1)
    return tirx.min(first, w.out[1]), tirx.max(tirx.min(first, w.out[1]), last)


def _fill(panel: Buffer, k: Expr, start: Expr, count: Expr | int) -> None:
    if not isinstance(count, int) or count > 0:
        with T.serial(count) as at:
            T.buffer_store(panel, T.float32(0), [k, start + at])


def _depthwise(
    cpu: KernelCpu,
    w: ConvWindow,
    extra: dict[str, tuple[Sequence[int], str]],
    finish: Callable[..., Finish],
) -> tirx.PrimFunc:
    """Each plane is copied with its border, columns parted by the stride; it stays cached."""
    height, width = w.out
    kh, kw = w.kernel
    stride = w.strides[1]
    per = w.filters // w.channels
    tall = (height - 1) * w.strides[0] + (kh - 1) * w.dilations[0] + 1
    reach = (width - 1) * stride + (kw - 1) * w.dilations[1] + 1
    wide = -(-reach // stride)
    parallel = w.batch * w.filters * height * width * kh * kw >= PARALLEL_ABOVE // 4

    def body(x: Buffer, weights: Buffer, *rest: Buffer) -> None:
        *others, out = rest
        end = finish(*others)
        with T.serial(w.batch) as n, loop(w.channels, parallel) as c:
            plane = T.alloc_buffer((tall, stride, wide), "float32")
            _copy_plane(x, plane, w, n, c, (tall, stride, wide))
            for f in range(per):
                with T.serial(height) as row:
                    _plane_row(cpu, w, (plane, weights, out), (n, c * per + f, row), end)

    return function("depthwise", _buffers(w, (w.filters, kh * kw), extra), body)


def _plane_row(
    cpu: KernelCpu,
    w: ConvWindow,
    memory: tuple[Buffer, Buffer, Buffer],
    where: tuple[Expr, Expr, Expr],
    end: Finish,
) -> None:
    """One row of one output channel, from a plane whose columns are parted by the stride."""
    plane, weights, out = memory
    n, channel, row = where
    (kh, kw), width, lanes = w.kernel, w.out[1], cpu.lanes

    def one(start: Expr | int, columns: int) -> None:
        for p in pieces(columns, lanes):
            total = splat(T.float32(0), p.width)
            for i in range(kh):
                for j in range(kw):
                    shift, phase = divmod(j * w.dilations[1], w.strides[1])
                    line = row * w.strides[0] + i * w.dilations[0]
                    value = load(plane, [line, phase, start + (p.start + shift)], p.width)
                    weight = T.BufferLoad(weights, [channel, i * kw + j])
                    total = total + value * splat(weight, p.width)
            place = row * width + (start + p.start)
            done = end(total, channel, place, p.width)
            store(out, [n, channel, place], done, p.width)

    taps = w.filters // w.channels * kh * kw
    step = lanes * max(1, STRAIGHT_UP_TO // (8 * taps))
    _along(width, step, taps * -(-width // lanes) > STRAIGHT_UP_TO, one)


def _copy_plane(
    x: Buffer, plane: Buffer, w: ConvWindow, n: Expr, c: Expr, shape: tuple[int, int, int]
) -> None:
    tall, stride, wide = shape
    top, left = w.pads[0], w.pads[1]
    with T.serial(tall) as row:
        inside = tirx.all(row >= top, row < top + w.size[0])
        for phase in range(stride):
            # Column of the input: at * stride + phase - left.
            low = max(0, -((phase - left) // stride))
            high = max(low, min(wide, (w.size[1] - 1 - phase + left) // stride + 1))

            def zeros(start: int, stop: int, phase: int = phase) -> None:
                if stop > start:
                    with T.serial(stop - start) as at:
                        T.buffer_store(plane, T.float32(0), [row, phase, start + at])

            with T.If(inside):
                with T.Then():
                    zeros(0, low)
                    if high > low:
                        with T.serial(high - low) as at:
                            place = (row - top) * w.size[1] + (at + low) * stride + phase - left
                            value = T.BufferLoad(x, [n, c, place])
                            T.buffer_store(plane, value, [row, phase, low + at])
                    zeros(high, wide)
                with T.Else():
                    zeros(0, wide)
