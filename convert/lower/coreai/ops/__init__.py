# ruff: noqa: F401  (importing a family registers it)
"""The families of operators; importing them fills the registry."""

from edgeinfer.convert.lower.coreai.ops import (
    activation,
    arith,
    bits,
    control,
    conv,
    cut,
    index,
    matrix,
    pool,
    quant,
    reduce,
    resize,
    sample,
    shape,
    signal,
)

# What no family above has of its own.
from edgeinfer.convert.lower.coreai.portable import adopt_shared

adopt_shared()
