"""The table of Core ML's lowerings.

A lowering takes the builder, tensors for the ONNX inputs and the attributes by ONNX's names. ML
Programs keep channels first as ONNX does, so no operator needs another layout.
"""

from __future__ import annotations

import onnx_ir as ir

from edgeinfer.convert.lower.registry import Registry

__all__ = ["ALL", "BOOL", "FLOATS", "INTEGERS", "NUMBERS", "OPS"]

FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16})

INTEGERS = frozenset(
    {
        *(ir.DataType.INT8, ir.DataType.INT16, ir.DataType.INT32, ir.DataType.INT64),
        *(ir.DataType.UINT8, ir.DataType.UINT16, ir.DataType.UINT32, ir.DataType.UINT64),
    }
)
"""All are computed in int32, the only integers that Core ML's arithmetic takes; the builder sees to
it that no value leaves its type."""

NUMBERS = FLOATS | INTEGERS
BOOL = frozenset({ir.DataType.BOOL})
ALL = NUMBERS | BOOL

OPS = Registry("coreml", dtypes=ALL)
"""Ranks are up to the builder: what it can, it computes above Core ML's five axes too."""
