"""The operator families; importing this package fills the registry."""

from __future__ import annotations

from edgeinfer.convert.lower.coreml.ops import (
    activation,
    arith,
    compare,
    control,
    conv,
    cut,
    index,
    matrix,
    norm,
    pool,
    recurrent,
    reduce,
    resize,
    shape,
    unary,
)

__all__ = [
    "activation",
    "arith",
    "compare",
    "control",
    "conv",
    "cut",
    "index",
    "matrix",
    "norm",
    "pool",
    "recurrent",
    "reduce",
    "resize",
    "shape",
    "unary",
]
