"""Element by element: arithmetic, comparison, logic and functions of one value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import tirx

from edgeinfer.backends.checks import array_type
from edgeinfer.backends.tvm.library import stored
from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.lower.tvm.addends import is_added
from edgeinfer.convert.lower.tvm.builder import Builder, Tensor
from edgeinfer.convert.lower.tvm.registry import HELD, INTEGERS, NUMBERS, OPS
from edgeinfer.kernels.defs import math

Value = Any


def function(g: Builder, name: str, x: Tensor) -> Callable[[Value], Value]:
    """Return a function of one float: of vectors, where there is such a one for this machine."""
    own = math.VECTOR.get(name) if g.on_cpu else None
    if x.dtype == "float32" and own is not None:
        return own
    plain = getattr(tirx, name)
    if x.dtype == "float16":
        single = own or plain
        return lambda v: single(v.astype("float32")).astype("float16")
    return lambda v: plain(v)


def is_not_number(v: Value) -> Value:
    """Whether a float is NaN; comparing it with itself would be simplified away."""
    return math.is_nan(v)


@OPS.lower("IsNaN")
def is_nan(g: Builder, x: Tensor) -> Tensor:
    """Whether it is no number."""
    return g.map(is_not_number, x, dtype="bool")


@OPS.lower("IsInf")
def is_inf(g: Builder, x: Tensor, *, detect_negative: int, detect_positive: int) -> Tensor:
    """Whether it is infinite, to either side or to one."""
    top = tirx.const(float(np.finfo(x.dtype).max), x.dtype)

    def test(v: Value) -> Value:
        above, below = tirx.GT(v, top), tirx.LT(v, tirx.const(0, x.dtype) - top)
        if detect_negative and detect_positive:
            return tirx.Or(above, below)
        if not detect_negative and not detect_positive:
            return tirx.And(above, below)
        return above if detect_positive else below

    return g.map(test, x, dtype="bool")


@OPS.lower("Identity")
def identity(g: Builder, input: Tensor) -> Tensor:
    """The same value."""
    return input


@OPS.lower("BitwiseNot", dtypes=INTEGERS)
def bitwise_not(g: Builder, x: Tensor) -> Tensor:
    """Each bit's opposite."""
    return g.map(tirx.bitwise_not, x)


@OPS.lower("Cast", dtypes=HELD)
def cast(g: Builder, input: Tensor, *, to: int) -> Tensor:
    """Another element type; floats are cut towards zero."""
    return convert(g, input, dtype_name(to))


@OPS.lower("CastLike")
def cast_like(g: Builder, input: Tensor, target_type: Tensor) -> Tensor:
    """The element type of another tensor."""
    return convert(g, input, target_type.dtype)


def dtype_name(number: int) -> str:
    """NumPy's name of ONNX's element type.

    Raises:
        Refusal: this lowering has no such type.
    """
    import onnx_ir as ir

    kind = ir.DataType(number)
    if kind not in HELD:
        raise Refusal(f"element type {kind.name.lower()}", "unsupported_dtype")
    return str(kind.numpy().name)


def convert(g: Builder, x: Tensor, dtype: str) -> Tensor:
    """Convert elements."""
    if x.dtype == dtype:
        return x
    if x.data is not None and (x.dtype != "float32" or dtype.startswith("float")):
        with np.errstate(all="ignore"):
            return g.const(x.data.astype(array_type(dtype)))
    if x.dtype == "bfloat16":
        return convert(g, g.map(_widened, _labelled(g, x, "uint16")), dtype)
    if dtype == "bfloat16":
        rounded = g.map(_rounded, convert(g, x, "float32"), dtype="uint16")
        return _labelled(g, rounded, dtype)
    if dtype == "bool":
        return g.map(lambda v: _is_true(v, x.dtype), x, dtype="bool")
    if x.dtype.startswith("float") and "int" in dtype and dtype not in ("int32", "int64"):
        # What does not fit wraps, as it does in NumPy and in ONNX Runtime.
        return g.map(lambda v: v.astype("int64").astype(dtype), x, dtype=dtype)
    if x.dtype == "bool":
        return g.map(
            lambda v: tirx.Select(v, tirx.const(1, dtype), tirx.const(0, dtype)), x, dtype=dtype
        )
    return g.map(lambda v: v.astype(dtype), x, dtype=dtype)


