"""Results whose size the data decides, and samples whose number it does."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from tvm import te, tirx

from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.lower.tvm.builder import Builder, Own, Tensor
from edgeinfer.convert.lower.tvm.ops.arith import convert
from edgeinfer.convert.lower.tvm.ops.matrix import reshape
from edgeinfer.convert.lower.tvm.registry import OPS
from edgeinfer.kernels.defs import chosen as kernels

_SERIAL = "a loop of one thread, and a GPU's kernels have none"


@OPS.lower("NonZero")
def non_zero(g: Builder, X: Tensor) -> Tensor:
    """The positions of what is not zero, an axis in each row."""
    if not g.on_cpu:
        raise Refusal(_SERIAL, "unsupported_op")
    if not X.rank:
        raise Refusal("a scalar", "unsupported_rank")
    size = prod(X.shape)
    flat = g.expr(reshape(g, X, (size,)))
    kernel = kernels.nonzero(Own()(size), X.dtype)
    found = g.first(*g.tir_many(kernel, [flat], [((size,), "int64"), kernels.COUNT]))

    def compute(indices: Any, *source: Any) -> Any:
        sizes = source[0].shape if source else X.shape

        def element(axis: Any, index: Any) -> Any:
            result: Any = tirx.const(0, "int64")
            rest = indices(index)
            for own in reversed(range(X.rank)):
                size = tirx.Cast("int64", sizes[own])
                # Nothing is left of a place behind the first axis.
                here = tirx.floormod(rest, size) if own else rest
                result = tirx.Select(tirx.EQ(axis, own), here, result)
                rest = tirx.floordiv(rest, size) if own else rest
            return result

        return te.compute((X.rank, indices.shape[0]), element, name="non_zero")

    # Open sizes come with the tensor.
    return g.te(compute, found, *([] if X.is_static else [X]), name="non_zero")


@OPS.lower("NonMaxSuppression")
def non_max_suppression(
    g: Builder,
    boxes: Tensor,
    scores: Tensor,
    max_output_boxes_per_class: Tensor | None = None,
    iou_threshold: Tensor | None = None,
    score_threshold: Tensor | None = None,
    *,
    center_point_box: int,
) -> Tensor:
    """Boxes that overlap no better one of their class."""
    if not g.on_cpu:
        raise Refusal(_SERIAL, "unsupported_op")
    if boxes.dtype == "float64":
        raise Refusal("boxes of float64", "unsupported_dtype")
    batches, classes, count = scores.shape
    wanted = max_output_boxes_per_class
    known = None if wanted is not None and wanted.data is None else _item(wanted)
    own = Own()
    kernel = kernels.suppressed(
        own(batches), own(classes), own(count), _least(own(count), known),
        centred=bool(center_point_box), scored=score_threshold is not None,
    )  # fmt: skip

    def one(given: Tensor | None, dtype: str) -> Any:
        filled = g.const(np.zeros(1), dtype) if given is None else reshape(g, given, (1,))
        return g.expr(convert(g, filled, dtype))

    operands = [
        *(g.expr(convert(g, t, "float32")) for t in (boxes, scores)),
        one(wanted, "int64"),
        *(one(t, "float32") for t in (iou_threshold, score_threshold)),
    ]
    most = batches * classes * _least(count, known)
    results = [((most, 3), "int64"), kernels.COUNT]
    return g.first(*g.tir_many(kernel, operands, results))


def _item(given: Tensor | None) -> int:
    """The number that a tensor holds; none is wanted where it is left out."""
    return 0 if given is None or given.data is None else max(0, int(given.data.item()))


def _least(size: Any, known: int | None) -> Any:
    if known is None:
        return size
    return min(size, known) if isinstance(size, int) else tirx.Min(size, tirx.const(known, "int64"))


@OPS.lower("RoiAlign")
def roi_align(
    g: Builder,
    X: Tensor,
    rois: Tensor,
    batch_indices: Tensor,
    *,
    coordinate_transformation_mode: str,
    mode: str,
    output_height: int,
    output_width: int,
    sampling_ratio: int,
    spatial_scale: float,
) -> Tensor:
    """Regions brought to one size; each bin has its own number of samples where none is given."""
    if not g.on_cpu:
        why = "each region decides how many samples it has, and a GPU's threads are cut before"
        raise Refusal(why, "unsupported_op")
    if X.dtype == "float64":
        raise Refusal("images of float64", "unsupported_dtype")
    if any(isinstance(s, int) and not s for s in X.shape):
        raise Refusal("images without elements")
    size = output_height, output_width
    own = Own()
    kernel = kernels.regions(
        tuple(map(own, X.shape)),
        own(rois.shape[0]),
        size,
        ratio=sampling_ratio,
        scale=spatial_scale,
        half=coordinate_transformation_mode == "half_pixel",
        largest=mode == "max",
    )
    kinds = ((X, "float32"), (rois, "float32"), (batch_indices, "int64"))
    operands = [g.expr(convert(g, t, kind)) for t, kind in kinds]
    made = g.tir(kernel, operands, (rois.shape[0], X.shape[1], *size))
    return convert(g, g.wrap(made), X.dtype)
