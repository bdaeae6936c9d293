"""The operations of ML Programs in NumPy, one family a file.

Arrays of float16 tensors come in as float32; kernels compute in float32 or better and leave the
rounding to the evaluator. No kernel changes its inputs.
"""

from edgeinfer.backends.coreml_reference.ops import (
    activation,
    compression,
    convolution,
    elementwise,
    grid,
    image,
    indexing,
    layout,
    lists,
    matrix,
    normalization,
    pooling,
    random,
    recurrent,
    reduction,
    selection,
    slicing,
)

# Inputs that are lists of tensors, even of one.
LISTS = ("values", "ref_tensors", "begins", "ends", "end_masks")

__all__ = [
    "LISTS",
    "activation",
    "compression",
    "convolution",
    "elementwise",
    "grid",
    "image",
    "indexing",
    "layout",
    "lists",
    "matrix",
    "normalization",
    "pooling",
    "random",
    "recurrent",
    "reduction",
    "selection",
    "slicing",
]
