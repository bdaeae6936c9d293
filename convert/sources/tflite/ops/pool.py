"""Pools and local normalisation."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.sources.tflite.importer import Importer
from edgeinfer.convert.sources.tflite.operand import Operand, Options
from edgeinfer.convert.sources.tflite.ops.window import channels_first, channels_last, window
from edgeinfer.convert.sources.tflite.registry import READERS


def _window(o: Options, x: Operand) -> dict[str, Any]:
    kernel = (o.filter_height, o.filter_width)
    return window(o.padding, x.shape[1:3], kernel, (o.stride_h, o.stride_w))


@READERS.reader("MAX_POOL_2D")
def max_pool_2d(g: Importer, o: Options, x: Operand) -> ir.Value:
    """MaxPool."""
    y = g.emit("MaxPool", channels_first(g, x, 4), **_window(o, x))
    return channels_last(g, g.activate(y, o), 4)


@READERS.reader("AVERAGE_POOL_2D")
def average_pool_2d(g: Importer, o: Options, x: Operand) -> ir.Value:
    """AveragePool of what is not padded."""
    data = channels_first(g, x, 4)
    y = g.emit("AveragePool", data, count_include_pad=0, **_window(o, x))
    return channels_last(g, g.activate(y, o), 4)


@READERS.reader("L2_POOL_2D")
def l2_pool_2d(g: Importer, o: Options, x: Operand) -> ir.Value:
    """The root of the average square."""
    data = channels_first(g, g.emit("Mul", x, x), 4)
    y = g.emit("Sqrt", g.emit("AveragePool", data, count_include_pad=0, **_window(o, x)))
    return channels_last(g, g.activate(y, o), 4)


@READERS.reader("LOCAL_RESPONSE_NORMALIZATION")
def local_response_normalization(g: Importer, o: Options, x: Operand) -> ir.Value:
    """LRN, whose factor is for the whole window and not for each element of it."""
    size = 2 * o.radius + 1
    y = g.emit(
        "LRN",
        channels_first(g, x, 4),
        size=size,
        alpha=float(np.float32(o.alpha) * np.float32(size)),
        beta=float(o.beta),
        bias=float(o.bias),
    )
    return channels_last(g, y, 4)
