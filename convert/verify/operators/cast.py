"""Type conversions; the reference reads a float64 literally where the model means float32."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.verify.operators.window import Unhandled
from edgeinfer.types import Array


def cast(attrs: Mapping[str, Any], version: int, inputs: list[Array | None]) -> tuple[Array, ...]:
    """Cast to a float, integer or boolean type from any of these."""
    (x,) = inputs
    to = ir.DataType(attrs["to"])
    if x is None or x.dtype.kind not in "fiub":
        raise Unhandled
    if to == ir.DataType.BOOL:
        return (x != 0,)
    if to in (ir.DataType.FLOAT, ir.DataType.DOUBLE) and x.dtype == np.float64:
        return (x,)
    if to in (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16):
        return (x.astype(to.numpy()),)
    if to.numpy().kind in "iu" and to.itemsize >= 1:
        return (x.astype(to.numpy()),)
    raise Unhandled


def constant_of_shape(
    attrs: Mapping[str, Any], version: int, inputs: list[Array | None]
) -> tuple[Array, ...]:
    """ConstantOfShape."""
    (shape,) = inputs
    if shape is None:
        raise Unhandled
    value = attrs["value"].numpy().reshape(-1)[0] if "value" in attrs else np.float32(0)
    return (np.full(tuple(int(d) for d in shape), value),)
