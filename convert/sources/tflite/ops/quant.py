"""Changes of the element type that stand for the same numbers."""

from __future__ import annotations

import onnx_ir as ir

from edgeinfer.convert.sources.tflite.importer import Importer
from edgeinfer.convert.sources.tflite.operand import Operand, Options
from edgeinfer.convert.sources.tflite.registry import READERS


@READERS.reader("QUANTIZE")
def quantize(g: Importer, o: Options, x: Operand) -> ir.Value:
    """Nothing here: the result is stored as the file does."""
    return x.real


@READERS.reader("DEQUANTIZE")
def dequantize(g: Importer, o: Options, x: Operand) -> ir.Value | Operand:
    """The real numbers; constants stay as they are stored until they are used."""
    if x.weights is not None:
        return x.renamed(o.out, halves=x.dtype == ir.DataType.FLOAT16)
    return g.emit("Cast", x, to=o.dtype) if x.dtype != o.dtype and not x.is_scaled else x.real


@READERS.reader("DENSIFY")
def densify(g: Importer, o: Options, x: Operand) -> Operand:
    """Nothing here: sparse constants are read as dense ones."""
    return x.renamed(o.out)
