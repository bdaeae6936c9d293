"""Rows that are reduced or normalised, against float64."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import tirx

from tests.kernels.run import HERE, Array, compiled, cpu, misaligned

from edgeinfer.kernels.defs import norms  # isort: skip
from edgeinfer.kernels.defs.math import constant  # isort: skip

SIZES = ((1, 1), (5, 16), (3, 37), (2, 200), (7, 64))


def _normal(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", HERE)
@pytest.mark.parametrize("kind", norms.KINDS)
def test_reduced(name: str, kind: str) -> None:
    for rows, size in SIZES:
        x, y = _normal(rows, size), np.zeros(rows, np.float32)
        compiled(norms.reduced(cpu(name), rows, size, kind), name)(
            misaligned(x), y := misaligned(y)
        )
        want = getattr(np, kind)(x.astype(np.float64), axis=1)
        np.testing.assert_allclose(y, want, rtol=2e-6, atol=2e-5, err_msg=f"{rows}x{size}")


@pytest.mark.parametrize("kind", ["max", "min", "sum"])
def test_nan_is_not_lost(kind: str) -> None:
    x, y = _normal(3, 37), np.zeros(3, np.float32)
    x[0, 36] = x[1, 0] = np.nan
    x[2, 5] = -np.inf
    compiled(norms.reduced(cpu(HERE[0]), 3, 37, kind), HERE[0])(x, y)
    np.testing.assert_array_equal(np.isnan(y), [True, True, False])
    assert np.isinf(y[2]) == (kind != "max")


def test_what_is_done_before_and_after() -> None:
    x, y = _normal(4, 45), np.zeros(4, np.float32)
    kernel = norms.reduced(
        cpu(HERE[0]), 4, 45, "sum", before=lambda v: v * v, after=lambda v: tirx.sqrt(v)
    )
    compiled(kernel, HERE[0])(x, y)
    np.testing.assert_allclose(y, np.linalg.norm(x.astype(np.float64), axis=1), rtol=2e-6)


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", HERE)
@pytest.mark.parametrize(
    ("centred", "factors"),
    [(True, ("column", "column")), (True, ("row", "row")), (False, ("column",)), (True, ())],
)
def test_normalised(name: str, centred: bool, factors: tuple[str, ...]) -> None:
    for rows, size in ((5, 16), (3, 37), (2, 200)):
        x = _normal(rows, size) + 3
        given = [_normal(size if kind == "column" else rows) + i for i, kind in enumerate(factors)]
        y = misaligned(np.zeros((rows, size), np.float32))
        kernel = norms.normalised(cpu(name), rows, size, 1e-5, centred=centred, factors=factors)
        compiled(kernel, name)(misaligned(x), *map(misaligned, given), y)
        want = x.astype(np.float64)
        if centred:
            want = want - want.mean(axis=1, keepdims=True)
        want = want / np.sqrt((want * want).mean(axis=1, keepdims=True) + 1e-5)
        wide = [f if k == "column" else f[:, None] for f, k in zip(given, factors, strict=True)]
        want = want * wide[0] if wide else want
        want = want + wide[1] if len(wide) > 1 else want
        np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5, err_msg=f"{rows}x{size}")


def test_constants_fit_vectors() -> None:
    x, y = _normal(2, 32), np.zeros(2, np.float32)
    kernel = norms.reduced(
        cpu(HERE[0]), 2, 32, "mean", before=lambda v: v * constant(2.0, v) + constant(1.0, v)
    )
    compiled(kernel, HERE[0])(x, y)
    np.testing.assert_allclose(y, (2 * x.astype(np.float64) + 1).mean(axis=1), rtol=2e-6)
