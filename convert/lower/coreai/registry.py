"""The table of Core AI's lowerings."""

from __future__ import annotations

import onnx_ir as ir

from edgeinfer.convert.lower.registry import Registry

__all__ = ["ALL", "BOOL", "FLOATS", "INTEGERS", "NUMBERS", "OPS"]

FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE})

INTEGERS = frozenset(
    {
        *(ir.DataType.INT8, ir.DataType.INT16, ir.DataType.INT32, ir.DataType.INT64),
        *(ir.DataType.UINT8, ir.DataType.UINT16, ir.DataType.UINT32, ir.DataType.UINT64),
    }
)
"""Core AI has all of them, and computes in them."""

NUMBERS = FLOATS | INTEGERS
BOOL = frozenset({ir.DataType.BOOL})
ALL = NUMBERS | BOOL

OPS = Registry("coreai", dtypes=ALL)
