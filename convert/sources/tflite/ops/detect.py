"""``TFLite_Detection_PostProcess``: encoded boxes and scores of anchors become the best boxes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.sources.tflite import custom
from edgeinfer.convert.sources.tflite.importer import Importer
from edgeinfer.convert.sources.tflite.operand import Operand, Options
from edgeinfer.convert.sources.tflite.registry import CUSTOM

_F = np.float32


@CUSTOM.reader("TFLite_Detection_PostProcess")
def detections(
    g: Importer, o: Options, boxes: Operand, scores: Operand, anchors: Operand
) -> list[ir.Value]:
    """Boxes (y0, x0, y1, x1), classes, scores and how many; zeros fill what is left."""
    p = custom.detecting(o.raw)
    count, coded = _sizes(boxes)
    others, columns = _sizes(scores)
    if others != count or coded < 4 or columns - p.classes not in (0, 1):
        raise ValueError(f"boxes {list(boxes.shape)}, scores {list(scores.shape)}")
    if anchors.shape != (count, 4):
        raise ValueError(f"anchors of shape {list(anchors.shape)}")
    decoded = _decoded(g, p, boxes, anchors)
    own = _part(g, scores.real, columns - p.classes, columns)
    if p.per_class:
        return _each_class(g, p, decoded, own)
    return _all_classes(g, p, decoded, own)


def _sizes(x: Operand) -> tuple[int, int]:
    if x.rank != 3 or x.shape[0] != 1 or None in x.shape:
        raise Refusal(f"operands of shape {list(x.shape)}: one image of a known number of boxes")
    return int(x.shape[1] or 0), int(x.shape[2] or 0)


def _part(g: Importer, value: ir.Value, start: int, end: int) -> ir.Value:
    return g.emit("Slice", value, g.shape([start]), g.shape([end]), g.shape([2]))


def _decoded(g: Importer, p: custom.Detecting, boxes: Operand, anchors: Operand) -> ir.Value:
    """The corners of every box, as (1, anchors, 4)."""
    around = g.emit("Unsqueeze", anchors, g.shape([0]))
    place, size = _part(g, around, 0, 2), _part(g, around, 2, 4)
    scale = np.array(p.scale, _F)
    shift = g.emit("Div", _part(g, boxes.real, 0, 2), g.const(scale[:2]))
    grown = g.emit("Exp", g.emit("Div", _part(g, boxes.real, 2, 4), g.const(scale[2:])))
    middle = g.emit("Add", g.emit("Mul", shift, size), place)
    half = g.emit("Mul", g.emit("Mul", grown, size), _F(0.5))
    corners = (g.emit(kind, middle, half) for kind in ("Sub", "Add"))
    return g.emit("Concat", *corners, axis=2)


def _chosen(g: Importer, p: custom.Detecting, decoded: ir.Value, rated: ir.Value) -> ir.Value:
    """Rows (image, class, box) of the boxes that stay, best first."""
    # ONNX keeps scores above the threshold, TFLite those that are equal to it as well.
    least = np.nextafter(_F(p.threshold), _F(-np.inf))
    most = g.shape([p.per_class or p.most])
    overlap, above = (g.const(np.array([v], _F)) for v in (p.overlap, least))
    return g.emit("NonMaxSuppression", decoded, rated, most, overlap, above)


def _all_classes(
    g: Importer, p: custom.Detecting, decoded: ir.Value, scores: ir.Value
) -> list[ir.Value]:
    """Each box stands for its best class while boxes are chosen."""
    best = g.emit("ReduceMax", scores, g.shape([2]), keepdims=1)
    rows = _chosen(g, p, decoded, g.emit("Transpose", best, perm=[0, 2, 1]))
    found = g.emit("Gather", rows, np.int64(2), axis=1)
    count = g.emit("Shape", found)
    filled = g.emit("Concat", found, g.const(np.zeros(p.most, np.int64)), axis=0)
    indices = g.emit("Slice", filled, g.shape([0]), g.shape([p.most]), g.shape([0]))
    known = min(p.labels, p.classes)
    table = g.emit("Squeeze", scores, g.shape([0]))
    values, labels = g.emit_many(
        "TopK", 2, g.emit("Gather", table, indices, axis=0), g.shape([known]), axis=1
    )
    corners = g.emit("Gather", g.emit("Squeeze", decoded, g.shape([0])), indices, axis=0)
    repeated = g.emit("Unsqueeze", corners, g.shape([1]))
    if p.labels > 1:
        repeated = g.emit("Expand", repeated, g.shape([p.most, known, 4]))
    return _finished(g, p, count, repeated, labels, values)


def _each_class(
    g: Importer, p: custom.Detecting, decoded: ir.Value, scores: ir.Value
) -> list[ir.Value]:
    """Boxes are chosen for each class, then the best of all."""
    rated = g.emit("Transpose", scores, perm=[0, 2, 1])
    rows = _chosen(g, p, decoded, rated)
    labels, boxes = (g.emit("Gather", rows, np.int64(i), axis=1) for i in (1, 2))
    values = g.emit("GatherND", rated, rows)
    none = g.const(np.full(p.most, np.finfo(_F).min))
    padded = g.emit("Concat", values, none, axis=0)
    best, order = g.emit_many("TopK", 2, padded, g.shape([p.most]), axis=0)
    zeros = g.const(np.zeros(p.most, np.int64))
    picked = (
        g.emit("Gather", g.emit("Concat", v, zeros, axis=0), order, axis=0) for v in (boxes, labels)
    )
    chosen, classes = picked
    corners = g.emit("Gather", g.emit("Squeeze", decoded, g.shape([0])), chosen, axis=0)
    total = g.emit("Min", g.emit("Shape", values), g.shape([p.most]))
    one = g.shape([1])
    spread = (g.emit("Unsqueeze", v, one) for v in (corners, classes, best))
    return _finished(g, p, total, *spread)


def _finished(
    g: Importer,
    p: custom.Detecting,
    count: ir.Value,
    corners: ir.Value,
    labels: ir.Value,
    values: ir.Value,
) -> list[ir.Value]:
    """Zeros in place of what was not found; (boxes, labels of each) become one axis."""
    used = g.emit("Less", g.const(np.arange(p.most, dtype=np.int64)[:, None]), count)
    spare = max(p.labels - p.classes, 0)
    made: list[ir.Value] = []
    labels = g.emit("Cast", labels, to=ir.DataType.FLOAT)
    for value, tail in ((corners, [4]), (labels, []), (values, [])):
        mask = g.emit("Unsqueeze", used, g.shape([2])) if tail else used
        kept = g.emit("Where", mask, value, _F(0))
        if spare:
            around = [0, 0, *(0 for _ in tail), 0, spare, *(0 for _ in tail)]
            kept = g.emit("Pad", kept, g.shape(around))
        shape = [1, p.most * p.labels, *tail]
        made.append(g.emit("Reshape", kept, g.shape(shape)))
        made[-1].shape = ir.Shape(shape)
    made.append(g.emit("Cast", count, to=ir.DataType.FLOAT))
    made[-1].shape = ir.Shape([1])
    return made
