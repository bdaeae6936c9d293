"""Reductions, against ONNX Runtime and ONNX's reference."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.convert.lower.tflite.single import agree
from tests.convert.lower.tflite.together import rows

RNG = np.random.default_rng(0)
FLOAT_ONLY = ["ReduceL2", "ReduceLogSum", "ReduceLogSumExp"]
WHOLE = ["ReduceSum", "ReduceMean", "ReduceProd", "ReduceMax", "ReduceMin", "ReduceL1"]
ALL = [*WHOLE, "ReduceSumSquare", *FLOAT_ONLY]


def positive(*shape: int) -> Any:
    return RNG.uniform(0.1, 2, shape).astype(np.float32)


@rows("op", ALL)
def test_of_many_axes(op: str) -> None:
    axes = np.array([2, 3, 6], np.int64)
    agree(op, positive(*[2] * 7), axes, constants=(1,), both=False)


@rows("op", ALL)
def test_no_axes_can_mean_none(op: str) -> None:
    x = positive(2, 3)
    options: dict[str, Any] = {"noop_with_empty_axes": 1, "like": "reference"}
    agree(op, x, **options)
    agree(op, x, np.array([], np.int64), constants=(1,), **options)
    agree(op, x, np.array([], np.int64), constants=(1,), like="reference")


@rows("keepdims", [0, 1])
@rows("op", ALL)
def test_axes_that_a_run_brings(op: str, keepdims: int) -> None:
    agree(op, positive(2, 3, 4), np.array([-2], np.int64), keepdims=keepdims, both=False)


@rows("dtype", [np.int32, np.int64])
@rows("op", [*WHOLE, "ReduceSumSquare"])
def test_of_integers(op: str, dtype: Any) -> None:
    x = RNG.integers(-9, 9, (3, 4, 5)).astype(dtype)
    agree(op, x, np.array([0, 2], np.int64), constants=(1,), like="reference")


@rows("dtype", [np.int8, np.uint8, np.bool_])
@rows("op", ["ReduceMax", "ReduceMin"])
def test_extremes_of_small_types(op: str, dtype: Any) -> None:
    x = RNG.integers(0, 2, (3, 4)).astype(dtype)
    agree(op, x, np.array([1], np.int64), constants=(1,), like="reference")


@rows("keepdims", [0, 1])
@rows("op", ALL)
def test_of_an_empty_set(op: str, keepdims: int) -> None:
    x = np.zeros((2, 0, 3), np.float32)
    axes = np.array([1], np.int64)
    options: dict[str, Any] = {"keepdims": keepdims, "like": "reference", "both": False}
    agree(op, x, axes, constants=(1,), **options)


@rows("dtype", [np.float32, np.int32, np.int64, np.int8, np.uint32])
@rows("op", ["ArgMax", "ArgMin"])
@rows("last", [0, 1])
def test_position_among_equals(op: str, dtype: Any, last: int) -> None:
    x = RNG.integers(0, 3, (3, 4, 5)).astype(dtype)
    for axis in (0, -1, 1):
        for keepdims in (0, 1):
            options: dict[str, Any] = {
                "axis": axis,
                "keepdims": keepdims,
                "select_last_index": last,
            }
            agree(op, x, types=[np.int64], like="reference", **options)


@rows("dtype", [np.int32, np.int64])
def test_the_root_of_integers_is_cut(dtype: Any) -> None:
    x = np.array([[3, 4], [5, -12], [2, 3], [30000, 1]], dtype)
    want = {"y0": np.array([5, 13, 3, 30000], dtype)}
    agree("ReduceL2", x, np.array([1]), constants=(1,), keepdims=0, want=want)
