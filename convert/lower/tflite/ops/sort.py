"""The largest, the distinct and the best elements."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.lower.tflite.builder import Builder, Extent
from edgeinfer.convert.lower.tflite.graph import Tensor
from edgeinfer.convert.lower.tflite.registry import FLOATS, OPS
from edgeinfer.convert.lower.tflite.sizes import (
    axis_of,
    counting,
    merge,
    narrow,
    scalar,
)
from edgeinfer.convert.lower.tflite.unsigned import ordered, unordered
from edgeinfer.convert.lower.tflite.widen import NUMBERS, widened

NMS_LIMIT = 256
"""Pairs of image and class; each is an operator of its own."""

_MANY = 1 << 20
"""Boxes of a class that nobody wants: so many are as good as all of them."""


@OPS.lower("TopK", dtypes=NUMBERS)
@widened
def top_k(
    g: Builder, x: Tensor, k: Tensor, *, axis: int, largest: int, sorted: int
) -> tuple[Tensor, Tensor]:
    """Ties go to the lower index, in the kernel as in ONNX."""
    if not x.rank:
        raise Refusal("of a scalar", "unsupported_rank")
    if x.dtype == np.uint64:
        best, where = top_k(g, ordered(g, x), k, axis=axis, largest=largest, sorted=sorted)
        return unordered(g, best), where
    at = axis_of(axis, x.rank)
    order = [*(a for a in range(x.rank) if a != at), at]
    back = [order.index(a) for a in range(x.rank)]
    rows = g.transpose(x if largest else _flipped(g, x), order)
    values, indices = _top(g, rows, g.reshape(narrow(g, k), []))
    values = g.transpose(values if largest else _flipped(g, values), back)
    return values, g.cast(g.transpose(indices, back), np.int64)


def _top(g: Builder, rows: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    size = None if count.data is None else int(count.data)
    values = g.tensor((*rows.shape[:-1], size), rows.dtype)
    indices = g.tensor(values.shape, np.int32)
    g.add("TOPK_V2", [rows, count], [values, indices])
    return values, indices


def _flipped(g: Builder, x: Tensor) -> Tensor:
    """The order reversed, and itself when done twice; -1 - x is never out of range."""
    return g.unary("NEG", x) if x.dtype.kind == "f" else g.binary("SUB", -1, x)


@OPS.lower("Unique", dtypes=NUMBERS)
@widened
def unique(
    g: Builder, x: Tensor, *, axis: int | None, sorted: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """UNIQUE, which knows the inverse; the rest is a comparison of all pairs."""
    if axis is not None and x.rank != 1:
        return _unique_slices(g, x, axis_of(axis, x.rank), bool(sorted))
    flat = merge(g, x, [range(x.rank)])
    found = g.tensor((None,), x.dtype)
    inverse = g.tensor(flat.shape, np.int32)
    g.add("UNIQUE", [flat], [found, inverse], idx_out_type=np.dtype(np.int32))
    number = counting(g, g.extent(found, 0))
    same = g.binary("EQUAL", g.insert_axis(number, 1), g.insert_axis(inverse, 0))
    axis_1 = g.const(1, np.int32)
    first = g.emit("ARG_MAX", [same, axis_1], (None,), np.int64, output_type=np.dtype(np.int64))
    counts = g.cast(g.reduce("SUM", g.cast(same, np.int32), [1], False), np.int64)
    if sorted:
        _, falling = _top(g, found, scalar(g, g.extent(found, 0)))
        rising = g.emit("REVERSE_V2", [falling, g.const([0], np.int32)], (None,))
        found, first, counts = (g.gather(t, rising, 0) for t in (found, first, counts))
        operands = [g.insert_axis(rising, 1), number, g.reshape(scalar(g, g.extent(found, 0)), [1])]
        rank = g.emit("SCATTER_ND", operands, (None,), np.int32)
        inverse = g.gather(rank, inverse, 0)
    return found, first, g.cast(inverse, np.int64), counts


_PAIRS = 1 << 20
"""Comparisons at once."""


def _unique_slices(
    g: Builder, x: Tensor, axis: int, ordered: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compare every slice with every other."""
    if not x.is_static:
        raise Refusal("along an axis of a tensor of unknown sizes", "dynamic_shape")
    order = [axis, *(a for a in range(x.rank) if a != axis)]
    count = x.static_shape[axis]
    size = int(np.prod(x.static_shape)) // max(count, 1)
    if not count or not size or count * count * size > _PAIRS:
        raise Refusal(f"{count} slices of {size} elements along an axis")
    transposed = g.transpose(x, order)
    rows = g.reshape(transposed, [count, size])
    columns = [g.slice(rows, [0, k], [None, k + 1], [1, 1]) for k in range(size)]
    turned_columns = [g.reshape(c, [1, count]) for c in columns]
    same: Tensor | None = None
    # below[i, j]: slice j comes before slice i.
    below: Tensor | None = None
    for own, other in zip(reversed(columns), reversed(turned_columns), strict=True):
        less, equal = g.binary("LESS", other, own), g.binary("EQUAL", other, own)
        if same is None or below is None:
            same, below = equal, less
            continue
        below = g.binary("LOGICAL_OR", less, g.binary("LOGICAL_AND", equal, below))
        same = g.binary("LOGICAL_AND", same, equal)
    if same is None or below is None:
        raise Refusal("slices without elements")
    last = g.const(1, np.int32)
    int64 = np.dtype(np.int64)
    first = g.emit("ARG_MAX", [same, last], (count,), np.int64, output_type=int64)
    own_place = g.const(np.arange(count, dtype=np.int64))
    is_first = g.binary("EQUAL", first, own_place)
    if not ordered:
        below = g.binary("LESS", g.const(np.arange(count)[None], np.int64), g.insert_axis(first, 1))
    counted = g.binary("LOGICAL_AND", below, g.insert_axis(is_first, 0))
    inverse = g.reduce("SUM", g.cast(counted, np.int64), [1], False)
    chosen = g.reshape(g.emit("WHERE", [is_first], (None, 1), np.int64), [-1])
    total = g.emit("SHAPE", [chosen], (1,), np.int32, out_type=np.dtype(np.int32))
    indices = g.cast(g.gather(inverse, chosen, 0), np.int32)
    # Their positions are a permutation, so nothing is added up.
    found = g.emit(
        "SCATTER_ND",
        [g.insert_axis(indices, 1), g.cast(chosen, np.int32), total],
        (None,),
        np.int32,
    )
    counts = g.reduce("SUM", g.cast(same, np.int64), [1], False)
    values = g.transpose(g.gather(transposed, found, 0), list(np.argsort(order)))
    return values, g.gather(first, found, 0), inverse, g.gather(counts, found, 0)