def _labelled(g: Builder, x: Tensor, dtype: str) -> Tensor:
    """The same bits as another type of the same expressions."""
    return Tensor(dtype, x.shape, _made=g.expr(x))


def _widened(v: Value) -> Value:
    """Single precision of the bits of bfloat16, which are the upper half of its own."""
    return tirx.reinterpret("float32", v.astype("uint32") << tirx.const(16, "uint32"))


def _rounded(v: Value) -> Value:
    """The bits of the nearest bfloat16, of two as near the even one."""
    bits = tirx.reinterpret("uint32", v)
    shift = tirx.const(16, "uint32")
    odd = tirx.bitwise_and(bits >> shift, tirx.const(1, "uint32"))
    nearest = (bits + tirx.const(0x7FFF, "uint32") + odd) >> shift
    # Rounding up would take a NaN beyond the last bit.
    quiet = tirx.bitwise_or(bits >> shift, tirx.const(0x40, "uint32"))
    return tirx.Select(is_not_number(v), quiet, nearest).astype("uint16")


def _is_true(v: Value, dtype: str) -> Value:
    test = tirx.NE(v, tirx.const(0, dtype))
    # NaN is not equal to zero either, which LLVM's ordered comparison does not see.
    return tirx.Or(test, is_not_number(v)) if dtype.startswith("float") else test


def _binary(onnx: str, make: Callable[[Value, Value], Value], kinds: Any) -> None:
    @OPS.lower(onnx, dtypes=kinds)
    def lowered(g: Builder, A: Tensor, B: Tensor) -> Tensor:
        return g.map(make, A, B)

    lowered.__doc__ = f"{onnx} of two tensors."


_binary("BitwiseAnd", tirx.bitwise_and, INTEGERS)
_binary("BitwiseOr", tirx.bitwise_or, INTEGERS)
_binary("BitwiseXor", tirx.bitwise_xor, INTEGERS)


@OPS.lower("Div", dtypes=NUMBERS)
def div(g: Builder, A: Tensor, B: Tensor) -> Tensor:
    """Quotient, of integers cut towards zero."""
    if "int" not in A.dtype:
        return g.map(lambda a, b: math.unknown_zero(a) / b, A, B)
    if _never_traps(B):
        return g.map(tirx.truncdiv, A, B)
    zero, none = tirx.const(0, A.dtype), [tirx.const(v, A.dtype) for v in _traps(A.dtype)]

    def quotient(a: Value, b: Value) -> Value:
        trap = tirx.any(*(tirx.EQ(b, n) for n in none))
        # By -1 the least number stays what it is; by zero ONNX leaves the value open. No choice of
        # results by the divisor: TVM would take for known there that it traps no more, and both
        # sides of a choice are computed.
        sign = tirx.NE(b, zero).astype(A.dtype)
        for minus in none[1:]:
            sign -= tirx.const(2, A.dtype) * tirx.EQ(b, minus).astype(A.dtype)
        return tirx.truncdiv(a, tirx.Select(trap, tirx.const(1, A.dtype), b)) * sign

    return g.map(quotient, A, B)


@OPS.lower("Mod", dtypes=NUMBERS)
def mod(g: Builder, A: Tensor, B: Tensor, *, fmod: int) -> Tensor:
    """Remainder with the divisor's sign, or with ``fmod`` the dividend's."""
    if "int" not in A.dtype:
        rest = _fmod if fmod else _floored
        return g.map(lambda a, b: rest(a, b, A.dtype), A, B)
    whole = tirx.truncmod if fmod or A.dtype.startswith("u") else tirx.floormod
    if _never_traps(B):
        return g.map(whole, A, B)
    one, none = tirx.const(1, B.dtype), [tirx.const(v, B.dtype) for v in _traps(B.dtype)]
    # Processors end the program over a division by zero, or of the least number by -1.
    return g.map(
        lambda a, b: whole(a, tirx.Select(tirx.any(*(tirx.EQ(b, n) for n in none)), one, b)), A, B
    )


def _never_traps(divisor: Tensor) -> bool:
    """Whether a divisor is known, and none of those that end the program."""
    return divisor.data is not None and not np.isin(divisor.data, _traps(divisor.dtype)).any()


