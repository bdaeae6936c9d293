"""A score of every class at every pixel to one class a pixel."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgeinfer.decode.scores import activated
from edgeinfer.errors import RunError
from edgeinfer.heads import Segment
from edgeinfer.media.geometry import Placement
from edgeinfer.results import Segmentation
from edgeinfer.types import Array

_BAND = 1 << 20
"""Scores that are interpolated at once."""


def segment(
    output: Array, head: Segment, placement: Placement, labels: Sequence[str]
) -> Segmentation:
    """Give every pixel of the source the class that scores best at its place in the output.

    Scores are interpolated bilinearly at the middle of each source pixel; of equal ones the first
    class wins. One channel is the score of class 1, all else is class 0.

    Args:
        output: (1, classes, height, width) or (1, height, width, classes).
        head: which of both, and what is applied.
        placement: Placement of the picture in the model's input.
        labels: names of the classes.

    Raises:
        RunError: the output is not of that shape.
    """
    if output.ndim != 4 or len(output) != 1:
        raise RunError(f"head: expected one picture of scores, received {list(output.shape)}")
    scores = output[0] if head.channels_last else output[0].transpose(1, 2, 0)
    single = scores.shape[2] == 1
    if not (single and head.activation == "softmax"):
        scores = activated(scores, head.activation)
    count = 2 if single else scores.shape[2]
    dtype = np.uint8 if count <= 256 else np.uint16
    width, height = placement.source
    columns = _places(width, 0, placement, scores.shape[1])
    mask = np.empty((height, width), dtype)
    found = np.zeros(count, np.int64)
    # A band of rows at a time: the scores of a large picture would not fit into memory.
    high = max(1, _BAND // (width * scores.shape[2]))
    for top in range(0, height, high):
        rows = _places(height, 1, placement, scores.shape[0])[top : top + high]
        here = _sampled(scores, rows, columns)
        chosen = here[:, :, 0] >= head.threshold if single else here.argmax(axis=2)
        mask[top : top + high] = chosen
        found += np.bincount(chosen.reshape(-1), minlength=count)
    shares = {int(k): float(found[k]) / mask.size for k in np.flatnonzero(found)}
    return Segmentation(mask, tuple(labels), shares)


def _places(count: int, axis: int, placement: Placement, size: int) -> Array:
    """Return where the middles of the source's pixels lie in the output, by its pixel centres."""
    middles = np.arange(count) + 0.5
    inside = middles * placement.scale[axis] + placement.offset[axis]
    return np.asarray(inside * (size / placement.size[axis]) - 0.5).clip(0, size - 1)


def _sampled(scores: Array, rows: Array, columns: Array) -> Array:
    y, x = np.floor(rows).astype(np.int64), np.floor(columns).astype(np.int64)
    below, right = (y + 1).clip(None, scores.shape[0] - 1), (x + 1).clip(None, scores.shape[1] - 1)
    dy = (rows - y).astype(np.float32)[:, np.newaxis, np.newaxis]
    dx = (columns - x).astype(np.float32)[np.newaxis, :, np.newaxis]
    tall = scores[y] * (1 - dy) + scores[below] * dy
    return np.asarray(tall[:, x] * (1 - dx) + tall[:, right] * dx)
