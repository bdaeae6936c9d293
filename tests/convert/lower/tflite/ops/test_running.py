"""Running sums and products, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgeinfer.errors import UnsupportedError
from tests.convert.lower.tflite.run import lower
from tests.convert.lower.tflite.single import agree, single
from tests.convert.lower.tflite.together import rows

RNG = np.random.default_rng(0)


def running(op: str, x: Any, axis: int, exclusive: int, reverse: int) -> Any:
    function = np.cumsum if op == "CumSum" else np.cumprod
    x = np.flip(x, axis) if reverse else x
    if exclusive:
        x = np.roll(x, 1, axis)
        first = [slice(None)] * x.ndim
        first[axis] = slice(0, 1)
        x[tuple(first)] = 0 if op == "CumSum" else 1
    y = function(x, axis, dtype=x.dtype)
    return np.flip(y, axis) if reverse else y


@rows("exclusive", [0, 1])
@rows("reverse", [0, 1])
@rows("dtype", [np.float32, np.float64, np.int32, np.int64, np.uint64])
@rows("op", ["CumSum", "CumProd"])
def test_running(op: str, dtype: Any, reverse: int, exclusive: int) -> None:
    for shape, axis in (((7,), 0), ((2, 5, 3), 1), ((2, 3), -1), ((1,), 0)):
        x = RNG.integers(1, 5, shape).astype(dtype)
        agree(
            op,
            x,
            np.array(axis),
            constants=[1],
            opset=26,
            both=False,
            exclusive=exclusive,
            reverse=reverse,
            want={"y0": running(op, x, axis, exclusive, reverse)},
        )


def test_a_product_along_an_axis_that_only_a_run_knows_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="must be constant"):
        lower(single("CumProd", [np.ones(3, np.float32), np.array(0)], opset=26))
