"""Windows that slide over channels-last data, as ONNX pads and places them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.sources.tflite.importer import Importer
from edgeinfer.convert.sources.tflite.operand import Operand

SAME, VALID = 0, 1


def channels_first(g: Importer, x: Operand | ir.Value, rank: int) -> ir.Value:
    """Put the channels where ONNX has them."""
    return g.emit("Transpose", x, perm=[0, rank - 1, *range(1, rank - 1)])


def channels_last(g: Importer, y: ir.Value, rank: int) -> ir.Value:
    """Put the channels where TFLite has them."""
    return g.emit("Transpose", y, perm=[0, *range(2, rank), 1])


def window(
    padding: int,
    sizes: Sequence[int | None],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int] | None = None,
) -> dict[str, Any]:
    """Return the attributes of a convolution or a pool.

    SAME gives ``ceil(size / stride)`` results; of an odd number of padded elements the larger half
    comes after the data.
    """
    steps = list(dilations or [1] * len(kernel))
    if min(*strides, *steps, *kernel) < 1:
        raise ValueError(f"strides {list(strides)}, dilations {steps}, kernel {list(kernel)}")
    found: dict[str, Any] = {"kernel_shape": list(kernel), "strides": list(strides)}
    if dilations is not None:
        found["dilations"] = steps
    if padding == VALID:
        return found
    if padding != SAME:
        raise Refusal(f"padding {padding}")
    if any(s is None for s in sizes):
        return {**found, "auto_pad": "SAME_UPPER"}
    totals = [
        max((-(-size // stride) - 1) * stride + (k - 1) * step + 1 - size, 0)
        for size, k, stride, step in zip(
            (s or 0 for s in sizes), kernel, strides, steps, strict=True
        )
    ]
    if any(totals):
        found["pads"] = [t // 2 for t in totals] + [t - t // 2 for t in totals]
    return found
