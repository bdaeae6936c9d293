"""Regions of images: samples of them, what each pixel counts for, or their largest pixels."""

from __future__ import annotations

import itertools
import math

import numpy as np
import onnx
import onnx_ir as ir

from edgeinfer.convert.lower.definitions.body import (
    Body,
    attribute,
    clipped,
    raised,
    scaled,
    sizes,
    table,
    times,
)

_NEAR = 6
"""Samples that may lie next to a pixel: they are more than half a pixel apart."""


def roi_align(node: ir.Node) -> onnx.FunctionProto | None:
    """Samples of each bin: their mean, or the largest share of one where their number is known."""
    shape, ratio = sizes(node.inputs[0]), int(attribute(node, "sampling_ratio", 0))
    mode = attribute(node, "mode", "avg")
    if shape is None or len(shape) != 4 or 0 in shape or (ratio < 1 and mode != "avg"):
        return None
    high, wide = (int(attribute(node, f"output_{n}", 1)) for n in ("height", "width"))
    body = Body(node)
    half = attribute(node, "coordinate_transformation_mode", "half_pixel") == "half_pixel"
    scale = float(attribute(node, "spatial_scale", 1.0))
    batch, channels, *space = shape
    left, top, right, bottom = body.ops(
        "Split", 4, raised(body, scaled(body, "i1", scale), -0.5 if half else 0.0), axis=1,
        num_outputs=4,
    )  # fmt: skip
    ends = ((top, bottom, high, space[0]), (left, right, wide, space[1]))
    # Bounded, so that a format of 32 bits knows that it holds the positions.
    last = body.const(np.array(batch - 1, np.int64))
    image = body.op("Clip", body.op("Cast", "i2", to=7), body.const(np.array(0, np.int64)), last)
    if ratio < 1:
        body.give(0, _averaged(body, shape, image, ends, half))
        return body.function()
    down, across = (_bins(body, *end, ratio, half) for end in ends)
    image = times(body, image, space[0] * space[1])
    image = body.op("Unsqueeze", image, body.const([1, 2]))
    pixels, parts = table(body, shape), []
    for (row, of_row), (column, of_column) in itertools.product(down, across):
        # (rois, rows, 1) with (rois, 1, columns)
        rows, columns = (
            body.op("Unsqueeze", v, body.const([axis])) for v, axis in ((row, 2), (column, 1))
        )
        where = body.op("Add", body.op("Add", times(body, rows, space[1]), columns), image)
        shares = [
            body.op("Unsqueeze", v, body.const([axis])) for v, axis in ((of_row, 2), (of_column, 1))
        ]
        weight = body.op("Unsqueeze", body.op("Mul", *shares), body.const([3]))
        values = body.op("Gather", pixels, where, axis=0)
        parts.append(body.op("Mul", values, weight))
    joined = parts[0]
    for part in parts[1:]:
        joined = body.op("Max" if mode == "max" else "Add", joined, part)
    reduce = "ReduceMax" if mode == "max" else "ReduceMean"
    for before, after in ((ratio, wide * ratio * channels), (ratio, channels)):
        joined = body.reshape(joined, -1, before, after)
        joined = body.op(reduce, joined, body.const([1]), keepdims=0)
    joined = body.reshape(joined, -1, high, wide, channels)
    body.give(0, body.op("Transpose", joined, perm=[0, 3, 1, 2]))
    return body.function()


def _bins(
    body: Body, start: str, stop: str, count: int, size: int, ratio: int, half: bool
) -> list[tuple[str, str]]:
    """Both neighbours of every sample along one axis, and their weights: (rois, samples)."""
    length = body.op("Sub", stop, start)
    if not half:
        length = body.op("Max", length, body.const(1.0))
    steps = (np.arange(count * ratio, dtype=np.float32) + 0.5) / (ratio * count)
    at = body.op("Add", start, body.op("Mul", length, body.const(steps.reshape(1, -1))))
    above = body.op("GreaterOrEqual", at, body.const(-1.0))
    below = body.op("LessOrEqual", at, body.const(float(size)))
    seen = body.op("Cast", body.op("And", above, below), to=1)
    at = clipped(body, at, 0.0, size - 1.0)
    low = body.op("Floor", at)
    far = body.op("Sub", at, low)
    high = body.op("Min", raised(body, low, 1.0), body.const(size - 1.0))
    near = body.op("Mul", body.op("Sub", body.const(1.0), far), seen)
    positions = (body.op("Cast", place, to=7) for place in (low, high))
    return list(zip(positions, (near, body.op("Mul", far, seen)), strict=True))


def _averaged(
    body: Body,
    shape: tuple[int, ...],
    image: str,
    ends: tuple[tuple[str, str, int, int], ...],
    half: bool,
) -> str:
    """As many samples as a bin has pixels: products with what each row and column counts for."""
    batch, channels, high, wide = shape
    down, across = (_counts(body, *end, half) for end in ends)
    if batch > 1:
        every = body.const(np.arange(batch).reshape(1, -1))
        own = body.op("Equal", body.op("Unsqueeze", image, body.const([1])), every)
        own = body.op("Unsqueeze", body.op("Cast", own, to=1), body.const([1, 3]))
        # (rois, 1, batch, 1) with (rois, bins, 1, rows)
        down = body.op("Mul", own, body.op("Unsqueeze", down, body.const([2])))
    rows, columns = ends[0][2], ends[1][2]
    down = body.reshape(down, -1, batch * high)
    lines = body.op("Transpose", "i0", perm=[0, 2, 1, 3])
    lines = body.op("MatMul", down, body.reshape(lines, batch * high, channels * wide))
    lines = body.reshape(lines, -1, rows * channels, wide)
    made = body.op("MatMul", lines, body.op("Transpose", across, perm=[0, 2, 1]))
    made = body.reshape(made, -1, rows, channels, columns)
    return body.op("Transpose", made, perm=[0, 2, 1, 3])


