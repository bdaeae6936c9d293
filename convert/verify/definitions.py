"""Custom operators as their definitions read, in NumPy and single precision.

LiteRT has no kernels for MediaPipe's, and that of ``TFLite_Detection_PostProcess`` may leave what
it found in memory behind the last box. They judge what the reader makes of a file, so nothing is
shared with it but the reading of options.

Source: mediapipe/util/tflite/operations, tensorflow/lite/kernels/detection_postprocess.cc.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from edgeinfer.convert.sources.tflite import custom
from edgeinfer.convert.sources.tflite.file import FileOp
from edgeinfer.types import Array

Definition = Callable[[bytes, Sequence[Array]], Sequence[Array]]

_CLIPS: dict[int, tuple[float, float]] = {
    1: (0, np.inf),
    2: (-1, 1),
    3: (0, 6),
}
"""By the schema's number: the bounds of an activation."""


def define(op: FileOp, operands: Sequence[Array]) -> Sequence[Array]:
    """Compute the results of a custom operator.

    Raises:
        LookupError: it has no definition here.
    """
    return DEFINITIONS[op.custom](op.raw, operands)


def _deconvolution(raw: bytes, operands: Sequence[Array]) -> Sequence[Array]:
    """Each element of the data adds the weights, times itself, to the window it stands for."""
    x, w, b = operands
    o = custom.deconvolution(raw)
    batch, height, width, _ = x.shape
    outs, rows, columns, _ = w.shape
    down, right = o.strides
    spare_h = max(0, rows - (height - 1) % down - 1) if o.same else 0
    spare_w = max(0, columns - (width - 1) % right - 1) if o.same else 0
    full = np.zeros((batch, down * (height - 1) + rows, right * (width - 1) + columns, outs))
    for row, column in np.ndindex(rows, columns):
        part = np.einsum("nhwi,oi->nhwo", x.astype(np.float64), w[:, row, column])
        last_h, last_w = row + down * (height - 1) + 1, column + right * (width - 1) + 1
        full[:, row:last_h:down, column:last_w:right] += part
    top, left = spare_h // 2, spare_w // 2
    ends = full.shape[1] - spare_h + top, full.shape[2] - spare_w + left
    return [(full[:, top : ends[0], left : ends[1]] + b).astype(np.float32)]


