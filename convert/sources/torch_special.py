"""Functions of PyTorch that its exporter leaves as they are: ONNX has no operator of their name."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from edgeinfer.convert.sources.torch_quotients import as_pair, signbit
from edgeinfer.convert.sources.torch_script import like, opset, whole

_CENTRE = (
    (
        *(3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3),
        *(1.3731693765509461125e4, 4.5921953931549871457e4, 6.7265770927008700853e4),
        *(3.3430575583588128105e4, 2.5090809287301226727e3),
    ),
    (
        *(1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3),
        *(2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4),
        5.2264952788528545610e3,
    ),
)
_SIDES = (
    (
        *(1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0),
        *(3.64784832476320460504e0, 1.27045825245236838258e0, 2.41780725177450611770e-1),
        *(2.27238449892691845833e-2, 7.74545014278341407640e-4),
    ),
    (
        *(1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1),
        *(1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4),
        1.05075007164441684324e-9,
    ),
)
_ENDS = (
    (
        *(6.65790464350110377720e0, 5.46378491116411436990e0, 1.78482653991729133580e0),
        *(2.96560571828504891230e-1, 2.65321895265761230930e-2, 1.24266094738807843860e-3),
        *(2.71155556874348757815e-5, 2.01033439929228813265e-7),
    ),
    (
        *(1.0, 5.99832206555887937690e-1, 1.36929880922735805310e-1, 1.48753612908506148525e-2),
        *(7.86869131145613259100e-4, 1.84631831751005468180e-5, 1.42151175831644588870e-7),
        2.04426310338993978564e-15,
    ),
)
"""Quotients of polynomials, lowest powers first. Source: Wichura 1988, algorithm AS 241."""

_ZETA = (
    *(0.6449340668482264, 0.2020569031595943, 0.0823232337111382, 0.0369277551433699),
    *(sum(n**-s for n in range(2, 60)) for s in map(float, range(6, 27))),
)
"""Riemann's zeta of 2, 3, ..., less one."""

_LOG_GAMMA = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360)
_DIGAMMA = (-1 / 12, 1 / 120, -1 / 252, 1 / 240, -1 / 132, 691 / 32760)
_TRIGAMMA = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730)
"""Of Stirling's series, in 1 / x². Source: Abramowitz and Stegun, 6.1.41, 6.3.18, 6.4.12."""

_BESSEL_SPLIT, _BESSEL_SERIES, _BESSEL_TAIL = 10.0, 24, 14


def forms() -> Mapping[Any, Callable[..., Any]]:
    """Return functions of ``onnxscript`` by PyTorch's operator."""
    import torch

    aten = torch.ops.aten
    return {
        aten.hypot.default: _hypot,
        aten.copysign.Tensor: _copysign,
        aten.copysign.Scalar: _copysign,
        aten.fmax.default: _fmax,
        aten.fmin.default: _fmin,
        aten.erfinv.default: _erfinv,
        aten.special_erfinv.default: _erfinv,
        aten.special_ndtri.default: _ndtri,
        aten.lgamma.default: _lgamma,
        aten.special_gammaln.default: _lgamma,
        aten.digamma.default: _digamma,
        aten.special_digamma.default: _digamma,
        aten.special_psi.default: _digamma,
        aten.polygamma.default: _polygamma,
        aten.i0.default: _i0,
        aten.special_i0.default: _i0,
        aten.special_i0e.default: _i0e,
        aten.special_i1.default: _i1,
        aten.special_i1e.default: _i1e,
        aten.rrelu_with_noise_functional.default: _rrelu,
        aten.sort.stable: _sort,
        aten.kaiser_window.default: _kaiser_window,
        aten.kaiser_window.periodic: _kaiser_window,
        aten.kaiser_window.beta: _kaiser_window,
        aten.bartlett_window.default: _bartlett_window,
        aten.bartlett_window.periodic: _bartlett_window,
        aten.masked_select.default: _masked_select,
        aten.nonzero_static.default: _nonzero_static,
    }


def _polynomial(x: Any, factors: Sequence[float]) -> Any:
    """Sum up factors of rising powers, by Horner's rule."""
    op = opset()
    total = like(factors[-1], x)
    for factor in reversed(factors[:-1]):
        total = op.Add(op.Mul(total, x), like(factor, x))
    return total


