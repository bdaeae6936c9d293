"""BatchNormalization uses the given statistics at every opset."""

import numpy as np
import pytest

from edgeinfer.convert.verify.operators import OPERATORS, Unhandled
from edgeinfer.types import Array
from tests.convert.verify.operators.test_conv import by_engine


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 5), (2, 3, 4, 5)])
@pytest.mark.parametrize("opset", [9, 11, 15])
def test_numbers(shape: tuple[int, ...], opset: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape).astype(np.float32)
    inputs = [x, *(rng.uniform(0.5, 2, 3).astype(np.float32) for _ in range(4))]
    attrs = {"epsilon": 1e-3, "momentum": 0.9}
    wide: list[Array | None] = [a.astype(np.float64) for a in inputs]
    (got,) = OPERATORS["BatchNormalization"](attrs, opset, wide)
    np.testing.assert_allclose(got, by_engine("BatchNormalization", inputs, attrs), atol=1e-5)


@pytest.mark.parametrize("attrs", [{"training_mode": 1}, {"#outputs": 5}])
def test_training_is_left_to_the_reference(attrs: dict[str, int]) -> None:
    with pytest.raises(Unhandled):
        OPERATORS["BatchNormalization"](attrs, 15, [np.ones((1, 2)), *[np.ones(2)] * 4])
