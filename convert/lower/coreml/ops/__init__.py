# ruff: noqa: F401  (importing a family registers it)
"""The operator families; importing this package fills the registry."""

from __future__ import annotations

from edgeinfer.convert.lower.coreml.ops import (
    activation,
    arith,
    bits,
    control,
    conv,
    cut,
    detect,
    image,
    index,
    matrix,
    norm,
    pool,
    quant,
    reduce,
    resize,
    shape,
    signal,
    unary,
)

# What no family above has of its own.
from edgeinfer.convert.lower.coreml.portable import adopt_shared

adopt_shared()
