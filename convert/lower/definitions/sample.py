"""AffineGrid, GridSample, Col2Im and MaxUnpool: positions, and elements taken from them."""

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
    cubic_shares,
    input_at,
    raised,
    scaled,
    sizes,
    table,
    times,
)

_CUBIC = -0.75


def _reflect(body: Body, x: str, low: float, high: float) -> str:
    """Fold what lies outside back inside, as often as it takes."""
    span = high - low
    if span <= 0:
        return body.op("Mul", x, body.const(0.0))
    there = raised(body, x, -low)
    turns = body.op("Floor", scaled(body, there, 1.0 / (2.0 * span)))
    there = body.op("Sub", there, scaled(body, turns, 2.0 * span))
    away = body.op("Abs", raised(body, there, -span))
    return raised(body, body.op("Sub", body.const(float(span)), away), low)


def affine_grid(node: ir.Node) -> onnx.FunctionProto | None:
    """Positions in images and volumes; the standard's definition loses a batch of one (onnx 1.23).

    Theta times positions, summed up in turn: the positions of each axis are a vector.
    """
    theta = input_at(node, 0)
    if theta is None or theta.shape is None or theta.dtype is None or len(theta.shape) != 3:
        return None
    kind, rank = theta.dtype, theta.shape[1]
    if not isinstance(rank, int) or rank not in (2, 3):
        return None
    body = Body(node)
    one = body.const(np.array(1, kind.numpy()))
    two = body.const(np.array(2, kind.numpy()))
    whole = [body.const(np.array(number, np.int64)) for number in (0, 1)]
    space = list(range(1, rank + 1))
    total = ""
    for column in range(rank + 1):
        share = body.op(
            "Slice", "i0", body.const([column]), body.const([column + 1]), body.const([2])
        )
        share = body.op("Unsqueeze", body.op("Squeeze", share, body.const([2])), body.const(space))
        if column < rank:
            # The first column is for the last axis.
            axis = rank - column
            count = body.op("Squeeze", body.part("i1", axis + 1), body.const([0]))
            size = body.op("Cast", count, to=int(kind))
            steps = body.op("Cast", body.op("Range", whole[0], count, whole[1]), to=int(kind))
            if attribute(node, "align_corners", 0):
                step = body.op("Div", two, body.op("Sub", size, one))
                start = body.op("Neg", one)
            else:
                step = body.op("Div", two, size)
                start = body.op("Sub", body.op("Div", step, two), one)
            positions = body.op("Add", start, body.op("Mul", steps, step))
            others = [a for a in range(rank + 2) if a != axis]
            share = body.op("Mul", share, body.op("Unsqueeze", positions, body.const(others)))
        total = body.op("Add", total, share) if total else share
    body.give(0, total)
    return body.function()


def grid_sample(node: ir.Node) -> onnx.FunctionProto | None:
    """Images and volumes, at any place, by each mode and each padding."""
    shape, grid = sizes(node.inputs[0]), sizes(node.inputs[1])
    if shape is None or grid is None or len(shape) < 4 or 0 in shape or 0 in grid:
        return None
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(
        attribute(node, "mode", "linear"), attribute(node, "mode", "linear")
    )
    padding = attribute(node, "padding_mode", "zeros")
    corners = bool(attribute(node, "align_corners", 0))
    body, space, positions = Body(node), shape[2:], math.prod(grid[1:-1])
    rows = table(body, shape)
    flat = body.reshape("i1", grid[0], positions, len(space))
    columns = body.ops("Split", len(space), flat, axis=2, num_outputs=len(space))
    taps: list[list[tuple[str, str]]] = []
    for column, size in zip(reversed(columns), space, strict=True):
        taps.append(_taps(body, column, size, mode, padding, corners))
    offsets = np.arange(shape[0]).reshape(-1, 1, 1) * math.prod(space)
    total = ""
    for chosen in itertools.product(*taps):
        where, weight = "", ""
        for (position, share), size in zip(chosen, space, strict=True):
            where = body.op("Add", times(body, where, size), position) if where else position
            if share:
                weight = body.op("Mul", weight, share) if weight else share
        if shape[0] > 1:
            where = body.op("Add", where, body.const(offsets))
        index = body.op("Squeeze", where, body.const([2]))
        values = body.op("Gather", rows, index, axis=0)
        part = body.op("Mul", values, weight) if weight else values
        total = body.op("Add", total, part) if total else part
    transposed = body.op("Transpose", total, perm=[0, 2, 1])
    body.give(0, body.reshape(transposed, shape[0], shape[1], *grid[1:-1]))
    return body.function()


