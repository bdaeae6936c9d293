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
from edgeinfer.convert.passes.rewrite import ReplacementBuilder


def copied(node: ir.Node) -> str:
    """Say what goes wrong: along an axis that keeps its size, whatever the scale is."""
    plan = _planned(node)
    return _COPIED if plan is not None and any(a.out == a.size for a in plan.axes) else ""


def copied_whole(node: ir.Node) -> str:
    """Say what goes wrong: where all axes keep their size."""
    plan = _planned(node)
    still = plan is not None and plan.axes and all(a.out == a.size for a in plan.axes)
    return _COPIED if still else ""


_COPIED = "a scale that leaves the size as it is is taken for 1"


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
