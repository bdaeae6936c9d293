"""The operator families; importing this package fills the registry."""

from __future__ import annotations

# Planned: activation, arith, compare, control, conv, index, matrix, norm, pool, quant, recurrent,
# reduce, resize, shape. Each is one module that the line below names.
from edgeinfer.convert.lower.tflite.ops import (
    activation,
    arith,
    attention,
    bits,
    compare,
    control,
    conv,
    conv_transpose,
    convert,
    einsum,
    index,
    matrix,
    norm,
    pool,
    recurrent,
    reduce,
    shape,
    unary,
)

__all__ = [
    "activation",
    "arith",
    "attention",
    "bits",
    "compare",
    "control",
    "conv",
    "conv_transpose",
    "convert",
    "einsum",
    "index",
    "matrix",
    "norm",
    "pool",
    "recurrent",
    "reduce",
    "shape",
    "unary",
]