def _traps(dtype: str) -> tuple[int, ...]:
    """Divisors whose remainder is that of 1, or not defined."""
    return (0,) if dtype.startswith("u") else (0, -1)


def _fmod(a: Value, b: Value, dtype: str) -> Value:
    if dtype == "float16":
        return _fmod(a.astype("float32"), b.astype("float32"), "float32").astype(dtype)
    # TVM knows the operator but writes no code for it (0.27).
    return tirx.call_pure_extern(dtype, "fmodf" if dtype == "float32" else "fmod", a, b)


def _floored(a: Value, b: Value, dtype: str) -> Value:
    """The remainder with the divisor's sign."""
    rest = _fmod(a, b, dtype)
    zero = tirx.const(0, dtype)
    apart = tirx.Or(tirx.And(rest < zero, b > zero), tirx.And(rest > zero, b < zero))
    return tirx.Select(apart, rest + b, rest)


@OPS.lower("Pow", dtypes=NUMBERS)
def pow_(g: Builder, X: Tensor, Y: Tensor) -> Tensor:
    """A power, in the base's element type."""
    exponent = Y.data.reshape(-1)[0].item() if Y.data is not None and Y.data.size == 1 else None
    if exponent in (2, 3):
        return g.map(lambda v: _power(g, v, exponent), X)
    if exponent == 0.5 and X.dtype in ("float32", "float64"):
        return g.map(lambda v: tirx.sqrt(v), X)
    wide = "float64" if X.dtype in ("float64", "int64", "int32", "uint64", "uint32") else "float32"
    x, y = convert(g, X, wide), convert(g, Y, wide)
    if (X.dtype in ("int64", "uint64")) and Y.data is None:
        raise Refusal("64-bit integers to a computed power", "unsupported_dtype")
    return convert(g, g.map(lambda a, b: tirx.pow(a, b), x, y), X.dtype)


def _power(g: Builder, v: Value, exponent: int) -> Value:
    """A square or a cube, as a product of an operator of its own."""
    made = v * v if exponent == 2 else v * v * v
    single = math.element_type(v).startswith("float") and is_added(g.current())
    return math.rounded(made, cuda=not g.on_cpu) if single else made


@OPS.lower("BitCast", dtypes=HELD)
def bit_cast(g: Builder, input: Tensor, *, to: int) -> Tensor:
    """The same bits as another type."""
    kind = dtype_name(to)
    if "bool" in (kind, input.dtype):
        # Its byte is 0 or 1.
        return convert(g, input, kind)
    if input.data is not None:
        return g.const(np.asarray(input.data).view(array_type(kind)))
    bits = _labelled(g, input, stored(input.dtype))
    return _labelled(g, g.map(lambda v: tirx.reinterpret(stored(kind), v), bits), kind)


@OPS.lower("BitShift", dtypes=INTEGERS)
def bit_shift(g: Builder, X: Tensor, Y: Tensor, *, direction: str) -> Tensor:
    """Bits moved up or down."""
    bits = tirx.const(int(X.dtype.lstrip("uint")), X.dtype)
    zero = tirx.const(0, X.dtype)
    shift = tirx.shift_left if direction == "LEFT" else tirx.shift_right

    def move(x: Value, y: Value) -> Value:
        beyond = y >= bits
        if X.dtype.startswith("int"):
            beyond = tirx.Or(beyond, y < zero)
        out = zero
        if X.dtype.startswith("int") and direction == "RIGHT":
            # Copies of the sign move in.
            out = shift(x, bits - tirx.const(1, X.dtype))
        return tirx.Select(beyond, out, shift(x, tirx.Select(beyond, zero, y)))

    return g.map(move, X, Y)


def larger(a: Value, b: Value) -> Value:
    """The larger of two; NaN wins."""
    if not math.element_type(a).startswith("float"):
        # A choice of a choice with a constant ends the compiler's bounds of integers (0.27).
        return tirx.max(a, b)
    return tirx.Select(tirx.Or(a > b, is_not_number(a)), a, b)


def smaller(a: Value, b: Value) -> Value:
    """The smaller of two; NaN wins."""
    if not math.element_type(a).startswith("float"):
        # A choice of a choice with a constant ends the compiler's bounds of integers (0.27).
        return tirx.min(a, b)
    return tirx.Select(tirx.Or(a < b, is_not_number(a)), a, b)
