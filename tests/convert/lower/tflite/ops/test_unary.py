"""Functions of one real operand: every digit float32 has, for small and large operands."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from tests.convert.lower.tflite.run import lower, outputs
from tests.convert.lower.tflite.single import agree, f32, single
from tests.convert.lower.tflite.together import rows

SMALL = [1e-6, -1e-6, 1e-4, 1e-2, -0.1]


@pytest.mark.parametrize(
    ("op", "function", "values"),
    [
        ("Exp", np.exp, [*SMALL, -20, 1, 10, 80]),
        ("Log", np.log, [1e-30, 1e-3, 0.5, 0.97, 0.985, 0.9999, 1.0000001, 1.02, 1.03, 2, 1e30]),
        ("Sqrt", np.sqrt, [0, 1e-30, 2, 1e30]),
        ("Sin", np.sin, [*SMALL, 1, -2, 3, 50.5]),
        ("Cos", np.cos, [*SMALL, 1, -2, 3, 50.5]),
        ("Tan", np.tan, [*SMALL, 1, -2, 1.5]),
        ("Asin", np.arcsin, [*SMALL, 0.5, -0.999, 1, -1]),
        ("Acos", np.arccos, [*SMALL, 0.5, -0.999, 0.9999, 1, -1]),
        ("Atan", np.arctan, [*SMALL, 1, -50, 1e20, np.inf]),
        ("Sinh", np.sinh, [*SMALL, 1, -5, 40, 88]),
        ("Cosh", np.cosh, [*SMALL, 1, -5, 40, 88]),
        ("Asinh", np.arcsinh, [*SMALL, 0.8, -1, 1.3, -5, 1e10, -1e25]),
        ("Acosh", np.arccosh, [1, 1.0001, 2, 100, 1e25, 3e38]),
        ("Atanh", np.arctanh, [*SMALL, 0.3, -0.35, 0.5, -0.999]),
        ("Erf", np.vectorize(math.erf), [*SMALL, 0.5, -1, 2.5, -3.9, 4.5, 10]),
        ("Tanh", np.tanh, [*SMALL, 0.5, -3, 20]),
    ],
)
def test_each_value_has_its_own_digits(
    op: str, function: Callable[[np.ndarray], np.ndarray], values: list[float]
) -> None:
    x = f32(*values)
    want = function(x.astype(np.float64)).astype(np.float32)
    data = lower(single(op, [x]))
    for xnnpack in (True, False):
        got = outputs(data, {"x0": x}, xnnpack=xnnpack)["y0"]
        np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-37, err_msg=f"{op} {xnnpack}")


@rows("op", ["Sin", "Atan", "Sinh", "Asinh", "Atanh", "Erf"])
def test_any_shape(op: str) -> None:
    rng = np.random.default_rng(0)
    for shape in ((), (2, 3), (1, 2, 3, 1, 2, 2)):
        agree(op, np.asarray(rng.uniform(-0.9, 0.9, shape), np.float32))


def test_no_number_stays_none() -> None:
    x = f32(np.nan, 1)
    for op in ("Erf", "Atan", "Asinh", "Sinh"):
        data = lower(single(op, [x]))
        assert np.isnan(outputs(data, {"x0": x}, xnnpack=False)["y0"][0])
