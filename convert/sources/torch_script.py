"""What forms of PyTorch's operators are written with."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir


def opset() -> Any:
    """Return the operators of the opset that the exporter writes."""
    from onnxscript import opset18

    return opset18


def like(number: float, value: Any) -> Any:
    """Return a number of a value's type, with all of its digits."""
    op = opset()
    if value.dtype is None:
        return op.CastLike(op.Constant(value=ir.tensor(np.float64(number))), value)
    return op.Constant(value=ir.tensor(np.asarray(number).astype(value.dtype.numpy())))


def whole(*numbers: int) -> Any:
    """Return a vector of integers."""
    return opset().Constant(value_ints=list(numbers))
