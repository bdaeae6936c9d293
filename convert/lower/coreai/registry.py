"""The table of Core AI's lowerings."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.coreai.tensor import Tensor
from edgeinfer.convert.lower.registry import Registry

if TYPE_CHECKING:
    from edgeinfer.convert.lower.coreai.builder import Builder

__all__ = ["ALL", "BOOL", "FLOATS", "INTEGERS", "NUMBERS", "OPS", "in_single"]

FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE})

INTEGERS = frozenset(
    {
        *(ir.DataType.INT8, ir.DataType.INT16, ir.DataType.INT32, ir.DataType.INT64),
        *(ir.DataType.UINT8, ir.DataType.UINT16, ir.DataType.UINT32, ir.DataType.UINT64),
    }
)
"""Core AI has all of them, and computes in them."""

NUMBERS = FLOATS | INTEGERS
BOOL = frozenset({ir.DataType.BOOL})
ALL = NUMBERS | BOOL

OPS = Registry("coreai", dtypes=ALL)


def in_single(lowering: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Compute in single precision what adds up: the sum of halves may not fit half precision."""

    @wraps(lowering)
    def wide(g: Builder, x: Tensor, *more: Any, **attributes: Any) -> Tensor:
        if x.dtype != np.float16:
            return lowering(g, x, *more, **attributes)
        operands = [g.cast(v, np.float32) if isinstance(v, Tensor) else v for v in (x, *more)]
        return g.cast(lowering(g, *operands, **attributes), np.float16)

    return wide
