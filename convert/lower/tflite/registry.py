"""The table of TFLite's lowerings.

A lowering takes the builder, tensors for the ONNX inputs and the attributes by ONNX's names.
Operators that have a channel axis and spatial axes are registered in the domain ``NHWC``: the
layout pass has put their operands channels last, everything else about them is ONNX's. Weights
stay in ONNX's order.
"""

from __future__ import annotations

import onnx_ir as ir

from edgeinfer.convert.lower.registry import Registry
from edgeinfer.convert.passes.layout import NHWC

__all__ = ["ANY", "FLOATS", "INTEGERS", "NHWC", "OPS"]

FLOATS = frozenset({ir.DataType.FLOAT})

INTEGERS = frozenset({ir.DataType.INT32, ir.DataType.INT64})
"""Those that most arithmetic kernels compute."""

ANY = frozenset(
    {
        *(ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE, ir.DataType.BOOL),
        *(ir.DataType.INT8, ir.DataType.INT16, ir.DataType.INT32, ir.DataType.INT64),
        *(ir.DataType.UINT8, ir.DataType.UINT16, ir.DataType.UINT32, ir.DataType.UINT64),
        ir.DataType.BFLOAT16,
    }
)
"""Every element type a file can hold and LiteRT can hand over."""

OPS = Registry("tflite", dtypes=FLOATS | INTEGERS | {ir.DataType.BOOL})
"""A lowering that takes other element types says so: kernels that lack one end the process."""
