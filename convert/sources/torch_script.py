"""What forms of PyTorch's operators are written with."""

from __future__ import annotations

from typing import Any


def opset() -> Any:
    """Return the operators of the opset that the exporter writes."""
    from onnxscript import opset18

    return opset18


def like(number: float, value: Any) -> Any:
    """Return a number of a value's type."""
    op = opset()
    return op.CastLike(op.Constant(value_float=number), value)


def whole(*numbers: int) -> Any:
    """Return a vector of integers."""
    return opset().Constant(value_ints=list(numbers))
