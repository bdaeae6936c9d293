"""Which of LiteRT's kernels compute a resize as ONNX has it."""

from __future__ import annotations

import math

import numpy as np

from edgeinfer.convert.lower.core.resample import F32, How, Taps, matrix, taps
from edgeinfer.convert.lower.registry import Refusal


def kernel_taps(nearest: bool, align: bool, half: bool, size: int, out: int) -> Taps:
    """What RESIZE_NEAREST_NEIGHBOR and RESIZE_BILINEAR of LiteRT 2.3.0 compute, measured."""
    x = np.arange(out, dtype=F32)
    scale = F32(size - 1) / F32(out - 1) if align and out > 1 else F32(size) / F32(out)
    if nearest:
        place = (x + F32(0.5)) * scale if half else x * scale
        found = np.floor(place + F32(0.5)) if align else np.floor(place)
        source = np.minimum(found, size - 1).astype(np.int32)[:, None]
        return Taps(source, np.ones((out, 1), F32), np.zeros(out, np.bool_))
    place = (x + F32(0.5)) * scale - F32(0.5) if half else x * scale
    place = np.maximum(place, 0)
    low = np.minimum(np.floor(place), size - 1)
    share = place - low
    source = np.stack([low, np.minimum(low + 1, size - 1)], axis=1).astype(np.int32)
    weights = np.stack([1 - share, share], axis=1).astype(F32)
    return Taps(source, weights, np.zeros(out, np.bool_))


FLAGS = ((False, True), (False, False), (True, False))
"""``align_corners`` and ``half_pixel_centers``, as the kernels take them."""

_TRIED = (*range(1, 40), 63, 64, 80, 100, 127, 160, 224, 256, 320, 333, 512, 640)
"""Sizes that stand for an unknown one."""


def agrees(
    how: How, flags: tuple[bool, bool], size: int | None, out: int | None, scale: float | None
) -> bool:
    """Whether a kernel computes this axis.

    Args:
        how: the resize.
        flags: Flags of the kernel.
        size: Size of the axis; None tries many.
        out: Size of the result; None follows from the scale, or tries some where that is
            unknown too.
        scale: None where it is the ratio of the sizes.
    """
    if how.antialias or how.mode == "cubic" or how.transform == "tf_crop_and_resize":
        return False
    for n in _TRIED if size is None else (size,):
        if out is not None:
            outs: tuple[int, ...] = (out,)
        elif scale is not None:
            outs = (math.floor(n * F32(scale)),)
        else:
            outs = (1, 2, 3, 5, n, 2 * n, 4 * n, n // 2, n + 1, 7 * n // 3)
        for m in outs:
            if m > 0 and not _agrees(how, flags, n, m, scale):
                return False
    return True


def _agrees(how: How, flags: tuple[bool, bool], size: int, out: int, scale: float | None) -> bool:
    ratio = out / size if scale is None else scale
    try:
        ours = taps(how, size, out, ratio)
    except Refusal:
        return False
    theirs = kernel_taps(how.mode == "nearest", *flags, size, out)
    if how.mode == "nearest":
        return bool((ours.source == theirs.source).all())
    return bool(np.abs(matrix(ours, size) - matrix(theirs, size)).max() < 4e-7 * max(size, 16))
