"""Resize, where ONNX's formula picks the same positions."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.sources.tflite.importer import Importer
from edgeinfer.convert.sources.tflite.operand import Operand, Options
from edgeinfer.convert.sources.tflite.ops.window import channels_first, channels_last
from edgeinfer.convert.sources.tflite.registry import READERS
from edgeinfer.types import Array

_F = np.float32


@READERS.reader("RESIZE_BILINEAR")
def resize_bilinear(g: Importer, o: Options, x: Operand, size: Operand) -> ir.Value:
    """Resize by lines between neighbours."""
    return _resize(g, x, size, mode="linear", coordinate_transformation_mode=_transform(o))


@READERS.reader("RESIZE_NEAREST_NEIGHBOR")
def resize_nearest_neighbor(g: Importer, o: Options, x: Operand, size: Operand) -> ir.Value:
    """Resize to the nearest neighbour, or rows by index where rounding would choose others."""
    transform = _transform(o)
    # TFLite adds half a pixel and cuts, or rounds halves up; ONNX calls both "prefer ceil".
    nearest = "floor" if transform == "asymmetric" else "round_prefer_ceil"
    wanted = size.ints()
    if wanted is None or None in x.shape[1:3]:
        if transform == "align_corners":
            raise Refusal("nearest neighbours with aligned corners of unknown sizes")
        found: list[Array | None] = [None, None]
    else:
        sizes = [s or 0 for s in x.shape[1:3]]
        found = [
            _places(o, s, n) if (_places(o, s, n) != _onnx_places(transform, s, n)).any() else None
            for s, n in zip(sizes, wanted, strict=True)
        ]
    if all(p is None for p in found):
        return _resize(
            g,
            x,
            size,
            mode="nearest",
            coordinate_transformation_mode=transform,
            nearest_mode=nearest,
        )
    y = x.real
    for axis, (s, n) in enumerate(zip(x.shape[1:3], wanted or (), strict=True)):
        y = g.emit("Gather", y, g.shape(_places(o, s or 0, n).tolist()), axis=axis + 1)
    return y


def _transform(o: Options) -> str:
    if o.align_corners and o.half_pixel_centers:
        raise Refusal("aligned corners and centres of pixels at once")
    if o.align_corners:
        return "align_corners"
    return "half_pixel" if o.half_pixel_centers else "asymmetric"


def _resize(g: Importer, x: Operand, size: Operand, **how: str) -> ir.Value:
    data = channels_first(g, x, 4)
    wanted = size.ints()
    if wanted is not None and len(wanted) == 2 and min(wanted) > 0:
        sizes = g.shape(wanted)
    elif wanted is None:
        sizes = size.int64()
    else:
        raise ValueError(f"size {wanted}")
    y = g.emit("Resize", data, None, None, sizes, axes=[2, 3], **how)
    return channels_last(g, y, 4)


def _places(o: Options, size: int, count: int) -> Array:
    """Which element each result takes, in the kernel's arithmetic.

    Source: tensorflow/lite/kernels/internal/reference/resize_nearest_neighbor.h.
    """
    at = np.arange(count, dtype=_F)
    aligned = bool(o.align_corners) and count > 1
    scale = _F(size - 1) / _F(count - 1) if aligned else _F(size) / _F(count)
    offset = _F(0.5) if o.half_pixel_centers else _F(0)
    place = (at + offset) * scale
    chosen = np.floor(place + _F(0.5)) if o.align_corners else np.floor(place)
    return _inside(chosen, size)


def _onnx_places(transform: str, size: int, count: int) -> Array:
    """Which element ONNX takes, in single precision as engines compute."""
    at = np.arange(count, dtype=_F)
    scale = _F(count) / _F(size)
    if transform == "asymmetric":
        return _inside(np.floor(at / scale), size)
    if transform == "align_corners":
        place = at * _F(size - 1) / _F(count - 1) if count > 1 else np.zeros(1, _F)
    else:
        place = (at + _F(0.5)) / scale - _F(0.5)
    return _inside(np.floor(place + _F(0.5)), size)


def _inside(indices: Array, size: int) -> Array:
    return np.asarray(np.clip(indices, 0, size - 1), np.int64)
