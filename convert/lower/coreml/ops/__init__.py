"""The operator families; importing this package fills the registry."""

from __future__ import annotations

from edgeinfer.convert.lower.coreml.ops import (
    activation,
    arith,
    attention,
    compare,
    control,
    conv,
    cut,
    einsum,
    index,
    matrix,
    norm,
    pool,
    quant,
    recurrent,
    reduce,
    resize,
    shape,
    unary,
)

__all__ = [
    "activation",
    "arith",
    "attention",
    "compare",
    "control",
    "conv",
    "cut",
    "einsum",
    "index",
    "matrix",
    "norm",
    "pool",
    "quant",
    "recurrent",
    "reduce",
    "resize",
    "shape",
    "unary",
]
