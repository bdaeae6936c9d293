"""Scores of the positions of an output to the pixels of the source: classes, objects, depth."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgeinfer.decode.scores import activated
from edgeinfer.errors import RunError
from edgeinfer.heads import Depth, Segment
from edgeinfer.media.geometry import ImagePlacement
from edgeinfer.results import DepthMap, Mask, Segmentation
from edgeinfer.types import Array

_BAND, _MOST_ROW = 1 << 20, 1 << 24
"""Scores that are interpolated at once, and those of one row of pixels."""


def segment(
    output: Array, head: Segment, placement: ImagePlacement, labels: Sequence[str]
) -> Segmentation:
    """Give every pixel of the source the class that scores best at its place in the output.

    Scores are interpolated bilinearly at the middle of each source pixel; of equal ones the first
    class wins. One channel is the score of class 1, all else is class 0.

    Args:
        output: (1, classes, height, width) or (1, height, width, classes).
        head: which of both, and what is applied.
        placement: Placement of the image in the model's input.
        labels: names of the classes.

    Raises:
        RunError: the output is not of that shape.
    """
    if output.ndim != 4 or len(output) != 1:
        raise RunError(f"head: expected one image of scores, received {list(output.shape)}")
    scores = output[0] if head.channels_last else output[0].transpose(1, 2, 0)
    single = scores.shape[2] == 1
    if not (single and head.activation == "softmax"):
        scores = activated(scores, head.activation)
    count = 2 if single else scores.shape[2]
    if count * placement.source[0] > _MOST_ROW:
        raise RunError(f"head: {count} classes for each of {placement.source[0]} pixels of a row")
    dtype = np.uint8 if count <= 256 else np.uint16
    width, height = placement.source
    columns = _places(width, 0, placement, scores.shape[1])
    mask = np.empty((height, width), dtype)
    found = np.zeros(count, np.int64)
    # A band of rows at a time: the scores of a large image would not fit into memory.
    high = max(1, _BAND // (max(width, scores.shape[1]) * scores.shape[2]))
    for top in range(0, height, high):
        rows = _places(height, 1, placement, scores.shape[0])[top : top + high]
        here = _sampled(scores, rows, columns)
        chosen = here[:, :, 0] >= head.threshold if single else here.argmax(axis=2)
        mask[top : top + high] = chosen
        found += np.bincount(chosen.reshape(-1), minlength=count)
    shares = {int(k): float(found[k]) / mask.size for k in np.flatnonzero(found)}
    return Segmentation(mask, tuple(labels), shares)


def object_mask(
    scores: Array, placement: ImagePlacement, box: Array | Sequence[float] | None = None
) -> Mask:
    """Find the pixels of the source at which an object's score is above 0, interpolated.

    Args:
        scores: (height, width).
        placement: Placement of the image in the model's input.
        box: left, top, right and bottom, in pixels of the source, outside of which there are none.
    """
    low, high = np.zeros(2, np.int64), np.asarray(placement.source)
    if box is not None:
        low = np.clip(np.ceil(box[:2]), 0, high).astype(np.int64)
        high = np.clip(np.ceil(box[2:]), 0, high).astype(np.int64)
    positions = []
    for axis in (0, 1):
        where = _places(placement.source[axis], axis, placement, scores.shape[1 - axis])
        there = np.flatnonzero((scores > 0).any(axis=axis))
        # Of what lies between two positions neither of which is above 0, nothing is.
        near = (where > there[0] - 1) & (where < there[-1] + 1) if len(there) else where < -1
        near[: low[axis]] = near[high[axis] :] = False
        kept = np.flatnonzero(near)
        low[axis] = kept[0] if len(kept) else 0
        positions.append(where[kept])
    columns, rows = positions
    found = np.empty((len(rows), len(columns)), bool)
    band = max(1, _BAND // max(len(columns), scores.shape[1]))
    for top in range(0, len(rows), band):
        some = rows[top : top + band]
        found[top : top + band] = _sampled(scores[:, :, np.newaxis], some, columns)[:, :, 0] > 0
    return Mask(int(low[0]), int(low[1]), found)


def depth(output: Array, head: Depth, placement: ImagePlacement) -> DepthMap:
    """Interpolate a map to the pixels of the source.

    Args:
        output: (1, height, width), with or without an axis of one channel.
        head: how.
        placement: Placement of the image in the model's input.

    Raises:
        RunError: the output is not of that shape.
    """
    values = np.asarray(output, np.float32)
    if values.ndim == 4 and 1 in (values.shape[1], values.shape[3]):
        values = values[:, 0] if values.shape[1] == 1 else values[..., 0]
    if values.ndim != 3 or len(values) != 1:
        raise RunError(f"head: expected the map of one image, received {list(output.shape)}")
    values = values[0]
    width, height = placement.source
    bicubic = head.interpolation == "bicubic"
    columns, rows = (
        _places(n, axis, placement, values.shape[1 - axis], cut=not bicubic)
        for axis, n in enumerate((width, height))
    )
    found = np.empty((height, width), np.float32)
    high = max(1, _BAND // max(width, values.shape[1]))
    for top in range(0, height, high):
        some = rows[top : top + high]
        if bicubic:
            found[top : top + high] = _cubic(_cubic(values, some, 0), columns, 1)
        else:
            found[top : top + high] = _sampled(values[:, :, np.newaxis], some, columns)[:, :, 0]
    return DepthMap(found, head.nearer == "larger")


def _places(
    count: int, axis: int, placement: ImagePlacement, size: int, *, cut: bool = True
) -> Array:
    """Return where the middles of the source's pixels lie in the output, by its pixel centres."""
    middles = np.arange(count) + 0.5
    inside = middles * placement.scale[axis] + placement.offset[axis]
    positions = np.asarray(inside * (size / placement.size[axis]) - 0.5)
    return positions.clip(0, size - 1) if cut else positions


_CUBIC = -0.75
"""The parameter of the curve, as PyTorch and OpenCV have it."""


def _cubic(values: Array, positions: Array, axis: int) -> Array:
    """Interpolate along one axis by four values each (Keys 1981); edges go on beyond the end."""
    first = np.floor(positions)
    share = (positions - first).astype(np.float32)
    a = _CUBIC
    total: Array = np.zeros((), np.float32)
    shape = (-1, 1) if axis == 0 else (1, -1)
    for step in (-1, 0, 1, 2):
        t = np.abs(share - step)
        inner = ((a + 2) * t - (a + 3)) * t * t + 1
        outer = ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
        weight = np.where(t <= 1, inner, outer).astype(np.float32).reshape(shape)
        index = (first.astype(np.int64) + step).clip(0, values.shape[axis] - 1)
        total = total + values.take(index, axis=axis) * weight
    return np.asarray(total)


def _sampled(scores: Array, rows: Array, columns: Array) -> Array:
    y, x = np.floor(rows).astype(np.int64), np.floor(columns).astype(np.int64)
    below, right = (y + 1).clip(None, scores.shape[0] - 1), (x + 1).clip(None, scores.shape[1] - 1)
    dy = (rows - y).astype(np.float32)[:, np.newaxis, np.newaxis]
    dx = (columns - x).astype(np.float32)[np.newaxis, :, np.newaxis]
    tall = scores[y] * (1 - dy) + scores[below] * dy
    return np.asarray(tall[:, x] * (1 - dx) + tall[:, right] * dx)
