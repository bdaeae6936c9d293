# ruff: noqa: F401  (importing a family registers it)
"""One lowering an ONNX operator for all formats; a target's own stands with its reason."""

from edgeinfer.convert.lower.ops import (
    activation,
    attention,
    constant,
    einsum,
    fourier,
    function,
    norm,
    pool,
    recurrent,
    reduce,
    region,
    softmax,
    triangle,
    unary,
)
