"""Sorting, choosing and counting."""

from __future__ import annotations

import numpy as np

from edgeinfer.backends.coreml_reference.program import DictType, MilType, TensorType
from edgeinfer.backends.coreml_reference.registry import Arrays, op
from edgeinfer.types import Array


@op("topk")
def topk(
    x: Array,
    k: int = 1,
    axis: int = -1,
    ascending: bool = False,
    sort: bool = True,
    return_indices: bool = True,
    output_indices_dtype: str = "int32",
) -> tuple[Array, ...]:
    """Of equal elements the first comes first; unsorted results come sorted too."""
    count = x.shape[axis] if k == -1 else k
    if not 0 <= count <= x.shape[axis]:
        raise ValueError(f"{k} elements of an axis of {x.shape[axis]}")
    order = _order(x, axis, ascending).take(range(count), axis)
    values = np.take_along_axis(x, order, axis)
    return (values, order) if return_indices else (values,)


@op("argsort")
def argsort(x: Array, axis: int = -1, ascending: bool = False) -> Array:
    return _order(x, axis, ascending)


@op("non_zero")
def non_zero(x: Array) -> Array:
    return np.argwhere(x)


@op("one_hot")
def one_hot(
    indices: Array,
    one_hot_vector_size: int,
    axis: int = -1,
    on_value: Array | None = None,
    off_value: Array | None = None,
) -> Array:
    """An index that is out of range gives a vector without an ``on_value``."""
    axis = axis % (indices.ndim + 1)
    shape = (1,) * axis + (-1,) + (1,) * (indices.ndim - axis)
    positions = np.arange(one_hot_vector_size).reshape(shape)
    hit = np.expand_dims(indices, axis).astype(np.int64) == positions
    on = np.int32(1) if on_value is None else on_value
    off = np.int32(0) if off_value is None else off_value
    return np.where(hit, on, off)


@op("band_part")
def band_part(x: Array, lower: int = -1, upper: int = -1) -> Array:
    rows, columns = np.ogrid[: x.shape[-2], : x.shape[-1]]
    band = ((lower < 0) | (rows - columns <= lower)) & ((upper < 0) | (columns - rows <= upper))
    return np.where(band, x, np.zeros((), x.dtype))


@op("range_1d")
def range_1d(end: Array, start: Array, step: Array) -> Array:
    first, last, by = (v.item() for v in (start, end, step))
    return np.arange(first, last, by)


@op("classify")
def classify(
    probabilities: Array, classes: Arrays, *, out: tuple[MilType, ...]
) -> tuple[object, ...]:
    """Give the label of the greatest probability and a dictionary of them all."""
    labels = [c.item() if isinstance(c, np.ndarray) else c for c in classes]
    scores = probabilities.ravel()
    if len(labels) != scores.size:
        raise ValueError(f"{len(labels)} labels for {scores.size} probabilities")
    best = labels[int(np.argmax(scores))]
    kind = out[0]
    text = isinstance(kind, DictType) or (isinstance(kind, TensorType) and kind.dtype == "string")
    label = np.array(best, object) if text else np.array(best)
    return label, dict(zip(labels, (float(s) for s in scores), strict=True))


@op("non_maximum_suppression")
def non_maximum_suppression(
    boxes: Array,
    scores: Array,
    iou_threshold: float,
    max_boxes: int,
    score_threshold: float | None = None,
    per_class_suppression: bool = False,
    *,
    out: tuple[MilType, ...],
) -> tuple[Array, ...]:
    """Boxes are centre and size; iOS 17's have the boxes on the last axis and no threshold."""
    last = len(out) == 3
    if last:
        boxes, scores = boxes.swapaxes(1, 2), scores.swapaxes(1, 2)
    batch = boxes.shape[0]
    chosen_boxes = np.zeros((batch, max_boxes, 4), np.float32)
    chosen_scores = np.zeros((batch, max_boxes, scores.shape[2]), np.float32)
    indices = np.full((batch, max_boxes), -1, np.int32)
    counts = np.zeros(batch, np.int32)
    for item in range(batch):
        kept = _suppress(
            boxes[item], scores[item], iou_threshold, score_threshold, per_class_suppression
        )[:max_boxes]
        counts[item] = len(kept)
        chosen_boxes[item, : len(kept)] = boxes[item, kept]
        chosen_scores[item, : len(kept)] = scores[item, kept]
        indices[item, : len(kept)] = kept
    if last:
        return chosen_boxes.swapaxes(1, 2), chosen_scores.swapaxes(1, 2), indices
    return chosen_boxes, chosen_scores, indices, counts


def _suppress(
    boxes: Array, scores: Array, overlap: float, least: float | None, per_class: bool
) -> list[int]:
    best, group = scores.max(axis=1), scores.argmax(axis=1)
    order = np.argsort(-best, kind="stable")
    candidates = order if least is None else order[best[order] > np.float32(least)]
    kept: list[int] = []
    for index in candidates.tolist():
        rivals = [k for k in kept if not per_class or group[k] == group[index]]
        if not rivals or (_overlaps(boxes[index], boxes[rivals]) <= np.float32(overlap)).all():
            kept.append(index)
    # Core ML gives the best box if none passes the threshold.
    return kept or [int(order[0])]


def _overlaps(box: Array, others: Array) -> Array:
    half, halves = box[2:] / 2, others[:, 2:] / 2
    low = np.maximum(box[:2] - half, others[:, :2] - halves)
    high = np.minimum(box[:2] + half, others[:, :2] + halves)
    shared = np.maximum(high - low, 0).prod(axis=1)
    union = box[2:].prod() + others[:, 2:].prod(axis=1) - shared
    return np.where(union > 0, shared / np.where(union > 0, union, 1), np.float32(0))


def _order(x: Array, axis: int, ascending: bool) -> Array:
    if ascending:
        return np.argsort(x, axis=axis, kind="stable")
    if x.dtype.kind == "f":
        return np.argsort(-x, axis=axis, kind="stable")
    # The negative of an integer may not exist; its complement does.
    key = x if x.dtype.kind == "b" else np.invert(x)
    return np.argsort(key, axis=axis, kind="stable")
