"""Kernels over rows, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.kernels.run import HERE, Array, compiled, cpu, misaligned

from edgeinfer.kernels.defs import rows  # isort: skip

MACHINE = HERE[-1]
RNG = np.random.default_rng(0)
SIZES = sorted({1, 17, int(RNG.integers(200, 700))})
"""Below whole vectors, beyond, and one at random."""


def _array(*shape: int, scale: float = 1.0) -> Array:
    return misaligned((RNG.standard_normal(shape) * scale).astype(np.float32))


def _empty(*shape: int, dtype: type = np.float32) -> Array:
    return misaligned(np.full(shape, 77, dtype))


@pytest.mark.parametrize(
    ("size", "rotated", "neighbours"),
    [(64, 0, False), (64, 0, True), (80, 20, False), (50, 38, True), (2, 0, False)],
)
def test_rope(size: int, rotated: int, neighbours: bool) -> None:
    n, limit = rotated or size, 40
    x, at = _array(5, 3, size), np.array([0, 39, 7, 7, 1], np.int32)
    angles = np.arange(limit)[:, None] * 10000.0 ** (-np.arange(n // 2) * 2 / n)
    cos, sin = (misaligned(f(angles).astype(np.float32)) for f in (np.cos, np.sin))
    y = _empty(5, 3, size)
    what = rows.rope(cpu(MACHINE), 5, 3, size, limit, rotated=rotated, neighbours=neighbours)
    compiled(what, MACHINE)(x, cos, sin, at, y)
    one, two = (slice(0, n, 2), slice(1, n, 2)) if neighbours else (slice(n // 2), slice(n // 2, n))
    want = x.astype(np.float64)
    turn = np.exp(1j * angles[at])[:, None] * (want[..., one] + 1j * want[..., two])
    want[..., one], want[..., two] = turn.real, turn.imag
    np.testing.assert_allclose(y, want, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(y[..., n:], x[..., n:])


@pytest.mark.parametrize(("size", "scale"), [*((n, 1.0) for n in SIZES), (64, 0.125)])
def test_softmax(size: int, scale: float) -> None:
    x = _array(4, size, scale=30.0)
    x[1] += 1e4
    if size > 1:
        x[2, 1] = -np.inf
    x[3, -1] = np.nan
    y = _empty(4, size)
    compiled(rows.softmax(cpu(MACHINE), 4, size, scale), MACHINE)(x, y)
    wide = x.astype(np.float64) * scale
    powers = np.exp(wide - wide.max(-1, keepdims=True))
    want = powers / powers.sum(-1, keepdims=True)
    np.testing.assert_allclose(y[:3], want[:3], rtol=2e-5, atol=1e-30)
    assert np.isnan(y[3]).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda c: rows.rope(c, 1, 1, 8, 4, rotated=3), "3 of 8 elements: pairs"),
        (lambda c: rows.rope(c, 1, 1, 8, 4, rotated=10), "10 of 8"),
        (lambda c: rows.rope(c, 1, 1, 8, 0), "limit 0"),
        (lambda c: rows.softmax(c, 1, 0), "size 0"),
        (lambda c: rows.softmax(c, -1, 2), "rows -1"),
    ],
)
def test_other_sizes_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(cpu(MACHINE))
