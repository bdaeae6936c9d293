# ruff: noqa: F401  (importing a family registers it)
"""Lowerings by family; importing this module fills the table."""

from edgeinfer.convert.lower.tvm.ops import (
    activation,
    arith,
    attend,
    blocks,
    chosen,
    control,
    conv,
    cut,
    grid,
    index,
    matrix,
    norm,
    pool,
    quant,
    recurrent,
    reduce,
    resize,
    rotary,
    shape,
    signal,
)

# What no family above has of its own.
from edgeinfer.convert.lower.tvm.portable import adopt_shared

adopt_shared()
