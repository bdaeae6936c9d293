"""Conversions between element types, and what asks about special values.

Facts of LiteRT 2.3.0: floats beyond an integer's range saturate and NaN becomes the largest value,
where ONNX leaves the result open; integers wrap around, as ONNX says. On other engines floats
beyond a byte or 16 bits, and negative ones that become unsigned, wrap around too: so they do here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.lower.tflite.builder import Builder
from edgeinfer.convert.lower.tflite.graph import Tensor
from edgeinfer.convert.lower.tflite.registry import ANY, OPS
from edgeinfer.convert.lower.tflite.sizes import as_bits
from edgeinfer.convert.lower.tflite.widen import DOUBLES, REALS
from edgeinfer.convert.lower.whole_spans import NARROW, leaves

if TYPE_CHECKING:
    from edgeinfer.convert.lower.tflite.scope import Scope


@OPS.lower("Cast", dtypes=ANY)
def cast(g: Scope, input: Tensor, *, to: int) -> Tensor:
    """Convert to an element type."""
    kind = ir.DataType(to)
    if kind not in ANY:
        raise Refusal(f"cannot hold {kind.name.lower()}", "unsupported_dtype")
    return _cast(g, input, kind)


@OPS.lower("CastLike", dtypes=ANY)
def cast_like(g: Scope, input: Tensor, target_type: Tensor) -> Tensor:
    """Convert to another operand's element type."""
    return _cast(g, input, ir.DataType.from_numpy(target_type.dtype))


def _cast(g: Scope, x: Tensor, kind: ir.DataType) -> Tensor:
    node = g.driver.node
    unsigned = kind == ir.DataType.UINT32
    wraps = x.dtype.kind == "f" and (unsigned or kind in NARROW)
    if wraps and (node is None or leaves(node.inputs[0], kind)):
        x = g.cast(x, np.int64 if unsigned else np.int32)
    return g.cast(x, kind.numpy())


@OPS.lower("BitCast", dtypes=ANY)
def bit_cast(g: Builder, input: Tensor, *, to: int) -> Tensor:
    """Read the same bits as another element type."""
    kind = ir.DataType(to)
    if kind not in ANY:
        raise Refusal(f"cannot hold {kind.name.lower()}", "unsupported_dtype")
    return as_bits(g, input, np.dtype(kind.numpy()))


@OPS.lower("IsNaN", dtypes=DOUBLES | {ir.DataType.BOOL})
def is_nan(g: Builder, x: Tensor) -> Tensor:
    """True where there is no number; equals nothing, itself included."""
    single = g.cast(x, np.float32)
    return g.binary("NOT_EQUAL", single, single)


@OPS.lower("IsInf", dtypes=REALS | {ir.DataType.BOOL})
def is_inf(g: Builder, x: Tensor, *, detect_negative: int, detect_positive: int) -> Tensor:
    """True where infinite."""
    single = g.cast(x, np.float32)
    if detect_negative and detect_positive:
        single = g.unary("ABS", single)
    elif detect_negative:
        single = g.unary("NEG", single)
    elif not detect_positive:
        return g.binary("LOGICAL_AND", g.binary("EQUAL", single, 0), False)
    return g.binary("EQUAL", single, np.inf)
