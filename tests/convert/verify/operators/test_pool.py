"""Our pooling gives ONNX Runtime's numbers for every attribute."""

from typing import Any

import numpy as np
import pytest

from edgeinfer.convert.verify.operators import OPERATORS, Unhandled
from tests.convert.verify.operators.test_conv import by_engine

CASES: list[dict[str, Any]] = [
    {"kernel_shape": [2, 3]},
    {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
    {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1},
    {"kernel_shape": [2, 2], "strides": [3, 3], "ceil_mode": 1, "pads": [1, 0, 0, 1]},
    {"kernel_shape": [3, 2], "auto_pad": "SAME_UPPER", "strides": [2, 2]},
    {"kernel_shape": [3, 2], "auto_pad": "SAME_LOWER", "strides": [2, 2]},
    {"kernel_shape": [2, 2], "dilations": [2, 3]},
]


@pytest.mark.parametrize("attrs", CASES)
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_numbers(op: str, attrs: dict[str, Any]) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 10, 9)).astype(np.float32) - 3
    (got,) = OPERATORS[op](attrs, 20, [x.astype(np.float64)])
    np.testing.assert_allclose(got, by_engine(op, [x], attrs), rtol=1e-5)


@pytest.mark.parametrize("ceil_mode", [0, 1])
def test_counted_padding(ceil_mode: int) -> None:
    attrs = {
        "kernel_shape": [3, 3],
        "strides": [2, 2],
        "pads": [1, 1, 1, 1],
        "count_include_pad": 1,
        "ceil_mode": ceil_mode,
    }
    x = np.random.default_rng(0).standard_normal((1, 2, 10, 9)).astype(np.float32)
    (got,) = OPERATORS["AveragePool"](attrs, 20, [x.astype(np.float64)])
    np.testing.assert_allclose(got, by_engine("AveragePool", [x], attrs), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("op", ["GlobalMaxPool", "GlobalAveragePool"])
@pytest.mark.parametrize("shape", [(2, 3, 7), (2, 3, 5, 4), (1, 2, 3, 4, 5)])
def test_global(op: str, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    (got,) = OPERATORS[op]({}, 20, [x.astype(np.float64)])
    np.testing.assert_allclose(got, by_engine(op, [x], {}), rtol=1e-5, atol=1e-6)


def test_indices_are_left_to_the_reference() -> None:
    with pytest.raises(Unhandled):
        OPERATORS["MaxPool"]({"kernel_shape": [2, 2], "#outputs": 2}, 20, [np.ones((1, 1, 4, 4))])