@OPS.lower("NonMaxSuppression", dtypes=FLOATS | {ir.DataType.INT64})
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
    """NON_MAX_SUPPRESSION_V4 for every image and class."""
    wanted = max_output_boxes_per_class
    if wanted is None or (wanted.data is not None and wanted.data.item() <= 0):
        return g.const(np.zeros((0, 3), np.int64))
    batch, classes = scores.shape[:2]
    if batch is None or classes is None or batch * classes > NMS_LIMIT:
        raise Refusal(
            f"images times classes must be known and at most {NMS_LIMIT}", "dynamic_shape"
        )
    if center_point_box:
        boxes = _corners(g, boxes)
    above = _above(g, iou_threshold)
    boxes = _apart(g, boxes, iou_threshold)
    least = None if score_threshold is None else g.reshape(score_threshold, [])
    most = _most(g, wanted, g.extent(boxes, 1))
    rows = []
    for b in range(batch):
        own = g.drop_axis(g.slice(boxes, [b, 0, 0], [b + 1, None, None], [1] * 3), 0)
        for c in range(classes):
            one = g.slice(scores, [b, c, 0], [b + 1, c + 1, None], [1] * 3)
            chosen = _suppressed(g, own, g.reshape(one, [-1]), most, above, least)
            wide = g.pad(g.insert_axis(chosen, 1), [(0, 0), (2, 0)])
            rows.append(g.binary("ADD", wide, g.const([[b, c, 0]], np.int64)))
    return g.concat(rows, 0)


