"""Lowerings by family; importing this module fills the table."""

from edgeinfer.convert.lower.tvm.ops import (
    activation,
    arith,
    blocks,
    control,
    conv,
    cut,
    index,
    matrix,
    norm,
    pool,
    quant,
    recurrent,
    reduce,
    resize,
    shape,
    signal,
)

__all__ = [
    "activation",
    "arith",
    "blocks",
    "control",
    "conv",
    "cut",
    "index",
    "matrix",
    "norm",
    "pool",
    "quant",
    "recurrent",
    "reduce",
    "resize",
    "shape",
    "signal",
]
