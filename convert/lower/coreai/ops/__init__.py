"""The families of operators; importing them fills the registry."""

from edgeinfer.convert.lower.coreai.ops import (
    activation,
    arith,
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
)

__all__ = [
    "activation",
    "arith",
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
]
