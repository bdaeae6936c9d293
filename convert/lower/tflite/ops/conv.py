"""Convolutions over one, two and three spatial axes; data is channels last, weights are ONNX's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from edgeinfer.convert.lower.core import window as sliding
from edgeinfer.convert.lower.core.window import AxisWindow, Windows
from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.lower.tflite.builder import Builder
from edgeinfer.convert.lower.tflite.graph import Tensor
from edgeinfer.convert.lower.tflite.registry import NHWC, OPS
from edgeinfer.convert.lower.tflite.widen import REALS, widened
from edgeinfer.convert.lower.tflite.window import SAME, VALID, fits_same

_PLANAR = (("h", 0), ("w", 1))
_SOLID = (("d", 0), ("h", 1), ("w", 2))


@sliding.conv(OPS, "Conv", first=1, domain=NHWC, dtypes=REALS)
@widened
def conv(g: Builder, x: Tensor, w: Tensor, b: Tensor | None, at: Windows, *, group: int) -> Tensor:
    """CONV_2D, DEPTHWISE_CONV_2D or CONV_3D, padded before where SAME is something else."""
    axes = [axis.trimmed() for axis in at]
    if b is None:
        b = g.const(np.zeros(known(w, 0)), x.dtype)
    if len(axes) == 1:
        flat = g.insert_axis(x, 1)
        out = _conv_2d(g, flat, g.insert_axis(w, 2), b, [AxisWindow(1, 1), *axes], group)
        return g.drop_axis(out, 1)
    if len(axes) == 2:
        return _conv_2d(g, x, w, b, axes, group)
    if len(axes) == 3:
        return _conv_3d(g, x, w, b, axes, group)
    raise Refusal(f"{len(axes)} spatial axes: takes up to 3", "unsupported_rank")


def _conv_2d(
    g: Builder, x: Tensor, w: Tensor, b: Tensor, axes: Sequence[AxisWindow], group: int
) -> Tensor:
    x, padding = padded(g, x, axes)
    shape = [x.shape[0], *(a.count() for a in axes), w.shape[0]]
    options = _options(axes, padding, _PLANAR)
    if group > 1 and w.shape[1] == 1:
        taps = g.transpose(w, [1, 2, 3, 0])
        options["depth_multiplier"] = known(w, 0) // group
        return g.emit("DEPTHWISE_CONV_2D", [x, taps, b], shape, **options)
    return g.emit("CONV_2D", [x, g.transpose(w, [0, 2, 3, 1]), b], shape, **options)


def _conv_3d(
    g: Builder, x: Tensor, w: Tensor, b: Tensor, axes: Sequence[AxisWindow], group: int
) -> Tensor:
    x, padding = padded(g, x, axes)
    outputs = known(w, 0) // group
    shape = [x.shape[0], *(a.count() for a in axes), outputs]
    options = _options(axes, padding, _SOLID)
    pieces = [
        g.emit("CONV_3D", [piece, g.transpose(taps, [2, 3, 4, 1, 0]), bias], shape, **options)
        for piece, taps, bias in zip(
            g.split(x, [known(w, 1)] * group, 4),
            parts(g, w, group),
            parts(g, b, group),
            strict=True,
        )
    ]
    return g.concat(pieces, 4)


def padded(g: Builder, x: Tensor, axes: Sequence[AxisWindow]) -> tuple[Tensor, int]:
    """Pad with zeros where neither VALID nor SAME does; returns the padding to go on with."""
    if not any(a.padded for a in axes):
        return x, VALID
    if all(map(fits_same, axes)):
        return x, SAME
    around = [(a.begin, a.end) for a in Windows(axes).explicit()]
    return g.pad(x, [(0, 0), *around, (0, 0)]), VALID


def _options(
    axes: Sequence[AxisWindow], padding: int, names: Sequence[tuple[str, int]]
) -> dict[str, Any]:
    options: dict[str, Any] = {"padding": padding, "fused_activation_function": 0}
    for name, index in names:
        options[f"stride_{name}"] = axes[index].stride
        options[f"dilation_{name}_factor"] = axes[index].dilation
    return options


def known(tensor: Tensor, axis: int) -> int:
    """A size that must be known now.

    Raises:
        Refusal: it is not.
    """
    size = tensor.shape[axis]
    if size is None:
        raise Refusal(f"{tensor.name!r} must have a known size on axis {axis}", "dynamic_shape")
    return size


def parts(g: Builder, tensor: Tensor, count: int) -> list[Tensor]:
    """Cut the first axis into equal parts; constants are cut here."""
    if tensor.data is not None:
        return [g.const(part) for part in np.split(tensor.data, count)]
    return g.split(tensor, [known(tensor, 0) // count] * count, 0)
