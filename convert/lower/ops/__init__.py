"""One lowering an ONNX operator for all formats; a target's own stands with its reason."""

from edgeinfer.convert.lower.ops import (
    activation,
    attention,
    einsum,
    function,
    norm,
    pool,
    recurrent,
    reduce,
    softmax,
    triangle,
    unary,
)

__all__ = [
    "activation",
    "attention",
    "einsum",
    "function",
    "norm",
    "pool",
    "recurrent",
    "reduce",
    "softmax",
    "triangle",
    "unary",
]