def _float(value: Any) -> Any:
    """A float of an integer, as PyTorch makes it where a function has no integers."""
    if value.dtype.is_floating_point():
        return value
    return opset().Cast(value, to=1)


# ---- two operands


def _hypot(self: Any, other: Any) -> Any:
    """Neither square leaves the range: the larger one is a factor."""
    op = opset()
    x, y, one = op.Abs(self), op.Abs(other), like(1.0, self)
    large, small = op.Max(x, y), op.Min(x, y)
    is_plain = op.And(op.Greater(large, like(0.0, self)), op.Less(large, like(math.inf, self)))
    ratio = op.Div(small, op.Where(is_plain, large, one))
    found = op.Mul(large, op.Sqrt(op.Add(one, op.Mul(ratio, ratio))))
    found = op.Where(op.Or(is_plain, op.IsNaN(large)), found, large)
    return op.Where(op.Or(op.IsInf(self), op.IsInf(other)), like(math.inf, self), found)


def _copysign(self: Any, other: Any) -> Any:
    op = opset()
    size, sign = (_float(part) for part in as_pair(self, other))
    size = op.Abs(size)
    return op.Where(signbit(sign), op.Neg(size), size)


def _fmax(self: Any, other: Any) -> Any:
    return _number_of_two(self, other, opset().Max)


def _fmin(self: Any, other: Any) -> Any:
    return _number_of_two(self, other, opset().Min)


def _number_of_two(self: Any, other: Any, join: Callable[[Any, Any], Any]) -> Any:
    """The one that is a number, where only one is."""
    op = opset()
    if not self.dtype.is_floating_point():
        return join(self, other)
    first = op.Where(op.IsNaN(self), other, self)
    return join(first, op.Where(op.IsNaN(other), first, other))


# ---- the normal distribution, backwards


def _ndtri(self: Any) -> Any:
    op = opset()
    p = _float(self)
    half, one = like(0.5, p), like(1.0, p)
    return _quantile(op.Sub(p, half), op.Min(p, op.Sub(one, p)))


def _erfinv(self: Any) -> Any:
    op = opset()
    x = _float(self)
    half, one = like(0.5, x), like(1.0, x)
    tail = op.Mul(half, op.Sub(one, op.Abs(x)))
    return op.Mul(_quantile(op.Mul(half, x), tail), like(math.sqrt(0.5), x))


def _quantile(q: Any, tail: Any) -> Any:
    """The quantile with ``q`` between the median and it, and ``tail`` behind it."""
    op = opset()
    zero, least = like(0.0, q), like(0.18, q)
    rest = op.Sub(like(0.180625, q), op.Mul(q, q))
    middle = op.Mul(q, _quotient(rest, _CENTRE))
    is_middle = op.LessOrEqual(op.Abs(q), like(0.425, q))
    # Between nothing and all of it: outside it is no number.
    is_side = op.Greater(tail, zero)
    root = op.Sqrt(op.Neg(op.Log(op.Where(is_side, op.Min(tail, least), least))))
    side = _quotient(op.Sub(root, like(1.6, q)), _SIDES)
    end = _quotient(op.Sub(root, like(5.0, q)), _ENDS)
    far = op.Where(op.LessOrEqual(root, like(5.0, q)), side, end)
    beyond = op.Where(op.Equal(tail, zero), like(math.inf, q), like(math.nan, q))
    far = op.Where(is_side, far, beyond)
    far = op.Where(op.Less(q, zero), op.Neg(far), far)
    return op.Where(is_middle, middle, far)


def _quotient(x: Any, of: tuple[Sequence[float], Sequence[float]]) -> Any:
    above, below = of
    return opset().Div(_polynomial(x, above), _polynomial(x, below))


# ---- the gamma function's logarithm and what it is derived to


def _lgamma(self: Any) -> Any:
    op = opset()
    x = _float(self)
    zero, one = like(0.0, x), like(1.0, x)
    is_left = op.Less(x, zero)
    right = _lgamma_right(op.Where(is_left, op.Sub(one, x), x))
    apart = op.Sub(x, op.Round(x))
    sine = op.Abs(op.Sin(op.Mul(like(math.pi, x), apart)))
    left = op.Sub(op.Sub(like(math.log(math.pi), x), op.Log(sine)), right)
    found = op.Where(is_left, left, right)
    return op.Where(op.IsInf(x), op.Abs(x), found)


