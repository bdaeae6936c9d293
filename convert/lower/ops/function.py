"""Functions of one number that formats lack, without a loss of digits near zero and far from it."""

from __future__ import annotations

from edgeinfer.convert.lower.core.portable import Elements, Value
from edgeinfer.convert.lower.core.table import elementwise

_ATANH = (
    *(1.0000000039964059, 0.333331560467095, 0.20012525510481372),
    *(0.13979112064862514, 0.14095314632435546),
)
"""``atanh(x) / x`` as a polynomial in ``x * x``, up to a third (minimax, own fit, 4e-9)."""


def log1p_small(e: Elements, x: Value) -> Value:
    """``log(1 + x)`` for operands from -0.5 to 1, by ``2 atanh(x / (x + 2))``."""
    half = e.div(x, e.add(x, 2))

    def series(t: Value) -> Value:
        return e.named(e.mul(t, t), lambda square: e.mul(t, _polynomial(e, square)))

    return e.named(half, series)


def _polynomial(e: Elements, x: Value) -> Value:
    """Twice the series, by Horner's rule."""
    value = e.mul(x, 2 * _ATANH[-1])
    for coefficient in _ATANH[-2:0:-1]:
        value = e.mul(e.add(value, 2 * coefficient), x)
    return e.add(value, 2 * _ATANH[0])


def log1p(e: Elements, x: Value) -> Value:
    """``log(1 + x)`` for operands from -0.5 on, also where ``1 + x`` rounds to one."""

    def chosen(v: Value) -> Value:
        near = e.less(e.abs(v), 1)
        return e.select(near, log1p_small(e, v), e.log(e.add(v, 1)))

    return e.named(x, chosen)


@elementwise("Asinh")
def asinh(e: Elements, x: Value) -> Value:
    """Inverse of the hyperbolic sine."""
    # The square of what is larger would overflow; log(a * b) = log(a) + log(b) takes that part.
    large = 100.0 if e.is_half(x) else 1e18
    size = e.abs(x)
    near = e.minimum(size, large)
    root = e.sqrt(e.add(e.mul(near, near), 1))
    part = log1p(e, e.add(near, e.mul(near, e.div(near, e.add(root, 1)))))
    far = e.log(e.div(e.maximum(size, large), large))
    return e.mul(e.sign(x), e.add(part, far))


@elementwise("Acosh")
def acosh(e: Elements, x: Value) -> Value:
    """Inverse of the hyperbolic cosine; no number below one."""
    # Twice what is larger may overflow, as above.
    large = 100.0 if e.is_half(x) else 1e18
    over = e.sub(x, 1)
    near = e.minimum(over, large)
    root = e.mul(e.sqrt(near), e.sqrt(e.add(near, 2)))
    far = e.log(e.div(e.maximum(over, large), large))
    return e.add(log1p(e, e.add(near, root)), far)


@elementwise("Atanh")
def atanh(e: Elements, x: Value) -> Value:
    """Inverse of the hyperbolic tangent."""
    size = e.abs(x)
    ratio = e.div(e.add(size, size), e.sub(1, size))
    return e.mul(e.mul(e.sign(x), 0.5), log1p(e, ratio))
