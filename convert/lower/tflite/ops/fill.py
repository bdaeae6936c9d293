"""Tensors that come from sizes alone."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.lower.tflite.builder import Builder
from edgeinfer.convert.lower.tflite.graph import Tensor
from edgeinfer.convert.lower.tflite.registry import ANY, INTEGERS, OPS
from edgeinfer.convert.lower.tflite.sizes import as_bits, compute, counting, narrow
from edgeinfer.convert.lower.tflite.widen import DOUBLES
from edgeinfer.types import Array

_FILLED = frozenset({"float32", "int8", "int16", "int32", "int64", "bool"})
_SAME_WIDTH = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}


@OPS.lower("ConstantOfShape", dtypes=ANY)
def constant_of_shape(g: Builder, input: Tensor, *, value: Array | None) -> Tensor:
    """FILL, or a constant."""
    element = np.zeros((), np.float32) if value is None else np.asarray(value).reshape(())
    if input.data is not None:
        return g.const(np.full(input.data.ravel(), element, element.dtype))
    rank = input.shape[0]
    if rank is None:
        raise Refusal("the rank of the result is only known at run time", "dynamic_shape")
    own = element.dtype
    if own.name not in _FILLED:
        element = element.view(_SAME_WIDTH[own.itemsize])
    sizes = narrow(g, input)
    return as_bits(g, g.emit("FILL", [sizes, g.const(element)], (None,) * rank, element.dtype), own)


@OPS.lower("Range", dtypes=DOUBLES | INTEGERS | {ir.DataType.INT16})
def range_(g: Builder, start: Tensor, limit: Tensor, delta: Tensor) -> Tensor:
    """The kernel refuses a limit on the wrong side, where ONNX has no elements."""
    if all(t.data is not None for t in (start, limit, delta)):
        return g.const(_progression(start.value, limit.value, delta.value))
    if start.dtype.name == "float32" and _holds(start, 0) and _holds(delta, 1):
        # Whole numbers below a limit; float32 has them all as far as there is memory.
        count = g.cast(g.unary("CEIL", g.reshape(limit, [])), np.int32)
        most = g.binary("MAXIMUM", count, 0)
        operands = [g.const(0, np.int32), most, g.const(1, np.int32)]
        return g.cast(g.emit("RANGE", operands, (None,), np.int32), np.float32)
    if start.dtype.name not in ("int32", "int64"):
        # Its length hangs on a quotient that other engines round in double precision.
        raise Refusal(f"limits of {start.dtype} known at run time only", "requires_constant")
    first, last, step = (g.reshape(t, []) for t in (start, limit, delta))
    if first.data is None or last.data is None:
        above = g.binary("MAXIMUM", last, first)
        below = g.binary("MINIMUM", last, first)
        if step.data is not None:
            last = above if step.data > 0 else below
        else:
            rising = g.binary("GREATER", step, 0)
            last = g.emit("SELECT_V2", [rising, above, below], (), last.dtype)
    return g.emit("RANGE", [first, last, step], (None,), first.dtype)


def _holds(x: Tensor, number: int) -> bool:
    return x.data is not None and bool((x.data == number).all())


def _progression(start: Array, limit: Array, delta: Array) -> Array:
    first, last, step = (t.reshape(()) for t in (start, limit, delta))
    count = max(math.ceil(float(last - first) / float(step)), 0)
    return np.asarray(first + np.arange(count).astype(first.dtype) * step, first.dtype)


@OPS.lower("EyeLike", dtypes=ANY)
def eye_like(g: Builder, input: Tensor, *, dtype: int | None, k: int) -> Tensor:
    """Two counts compared, or a constant."""
    kind = input.dtype if dtype is None else np.dtype(ir.DataType(dtype).numpy())
    rows, columns = g.extent(input, 0), g.extent(input, 1)
    if isinstance(rows, int) and isinstance(columns, int):
        return g.const(np.eye(rows, columns, k, kind))
    down = g.insert_axis(counting(g, compute(g, "ADD", rows, 0), k), 1)
    return g.cast(g.binary("EQUAL", down, counting(g, columns)), kind)