def _counts(body: Body, start: str, stop: str, count: int, size: int, half: bool) -> str:
    """What each pixel along an axis counts for in the mean of each bin: (rois, bins, pixels)."""
    length = body.op("Sub", stop, start)
    if not half:
        length = body.op("Max", length, body.const(1.0))
    step = body.op("Div", length, body.const(float(count)))
    many = body.op("Ceil", step)
    most = body.op("Max", many, body.const(1.0))
    gap = body.op("Div", step, most)
    bins = body.const(np.arange(count, dtype=np.float32).reshape(1, -1))
    first = body.op("Add", start, body.op("Mul", step, bins))
    first = body.op("Add", first, scaled(body, gap, 0.5))
    # (rois, bins, pixels, samples) from here on.
    inner = body.const([2, 3])
    first, gap, many = (body.op("Unsqueeze", v, inner) for v in (first, gap, many))
    pixels = np.arange(size, dtype=np.float32).reshape(1, 1, -1, 1)
    ahead = body.op("Sub", body.const(pixels - 1), first)
    sample = body.op("Floor", body.op("Div", ahead, body.op("Max", gap, body.const(0.5))))
    following = body.const(np.arange(_NEAR, dtype=np.float32).reshape(1, 1, 1, -1))
    sample = body.op("Add", sample, following)
    at = body.op("Add", first, body.op("Mul", sample, gap))
    far = body.op("Abs", body.op("Sub", clipped(body, at, 0.0, size - 1.0), body.const(pixels)))
    share = body.op("Max", body.op("Sub", body.const(1.0), far), body.const(0.0))
    for test in (
        body.op("GreaterOrEqual", at, body.const(-1.0)),
        body.op("LessOrEqual", at, body.const(float(size))),
        body.op("GreaterOrEqual", sample, body.const(0.0)),
        body.op("Less", sample, many),
    ):
        share = body.op("Mul", share, body.op("Cast", test, to=1))
    total = body.op("ReduceSum", share, body.const([3]), keepdims=0)
    return body.op("Div", total, body.op("Unsqueeze", most, body.const([2])))


def max_roi_pool(node: ir.Node) -> onnx.FunctionProto | None:
    """The largest element of each bin of a region, whose corners are whole pixels.

    A bin's rows are taken first and its columns then: what lies outside of it counts as -infinity.
    """
    shape = sizes(node.inputs[0])
    if shape is None or len(shape) != 4:
        return None
    body, scale = Body(node), float(attribute(node, "spatial_scale", 1.0))
    rois = body.op("Cast", "i1", to=1)
    batch, *corners = body.ops("Split", 5, rois, axis=1, num_outputs=5)
    image = body.reshape(body.op("Cast", batch, to=7), -1)
    best = body.op("Gather", "i0", image, axis=0)
    left, top, right, bottom = (_rounded(body, scaled(body, c, scale)) for c in corners)
    high, wide = attribute(node, "pooled_shape", None)
    lowest = body.op("CastLike", body.const(-math.inf), "i0")
    empty = []
    for axis, start, stop, bins in ((2, top, bottom, high), (3, left, right, wide)):
        inside, none = _within(body, start, stop, bins, shape[axis])
        parts = []
        for index in range(bins):
            taken = body.op("Gather", inside, body.const(np.array(index, np.int64)), axis=1)
            mask = body.reshape(taken, -1, 1, *((shape[2], 1) if axis == 2 else (1, shape[3])))
            kept = body.op("Where", mask, best, lowest)
            parts.append(body.op("ReduceMax", kept, body.const([axis]), keepdims=1))
        best = body.op("Concat", *parts, axis=axis)
        empty.append(body.reshape(none, -1, 1, *((bins, 1) if axis == 2 else (1, bins))))
    zero = body.op("CastLike", body.const(0.0), "i0")
    body.give(0, body.op("Where", body.op("Or", *empty), zero, best))
    return body.function()


def _rounded(body: Body, x: str) -> str:
    """To the nearest whole number, halves away from zero."""
    size = body.op("Floor", raised(body, body.op("Abs", x), 0.5))
    return body.op("Mul", body.op("Sign", x), size)


def _within(body: Body, start: str, stop: str, bins: int, count: int) -> tuple[str, str]:
    """Whether each element of an axis lies in each bin; and whether none does."""
    length = body.op("Max", raised(body, body.op("Sub", stop, start), 1.0), body.const(1.0))
    # Quotients of whole numbers, with half a one more: none lies where rounding decides.
    ends = []
    for first, more in ((0, 0.5), (1, bins - 0.5)):
        numbers = np.arange(first, first + bins, dtype=np.float32)[None]
        product = raised(body, body.op("Mul", length, body.const(numbers)), more)
        ends.append(body.op("Add", body.op("Floor", scaled(body, product, 1 / bins)), start))
    begin, end = (clipped(body, v, 0.0, float(count)) for v in ends)
    positions = body.const(np.arange(count, dtype=np.float32)[None, None])
    low, high = (body.op("Unsqueeze", v, body.const([2])) for v in (begin, end))
    after = body.op("GreaterOrEqual", positions, low)
    return body.op("And", after, body.op("Less", positions, high)), body.op(
        "LessOrEqual", end, begin
    )