def _lgamma_right(x: Any) -> Any:
    """Of 0 and above: by its series around 2, below 1.5 one and below 0.5 two steps before."""
    op = opset()
    one, two, half, three = (like(v, x) for v in (1.0, 2.0, 0.5, 3.0))
    near = op.Min(x, three)
    is_low, is_least = op.Less(near, like(1.5, x)), op.Less(near, half)
    u = op.Where(is_least, near, op.Where(is_low, op.Sub(near, one), op.Sub(near, two)))
    series = [0.4227843350984671] + [z * (-1) ** k / k for k, z in enumerate(_ZETA, 2)]
    found = op.Mul(u, _polynomial(u, series))
    # log(1 + u), which has digits near 0.
    step = op.Mul(two, op.Atanh(op.Div(u, op.Add(u, two))))
    found = op.Where(is_low, op.Sub(found, step), found)
    found = op.Where(is_least, op.Sub(found, op.Log(near)), found)
    far = op.Max(x, three)
    large = op.Mul(op.Sub(far, half), op.Sub(op.Log(far), one))
    large = op.Add(large, like(0.5 * math.log(2 * math.pi) - 0.5, x))
    back = op.Div(one, far)
    large = op.Add(large, op.Mul(back, _polynomial(op.Mul(back, back), _LOG_GAMMA)))
    return op.Where(op.Less(x, three), found, large)


_STEPS = 8
"""From an argument right of 0 to where Stirling's series is exact."""


def _digamma(self: Any) -> Any:
    op = opset()
    x = _float(self)
    zero, one, half = (like(v, x) for v in (0.0, 1.0, 0.5))
    is_left = op.Less(x, zero)
    right = op.Where(is_left, op.Sub(one, x), x)
    back = op.Div(one, op.Add(right, like(float(_STEPS), x)))
    square = op.Mul(back, back)
    found = op.Sub(op.Mul(square, _polynomial(square, _DIGAMMA)), op.Mul(half, back))
    found = op.Sub(found, op.Log(back))
    for step in reversed(range(_STEPS)):
        found = op.Sub(found, op.Div(one, op.Add(right, like(float(step), x))))
    apart = op.Mul(like(math.pi, x), op.Sub(x, op.Round(x)))
    sine = op.Where(op.Equal(apart, zero), like(math.nan, x), op.Sin(apart))
    slope = op.Div(op.Mul(like(math.pi, x), op.Cos(apart)), sine)
    found = op.Where(is_left, op.Sub(found, slope), found)
    found = op.Where(op.Equal(x, zero), op.Neg(op.Div(one, x)), found)
    return op.Where(op.Equal(x, like(math.inf, x)), x, found)


def _polygamma(n: int, self: Any) -> Any:
    op = opset()
    if n == 0:
        return _digamma(self)
    if n != 1:
        raise NotImplementedError("polygamma of a derivative beyond the first")
    x = _float(self)
    zero, one, half, pi = (like(v, x) for v in (0.0, 1.0, 0.5, math.pi))
    is_left = op.Less(x, zero)
    right = op.Where(is_left, op.Sub(one, x), x)
    back = op.Div(one, op.Add(right, like(float(_STEPS), x)))
    square = op.Mul(back, back)
    found = op.Mul(op.Mul(back, square), _polynomial(square, _TRIGAMMA))
    found = op.Add(op.Add(found, op.Mul(half, square)), back)
    for step in reversed(range(_STEPS)):
        found = op.Add(found, op.Pow(op.Add(right, like(float(step), x)), like(-2.0, x)))
    sine = op.Div(pi, op.Sin(op.Mul(pi, op.Sub(x, op.Round(x)))))
    return op.Where(is_left, op.Sub(op.Mul(sine, sine), found), found)


# ---- Bessel's functions


def _i0(self: Any) -> Any:
    return _bessel(_float(self), 0, scaled=False)


