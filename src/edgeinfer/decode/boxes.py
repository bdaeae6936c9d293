"""Boxes of objects: from anchors, grids, rows and queries, and which of them are one object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from edgeinfer.decode.extras import described, extra_of, numbers_of
from edgeinfer.decode.grouping import ByNumpy, Grouping, least_above_background, least_raw
from edgeinfer.decode.rotated_boxes import thinned as thinned_rotated
from edgeinfer.decode.scores import activated, name_of
from edgeinfer.errors import RunError
from edgeinfer.heads import (
    Detect,
    DetectAnchors,
    DetectBoxes,
    DetectGrid,
    DetectQueries,
    DetectRows,
    Extra,
    Keypoints,
    Rotated,
)
from edgeinfer.media.geometry import ImagePlacement
from edgeinfer.records import dataclass
from edgeinfer.results import Detection
from edgeinfer.types import Array

BY_NUMPY = ByNumpy()

MOST_CANDIDATES, MOST_ROTATED, MOST_OBJECTS = 30_000, 5_000, 10_000
"""Boxes that are grouped, rotated or not, and objects of a model that groups them: the best.

Time grows with their square, and how many there are is the model's word.
"""


@dataclass(frozen=True, slots=True)
class Candidates:
    """Boxes before they are thinned out, in pixels of the model's input.

    Attributes:
        corners: (n, 4): left, top, right, bottom; of rotated boxes before they are rotated.
        scores: (n,).
        classes: (n,).
        extra: (n, numbers): what the head says that follows.
    """

    corners: Array
    scores: Array
    classes: Array
    extra: Array

    def take(self, index: Array) -> Candidates:
        """Return some of them, in this order."""
        parts = (self.corners, self.scores, self.classes, self.extra)
        return Candidates(*(part[index] for part in parts))


def detect(
    outputs: Mapping[str, Array],
    head: Detect,
    placement: ImagePlacement,
    labels: Sequence[str],
    by: Grouping = BY_NUMPY,
) -> list[Detection]:
    """Find the objects of one image, the best first.

    Args:
        outputs: by name; None of a head stands for the only one.
        head: how they are to be read.
        placement: Placement of the image in the model's input.
        labels: names of the classes.
        by: what finds and groups boxes.

    Raises:
        RunError: the outputs are not of the shape that the head says.
    """
    found = _found(outputs, head, placement.size, by)
    corners = placement.to_source(found.corners.reshape(-1, 2, 2)).reshape(-1, 4)
    more = described(found.corners, found.extra, extra_of(head), outputs, placement)
    return [
        Detection(
            **{
                "box": (float(c[0]), float(c[1]), float(c[2]), float(c[3])),
                "score": float(score),
                "index": int(index),
                "label": name_of(int(index), labels),
                **said,
            }
        )
        for c, score, index, said in zip(corners, found.scores, found.classes, more, strict=True)
    ]


def _found(
    outputs: Mapping[str, Array], head: Detect, size: tuple[int, int], by: Grouping
) -> Candidates:
    """Return the objects in pixels of the input, the best first."""
    match head:
        case DetectAnchors():
            return thinned(from_anchors(outputs, head, size, by), head.overlap, head, by)
        case DetectGrid():
            return thinned(from_grid(outputs, head, size, by), head.overlap, head, by)
        case DetectBoxes():
            return from_boxes(outputs, head, size)
        case DetectRows():
            return from_rows(outputs, head, size)
        case DetectQueries():
            return from_queries(outputs, head, size)


@lru_cache(maxsize=8)
def anchors(head: DetectAnchors, size: tuple[int, int]) -> Array:
    """Return middle and size of every anchor in pixels of the input: (n, 4)."""
    parts = []
    for layer in head.layers:
        columns, rows = (-(-side // layer.stride) for side in size)
        y, x = np.meshgrid(np.arange(rows) + 0.5, np.arange(columns) + 0.5, indexing="ij")
        cells = np.stack([x * (size[0] / columns), y * (size[1] / rows)], axis=-1)
        sizes = np.array([layer.widths, layer.heights or layer.widths]).T
        both = (rows, columns, len(sizes), 2)
        cells = np.broadcast_to(cells[:, :, np.newaxis], both)
        parts.append(np.concatenate([cells, np.broadcast_to(sizes, both)], axis=-1).reshape(-1, 4))
    return np.concatenate(parts).astype(np.float32)


def from_anchors(
    outputs: Mapping[str, Array],
    head: DetectAnchors,
    size: tuple[int, int],
    by: Grouping = BY_NUMPY,
) -> Candidates:
    """Decode what is relative to anchors; boxes below the threshold are left out."""
    raw = _joined(outputs, head.boxes, 4 + 2 * head.keypoints)
    wanted = sum(
        -(-size[0] // layer.stride) * -(-size[1] // layer.stride) * len(layer.widths)
        for layer in head.layers
    )
    if len(raw) != wanted:
        # Before they are made: their number is the file's word.
        raise RunError(f"head: {wanted} anchors, but the model gives {len(raw)} boxes")
    around = anchors(head, size)
    rated = _joined(outputs, head.scores, None)
    if len(rated) != len(raw):
        raise RunError(f"head: {len(raw)} boxes, but {len(rated)} scores")
    worth = _worth_anchor(rated, head, by)
    scores = activated(rated[worth], head.activation)
    scores = scores[:, 1:] if head.background else scores
    row, classes = np.nonzero(scores >= head.threshold)
    best, kept = scores[row, classes], worth[row]
    raw, around = raw[kept], around[kept]
    scales = np.asarray(head.scales, np.float32)
    numbers = raw.reshape(len(raw), raw.shape[1] // 2, 2)
    numbers = numbers[:, :, ::-1] if head.order == "yxhw" else numbers
    middle = around[:, :2] + numbers[:, 0] / scales[:2] * around[:, 2:]
    extent = numbers[:, 1] / scales[2:]
    extent = (np.exp(extent) if head.exponential else extent) * around[:, 2:]
    positions = numbers[:, 2:] / scales[:2] * around[:, np.newaxis, 2:] + around[:, np.newaxis, :2]
    corners = np.concatenate([middle - extent / 2, middle + extent / 2], axis=1)
    return _sound(
        Candidates(corners, best, classes, positions.reshape(len(positions), 2 * head.keypoints))
    )


def _worth_anchor(rated: Array, head: DetectAnchors, by: Grouping) -> Array:
    """Return the boxes whose scores may reach the threshold."""
    first = int(head.background)
    least: Array | float = least_raw(head.threshold, head.activation)
    if head.background and head.activation == "softmax":
        least = rated[:, 0] + np.float32(least_above_background(head.threshold))
    if rated.shape[1] <= first or np.isneginf(least).all():
        return np.arange(len(rated))
    return np.flatnonzero(by.peaks(rated, first, 1) >= least)


def from_grid(
    outputs: Mapping[str, Array],
    head: DetectGrid,
    size: tuple[int, int],
    by: Grouping = BY_NUMPY,
) -> Candidates:
    """Decode what every cell of the grids gives."""
    raw = np.asarray(_one(outputs, head.output), np.float32)
    raw = raw[0] if raw.ndim == 3 and len(raw) == 1 else raw
    if raw.ndim != 2:
        raise RunError(f"head: expected boxes of one image, received {list(raw.shape)}")
    first, follow = 5 if head.objectness else 4, numbers_of(head.extra, outputs)
    numbers = raw.shape[0 if head.channels_first else 1]
    if numbers <= first + follow:
        raise RunError(f"head: expected over {first + follow} numbers a box, received {numbers}")
    behind = numbers - follow
    worth = _worth_cell(raw, head, by, first, behind)
    count = raw.shape[1 if head.channels_first else 0]
    raw = np.ascontiguousarray(raw[:, worth].T) if head.channels_first else raw[worth]
    scores = activated(raw[:, first:behind], head.activation)
    if head.objectness:
        scores = scores * activated(raw[:, 4:5], head.activation)
    classes = scores.argmax(axis=1)
    best = scores[np.arange(len(scores)), classes]
    kept = np.flatnonzero(best >= head.threshold)
    positions = _in_pixels(raw[:, :4], head, size, worth, count)[kept]
    corners = positions if head.box == "xyxy" else _cornered(positions)
    extra = _scaled(raw[kept, behind:], head.extra, size if head.unit == "share" else (1, 1))
    return _sound(Candidates(corners, best[kept], classes[kept], extra))


def _worth_cell(raw: Array, head: DetectGrid, by: Grouping, first: int, behind: int) -> Array:
    """Return the boxes whose scores, ``first`` to ``behind``, may reach the threshold."""
    axis = 0 if head.channels_first else 1
    least = least_raw(head.threshold, head.activation)
    there = raw.take(4, axis=axis) if head.objectness else None
    if there is not None and head.activation == "sigmoid":
        # A product of two shares is no larger than either.
        return np.flatnonzero(there >= least)
    scored = raw[:behind] if head.channels_first else raw[:, :behind]
    peaks = by.peaks(scored, first, axis)
    if there is not None and (there >= 0).all():
        return np.flatnonzero(peaks * there >= least)
    return np.arange(len(peaks)) if there is not None else np.flatnonzero(peaks >= least)


def from_boxes(
    outputs: Mapping[str, Array], head: DetectBoxes, size: tuple[int, int]
) -> Candidates:
    """Take boxes that the model itself decoded."""
    corners = np.asarray(outputs[head.boxes], np.float32).reshape(-1, 4)
    scores = np.asarray(outputs[head.scores], np.float32).reshape(-1)
    if len(scores) != len(corners):
        raise RunError(f"head: {len(corners)} boxes, but {len(scores)} scores")
    if head.classes is None:
        classes = np.zeros(len(scores), np.int64)
    else:
        classes = np.asarray(outputs[head.classes]).reshape(-1).astype(np.int64) - head.first
    corners = corners[:, [1, 0, 3, 2]] if head.order == "yxyx" else corners
    corners = corners * np.asarray(size * 2) if head.unit == "share" else corners
    kept = np.flatnonzero(scores >= head.threshold)
    kept = kept[(-scores[kept]).argsort(kind="stable")][:MOST_OBJECTS]
    return _sound(Candidates(corners, scores, classes, _none(len(scores))).take(kept))


def from_rows(outputs: Mapping[str, Array], head: DetectRows, size: tuple[int, int]) -> Candidates:
    """Take objects that the model itself decoded and thinned out."""
    raw = np.asarray(_one(outputs, head.output), np.float32)
    raw = raw[0] if raw.ndim == 3 and len(raw) == 1 else raw
    expected = 6 + numbers_of(head.extra, outputs)
    if raw.ndim != 2 or raw.shape[1] != expected:
        raise RunError(f"head: expected (1, n, {expected}), received {list(raw.shape)}")
    raw = raw[raw[:, 4] >= head.threshold]
    raw = raw[(-raw[:, 4]).argsort(kind="stable")][: head.most]
    unit = size if head.unit == "share" else (1, 1)
    positions = raw[:, :4] * np.asarray(unit * 2, np.float32)
    corners = positions if head.box == "xyxy" else _cornered(positions)
    extra = _scaled(raw[:, 6:], head.extra, unit)
    return _sound(Candidates(corners, raw[:, 4], raw[:, 5].astype(np.int64), extra))


def from_queries(
    outputs: Mapping[str, Array], head: DetectQueries, size: tuple[int, int]
) -> Candidates:
    """Take the objects that a decoder's queries found; the numbers behind are their masks."""
    boxes = _joined(outputs, (head.boxes,), 4)
    raw = _joined(outputs, (head.scores,), None)
    if len(raw) != len(boxes):
        raise RunError(f"head: {len(boxes)} boxes, but {len(raw)} scores")
    scores = activated(raw, head.activation)
    if head.activation == "softmax":
        scores = scores[:, :-1]
        scores = np.where(scores == scores.max(axis=1, keepdims=True), scores, -1.0)
    query, classes = np.nonzero(scores >= head.threshold)
    best = scores[query, classes]
    kept = (-best).argsort(kind="stable")[: min(head.most, len(boxes))]
    corners = _cornered(boxes[query[kept]] * np.asarray(size * 2, np.float32))
    extra = _none(len(kept)) if head.masks is None else query[kept, np.newaxis]
    return _sound(Candidates(corners, best[kept], classes[kept], extra))