def _taps(
    body: Body, x: str, size: int, mode: str, padding: str, corners: bool
) -> list[tuple[str, str]]:
    """Positions along one axis and their weights, empty for one; (batch, positions, 1) each."""
    low, high = (0.0, size - 1.0) if corners else (-0.5, size - 0.5)
    if corners:
        at = scaled(body, raised(body, x, 1.0), (size - 1) / 2)
    else:
        at = scaled(body, raised(body, scaled(body, raised(body, x, 1.0), size), -1.0), 0.5)
    if mode == "nearest":
        at = body.op("Round", at)
    if padding == "border":
        inside = clipped(body, at, 0.0, size - 1.0)
        at = at if mode == "cubic" else inside
    elif padding == "reflection":
        at = _reflect(body, at, low, high)
    first = body.op("Floor", at) if mode != "nearest" else at
    if mode == "nearest":
        pairs = [(first, "")]
    elif mode == "linear":
        far = body.op("Sub", at, first)
        pairs = [(first, body.op("Sub", body.const(1.0), far)), (raised(body, first, 1.0), far)]
    else:
        pairs = _cubic(body, at, first)
    return [_settled(body, place, share, size, padding, (low, high)) for place, share in pairs]


def _cubic(body: Body, at: str, first: str) -> list[tuple[str, str]]:
    shares = cubic_shares(body, body.op("Sub", at, first), _CUBIC)
    return [(raised(body, first, i - 1.0), share) for i, share in enumerate(shares)]


def _settled(
    body: Body,
    place: str,
    share: str,
    size: int,
    padding: str,
    ends: tuple[float, float],
) -> tuple[str, str]:
    """Bring a place inside, and take its weight away where padding is zeros."""
    if padding == "reflection":
        place = body.op("Round", _reflect(body, place, *ends))
    held = clipped(body, place, 0.0, size - 1.0)
    index = body.op("Cast", held, to=7)
    if padding != "zeros":
        return index, share
    inside = body.op("Cast", body.op("Equal", held, place), to=1)
    return index, body.op("Mul", share, inside) if share else inside


def col2im(node: ir.Node) -> onnx.FunctionProto | None:
    """Each place of the image takes, of every place of the window, the block that reaches it."""
    shape = sizes(node.inputs[0])
    image, block = (
        None if v is None or v.const_value is None else [int(n) for n in v.const_value.numpy()]
        for v in (input_at(node, 1), input_at(node, 2))
    )
    if shape is None or image is None or block is None or len(shape) != 3:
        return None
    axes = len(image)
    dilations = attribute(node, "dilations", None) or [1] * axes
    pads = attribute(node, "pads", None) or [0] * 2 * axes
    strides = attribute(node, "strides", None) or [1] * axes
    counts = [
        (image[a] + pads[a] + pads[a + axes] - dilations[a] * (block[a] - 1) - 1) // strides[a] + 1
        for a in range(axes)
    ]
    positions, windows = math.prod(counts), math.prod(block)
    if positions != shape[2] or shape[1] % windows:
        return None
    index = np.full((windows, math.prod(image)), windows * positions, np.int64)
    for k, tap in enumerate(np.ndindex(*block)):
        for position, at in enumerate(np.ndindex(*counts)):
            axis = range(axes)
            there = [at[a] * strides[a] + tap[a] * dilations[a] - pads[a] for a in axis]
            if all(0 <= there[a] < image[a] for a in axis):
                index[k, np.ravel_multi_index(there, image)] = k * positions + position
    body = Body(node)
    channels = shape[1] // windows
    flat = body.reshape("i0", shape[0], channels, windows * positions)
    pad = body.op("Pad", flat, body.const([0, 0, 0, 0, 0, 1]))
    taken = body.op("Gather", pad, body.const(index), axis=2)
    total = body.op("ReduceSum", taken, body.const([2]), keepdims=0)
    body.give(0, body.reshape(total, shape[0], channels, *image))
    return body.function()


def max_unpool(node: ir.Node) -> onnx.FunctionProto | None:
    """Put elements where they came from, among zeros."""
    x, result = node.inputs[0], sizes(node.outputs[0])
    if x is None or x.dtype is None or result is None or 0 in result:
        return None
    shape, window = sizes(x), attribute(node, "kernel_shape", None)
    if shape is None or window is None:
        return None
    strides = attribute(node, "strides", None) or [1] * len(window)
    pads = attribute(node, "pads", None) or [0] * 2 * len(window)
    own = [
        (n - 1) * stride + k - before - after
        for n, stride, k, before, after in zip(
            shape[2:], strides, window, pads, pads[len(window) :], strict=False
        )
    ]
    # Positions count in the sizes that the windows give; sizes beyond are filled up behind.
    missing = [a - b for a, b in zip(result[2:], own, strict=True)]
    if min(missing) < 0:
        return None
    full, body = (*shape[:2], *own), Body(node)
    zeros = body.op("Cast", body.const(np.zeros(math.prod(full), np.float32)), to=x.dtype.value)
    positions, values = body.reshape("i1", -1), body.reshape("i0", -1)
    made = body.reshape(body.op("ScatterElements", zeros, positions, values, axis=0), *full)
    if any(missing):
        made = body.op("Pad", made, body.const([0] * (len(full) + 2) + missing))
    body.give(0, made)
    return body.function()
