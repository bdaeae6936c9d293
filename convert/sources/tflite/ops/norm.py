"""Normalisation."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.sources.tflite.importer import Importer
from edgeinfer.convert.sources.tflite.operand import Operand, Options
from edgeinfer.convert.sources.tflite.registry import READERS

_LEAST = np.float32(1e-6)
"""The kernel's bound on the sum of squares."""


@READERS.reader("L2_NORMALIZATION")
def l2_normalization(g: Importer, o: Options, x: Operand) -> ir.Value:
    """Divide by the length along the last axis."""
    total = g.emit("ReduceSum", g.emit("Mul", x, x), g.shape([-1]), keepdims=1)
    length = g.emit("Sqrt", g.emit("Max", total, _LEAST))
    return g.activate(g.emit("Div", x, length), o)
