"""Resizes that engines get wrong, written as what each axis does."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.core.resample import coordinates, matrix, rounded
from edgeinfer.convert.lower.core.resize import AxisResize, ResizePlan, of_node
from edgeinfer.convert.lower.faults import builder
from edgeinfer.convert.lower.nan import WEIGHED
from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.lower.rules import by_definition, given
from edgeinfer.convert.passes.infra import attr
from edgeinfer.convert.passes.rewrite import ReplacementBuilder


def copied(node: ir.Node) -> str:
    """Say what goes wrong: along an axis that keeps its size, whatever the scale is."""
    return _COPIED if any(_kept(node)) and not _is_open(node) else ""


def copied_whole(node: ir.Node) -> str:
    """Say what goes wrong: where all axes keep their size."""
    return _COPIED if _all_kept(node) and not _is_open(node) else ""


def perhaps_copied(node: ir.Node) -> str:
    """Find axes that may keep their size with another scale than 1, as a run decides."""
    return _COPIED if any(_kept(node)) and _is_open(node) else ""


def perhaps_copied_whole(node: ir.Node) -> str:
    """Find what may keep all its sizes with another scale than 1, as a run decides."""
    return _COPIED if _all_kept(node) and _is_open(node) else ""


_COPIED = "a scale that leaves the size as it is is taken for 1"


_PLACES = 1 << 13
"""Elements of an axis of open size that are looked at."""


def near_by_rounding(node: ir.Node, *, fused: bool) -> str:
    """Find nearest elements that a quotient names, and a product with the inverse scale does not.

    The 22nd element of a resize by 1.1 lies at 20.0 by the one and at 19.999998 by the other, which
    is how some engines divide by a constant.

    Args:
        node: The resize.
        fused: Whether an engine may also round a quotient and what is taken off it but once.
    """
    transform = attr(node, "coordinate_transformation_mode", "half_pixel")
    if attr(node, "mode", "nearest") != "nearest" or transform not in _SHIFTS:
        return ""
    rounding, shift = attr(node, "nearest_mode", "round_prefer_floor"), _SHIFTS[transform]
    places = np.arange(_PLACES, dtype=np.float32) + np.float32(shift)
    for size, scale in _scales(node):
        if size is not None or scale is None or scale <= 0:
            continue
        inverse = np.float32(1) / np.float32(scale)
        forms = [places / np.float32(scale), places * inverse]
        if shift and fused:
            forms += [places.astype(np.float64) / scale, places.astype(np.float64) * inverse]
        first, *others = (rounded(rounding, form - form.dtype.type(shift)) for form in forms)
        if not all(np.array_equal(first, other) for other in others):
            return f"which element is nearest hangs on rounding for a scale of {scale:.7g}"
    return ""


_SHIFTS = {"asymmetric": 0.0, "half_pixel": 0.5, "pytorch_half_pixel": 0.5}


def _all_kept(node: ir.Node) -> bool:
    axes = _scales(node)
    return any(_kept(node)) and all(scale == 1 or _keeps(size, scale) for size, scale in axes)


def _kept(node: ir.Node) -> list[bool]:
    """Whether axes may keep their size with another scale than 1."""
    return [scale != 1 and _keeps(size, scale) for size, scale in _scales(node)]


def _keeps(size: int | None, scale: float | None) -> bool:
    if scale is None:
        return True
    if size is None:
        return 1 <= scale < 2
    return bool(np.floor(np.float32(size) * np.float32(scale)) == size)


def _is_open(node: ir.Node) -> bool:
    """Whether a run decides a size or a scale."""
    return any(size is None or scale is None for size, scale in _scales(node) if scale != 1)


def _scales(node: ir.Node) -> list[tuple[int | None, float | None]]:
    """Size and scale of each axis that is named, as far as they are known; empty without scales."""
    x, scales, sizes = given(node, 0), given(node, 2), given(node, 3)
    if scales is None or sizes is not None:
        return []
    constant = None if scales.const_value is None else scales.const_value.numpy().ravel()
    if x is None or x.shape is None:
        known = [None] if constant is None else [float(s) for s in constant]
        return [(None, scale) for scale in known]
    rank = len(x.shape)
    named = [a % rank for a in attr(node, "axes", range(rank))]
    if constant is not None and len(constant) != len(named):
        return []
    have = [d if isinstance(d := x.shape[a], int) else None for a in named]
    factors = [None] * len(named) if constant is None else [float(s) for s in constant]
    return list(zip(have, factors, strict=True))


def _planned(node: ir.Node) -> ResizePlan | None:
    try:
        return of_node(node)
    except Refusal:
        return None


def resize_by_axis(model: ir.Model, node: ir.Node) -> bool:
    """Gather the nearest elements along each axis, or multiply it by its weights.

    Given: ``y = Resize<mode="nearest", nearest_mode="round_prefer_ceil">(x, , , sizes)``
    Result: ``y = Gather<axis=3>(Gather<axis=2>(x, rows), columns)``

    Given: ``y = Resize<mode="cubic", antialias=1, axes=[3]>(x, , , sizes)``
    Result: ``y = MatMul(x, weights)``
    """
    plan, x, build = _planned(node), node.inputs[0], builder(model, node)
    if plan is None or x is None or x.shape is None or x.dtype is None:
        return False
    found = x
    try:
        for axis in plan.axes:
            found = _resized(build, found, plan, axis)
            found.dtype = x.dtype
        outside = plan.outside()
    except Refusal:
        return False
    if outside is not None:
        filler = build.const(np.asarray(plan.filler, x.dtype.numpy()), "filler")
        build.op("Where", build.const(outside, "outside"), filler, found)
    elif found is x:
        build.op("Identity", x)
    build.commit(model.graph, node)
    return True


def resize_by_parts(model: ir.Model, node: ir.Node) -> bool:
    """Write each axis for itself, with weights that are known or that a run computes."""
    return resize_by_axis(model, node) or by_definition(model, node)


def _resized(build: ReplacementBuilder, x: Any, plan: ResizePlan, axis: AxisResize) -> Any:
    how, size, out = plan.how, axis.size or 0, axis.known_out or 0
    if how.mode == "nearest":
        at = rounded(how.rounding, coordinates(how.transform, size, out, axis.ratio, axis.roi))
        index = np.clip(at, 0, size - 1).astype(np.int64)
        return build.op("Gather", x, build.const(index, "nearest"), axis=axis.index)
    weights = matrix(plan.taps(axis), size).astype(x.dtype.numpy())
    rank = plan.rank
    if axis.index == rank - 2:
        return _weighed(build.op("MatMul", build.const(weights, "weights"), x))
    right = build.const(np.ascontiguousarray(weights.T), "weights")
    if axis.index == rank - 1:
        return _weighed(build.op("MatMul", x, right))
    order = [a for a in range(rank) if a != axis.index] + [axis.index]
    moved = _weighed(build.op("MatMul", build.op("Transpose", x, perm=order), right))
    return build.op("Transpose", moved, perm=np.argsort(order).tolist())


def _weighed(product: Any) -> Any:
    product.producer().meta[WEIGHED] = True
    return product
