"""Order, distinct values and the best boxes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.sources.tflite.importer import Importer
from edgeinfer.convert.sources.tflite.operand import Operand, Options
from edgeinfer.convert.sources.tflite.registry import READERS


@READERS.reader("TOPK_V2")
def topk_v2(g: Importer, o: Options, x: Operand, k: Operand) -> Sequence[ir.Value]:
    """TopK along the last axis."""
    values, indices = g.emit_many("TopK", 2, x, k.int64([1]), axis=-1, largest=1, sorted=1)
    return values, g.emit("Cast", indices, to=ir.DataType.INT32)


@READERS.reader("UNIQUE")
def unique(g: Importer, o: Options, x: Operand) -> Sequence[ir.Value]:
    """Unique, in the order of first appearance, with where each element went."""
    # ONNX Runtime has no kernel for int32.
    narrow = x.dtype == ir.DataType.INT32
    data = g.emit("Cast", x, to=ir.DataType.INT64) if narrow else x.real
    values, _, indices, _ = g.emit_many("Unique", 4, data, sorted=0)
    values = g.emit("Cast", values, to=x.dtype) if narrow else values
    second = o.outputs[1] if len(o.outputs) > 1 else None
    if second is not None and second.kind == "INT64":
        return values, indices
    return values, g.emit("Cast", indices, to=ir.DataType.INT32)


@READERS.reader("NON_MAX_SUPPRESSION_V4")
def non_max_suppression_v4(
    g: Importer,
    o: Options,
    boxes: Operand,
    scores: Operand,
    limit: Operand,
    overlap: Operand,
    threshold: Operand,
) -> Sequence[ir.Value]:
    """The best boxes' positions, filled up with zeros, and their number."""
    (most,) = limit.known("the number of boxes")
    chosen = g.emit(
        "NonMaxSuppression",
        g.emit("Unsqueeze", boxes, g.shape([0])),
        g.emit("Unsqueeze", scores, g.shape([0, 1])),
        g.shape([most]),
        g.emit("Reshape", overlap, g.shape([1])),
        g.emit("Reshape", threshold, g.shape([1])),
    )
    indices = g.emit("Gather", chosen, np.int64(2), axis=1)
    count = g.emit("Shape", indices)
    missing = g.emit("Concat", g.shape([0]), g.emit("Sub", g.shape([most]), count), axis=0)
    filled = g.emit("Pad", indices, missing)
    total = g.emit("Cast", g.emit("Squeeze", count, g.shape([0])), to=ir.DataType.INT32)
    return g.emit("Cast", filled, to=ir.DataType.INT32), total


@READERS.reader("NON_MAX_SUPPRESSION_V5")
def non_max_suppression_v5(
    g: Importer,
    o: Options,
    boxes: Operand,
    scores: Operand,
    limit: Operand,
    overlap: Operand,
    threshold: Operand,
    sigma: Operand,
) -> Sequence[ir.Value]:
    """Likewise, with the scores of the boxes."""
    if sigma.const is None or float(sigma.const.ravel()[0]) != 0.0:
        raise Refusal("soft suppression")
    indices, total = non_max_suppression_v4(g, o, boxes, scores, limit, overlap, threshold)
    (most,) = limit.known("the number of boxes")
    used = g.emit("Less", np.arange(most, dtype=np.int32), total)
    own = g.emit("Where", used, g.emit("Gather", scores, indices, axis=0), np.float32(0))
    return indices, own, total
