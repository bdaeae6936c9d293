"""Cutting rotated rectangles out of images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from edgeinfer.types import Array

if TYPE_CHECKING:
    from PIL import Image


def cut_out(picture: Image.Image, corners: Sequence[tuple[float, float]]) -> Image.Image:
    """Return what lies between four corners, as an upright image of the same size.

    Args:
        picture: Image of ``open_image``.
        corners: top left, top right, bottom right, bottom left, in pixels.
    """
    from PIL import Image

    points = np.asarray(corners, np.float64)
    lengths = np.hypot(*(points - np.roll(points, -1, axis=0)).T)
    width, height = (max(int(max(lengths[i], lengths[i + 2])), 1) for i in (0, 1))
    target = np.array([(0, 0), (width, 0), (width, height), (0, height)], np.float64)
    method, bicubic = Image.Transform.PERSPECTIVE, Image.Resampling.BICUBIC
    # Pillow counts from a pixel's corner; corners are those of pixel centres.
    inverse = _homography(target + 0.5, points + 0.5)
    return picture.transform((width, height), method, inverse.tolist(), bicubic)


def _homography(source: Array, target: Array) -> Array:
    """Return the eight numbers of the projection that takes four points to four others."""
    rows = []
    for (x, y), (u, v) in zip(source, target, strict=True):
        rows.append([x, y, 1, 0, 0, 0, -u * x, -u * y])
        rows.append([0, 0, 0, x, y, 1, -v * x, -v * y])
    return np.linalg.solve(np.array(rows), target.reshape(-1))
