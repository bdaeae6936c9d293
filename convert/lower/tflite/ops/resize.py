"""Resize: the kernels where they compute just that, weighted rows elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgeinfer.convert.lower.core.resample import Taps, matrix
from edgeinfer.convert.lower.core.resize import AxisResize, ResizePlan, resizes
from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.lower.tflite.builder import Builder, Extent, broadcast
from edgeinfer.convert.lower.tflite.graph import Tensor
from edgeinfer.convert.lower.tflite.registry import ANY, NHWC, OPS
from edgeinfer.convert.lower.tflite.resample import FLAGS, agrees
from edgeinfer.convert.lower.tflite.sizes import (
    around,
    as_bits,
    compute,
    extents,
    known,
    merge,
    narrow,
    reform,
    scalar,
)
from edgeinfer.types import Array

_GATHERED = 4
"""Taps up to which rows are gathered and weighted; more are one matrix product."""

_KERNEL_KINDS = ("float32", "int32", "int8", "uint8", "int16")
_MOVED_AS = {"bool": np.int8, "float64": np.int64, "uint32": np.int32, "uint16": np.int16}


def _resize(g: Builder, x: Tensor, plan: ResizePlan) -> Tensor:
    own, nearest = x.dtype, plan.how.mode == "nearest"
    if nearest:
        bits = _MOVED_AS.get(own.name)
        inner = x if bits is None else as_bits(g, x, np.dtype(bits))
    elif own.name in ("float32", "float16"):
        inner = g.cast(x, np.float32)
    else:
        raise Refusal(f"mode {plan.how.mode!r} of {own}", "unsupported_dtype")
    for group in _groups(plan.axes):
        inner = _apply_group(g, inner, plan, group)
    outside = plan.outside()
    if outside is not None:
        mask, value = g.const(outside), g.const(plan.filler, inner.dtype)
        shape = broadcast(mask.shape, inner.shape)
        inner = g.emit("SELECT_V2", [mask, value, inner], shape, inner.dtype)
    return as_bits(g, inner, own) if nearest else g.cast(inner, own)


def _entries(g: Builder, sizes: Tensor, axes: Sequence[int]) -> list[Extent]:
    small = narrow(g, sizes)
    return [g.gather(small, g.const(i, np.int32), 0) for i in range(len(axes))]


for _domain in ("", NHWC):
    resizes(OPS, entries=_entries, domain=_domain, dtypes=ANY)(_resize)


def _target(g: Builder, x: Tensor, axis: AxisResize) -> Extent:
    """The size after, as the graph knows it."""
    if axis.out is not None:
        found: Extent = axis.out
        return found
    length, factor = g.extent(x, axis.index), axis.ratio
    if factor == int(factor):
        return compute(g, "MUL", length, int(factor))
    product = g.binary("MUL", g.cast(scalar(g, length), np.float32), factor)
    return g.cast(g.unary("FLOOR", product), np.int32)


def _groups(axes: Sequence[AxisResize]) -> list[list[AxisResize]]:
    """Pairs of neighbouring axes, from the back, and what is left alone."""
    rest = sorted(axes, key=lambda a: a.index)
    groups: list[list[AxisResize]] = []
    while rest:
        last = rest.pop()
        if rest and rest[-1].index == last.index - 1:
            groups.append([rest.pop(), last])
        else:
            groups.append([last])
    return groups


def _apply_group(g: Builder, x: Tensor, plan: ResizePlan, group: Sequence[AxisResize]) -> Tensor:
    if x.dtype.name in _KERNEL_KINDS:
        for flags in FLAGS:
            if all(agrees(plan.how, flags, a.size, a.known_out, a.scale) for a in group):
                return _kernel(g, x, plan, flags, group)
    if len(group) > 1:
        for axis in group:
            x = _apply_group(g, x, plan, [axis])
        return x
    (axis,) = group
    return _apply_taps(g, x, plan.taps(axis), axis.index, axis.size or 0)


def _kernel(
    g: Builder, x: Tensor, plan: ResizePlan, flags: tuple[bool, bool], group: Sequence[AxisResize]
) -> Tensor:
    """Planes of the two axes; everything before them is batch, everything after is channels."""
    first, last = group[0].index, group[-1].index
    groups = [range(first), [first], [last] if last > first else [], range(last + 1, x.rank)]
    plain = x.rank == 4 and (first, last) == (1, 2)
    planes = x if plain else merge(g, x, groups)
    targets = {axis.index: _target(g, x, axis) for axis in group}
    wanted = [targets[first], targets[last] if last > first else 1]
    code = "RESIZE_NEAREST_NEIGHBOR" if plan.how.mode == "nearest" else "RESIZE_BILINEAR"
    shape = (planes.shape[0], *known(wanted), planes.shape[3])
    options = {"align_corners": flags[0], "half_pixel_centers": flags[1]}
    out = g.emit(code, [planes, g.shape_vector(wanted)], shape, **options)
    if plain:
        out.quantization = x.quantization
        return out
    sizes = [targets.get(axis, size) for axis, size in enumerate(extents(g, x))]
    return reform(g, out, sizes)


def _apply_taps(g: Builder, x: Tensor, found: Taps, axis: int, size: int) -> Tensor:
    if found.source.shape[1] == 1:
        return g.gather(x, g.const(found.source[:, 0]), axis)
    if found.source.shape[1] > _GATHERED:
        return _multiply(g, x, matrix(found, size), axis)
    total: Tensor | None = None
    for source, weight in zip(found.source.T, found.weights.T, strict=True):
        if not weight.any():
            continue
        form = [-1 if a == axis else 1 for a in range(x.rank)]
        part = g.gather(x, g.const(source), axis)
        if not (weight == 1).all():
            part = g.binary("MUL", part, g.const(weight.reshape(form)))
        total = part if total is None else g.binary("ADD", total, part)
    if total is None:
        raise Refusal("no input has a weight")
    return total


def _multiply(g: Builder, x: Tensor, weights: Array, axis: int) -> Tensor:
    sizes = extents(g, x)
    rows = merge(g, x, around(x.rank, axis))
    shape = (rows.shape[0], len(weights), rows.shape[2])
    options = {"adj_x": False, "adj_y": False, "asymmetric_quantize_inputs": False}
    out = g.emit("BATCH_MATMUL", [g.const(weights[None]), rows], shape, np.float32, **options)
    sizes[axis] = len(weights)
    return reform(g, out, sizes)