def _i0e(self: Any) -> Any:
    return _bessel(_float(self), 0, scaled=True)


def _i1(self: Any) -> Any:
    return _bessel(_float(self), 1, scaled=False)


def _i1e(self: Any) -> Any:
    return _bessel(_float(self), 1, scaled=True)


def _bessel(x: Any, order: int, *, scaled: bool) -> Any:
    """The modified one of order 0 or 1: its power series, and far from 0 its expansion there.

    Source: Abramowitz and Stegun, 9.6.10 and 9.7.1.
    """
    op = opset()
    size, split = op.Abs(x), like(_BESSEL_SPLIT, x)
    near, far = op.Min(size, split), op.Max(size, split)
    half = op.Mul(near, like(0.5, x))
    powers = [1 / (math.factorial(k) * math.factorial(k + order)) for k in range(_BESSEL_SERIES)]
    small = _polynomial(op.Mul(half, half), powers)
    factors = itertools.accumulate(
        range(1, _BESSEL_TAIL),
        lambda factor, k: factor * ((2 * k - 1) ** 2 - 4 * order**2) / (8 * k),
        initial=1 / math.sqrt(2 * math.pi),
    )
    large = op.Div(_polynomial(op.Div(like(1.0, x), far), list(factors)), op.Sqrt(far))
    if order:
        small = op.Mul(half, small)
    if scaled:
        small = op.Mul(small, op.Exp(op.Neg(near)))
    else:
        # In two factors: one alone leaves the range before the function does.
        growth = op.Exp(op.Mul(far, like(0.5, x)))
        large = op.Mul(op.Mul(large, growth), growth)
    found = op.Where(op.LessOrEqual(size, split), small, large)
    if not scaled:
        found = op.Where(op.IsInf(x), size, found)
    return op.Where(op.Less(x, like(0.0, x)), op.Neg(found), found) if order else found


# ---- windows of spectrograms


def _kaiser_window(
    window_length: int, periodic: bool = True, beta: float = 12.0, dtype: int = -1, **rest: Any
) -> Any:
    import torch

    return _window(torch.kaiser_window, dtype, window_length, periodic, beta)


def _bartlett_window(
    window_length: int, periodic: bool = True, dtype: int = -1, **rest: Any
) -> Any:
    import torch

    return _window(torch.bartlett_window, dtype, window_length, periodic)


def _window(made: Callable[..., Any], dtype: int, length: int, *about: Any) -> Any:
    if not isinstance(length, int):
        raise NotImplementedError("a window of an open length")
    import torch

    wanted = ir.DataType.FLOAT if dtype == -1 else ir.DataType(dtype)
    array = made(length, *about, dtype=torch.float64).numpy().astype(wanted.numpy())
    return opset().Constant(value=ir.tensor(array))


# ---- elements that are chosen


def _rrelu(
    self: Any,
    noise: Any,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    generator: Any = None,
) -> tuple[Any, Any]:
    """The mean of the slopes that training draws."""
    if training:
        raise NotImplementedError("rrelu in training")
    return opset().LeakyRelu(self, alpha=(lower + upper) / 2), noise


def _sort(self: Any, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Any:
    """Of equal elements ``TopK`` takes the one before, as a stable sort does."""
    op = opset()
    if not self.shape:
        return self, op.Constant(value_int=0)
    count = op.Gather(op.Shape(self), whole(dim))
    return op.TopK(self, count, axis=dim, largest=int(descending), sorted=1)


def _masked_select(self: Any, mask: Any) -> Any:
    op = opset()
    # Both in the shape of both.
    wide = op.Expand(mask, op.Shape(self))
    values = op.Expand(self, op.Shape(wide))
    return op.Compress(op.Reshape(values, whole(-1)), op.Reshape(wide, whole(-1)))


def _nonzero_static(self: Any, size: int, fill_value: int = -1) -> Any:
    """Places of the first elements that are not zero, and others up to a known count."""
    op = opset()
    rank = len(self.shape)
    found = op.Transpose(op.NonZero(self), perm=[1, 0])
    rest = op.Expand(whole(fill_value), whole(size, rank))
    return op.Slice(op.Concat(found, rest, axis=0), whole(0), whole(size), whole(0))
