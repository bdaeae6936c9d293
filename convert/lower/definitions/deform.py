"""DeformConv: images sampled where the offsets say, and a product with the weights."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir

from edgeinfer.convert.lower.definitions.body import Body, attribute, sizes
from edgeinfer.types import Array


def deform_conv(node: ir.Node) -> onnx.FunctionProto | None:
    """Sample every place of every window by ``GridSample``, which gives zeros outside.

    Given::

        y = DeformConv<offset_group=1>(x, w, offset, b, mask)

    Result::

        s = Mul(GridSample(x, where the windows lie + offset), mask)
        y = Add(MatMul(Reshape(w, [O, -1]), Reshape(s, [N, -1, P])), b)
    """
    shape, kernel, offset = (sizes(v) for v in node.inputs[:3])
    if shape is None or kernel is None or offset is None or len(shape) != 4 or 0 in offset:
        return None
    body = Body(node)
    batch, channels, height, width = shape
    outputs, taps = kernel[0], kernel[2] * kernel[3]
    parts, groups = attribute(node, "offset_group", 1), attribute(node, "group", 1)
    down, across = offset[2:]
    apart = body.reshape("i2", batch * parts, taps, 2, down * across)
    windows = body.op("CastLike", body.const(_windows(node, kernel, (down, across))), "i0")
    coordinates = body.op("Add", apart, windows)
    # In parts of the image from -1 to 1, as GridSample takes them: x first.
    sides = np.array([height, width], np.float32).reshape(1, 1, 2, 1)
    scale, shift = (
        body.op("CastLike", body.const(v.astype(np.float32)), "i0")
        for v in (2 / sides, 1 / sides - 1)
    )
    coordinates = body.op("Add", body.op("Mul", coordinates, scale), shift)
    y, x = body.ops("Split", 2, coordinates, axis=2, num_outputs=2)
    grid = body.op("Transpose", body.op("Concat", x, y, axis=2), perm=[0, 1, 3, 2])
    grid = body.reshape(grid, batch * parts, taps, down * across, 2)
    pictures = body.reshape("i0", batch * parts, channels // parts, height, width)
    found = body.op(
        "GridSample", pictures, grid, mode="linear", padding_mode="zeros", align_corners=0
    )
    if body.given(4):
        mask = body.reshape("i4", batch * parts, 1, taps, down * across)
        found = body.op("Mul", found, mask)
    found = body.reshape(found, batch, groups, channels // groups * taps, down * across)
    weights = body.reshape("i1", 1, groups, outputs // groups, channels // groups * taps)
    made = body.reshape(body.op("MatMul", weights, found), batch, outputs, down, across)
    if body.given(3):
        made = body.op("Add", made, body.reshape("i3", 1, outputs, 1, 1))
    body.give(0, made)
    return body.function()


def _windows(node: ir.Node, kernel: tuple[int, ...], made: tuple[int, int]) -> Array:
    """Return where each tap of each window lies without an offset: (1, taps, 2, positions)."""
    strides, dilations = attribute(node, "strides", [1, 1]), attribute(node, "dilations", [1, 1])
    pads = attribute(node, "pads", [0, 0, 0, 0])
    axes = []
    for axis in range(2):
        starts = np.arange(made[axis]) * strides[axis] - pads[axis]
        axes.append(np.arange(kernel[2 + axis])[:, None] * dilations[axis] + starts)
    y, x = axes
    shape = (*kernel[2:], *made)
    rows = np.broadcast_to(y[:, None, :, None], shape)
    columns = np.broadcast_to(x[None, :, None, :], shape)
    both = np.stack(
        [rows.reshape(-1, made[0] * made[1]), columns.reshape(-1, made[0] * made[1])], 1
    )
    return np.asarray(both[None], np.float32)
