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

BY_DATA = frozenset({"NonMaxSuppression", "NonZero", "Unique"})
"""Operators whose definitions, where there are any, give as much as the data says too."""

_BY_DATA = "how much it gives depends on the data, and memory is laid out before a run"
_TURNS = (
    "turns of a loop that only a run counts or ends, or too many of them: what is written is one "
    "straight line of kernels"
)

OPS = Registry(
    "tvm",
    dtypes=ALL,
    lacking={
        **dict.fromkeys(("Compress", *BY_DATA), _BY_DATA),
        **dict.fromkeys(("Loop", "Scan"), _TURNS),
        "RNN": "more than 128 steps, or an open number of them",
        "RoiAlign": "open sizes, or a number of samples that the size of each region decides",
    },
)
