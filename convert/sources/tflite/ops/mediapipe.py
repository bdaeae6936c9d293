"""MediaPipe's custom operators, as ONNX's own.

They compute in floats only and, those that move images and landmarks, one image at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.sources.tflite import custom
from edgeinfer.convert.sources.tflite.importer import Importer
from edgeinfer.convert.sources.tflite.operand import Operand, Options
from edgeinfer.convert.sources.tflite.ops.conv import sizes_of
from edgeinfer.convert.sources.tflite.ops.window import (
    SAME,
    VALID,
    channels_first,
    channels_last,
    window,
)
from edgeinfer.convert.sources.tflite.registry import CUSTOM
from edgeinfer.types import Array

_CLIPS = range(4)
"""Fused activations that clip; MediaPipe leaves others out."""

_ROUND = 0.1
"""Added to an index that is stored as a float, so that cutting it off gives the integer."""


@CUSTOM.reader("Convolution2DTransposeBias")
def transposed_convolution(g: Importer, o: Options, x: Operand, w: Operand, b: Operand) -> ir.Value:
    """ConvTranspose, of which SAME cuts off what lies over the data's own windows."""
    _floats(x, w, b)
    wanted = custom.deconvolution(o.raw)
    outs, *kernel, depth = sizes_of(w, 4)
    if x.rank != 4 or b.shape != (outs,) or x.shape[3] != depth:
        raise ValueError(f"operands of shapes {x.shape}, {w.shape}, {b.shape}")
    if min(*wanted.strides, *kernel) < 1:
        raise ValueError(f"strides {list(wanted.strides)}, kernel {kernel}")
    totals = [
        _spare(size, k, stride) if wanted.same else 0
        for size, k, stride in zip(x.shape[1:3], kernel, wanted.strides, strict=True)
    ]
    pads = [*(t // 2 for t in totals), *(t - t // 2 for t in totals)]
    y = g.emit(
        "ConvTranspose",
        channels_first(g, x, 4),
        w.transposed((3, 0, 1, 2)),
        b,
        strides=list(wanted.strides),
        kernel_shape=kernel,
        pads=pads if any(pads) else None,
    )
    return channels_last(g, y, 4)


def _spare(size: int | None, kernel: int, stride: int) -> int:
    """Elements cut off; they depend on the size unless the strides or the kernel are 1."""
    if stride == 1 or kernel == 1:
        return kernel - 1
    if size is None:
        raise Refusal(
            "SAME padding of a size that a run decides",
            "dynamic_shape",
            "fix the sizes of the model's inputs",
        )
    return max(kernel - 1 - (size - 1) % stride, 0)


@CUSTOM.reader("MaxPoolingWithArgmax2D")
def max_pool_with_places(g: Importer, o: Options, x: Operand) -> list[ir.Value]:
    """MaxPool, and which element of its window each result is: rows of the window first."""
    _floats(x)
    wanted = custom.pool(o.raw)
    padding = SAME if wanted.same else VALID
    placed = window(padding, x.shape[1:3], wanted.kernel, wanted.strides)
    if wanted.activation not in _CLIPS:
        raise Refusal(f"fused activation {wanted.activation}")
    if placed.get("auto_pad") or any(s is None for s in x.shape[1:]):
        raise Refusal("windows over sizes that a run decides", "dynamic_shape")
    y = channels_last(g, g.emit("MaxPool", channels_first(g, x, 4), **placed), 4)
    indices = g.emit("Cast", _places(g, x, placed), to=ir.DataType.FLOAT)
    return [
        g.clipped(y, wanted.activation, o),
        g.emit("Add", indices, np.float32(_ROUND)),
    ]


def _places(g: Importer, x: Operand, placed: dict[str, list[int]]) -> ir.Value:
    """The first of the largest elements of each window, which lie side by side for it."""
    kernel, strides = placed["kernel_shape"], placed["strides"]
    pads = placed.get("pads", [0, 0, 0, 0])
    data = x.real
    if any(pads):
        around = g.shape([0, *pads[:2], 0, 0, *pads[2:], 0])
        data = g.emit("Pad", data, around, np.finfo(np.float32).min)
    padded = [int(s or 0) + pads[i] + pads[i + 2] for i, s in enumerate(x.shape[1:3])]
    # Where the last window starts.
    lasts = [(n - k) // s * s for n, k, s in zip(padded, kernel, strides, strict=True)]
    axes, steps = g.shape([1, 2]), g.shape(strides)
    parts = []
    for first in np.ndindex(*kernel):
        ends = [f + last + 1 for f, last in zip(first, lasts, strict=True)]
        part = g.emit("Slice", data, g.shape(first), g.shape(ends), axes, steps)
        parts.append(g.emit("Unsqueeze", part, g.shape([4])))
    return g.emit("ArgMax", g.emit("Concat", *parts, axis=4), axis=4, keepdims=0)


@CUSTOM.reader("MaxUnpooling2D")
def max_unpool(g: Importer, o: Options, x: Operand, indices: Operand) -> ir.Value:
    """Put each element where its window had it; zeros are around it."""
    _floats(x, indices)
    wanted = custom.pool(o.raw)
    if wanted.kernel != wanted.strides:
        raise Refusal(
            f"windows of {list(wanted.kernel)} with strides {list(wanted.strides)}; only windows "
            "that lie side by side are read"
        )
    height, width = wanted.kernel
    _, down, right, channels = _known(x, "windows over")
    aside = g.shape([-1, right, 1, channels])
    data = g.emit("Reshape", x, aside)
    chosen = g.emit("Cast", g.emit("Reshape", indices, aside), to=ir.DataType.INT32)
    rows = []
    for row in range(height):
        numbers = range(row * width, (row + 1) * width)
        hits = [g.emit("Equal", chosen, np.int32(number)) for number in numbers]
        cells = [g.emit("Where", hit, data, np.float32(0)) for hit in hits]
        line = g.shape([-1, 1, right * width * channels])
        rows.append(g.emit("Reshape", g.emit("Concat", *cells, axis=2), line))
    whole = g.shape([-1, down * height, right * width, channels])
    return g.emit("Reshape", g.emit("Concat", *rows, axis=1), whole)


@CUSTOM.reader("Landmarks2TransformMatrix")
def placing_of_landmarks(g: Importer, o: Options, points: Operand) -> ir.Value:
    """The matrix that takes a place of what is cut out to its place in the image.

    The angle of the line between two landmarks is never taken: its sine and cosine are the line's
    own sides, divided by its length.
    """
    _version(o, 2)
    _floats(points)
    p = custom.placing(o.raw)
    sizes = _known(points, "landmarks of")
    count = int(np.prod(sizes)) // 3
    if points.rank != 3 or sizes[0] != 1 or max(p.left, p.right, *p.subset) >= count:
        raise ValueError(f"{count} landmarks")
    flat = g.emit("Reshape", points, g.shape([count, 3]))
    cos, sin = _turn(g, flat, p)
    subset = g.emit("Gather", flat, g.shape(sorted(set(p.subset))), axis=0)
    x, y = _part(g, subset, 1, 0, 1), _part(g, subset, 1, 1, 2)
    across = g.emit("Sub", g.emit("Mul", x, cos), g.emit("Mul", y, sin))
    down = g.emit("Add", g.emit("Mul", x, sin), g.emit("Mul", y, cos))
    middle_x, width = _extent(g, across)
    middle_y, height = _extent(g, down)
    rows, columns = p.size
    step_x = g.emit("Mul", width, np.float32(p.scale[0] / columns))
    step_y = g.emit("Mul", height, np.float32(p.scale[1] / rows))
    left = g.emit("Sub", middle_x, g.emit("Mul", step_x, np.float32(columns / 2)))
    top = g.emit("Sub", middle_y, g.emit("Mul", step_y, np.float32(rows / 2)))
    first = [
        g.emit("Mul", cos, step_x),
        g.emit("Mul", sin, step_y),
        np.zeros(1, np.float32),
        g.emit("Add", g.emit("Mul", cos, left), g.emit("Mul", sin, top)),
    ]
    second = [
        g.emit("Neg", g.emit("Mul", sin, step_x)),
        g.emit("Mul", cos, step_y),
        np.zeros(1, np.float32),
        g.emit("Sub", g.emit("Mul", cos, top), g.emit("Mul", sin, left)),
    ]
    rest = np.eye(4, dtype=np.float32)[2:].ravel()
    return g.emit("Reshape", g.emit("Concat", *first, *second, rest, axis=0), g.shape([1, 4, 4]))


def _turn(g: Importer, flat: ir.Value, p: custom.LandmarkCrop) -> tuple[ir.Value, ir.Value]:
    """Cosine and sine of the angle from a line to the one that is wanted, each of one element."""
    ends = g.emit("Gather", flat, g.shape([p.left, p.right]), axis=0)
    line = g.emit("Sub", _part(g, ends, 0, 1, 2), _part(g, ends, 0, 0, 1))
    dx, dy = (g.emit("Reshape", _part(g, line, 1, i, i + 1), g.shape([1])) for i in (0, 1))
    length = g.emit("Sqrt", g.emit("Add", g.emit("Mul", dx, dx), g.emit("Mul", dy, dy)))
    # A line without a length points to the right, as atan2 has it.
    there = g.emit("Greater", length, np.float32(0))
    divisor = g.emit("Where", there, length, np.float32(1))
    cos = g.emit("Where", there, g.emit("Div", dx, divisor), np.float32(1))
    sin = g.emit("Neg", g.emit("Div", dy, divisor))
    if p.angle == 0:
        return cos, sin
    c, s = np.float32(np.cos(p.angle)), np.float32(np.sin(p.angle))
    return (
        g.emit("Sub", g.emit("Mul", cos, c), g.emit("Mul", sin, s)),
        g.emit("Add", g.emit("Mul", cos, s), g.emit("Mul", sin, c)),
    )


def _extent(g: Importer, values: ir.Value) -> tuple[ir.Value, ir.Value]:
    """The middle of the least and the largest of a column, and how far they are apart."""
    axes = g.shape([0, 1])
    least, most = (g.emit(k, values, axes, keepdims=0) for k in ("ReduceMin", "ReduceMax"))
    one = g.shape([1])
    middle = g.emit("Mul", g.emit("Add", least, most), np.float32(0.5))
    return g.emit("Reshape", middle, one), g.emit("Reshape", g.emit("Sub", most, least), one)


@CUSTOM.reader("TransformLandmarks")
def moved_landmarks(g: Importer, o: Options, points: Operand, matrix: Operand) -> ir.Value:
    """Take x and y of each landmark through a matrix; a third coordinate stays."""
    _version(o, 2)
    _floats(points, matrix)
    batch, _, dimensions = _known(points, "landmarks of") if points.rank == 3 else (0, 0, 0)
    if batch != 1 or dimensions not in (2, 3):
        raise Refusal(f"landmarks of shape {list(points.shape)}")
    rows = _part(g, _matrix(g, matrix), 0, 0, 2)
    turn = g.emit("Transpose", _part(g, rows, 1, 0, 2), perm=[1, 0])
    shift = g.emit("Transpose", _part(g, rows, 1, 3, 4), perm=[1, 0])
    flat = points.real if dimensions == 2 else _part(g, points.real, 2, 0, 2)
    moved = g.emit("Add", g.emit("MatMul", flat, turn), shift)
    if dimensions == 2:
        return moved
    return g.emit("Concat", moved, _part(g, points.real, 2, 2, 3), axis=2)


@CUSTOM.reader("TransformTensorBilinear")
def moved_picture(g: Importer, o: Options, x: Operand, matrix: Operand) -> ir.Value:
    """Cut out what a matrix says, with linear interpolation; zero outside of the data."""
    _version(o, 2)
    _floats(x, matrix)
    batch, height, width, channels = _known(x, "an image of") if x.rank == 4 else (0, 0, 0, 0)
    size = custom.cut_size(o.raw)
    if batch != 1:
        raise Refusal(f"{batch} images")
    if o.out.shape != (1, *size, channels):
        raise ValueError(f"a result of shape {list(o.out.shape)}")
    coordinates = g.emit("MatMul", _part(g, _matrix(g, matrix), 0, 0, 2), g.const(_grid(*size)))
    coordinates = g.emit("Sub", coordinates, np.float32(0.5))
    x_place, y_place = (
        g.emit("Reshape", _part(g, coordinates, 0, i, i + 1), g.shape([-1])) for i in (0, 1)
    )
    inside = g.emit("And", _within(g, x_place, width), _within(g, y_place, height))
    flat = g.emit("Reshape", x, g.shape([height * width, channels]))
    (x0, x1, right), (y0, y1, below) = (
        _neighbours(g, p, inside, s) for p, s in ((x_place, width), (y_place, height))
    )
    rows = [g.emit("Mul", y, np.int32(width)) for y in (y0, y1)]

    def read(row: ir.Value, column: ir.Value) -> ir.Value:
        return g.emit("Gather", flat, g.emit("Add", row, column), axis=0)

    upper, lower = (_mixed(g, read(r, x0), read(r, x1), right) for r in rows)
    y = _mixed(g, upper, lower, below)
    y = g.emit("Where", g.emit("Unsqueeze", inside, g.shape([1])), y, np.float32(0))
    return g.emit("Reshape", y, g.shape([1, *size, channels]))


def _grid(height: int, width: int) -> Array:
    """Positions of an image's elements as columns (x, y, 0, 1), each at the middle of it."""
    y, x = np.mgrid[:height, :width].reshape(2, -1).astype(np.float32) + np.float32(0.5)
    return np.stack([x, y, np.zeros_like(x), np.ones_like(x)])


def _within(g: Importer, place: ir.Value, size: int) -> ir.Value:
    low = g.emit("GreaterOrEqual", place, np.float32(0))
    return g.emit("And", low, g.emit("LessOrEqual", place, np.float32(size - 1)))


def _neighbours(
    g: Importer, place: ir.Value, inside: ir.Value, size: int
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """The elements on both sides of a place, and how near it is to the second."""
    place = g.emit("Where", inside, place, np.float32(0))
    first = g.emit("Floor", place)
    second = g.emit("Min", g.emit("Add", first, np.float32(1)), np.float32(size - 1))
    near = g.emit("Unsqueeze", g.emit("Sub", place, first), g.shape([1]))
    a, b = (g.emit("Cast", v, to=ir.DataType.INT32) for v in (first, second))
    return a, b, near


def _mixed(g: Importer, a: ir.Value, b: ir.Value, near: ir.Value) -> ir.Value:
    far = g.emit("Sub", np.float32(1), near)
    return g.emit("Add", g.emit("Mul", a, far), g.emit("Mul", b, near))


def _matrix(g: Importer, matrix: Operand) -> ir.Value:
    if int(np.prod(_known(matrix, "a matrix of"))) != 16:
        raise ValueError(f"a matrix of shape {list(matrix.shape)}")
    return g.emit("Reshape", matrix, g.shape([4, 4]))


def _part(g: Importer, value: ir.Value, axis: int, start: int, end: int) -> ir.Value:
    return g.emit("Slice", value, g.shape([start]), g.shape([end]), g.shape([axis]))


def _known(x: Operand, what: str) -> Sequence[int]:
    sizes = [s for s in x.shape if s is not None]
    if len(sizes) != x.rank:
        raise Refusal(f"{what} sizes that a run decides", "dynamic_shape")
    return sizes


def _floats(*operands: Operand) -> None:
    for operand in operands:
        if operand.is_scaled or operand.dtype != ir.DataType.FLOAT:
            raise Refusal(f"{operand.name!r} has elements of type {operand.tensor.kind}")


def _version(o: Options, known: int) -> None:
    if o.version != known:
        raise Refusal(
            f"version {o.version}, read is {known}",
            "unsupported_op",
            "use the model that MediaPipe publishes today",
        )
