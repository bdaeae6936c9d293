"""Element types and forms that TVM itself has no operator for."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

if importlib.util.find_spec("tvm") is None:
    pytest.skip("apache-tvm is not installed", allow_module_level=True)

from tests.convert.lower.tvm.run import outputs

NAN = np.float32(np.nan)


def _model(text: str, opset: int = 21) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]> g {text}')


def test_extremes_of_what_is_put_at_places() -> None:
    x = np.array([[1, 5, NAN], [2, 2, 2]], np.float32)
    places = np.array([[0, -2, 0, 1], [2, 2, 1, 0]])
    new = np.array([[3, NAN, 2, 9], [-1, 7, 8, np.inf]], np.float32)
    for reduction, pick in (("max", np.maximum), ("min", np.minimum)):
        text = (
            "(float[2,3] x, int64[2,4] p, float[2,4] u) => (float[2,3] y) "
            f'{{ y = ScatterElements<axis=1, reduction="{reduction}">(x, p, u) }}'
        )
        right = x.copy()
        for index in np.ndindex(places.shape):
            at = index[0], places[index]
            right[at] = pick(right[at], new[index])
        found = outputs(_model(text), {"x": x, "p": places, "u": new})
        np.testing.assert_array_equal(found["y"], right)


def test_scattered_updates_have_fewer_rows_than_the_data() -> None:
    x = np.arange(18, dtype=np.float32).reshape(2, 3, 3)
    places = np.array([[[0, 1], [1, 0]]])
    new = np.array([[[3, 5], [-1, 7]]], np.float32)
    combined: dict[str, Callable[[Any, Any], Any]] = {
        "none": lambda a, b: b,
        "add": np.add,
        "mul": np.multiply,
    }
    for reduction, combine in combined.items():
        text = (
            "(float[2,3,3] x, int64[1,2,2] p, float[1,2,2] u) => (float[2,3,3] y) "
            f'{{ y = ScatterElements<axis=0, reduction="{reduction}">(x, p, u) }}'
        )
        right = x.copy()
        for index in np.ndindex(places.shape):
            at = (places[index], *index[1:])
            right[at] = combine(right[at], new[index])
        found = outputs(_model(text), {"x": x, "p": places, "u": new})
        np.testing.assert_array_equal(found["y"], right)


def test_extremes_of_nothing_and_of_conditions() -> None:
    text = (
        "(float[2,0,3] x, bool[2,3] c) => "
        "(float[2,1,3] y, float[2,3] z, bool[2] most, bool[3] least) <int64[1] a = {1}, "
        "int64[1] b = {0}> { y = ReduceMax(x, a) z = ReduceMin<keepdims=0>(x, a) "
        "most = ReduceMax<keepdims=0>(c, a) least = ReduceMin<keepdims=0>(c, b) }"
    )
    c = np.array([[True, False, True], [False, False, True]])
    found = outputs(_model(text), {"x": np.zeros((2, 0, 3), np.float32), "c": c})
    np.testing.assert_array_equal(found["y"], np.full((2, 1, 3), -np.inf))
    np.testing.assert_array_equal(found["z"], np.full((2, 3), np.inf))
    np.testing.assert_array_equal(found["most"], c.any(1))
    np.testing.assert_array_equal(found["least"], c.all(0))


def test_order_of_large_integers_and_of_halves() -> None:
    big = np.array([2**63 + 1, 3, 2**64 - 1, 2**63], np.uint64)
    half = np.array([1.5, np.nan, -2, 65504], np.float16)
    text = (
        "(uint64[4] x, float16[4] h) => (uint64[2] y, int64[2] i, float16[3] z, int64[3] j) "
        "<int64[1] k = {2}, int64[1] m = {3}> { y, i = TopK(x, k) z, j = TopK(h, m) }"
    )
    found = outputs(_model(text), {"x": big, "h": half})
    np.testing.assert_array_equal(found["y"], big[[2, 0]])
    np.testing.assert_array_equal(found["i"], [2, 0])
    np.testing.assert_array_equal(found["j"], [1, 3, 0])
    np.testing.assert_array_equal(found["z"], half[[1, 3, 0]])


def test_a_byte_of_a_condition() -> None:
    text = "(bool[3] x) => (uint8[3] y) { y = BitCast<to=2>(x) }"
    found = outputs(_model(text, 26), {"x": np.array([True, False, True])})
    np.testing.assert_array_equal(found["y"], np.array([1, 0, 1], np.uint8))


@pytest.mark.parametrize(
    ("x", "w", "y"), [("8", "8,5", "5"), ("3,8", "8", "3"), ("8", "8", ""), ("8", "2,8,5", "2,5")]
)
def test_products_of_integers_take_one_axis(x: str, w: str, y: str) -> None:
    rng = np.random.default_rng(0)
    shapes = [tuple(map(int, sizes.split(","))) for sizes in (x, w)]
    left, right = rng.integers(0, 255, shapes[0]), rng.integers(-128, 127, shapes[1])
    text = (
        f"(uint8[{x}] x, int8[{w}] w, uint8 z) => (int32[{y}] y) {{ y = MatMulInteger(x, w, z) }}"
    ).replace("int32[]", "int32")
    feeds = {"x": left.astype(np.uint8), "w": right.astype(np.int8), "z": np.array(9, np.uint8)}
    found = outputs(_model(text), feeds)["y"]
    np.testing.assert_array_equal(found, np.matmul(left - 9, right))
