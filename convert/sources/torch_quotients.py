"""Angles, quotients, remainders and long numbers, as PyTorch computes them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import onnx_ir as ir

from edgeinfer.convert.sources.torch_script import like, opset, whole


def forms() -> Mapping[Any, Callable[..., Any]]:
    """Return functions of ``onnxscript`` by PyTorch's operator."""
    import torch

    aten = torch.ops.aten
    return {
        aten.atan2.default: _atan2,
        aten.signbit.default: signbit,
        aten.remainder.Tensor: _remainder,
        aten.remainder.Scalar: _remainder,
        aten.remainder.Scalar_Tensor: _remainder,
        aten.floor_divide.default: _floor_divide,
        aten.div.Tensor_mode: _divide,
        aten.div.Scalar_mode: _divide,
        aten.scalar_tensor.default: _scalar_tensor,
        aten.full.default: _full,
        aten.full_like.default: _full_like,
        aten.new_full.default: _new_full,
        aten.masked_fill.Scalar: _masked_fill,
        aten.log2.default: _log2,
        aten.rad2deg.default: _rad2deg,
        aten.deg2rad.default: _deg2rad,
        aten.log10.default: _log10,
    }


def _scalar_tensor(s: Any, dtype: int = -1, **rest: Any) -> Any:
    """A number in its own type: by way of float32 it would lose digits in float64."""
    from onnxscript.function_libs.torch_lib.ops import core

    number = _long(s, dtype)
    return core.aten_scalar_tensor(s, dtype, **rest) if number is None else number


def _full(size: Any, fill_value: Any, dtype: int = -1, **rest: Any) -> Any:
    from onnxscript.function_libs.torch_lib.ops import core

    number = _long(fill_value, dtype)
    return core.aten_full(size, fill_value if number is None else number, dtype, **rest)


def _full_like(self: Any, fill_value: Any, dtype: int = -1, **rest: Any) -> Any:
    from onnxscript.function_libs.torch_lib.ops import core

    number = _long(fill_value, self.dtype if dtype == -1 else dtype)
    return core.aten_full_like(self, fill_value if number is None else number, dtype, **rest)


def _new_full(self: Any, size: Any, fill_value: Any, dtype: int = -1, **rest: Any) -> Any:
    return _full(size, fill_value, self.dtype if dtype == -1 else dtype, **rest)


def _masked_fill(self: Any, mask: Any, value: Any) -> Any:
    return opset().Where(mask, like(value, self), self)


def _long(number: Any, dtype: int) -> Any:
    """A constant of float64; None for another type and for what is no number."""
    if dtype != ir.DataType.DOUBLE or not isinstance(number, (int, float)):
        return None
    return opset().Constant(value=ir.tensor(number, dtype=ir.DataType.DOUBLE))


def _log2(self: Any) -> Any:
    return opset().Div(opset().Log(self), like(math.log(2), self))


def _log10(self: Any) -> Any:
    return opset().Div(opset().Log(self), like(math.log(10), self))


def _rad2deg(self: Any) -> Any:
    return opset().Mul(self, like(180 / math.pi, self))


def _deg2rad(self: Any) -> Any:
    return opset().Mul(self, like(math.pi / 180, self))


def signbit(self: Any) -> Any:
    """Whether a number is below zero, or a zero with that sign."""
    op = opset()
    zero = like(0.0, self)
    if not self.dtype.is_floating_point():
        return op.Less(op.Cast(self, to=int(ir.DataType.INT64)), whole(0))
    below = op.Less(op.Div(like(1.0, self), self), zero)
    return op.Or(op.Less(self, zero), op.And(op.Equal(self, zero), below))


def _atan2(self: Any, other: Any) -> Any:
    """By quadrants, as zeros with a sign have one; equal sizes are a half right angle."""
    op = opset()
    y, x, zero, one = op.Abs(self), op.Abs(other), like(0.0, self), like(1.0, self)
    slope = op.Where(op.Equal(y, x), op.Where(op.Equal(y, zero), zero, one), op.Div(y, x))
    angle = op.Atan(slope)
    angle = op.Where(signbit(other), op.Sub(like(math.pi, self), angle), angle)
    return op.Where(signbit(self), op.Neg(angle), angle)


def as_pair(self: Any, other: Any) -> tuple[Any, Any]:
    """Two operands as tensors; one may be a number."""
    if isinstance(self, (int, float)):
        return like(self, other), other
    if isinstance(other, (int, float)):
        return self, like(other, self)
    return self, other


def _opposite(rest: Any, other: Any) -> Any:
    """Whether something is left that has not the divisor's sign."""
    op = opset()
    zero = like(0.0, rest)
    differs = op.Xor(op.Less(rest, zero), op.Less(other, zero))
    return op.And(op.Not(op.Equal(rest, zero)), differs)


def _remainder(self: Any, other: Any) -> Any:
    """What is left, exactly: a product with the rounded quotient loses digits of large ones."""
    op = opset()
    is_float = (other if isinstance(self, (int, float)) else self).dtype.is_floating_point()
    self, other = as_pair(self, other)
    if not is_float:
        return op.Mod(self, other)
    rest = op.Mod(self, other, fmod=1)
    return op.Where(_opposite(rest, other), op.Add(rest, other), rest)


def _floor_divide(self: Any, other: Any) -> Any:
    """The whole part of the exact quotient: 1 holds 0.1 nine times, though 1 / 0.1 is 10."""
    op = opset()
    from onnxscript.function_libs.torch_lib.ops import core

    # A number is of the tensor's type.
    dtype = next(x.dtype for x in (self, other) if getattr(x, "dtype", None) is not None)
    self, other = as_pair(self, other)
    if not dtype.is_floating_point():
        return core.aten_floor_divide(self, other)
    rest, one = op.Mod(self, other, fmod=1), like(1.0, self)
    quotient = op.Div(op.Sub(self, rest), other)
    quotient = op.Where(_opposite(rest, other), op.Sub(quotient, one), quotient)
    floor = op.Floor(quotient)
    near = op.Greater(op.Sub(quotient, floor), like(0.5, self))
    floor = op.Where(near, op.Add(floor, one), floor)
    return op.Where(op.Equal(other, like(0.0, self)), op.Div(self, other), floor)


def _divide(self: Any, other: Any, rounding_mode: str | None = None) -> Any:
    """Long integers by integers: in float32 they would lose digits."""
    from onnxscript.function_libs.torch_lib.ops import core

    is_float = self.dtype.is_floating_point()
    is_long = self.dtype in (ir.DataType.INT32, ir.DataType.INT64)
    if rounding_mode == "floor" and (is_float or is_long):
        return _floor_divide(self, other)
    if rounding_mode == "trunc" and is_long:
        return opset().Div(*as_pair(self, other))
    return core.aten_div_mode(self, other, rounding_mode)
