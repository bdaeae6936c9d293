# ruff: noqa: F401  (importing a family registers it)
"""The operator families; importing this package fills the registry."""

from __future__ import annotations

from edgeinfer.convert.lower.tflite.ops import (
    activation,
    arith,
    bits,
    compare,
    control,
    conv,
    conv_transpose,
    convert,
    cut,
    deform,
    fill,
    image,
    index,
    matrix,
    pool,
    quant,
    reduce,
    resize,
    running,
    shape,
    signal,
    sort,
    unary,
)

# What no family above has of its own.
from edgeinfer.convert.lower.tflite.portable import adopt_shared

adopt_shared()