def _most(g: Builder, wanted: Tensor, size: Extent) -> Extent:
    """How many boxes of a class there is memory for."""
    if wanted.data is None:
        held = g.binary("MINIMUM", wanted, np.int64(_MANY))
        held = g.reshape(g.cast(g.binary("MAXIMUM", held, np.int64(0)), np.int32), [])
        return g.binary("MINIMUM", held, scalar(g, size))
    limit = int(wanted.data.item())
    return min(limit, size) if isinstance(size, int) else limit if limit < _MANY else size


def _above(g: Builder, threshold: Tensor | None) -> Tensor:
    """Return the next number: the kernel drops what reaches the threshold, ONNX what exceeds it."""
    tiny = np.finfo(np.float32).tiny
    if threshold is None:
        return g.const(tiny, np.float32)
    if threshold.data is not None:
        known = np.float32(threshold.data.ravel()[0])
        return g.const(min(max(np.nextafter(known, np.float32(2)), tiny), 1), np.float32)
    # A product with the number after one is the next number, or the one after it.
    more = g.binary("MUL", threshold, np.float32(1 + 2**-23))
    return g.reshape(g.binary("MINIMUM", g.binary("MAXIMUM", more, tiny), 1.0), [])


def _apart(g: Builder, boxes: Tensor, threshold: Tensor | None) -> Tensor:
    """Give boxes that do not touch where no overlap exceeds the threshold.

    The kernel takes no threshold above one (LiteRT 2.3.0 then gives any boxes), and drops equal
    boxes at one.
    """
    known = None if threshold is None else threshold.data
    if threshold is None or (known is not None and known.ravel()[0] < 1):
        return boxes
    place = g.cast(counting(g, g.extent(boxes, 1)), np.float32)
    corner = g.insert_axis(g.insert_axis(g.binary("MUL", place, 4.0), 0), 2)
    apart = g.binary("ADD", corner, g.const([[[0, 0, 1, 1]]], np.float32))
    if known is not None:
        return g.binary("ADD", apart, g.binary("MUL", boxes, 0.0))
    never = g.binary("GREATER_EQUAL", g.reshape(threshold, [1, 1, 1]), 1.0)
    return g.emit("SELECT_V2", [never, apart, boxes], boxes.shape, boxes.dtype)


def _corners(g: Builder, boxes: Tensor) -> Tensor:
    center, extent = g.split(boxes, [2, 2], 2)
    half = g.binary("DIV", extent, 2)
    return g.concat([g.binary("SUB", center, half), g.binary("ADD", center, half)], 2)


def _suppressed(
    g: Builder, boxes: Tensor, scores: Tensor, most: Extent, iou: Tensor, least: Tensor | None
) -> Tensor:
    """Kept boxes, best first. The kernel breaks ties by chance, so it gets ranks for scores."""
    size = g.extent(scores, 0)
    values, order = _top(g, scores, scalar(g, size))
    rank = g.cast(g.binary("SUB", scalar(g, size), counting(g, size)), np.float32)
    if least is not None:
        passed = g.binary("GREATER", values, least)
        rank = g.emit("SELECT_V2", [passed, rank, g.const(-1, np.float32)], rank.shape)
    length = most if isinstance(most, int) else None
    picked, count = g.tensor((length,), np.int32), g.tensor((), np.int32)
    limits = [iou, g.const(0, np.float32)]
    operands = [g.gather(boxes, order, 0), rank, scalar(g, most), *limits]
    g.add("NON_MAX_SUPPRESSION_V4", operands, [picked, count])
    begin = g.const([0], np.int32)
    kept = g.emit("SLICE", [picked, begin, g.reshape(count, [1])], (None,))
    return g.cast(g.gather(order, kept, 0), np.int64)
