"""Pooling, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from edgeinfer.errors import UnsupportedError
from tests.convert.lower.tflite.run import check, lower, ops
from tests.convert.lower.tflite.together import rows

Shape = tuple[int, ...]


def model(op: str, x: Shape, dtype: Any = np.float32, dynamic: bool = False, **attrs: Any) -> Any:
    shape: list[Any] = ["N", x[1], *(f"D{i}" for i in range(len(x) - 2))] if dynamic else list(x)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        [helper.make_node(op, ["x"], ["y"], **attrs)],
        "g",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info("y", kind, None)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)


def agree(op: str, x: Shape, dynamic: bool = False, **attributes: Any) -> None:
    """Compare on negative numbers, which padding with zeros would show in every maximum."""
    rng = np.random.default_rng(0)
    shapes = [x, (x[0] + 1, x[1], *(s + 3 for s in x[2:]))] if dynamic else [x]
    feeds = [{"x": -np.abs(rng.normal(size=s)).astype(np.float32)} for s in shapes]
    check(model(op, x, dynamic=dynamic, **attributes), *feeds)


def test_a_last_window_beyond_the_input_is_left_out() -> None:
    attributes: dict[str, Any] = {
        "kernel_shape": [3, 2],
        "strides": [2, 3],
        "pads": [1, 0, 2, 1],
    }
    agree("MaxPool", (1, 3, 12, 13), ceil_mode=1, **attributes)
    agree("MaxPool", (1, 3, 12), kernel_shape=[1], strides=[2], ceil_mode=1)
    with pytest.raises(UnsupportedError, match="dynamic_shape: ceil_mode=1"):
        lower(model("MaxPool", (1, 3, 12, 13), dynamic=True, ceil_mode=1, **attributes))


def test_global_norm() -> None:
    given = model("GlobalLpPool", (2, 3, 5, 6))
    x = np.random.default_rng(0).normal(size=(2, 3, 5, 6)).astype(np.float32)
    # Neither ONNX Runtime nor the reference has this operator.
    check(given, {"x": x}, want={"y": np.sqrt((x * x).sum(axis=(2, 3), keepdims=True))})


@rows("dtype", [np.int8, np.uint8])
def test_bytes(dtype: Any) -> None:
    x = np.random.default_rng(0).integers(0, 127, (1, 3, 9, 8)).astype(dtype)
    attributes: dict[str, Any] = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4}
    check(model("MaxPool", x.shape, dtype, **attributes), {"x": x})


def test_maxima_after_relu_are_padded_with_zeros() -> None:
    text = """g (float[1,4,8,8] x) => (float[1,4,4,4] y) {
        a = Relu(x) y = MaxPool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(a) }"""
    x = np.random.default_rng(0).normal(size=(1, 4, 8, 8)).astype(np.float32)
    assert "PADV2" not in ops(check(text, {"x": x}))


@rows(
    "attributes",
    [
        "kernel_shape=[2,2], strides=[2,2]",
        "kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]",
        "kernel_shape=[3,2], strides=[1,2], dilations=[2,1], ceil_mode=1",
        "kernel_shape=[2,2], strides=[2,2], storage_order=1",
    ],
)
@rows("ties", [False, True])
def test_indices(attributes: str, ties: bool) -> None:
    text = f"""g (float[2,3,7,8] x) => (float y, int64 i) {{
        y, i = MaxPool<{attributes}>(x) }}"""
    x = np.random.default_rng(0).normal(size=(2, 3, 7, 8)).astype(np.float32)
    check(text, {"x": np.round(x) if ties else x})


def test_indices_of_one_axis() -> None:
    text = """g (float[2,3,9] x) => (float y, int64 i) {
        y, i = MaxPool<kernel_shape=[3], strides=[2], pads=[1,1]>(x) }"""
    check(text, {"x": np.random.default_rng(0).normal(size=(2, 3, 9)).astype(np.float32)})


def test_indices_of_large_windows_are_refused() -> None:
    text = """g (float[1,4,32,32] x) => (float y, int64 i) {
        y, i = MaxPool<kernel_shape=[9,9]>(x) }"""
    with pytest.raises(UnsupportedError, match="indices of maxima"):
        lower(text)


def test_the_largest_of_samples_that_depend_on_a_regions_size_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="another number of samples"):
        lower(
            "g (float[1,1,4,4] x, float[2,4] r, int64[2] b) => (float[2,1,1,1] y) "
            '{ y = RoiAlign<mode="max">(x, r, b) }'
        )
