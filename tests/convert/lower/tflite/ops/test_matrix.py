"""Products of matrices, against ONNX Runtime and exact integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgeinfer.errors import UnsupportedError
from tests.convert.lower.tflite.run import lower, ops
from tests.convert.lower.tflite.single import agree, single
from tests.convert.lower.tflite.together import rows

RNG = np.random.default_rng(0)
SHAPES = [
    ((3,), (3,)),
    ((3,), (3, 4)),
    ((2, 3), (3,)),
    ((2, 3), (3, 4)),
    ((5, 2, 3), (3, 4)),
    ((2, 3), (5, 3, 4)),
    ((3,), (5, 3, 4)),
    ((2, 1, 2, 3), (4, 3, 5)),
    ((2, 3, 4, 2, 3), (4, 3, 2)),
]


def normal(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def test_matmul_of_many_axes() -> None:
    agree("MatMul", normal(1, 2, 1, 2, 2, 3), normal(2, 1, 3, 1, 3, 2), both=False)
    agree("MatMul", normal(2, 1, 2, 1, 2, 2, 3), normal(3, 4), constants=(1,), both=False)


def test_matmul_with_nothing_to_add_up() -> None:
    agree("MatMul", normal(2, 0), normal(0, 3), both=False)
    agree("MatMul", normal(0, 4), normal(4, 3), constants=(1,), both=False)


def test_constant_weights_are_fully_connected() -> None:
    data = lower(single("MatMul", [normal(2, 5, 3), normal(3, 4)], constants=(1,)))
    assert ops(data) == ["FULLY_CONNECTED"]


@rows("dtype", [np.int32, np.int64, np.uint32])
def test_matmul_of_integers_is_exact(dtype: Any) -> None:
    for a, b in SHAPES[:8]:
        x, y = (np.asarray(RNG.integers(0, 2**14, s)).astype(dtype) for s in (a, b))
        agree("MatMul", x, y, want={"y0": np.matmul(x, y)})


def test_gemm_with_bias_is_one_operator() -> None:
    model = single("Gemm", [normal(2, 3), normal(4, 3), normal(4)], constants=(1, 2), transB=1)
    assert ops(lower(model)) == ["FULLY_CONNECTED"]


def test_gemm_of_integers() -> None:
    a, b, c = (RNG.integers(-9, 9, s).astype(np.int32) for s in ((2, 3), (3, 4), (4,)))
    agree("Gemm", a, b, c, want={"y0": a @ b + 2 * c}, beta=2.0)
    with pytest.raises(UnsupportedError, match="for integers"):
        lower(single("Gemm", [a, b, c], alpha=0.5))


@rows("constants", [(), (1, 2, 3)])
@rows("dtypes", [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)])
def test_integers_of_8_bits(dtypes: tuple[Any, Any], constants: tuple[int, ...]) -> None:
    a, b = (
        RNG.integers(np.iinfo(d).min, np.iinfo(d).max, s).astype(d)
        for d, s in zip(dtypes, ((2, 3, 700), (700, 4)), strict=True)
    )
    for zero_b in (np.array(5, dtypes[1]), np.array([1, 2, 3, 4], dtypes[1])):
        zero_a = np.array(7, dtypes[0])
        want = (a.astype(np.int64) - 7) @ (b.astype(np.int64) - zero_b.astype(np.int64))
        found = {"y0": want.astype(np.int32)}
        agree(
            *("MatMulInteger", a, b, zero_a, zero_b),
            constants=constants, types=[np.int32], want=found, both=False,
        )  # fmt: skip