def thinned(
    found: Candidates,
    overlap: float,
    head: DetectAnchors | DetectGrid,
    by: Grouping = BY_NUMPY,
) -> Candidates:
    """Keep one box an object, the best first.

    A box is the same object as a better one that it overlaps by more than the share. ``weighted``
    gives the mean of all of them by their scores, as MediaPipe does. Of rotated boxes one that was
    left out itself leaves others out too, and how far two overlap follows from two normal
    distributions (Llerena et al. 2021), as Ultralytics does.
    """
    is_rotated = isinstance(extra_of(head), Rotated)
    most = MOST_ROTATED if is_rotated else MOST_CANDIDATES
    ordered = found.take((-found.scores).argsort(kind="stable")[:most])
    corners, classes = ordered.corners, ordered.classes
    if is_rotated:
        kinds = classes if head.per_class else np.zeros_like(classes)
        angles = ordered.extra[:, 0]
        return ordered.take(thinned_rotated(corners, angles, kinds, overlap)[: head.most])
    # Boxes that belong to none are left out; an object's first box is its best.
    groups = by.groups(corners, classes, overlap, head.most, per_class=head.per_class)
    numbers, best = np.unique(groups, return_index=True)
    best = best[numbers >= 0]
    if not (isinstance(head, DetectAnchors) and head.merge == "weighted") or not len(best):
        return ordered.take(best)
    kept = [_mean(ordered.take(np.flatnonzero(groups == n))) for n in range(len(best))]
    parts = ("corners", "scores", "classes", "extra")
    return Candidates(*(np.concatenate([getattr(k, part) for k in kept]) for part in parts))


