"""Element types that most kernels lack, computed in a wider one that has them."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.tflite.builder import Builder
from edgeinfer.convert.lower.tflite.graph import Tensor
from edgeinfer.convert.lower.tflite.registry import FLOATS, INTEGERS

F = TypeVar("F", bound=Callable[..., Any])

REALS = FLOATS | {ir.DataType.FLOAT16, ir.DataType.BFLOAT16}
"""Half precision is computed in float32 and rounded once, as ONNX Runtime does on CPUs."""

DOUBLES = REALS | {ir.DataType.DOUBLE}
"""Where every step is one of those that ``doubles`` composes."""

SMALL = frozenset(
    {
        *(ir.DataType.INT8, ir.DataType.INT16),
        *(ir.DataType.UINT8, ir.DataType.UINT16, ir.DataType.UINT32),
    }
)

NUMBERS = DOUBLES | INTEGERS | SMALL | {ir.DataType.UINT64}

# LiteRT 2.3.0 takes INT8, UINT8 and INT16 for quantized and ends the process without a scale;
# its casts between integers wrap around, so sums and products come out right modulo the width.
_WIDER: dict[str, np.dtype[Any]] = {
    "bfloat16": np.dtype(np.float32),
    "float16": np.dtype(np.float32),
    "int8": np.dtype(np.int32),
    "int16": np.dtype(np.int32),
    "uint8": np.dtype(np.int32),
    "uint16": np.dtype(np.int32),
    "uint32": np.dtype(np.int64),
}


def is_real(dtype: np.dtype[Any]) -> bool:
    """Whether it has fractions; NumPy itself does not know bfloat16."""
    return dtype.kind == "f" or dtype.name == "bfloat16"


def wider(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the element type to compute in."""
    return _WIDER.get(dtype.name, dtype)


def widened(lowering: F) -> F:
    """Decorate a lowering to compute in the wider type of its first operand.

    Operands of that element type are converted; results are converted back.
    """

    @wraps(lowering)
    def wide(g: Builder, *operands: Any, **attributes: Any) -> Any:
        own = next(t.dtype for t in operands if isinstance(t, Tensor))
        to = wider(own)
        if to == own:
            return lowering(g, *operands, **attributes)
        inner = [g.cast(t, to) if isinstance(t, Tensor) and t.dtype == own else t for t in operands]
        result = lowering(g, *inner, **attributes)
        if isinstance(result, tuple):
            return tuple(g.cast(t, own) if t.dtype == to else t for t in result)
        return g.cast(result, own) if result.dtype == to else result

    return cast(F, wide)
