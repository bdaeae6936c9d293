"""Functions of one float32, written with arithmetic alone so that they run on whole vectors.

LLVM calls the C library once for each element of a vector. Errors are below 3 units in the last
place, except for ``erf`` (5e-7 absolute). Infinities, NaN and values below the normal range come
out as the C library's do. Polynomials are those of Cephes (``expf``, ``logf``, ``tanhf``); the
rational forms of ``erf`` and of gates are the ones published with Eigen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx

from edgeinfer.kernels.defs.emit import Expr

_LOG2E = 1.44269504088896341
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
_NORMAL = -87.0
"""The exponential function of less is below the normal range, or nearly."""
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5)
_TANH = (
    -5.70498872745e-3,
    2.06390887954e-2,
    -5.37397155531e-2,
    1.33314422036e-1,
    -3.33332819422e-1,
)
_LOG = (
    7.0376836292e-2,
    -1.1514610310e-1,
    1.1676998740e-1,
    -1.2420140846e-1,
    1.4249322787e-1,
    -1.6668057665e-1,
    2.0000714765e-1,
    -2.4999993993e-1,
    3.3333331174e-1,
)
_SMALLEST_NORMAL = 1.17549435e-38
_HALF_ROOT = 0x3F3504F3
"""The bits of the square root of a half: what is left of a number lies around one."""
_ERF_TOP = (
    -2.72614225801306e-10,
    2.77068142495902e-08,
    -2.10102402082508e-06,
    -5.69250639462346e-05,
    -7.34990630326855e-04,
    -2.95459980854025e-03,
    -1.60960333262415e-02,
)
_ERF_BOTTOM = (
    -1.45660718464996e-05,
    -2.13374055278905e-04,
    -1.68282697438203e-03,
    -7.37332916720468e-03,
    -1.42647390514189e-02,
)

_GATE_TOP = (
    -2.76076847742355e-16,
    2.00018790482477e-13,
    -8.60467152213735e-11,
    5.12229709037114e-08,
    1.48572235717979e-05,
    6.37261928875436e-04,
    4.89352455891786e-03,
)
_GATE_BOTTOM = (
    1.19825839466702e-06,
    1.18534705686654e-04,
    2.26843463243900e-03,
    4.89352518554385e-03,
)
_GATE_END = 7.90531110763549805
"""Beyond it the hyperbolic tangent is 1 in float32."""


_NUMBERS = frozenset({"float16", "float32", "float64", "int16", "int32", "int64", "uint32"})


def constant(value: float, like: Expr) -> Expr:
    """A number of the element type and width of another expression."""
    kind = element_type(like)
    base, _, lanes = kind.partition("x")
    one = tirx.const(value, base)
    return tirx.Broadcast(one, int(lanes)) if lanes else one


def is_nan(x: Expr) -> Expr:
    """Whether a value is NaN, looked up in its bits: ``x != x`` would be simplified away."""
    kind = element_type(x)
    if "float" not in kind:
        return constant(0, x) != constant(0, x)
    bits = {"float16": 16, "float32": 32, "float64": 64}[kind.partition("x")[0]]
    whole = tirx.reinterpret(kind_of(x, f"int{bits}"), x)
    infinity = {16: 0x7C00, 32: 0x7F800000, 64: 0x7FF0000000000000}[bits]
    size = tirx.bitwise_and(whole, constant_int((1 << (bits - 1)) - 1, whole))
    return size > constant_int(infinity, whole)


def unknown_zero(x: Expr) -> Expr:
    """Hide a zero from the compiler: it has a product with it be zero, a sum the other number."""
    if not isinstance(x, tirx.FloatImm) or x.value != 0:
        return x
    bits = {"float16": 16, "float32": 32, "float64": 64}.get(element_type(x))
    if bits is None:
        return x
    # Of the bits of zero TVM makes a pointer; those of minus zero stay.
    minus = tirx.reinterpret(element_type(x), tirx.const(-(1 << (bits - 1)), f"int{bits}"))
    return minus if math.copysign(1.0, x.value) < 0 else minus * constant(-1.0, x)


_ROUNDED = {"float16": "__hmul_rn", "float32": "__fmul_rn", "float64": "__dmul_rn"}


def rounded(product: Expr, *, cuda: bool) -> Expr:
    """Have a product be rounded before anything is added to it.

    Compilers make one operation of both, which rounds once: ``x * y - y * x`` is not zero then.
    """
    kind = element_type(product)
    if not cuda:
        return tirx.call_llvm_pure_intrin(kind, "llvm.arithmetic.fence", product)
    if not isinstance(product, tirx.Mul) or kind not in _ROUNDED:
        return product
    return tirx.call_pure_extern(kind, _ROUNDED[kind], product.a, product.b)


def known_bits(module: tvm.IRModule) -> tvm.IRModule:
    """Replace the bits of numbers that are known: CUDA C takes the bits of variables only."""

    def fold(call: Expr) -> Expr:
        if str(getattr(call.op, "name", "")) != "tirx.reinterpret":
            return call
        number = getattr(call.args[0], "value", None)
        if not isinstance(number, int | float):
            return call
        kind, given = element_type(call), element_type(call.args[0])
        if {kind, given} - _NUMBERS:
            return call
        return tirx.const(np.array([number], given).view(kind)[0].item(), kind)

    made = tvm.IRModule(attrs=module.attrs)
    for name, function in module.functions.items():
        body = tvm_ffi.structural_map(function.body, (tvm.ir.Call, fold))
        made[name] = function.with_body(body)
    return made


def element_type(x: Expr) -> str:
    """The element type of an expression, with its width."""
    return str(x.expr_ty().dtype) if hasattr(x, "expr_ty") else str(x.dtype)


def kind_of(like: Expr, base: str) -> str:
    """An element type with the width of another expression."""
    kind = element_type(like)
    lanes = kind.partition("x")[2]
    return f"{base}x{lanes}" if lanes else base


def _polynomial(x: Expr, coefficients: Sequence[float]) -> Expr:
    value = constant(coefficients[0], x)
    for c in coefficients[1:]:
        value = value * x + constant(c, x)
    return value


def _clamp(x: Expr, low: float, high: float) -> Expr:
    return tirx.Min(tirx.Max(x, constant(low, x)), constant(high, x))


def named(value: Expr, use: Callable[[Expr], Expr]) -> Expr:
    """Compute a value once where an expression needs it several times."""
    if isinstance(value, (tirx.Var, tirx.IntImm, tirx.FloatImm)):
        return use(value)
    name = tirx.Var("v", element_type(value))
    return tirx.Let(name, value, use(name))


def exp(x: Expr) -> Expr:
    """The exponential function."""

    def scaled(x: Expr, r: Expr, n: Expr) -> Expr:
        value = _polynomial(r, _EXP) * r * r + r + constant(1.0, x)
        whole = tirx.Cast(kind_of(x, "int32"), n)
        # Two factors, because one of them alone need not be a normal number.
        return named(
            whole,
            lambda w: named(
                tirx.shift_right(w, constant_int(1, w)),
                lambda half: value * _power(half, x) * _power(w - half, x),
            ),
        )

    def reduced(x: Expr, inside: Expr, n: Expr) -> Expr:
        r = inside - n * constant(_LN2_HIGH, x) - n * constant(_LN2_LOW, x)
        return named(r, lambda r: scaled(x, r, n))

    def held(x: Expr) -> Expr:
        result = named(
            _clamp(x, -104.0, 89.0),
            lambda inside: named(
                tirx.floor(inside * constant(_LOG2E, x) + constant(0.5, x)),
                lambda n: reduced(x, inside, n),
            ),
        )
        return tirx.Select(is_nan(x), x, result)

    return named(x, held)


def exp_to_one(x: Expr) -> Expr:
    """The exponential function of what is not above zero, in fewer steps.

    Results below the normal range are zero.
    """

    def powered(x: Expr, n: Expr) -> Expr:
        # Not of the clamped value: what is NaN stays it.
        r = x - n * constant(_LN2_HIGH, x) - n * constant(_LN2_LOW, x)
        value = named(r, lambda r: _polynomial(r, _EXP) * r * r + r + constant(1.0, x))
        whole = tirx.Cast(kind_of(x, "int32"), n)
        raised = value * _power(whole, x)
        return tirx.Select(x < constant(_NORMAL, x), constant(0.0, x), raised)

    def scaled(x: Expr) -> Expr:
        inside = tirx.Max(x, constant(_NORMAL, x))
        n = tirx.floor(inside * constant(_LOG2E, x) + constant(0.5, x))
        return named(n, lambda n: powered(x, n))

    return named(x, scaled)


def log(x: Expr) -> Expr:
    """The natural logarithm."""

    def summed(n: Expr, r: Expr) -> Expr:
        square = r * r
        tail = _polynomial(r, _LOG) * r * square + n * constant(_LN2_LOW, r)
        return r + (tail - constant(0.5, r) * square) + n * constant(_LN2_HIGH, r)

    def split(bits: Expr, down: Expr) -> Expr:
        # What lies above the root of a half, in steps of a power of two.
        above = bits - constant_int(_HALF_ROOT, bits)
        power = tirx.shift_right(above, constant_int(23, bits))
        rest = tirx.bitwise_and(above, constant_int(0x7FFFFF, bits))
        kind = element_type(down)
        r = tirx.reinterpret(kind, rest + constant_int(_HALF_ROOT, bits)) - constant(1.0, down)
        return named(tirx.Cast(kind, power) + down, lambda n: named(r, lambda r: summed(n, r)))

    def normal(x: Expr) -> Expr:
        is_small = x < constant(_SMALLEST_NORMAL, x)
        raised = tirx.Select(is_small, x * constant(2.0**23, x), x)
        down = tirx.Select(is_small, constant(-23.0, x), constant(0.0, x))
        bits = tirx.reinterpret(kind_of(x, "int32"), raised)
        return named(bits, lambda bits: named(down, lambda down: split(bits, down)))

    def held(x: Expr) -> Expr:
        infinity, zero = constant(float("inf"), x), constant(0.0, x)
        below = tirx.Select(x < zero, constant(float("nan"), x), -infinity)
        value = tirx.Select(x > zero, normal(x), below)
        return tirx.Select(tirx.Or(is_nan(x), x == infinity), x, value)

    return named(x, held)


def constant_int(value: int, like: Expr) -> Expr:
    """An integer of the type and width of another expression."""
    return constant(value, like)


def _power(n: Expr, like: Expr) -> Expr:
    bits = tirx.shift_left(n + constant_int(127, n), constant_int(23, n))
    return tirx.reinterpret(kind_of(like, "float32"), bits)


def sigmoid(x: Expr) -> Expr:
    """The logistic function."""
    return constant(1.0, x) / (constant(1.0, x) + exp(-x))


def tanh(x: Expr) -> Expr:
    """The hyperbolic tangent."""

    def chosen(x: Expr, size: Expr) -> Expr:
        one, zero = constant(1.0, x), constant(0.0, x)
        small = named(x * x, lambda square: _polynomial(square, _TANH) * square * x + x)
        large = one - constant(2.0, x) / (exp(size + size) + one)
        signed = named(large, lambda v: tirx.Select(x < zero, -v, v))
        return tirx.Select(size < constant(0.625, x), small, signed)

    def sized(x: Expr) -> Expr:
        size = tirx.Select(x < constant(0.0, x), -x, x)
        return named(size, lambda size: chosen(x, size))

    return named(x, sized)


def gate_tanh(x: Expr) -> Expr:
    """The hyperbolic tangent with one division and no branch; 3e-7 absolute."""

    def ratio(x: Expr, square: Expr) -> Expr:
        return x * _polynomial(square, _GATE_TOP) / _polynomial(square, _GATE_BOTTOM)

    def held(x: Expr) -> Expr:
        # In this order of operands what is NaN stays it.
        low, high = constant(-_GATE_END, x), constant(_GATE_END, x)
        above = tirx.Select(x < low, low, x)
        inside = named(above, lambda a: tirx.Select(a > high, high, a))
        return named(inside, lambda i: named(i * i, lambda square: ratio(i, square)))

    return named(x, held)


def gate_sigmoid(x: Expr) -> Expr:
    """The logistic function by ``gate_tanh``; 2e-7 absolute."""
    half = constant(0.5, x)
    return half * gate_tanh(half * x) + half


def erf(x: Expr) -> Expr:
    """The error function."""

    def ratio(inside: Expr, square: Expr) -> Expr:
        return inside * _polynomial(square, _ERF_TOP) / _polynomial(square, _ERF_BOTTOM)

    def held(x: Expr) -> Expr:
        value = named(
            _clamp(x, -4.0, 4.0),
            lambda inside: named(inside * inside, lambda square: ratio(inside, square)),
        )
        return tirx.Select(is_nan(x), x, value)

    return named(x, held)


VECTOR: dict[str, Callable[[Expr], Expr]] = {
    "exp": exp,
    "log": log,
    "sigmoid": sigmoid,
    "tanh": tanh,
    "erf": erf,
}
"""By the name of TVM's operator."""