def _pool(raw: bytes, operands: Sequence[Array]) -> Sequence[Array]:
    """The largest of each window, and where in the window it was."""
    (x,) = operands
    o = custom.pool(raw)
    sizes = (x.shape[1], x.shape[2])
    counts = [
        -(-n // s) if o.same else (n - k + s) // s
        for n, k, s in zip(sizes, o.kernel, o.strides, strict=True)
    ]
    least = np.finfo(np.float32).min
    front = o.padded(sizes, (counts[0], counts[1]))
    spans = [(n - 1) * s + k for n, k, s in zip(counts, o.kernel, o.strides, strict=True)]
    around = [(f, max(span - f - n, 0)) for f, span, n in zip(front, spans, sizes, strict=True)]
    data = np.pad(x, [(0, 0), *around, (0, 0)], constant_values=least)
    values = np.full((x.shape[0], *counts, x.shape[3]), least, np.float32)
    indices = np.full(values.shape, np.float32(0.1))
    for row, column in np.ndindex(*o.kernel):
        down, right = (slice(f, f + span, s) for f, span, s in _steps(o, (row, column), spans))
        found = data[:, down, right]
        more = found > values
        values = np.where(more, found, values)
        indices = np.where(more, np.float32(row * o.kernel[1] + column + 0.1), indices)
    if o.activation in _CLIPS:
        low, high = _CLIPS[o.activation]
        values = np.minimum(np.maximum(values, np.float32(low)), np.float32(high))
    return [values, indices]


def _steps(
    o: custom.PoolingWindows, first: Sequence[int], spans: Sequence[int]
) -> list[tuple[int, int, int]]:
    """Where the same element of each window lies: the first one, how far, and how far apart."""
    lengths = [span - k + 1 for span, k in zip(spans, o.kernel, strict=True)]
    return list(zip(first, lengths, o.strides, strict=True))


def _unpool(raw: bytes, operands: Sequence[Array]) -> Sequence[Array]:
    """Each element goes where its window had it; the last of several stays."""
    x, indices = operands
    o = custom.pool(raw)
    size = (x.shape[1] * o.kernel[0], x.shape[2] * o.kernel[1])
    top, left = o.padded(size, (x.shape[1], x.shape[2]))
    made = np.zeros((x.shape[0], *size, x.shape[3]), np.float32)
    n, row, column, channel = np.meshgrid(*map(np.arange, x.shape), indexing="ij")
    down, right = np.divmod(indices.astype(np.int64), o.kernel[1])
    y, z = row * o.strides[0] - top + down, column * o.strides[1] - left + right
    there: Array = (y >= 0) & (y < size[0]) & (z >= 0) & (z < size[1])
    made[n[there], y[there], z[there], channel[there]] = x[there]
    return [made]


def _placing(raw: bytes, operands: Sequence[Array]) -> Sequence[Array]:
    """Shift to the middle of the landmarks, turn, scale, shift to the corner."""
    points = operands[0].reshape(-1, 3)[:, :2].astype(np.float64)
    o = custom.placing(raw)
    line = points[o.right] - points[o.left]
    angle = o.angle - np.arctan2(line[1], line[0])
    turn = _turned(angle)
    inside = points[list(o.subset)] @ turn[:2, :2].T
    low, high = inside.min(0), inside.max(0)
    middle = turn[:2, :2].T @ ((low + high) / 2)
    size = np.array(o.size[::-1])
    shift, scale, corner = np.eye(4), np.eye(4), np.eye(4)
    shift[:2, 3] = middle
    scale[[0, 1], [0, 1]] = np.array(o.scale) * (high - low) / size
    corner[:2, 3] = -size / 2
    made = shift @ _turned(-angle) @ scale @ corner
    return [made.astype(np.float32)[None]]


def _turned(angle: float) -> Array:
    made = np.eye(4)
    made[:2, :2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    return made


def _moved_landmarks(raw: bytes, operands: Sequence[Array]) -> Sequence[Array]:
    """The first two rows of the matrix, times (x, y, 0, 1)."""
    points, matrix = operands[0], operands[1].reshape(4, 4)
    made = points.copy()
    x, y = points[..., 0], points[..., 1]
    for i in (0, 1):
        made[..., i] = matrix[i, 0] * x + matrix[i, 1] * y + matrix[i, 3]
    return [made]


def _moved_picture(raw: bytes, operands: Sequence[Array]) -> Sequence[Array]:
    """Each element of the result lies somewhere between four of the data."""
    x, m = operands[0][0], operands[1].reshape(4, 4).astype(np.float32)
    rows, columns = custom.cut_size(raw)
    height, width, channels = x.shape
    made = np.zeros((1, rows, columns, channels), np.float32)
    half = np.float32(0.5)
    shifts = [m[i, 3] + (m[i, 0] * half + m[i, 1] * half - half) for i in (0, 1)]
    for row, column in np.ndindex(rows, columns):
        right, down = (
            m[i, 0] * np.float32(column) + m[i, 1] * np.float32(row) + shifts[i] for i in (0, 1)
        )
        if not (0 <= right <= width - 1 and 0 <= down <= height - 1):
            continue
        left, top = int(right), int(down)
        near_x, near_y = right - left, down - top
        next_x, next_y = min(left + 1, width - 1), min(top + 1, height - 1)
        upper = (1 - near_x) * x[top, left] + near_x * x[top, next_x]
        lower = (1 - near_x) * x[next_y, left] + near_x * x[next_y, next_x]
        made[0, row, column] = near_y * lower + (1 - near_y) * upper
    return [made]


def _detections(raw: bytes, operands: Sequence[Array]) -> Sequence[Array]:
    """Boxes in double precision; the best first, each that overlaps a better one left out."""
    coded, scores, anchors = (np.asarray(a, np.float64) for a in operands)
    o = custom.detecting(raw)
    scale = np.array(o.scale)
    middle = coded[0, :, :2] / scale[:2] * anchors[:, 2:] + anchors[:, :2]
    half = 0.5 * np.exp(coded[0, :, 2:4] / scale[2:]) * anchors[:, 2:]
    middle, half = middle.astype(np.float32), half.astype(np.float32)
    corners = np.concatenate([middle - half, middle + half], axis=1)
    own = scores[0, :, scores.shape[2] - o.classes :]
    found: list[tuple[int, list[Any]]] = []
    if o.per_class:
        for label in range(o.classes):
            chosen = _suppressed(o, corners, own[:, label], o.per_class)
            found.extend((box, [label]) for box in chosen)
        found.sort(key=lambda f: -own[f[0], f[1][0]])
    else:
        chosen = _suppressed(o, corners, own.max(1), o.most)
        found = [(b, list(np.argsort(-own[b], kind="stable")[: o.labels])) for b in chosen]
    made = [np.zeros((o.most, o.labels, *tail), np.float32) for tail in ((4,), (), ())]
    for row, (box, labels) in enumerate(found[: o.most]):
        for column, label in enumerate(labels):
            for array, value in zip(made, (corners[box], label, own[box, label]), strict=True):
                array[row, column] = value
    total = np.array([min(len(found), o.most)], np.float32)
    flat = [a.reshape(1, o.most * o.labels, *a.shape[2:]) for a in made]
    return [*flat, total]


def _suppressed(o: custom.Detecting, corners: Array, scores: Array, most: int) -> list[int]:
    """Boxes that stay, the best first."""
    kept: list[int] = []
    for box in np.argsort(-scores, kind="stable"):
        if len(kept) == most or np.float32(scores[box]) < np.float32(o.threshold):
            break
        if all(_overlap(corners[box], corners[k]) <= np.float32(o.overlap) for k in kept):
            kept.append(int(box))
    return kept


def _overlap(a: Array, b: Array) -> np.float32:
    """The area that two boxes share, of the area that either covers."""
    one, other = (np.prod(np.float32(c[2:] - c[:2])) for c in (a, b))
    if one <= 0 or other <= 0:
        return np.float32(0)
    sides = np.maximum(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), np.float32(0))
    shared = np.float32(np.prod(sides))
    return np.float32(shared / (one + other - shared))


DEFINITIONS: dict[str, Definition] = {
    "Convolution2DTransposeBias": _deconvolution,
    "MaxPoolingWithArgmax2D": _pool,
    "MaxUnpooling2D": _unpool,
    "Landmarks2TransformMatrix": _placing,
    "TransformLandmarks": _moved_landmarks,
    "TransformTensorBilinear": _moved_picture,
    "TFLite_Detection_PostProcess": _detections,
}
"""By the operator's name."""
