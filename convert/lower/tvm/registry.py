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

_TURNS = (
    "turns that only a run counts, or too many of them to write out: fix the sizes "
    "(--input-shape), or write a Loop"
)

OPS = Registry(
    "tvm",
    dtypes=ALL,
    lacking={
        "Scan": _TURNS,
        "RNN": "more than 128 steps, or an open number of them",
    },
)
