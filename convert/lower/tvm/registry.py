"""The table of TVM's lowerings."""

from __future__ import annotations

import onnx_ir as ir

from edgeinfer.convert.lower.registry import Registry

D = ir.DataType
FLOATS = frozenset({D.FLOAT, D.FLOAT16, D.DOUBLE})
SIGNED = frozenset({D.INT8, D.INT16, D.INT32, D.INT64})
UNSIGNED = frozenset({D.UINT8, D.UINT16, D.UINT32, D.UINT64})
INTEGERS = SIGNED | UNSIGNED
NUMBERS = FLOATS | INTEGERS
BOOL = frozenset({D.BOOL})
ALL = NUMBERS | BOOL
HELD = ALL | {D.BFLOAT16}
"""What inputs, outputs and casts have besides: bfloat16 as its bits."""

OPS = Registry(
    "tvm",
    dtypes=ALL,
    lacking={
        "Scan": "the number of axes of a row or a result is not known",
        "RNN": "an activation that ONNX does not have, or an open number of units",
    },
)