def _mean(group: Candidates) -> Candidates:
    shares = group.scores / group.scores.sum()
    corners = (group.corners * shares[:, np.newaxis]).sum(axis=0, keepdims=True)
    extra = (group.extra * shares[:, np.newaxis]).sum(axis=0, keepdims=True)
    return Candidates(corners, group.scores[:1], group.classes[:1], extra)


def _sound(found: Candidates) -> Candidates:
    """Leave out boxes that have no area or are no numbers."""
    sides = found.corners[:, 2:] - found.corners[:, :2]
    return found.take(np.flatnonzero((sides > 0).all(axis=1) & np.isfinite(sides).all(axis=1)))


def _scaled(numbers: Array, extra: Extra | None, unit: tuple[int, int]) -> Array:
    """Bring points behind the scores into pixels."""
    if not isinstance(extra, Keypoints):
        return numbers
    factors = (*unit, 1) if extra.scored else unit
    return np.asarray(numbers * np.tile(np.asarray(factors, np.float32), extra.count))


def _none(count: int) -> Array:
    return np.zeros((count, 0), np.float32)


def _in_pixels(
    numbers: Array, head: DetectGrid, size: tuple[int, int], worth: Array, count: int
) -> Array:
    """Return boxes in pixels.

    Args:
        numbers: Numbers of the boxes that are worth it.
        head: how they are to be read.
        size: Size of the input.
        worth: which ones they are.
        count: Number of all boxes.
    """
    if head.unit == "pixels":
        return numbers
    if head.unit == "share":
        return np.asarray(numbers * np.asarray(size * 2, np.float32))
    wanted = sum((size[0] // stride) * (size[1] // stride) for stride in head.strides)
    if wanted != count:
        # Before they are made: their number is the file's word.
        raise RunError(f"head: {wanted} cells, but the model gives {count} boxes")
    cells, strides = _cells(head.strides, size)
    cells, strides = cells[worth], strides[worth]
    middle = (numbers[:, :2] + cells) * strides
    return np.concatenate([middle, np.exp(numbers[:, 2:]) * strides], axis=1)


@lru_cache(maxsize=8)
def _cells(strides: tuple[int, ...], size: tuple[int, int]) -> tuple[Array, Array]:
    """Return column and row of every cell, and the stride of its grid."""
    cells, factors = [], []
    for stride in strides:
        columns, rows = size[0] // stride, size[1] // stride
        y, x = np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij")
        cells.append(np.stack([x, y], axis=-1).reshape(-1, 2))
        factors.append(np.full((rows * columns, 1), stride))
    return np.concatenate(cells).astype(np.float32), np.concatenate(factors).astype(np.float32)


def _cornered(numbers: Array) -> Array:
    half = numbers[:, 2:] / 2
    return np.concatenate([numbers[:, :2] - half, numbers[:, :2] + half], axis=1)


def _joined(outputs: Mapping[str, Array], names: Sequence[str], least: int | None) -> Array:
    """Put outputs (1, n, numbers) of several layers one behind the other: (n, numbers)."""
    parts = []
    for name in names:
        part = np.asarray(outputs[name], np.float32)
        if part.ndim == 3 and len(part) == 1:
            part = part[0]
        if part.ndim != 2 or (least is not None and part.shape[1] < least):
            wanted = f"(1, n, {least or 'classes'})"
            shape = list(outputs[name].shape)
            raise RunError(f"head: output {name!r} is {shape}, expected {wanted}")
        parts.append(part[:, :least])
    return np.concatenate(parts)


def _one(outputs: Mapping[str, Array], name: str | None) -> Array:
    return outputs[name] if name is not None else next(iter(outputs.values()))
