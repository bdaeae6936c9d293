"""Convolutions, plain and transposed, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from edgeinfer.errors import UnsupportedError
from tests.convert.lower.tflite.run import check, lower, ops
from tests.convert.lower.tflite.together import rows

Shape = tuple[int, ...]


def model(op: str, x: Shape, w: Shape, *, dynamic: bool, bias: bool, **attributes: Any) -> Any:
    rng = np.random.default_rng(0)
    channels = w[0] if op == "Conv" else w[1] * attributes.get("group", 1)
    weights = [numpy_helper.from_array(rng.normal(size=w).astype(np.float32), "w")]
    if bias:
        values = rng.normal(size=channels).astype(np.float32)
        weights.append(numpy_helper.from_array(values, "b"))
    shape: list[Any] = ["N", x[1], *(f"D{i}" for i in range(len(x) - 2))] if dynamic else list(x)
    graph = helper.make_graph(
        [helper.make_node(op, ["x", *(t.name for t in weights)], ["y"], **attributes)],
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)


def agree(
    op: str, x: Shape, w: Shape, dynamic: bool = False, bias: bool = True, **attributes: Any
) -> bytes:
    """Compare with ONNX Runtime, at two sizes where the sizes are open; returns the file."""
    rng = np.random.default_rng(1)
    shapes = [x, (x[0] + 1, x[1], *(s + 3 for s in x[2:]))] if dynamic else [x]
    feeds = [{"x": rng.normal(size=s).astype(np.float32)} for s in shapes]
    return check(model(op, x, w, dynamic=dynamic, bias=bias, **attributes), *feeds)


PLANES = [
    ((2, 3, 9, 8), (4, 3, 3, 3), {}),
    ((1, 3, 9, 8), (4, 3, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((1, 3, 9, 8), (4, 3, 3, 3), {"pads": [1, 0, 2, 1], "strides": [2, 1]}),
    ((1, 3, 12, 11), (4, 3, 3, 2), {"pads": [2, 1, 2, 1], "dilations": [2, 3]}),
    ((1, 6, 9, 8), (4, 3, 3, 3), {"group": 2, "pads": [1, 1, 1, 1]}),
    ((1, 6, 9, 8), (6, 1, 3, 3), {"group": 6, "pads": [1, 1, 1, 1], "strides": [2, 2]}),
    ((1, 3, 9, 8), (6, 1, 3, 3), {"group": 3, "strides": [2, 1], "pads": [1, 1, 1, 1]}),
    ((1, 3, 9, 8), (6, 1, 3, 3), {"group": 3, "dilations": [2, 1]}),
    ((1, 3, 9, 8), (4, 3, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ((1, 3, 9, 8), (4, 3, 3, 3), {"auto_pad": "VALID", "strides": [2, 2]}),
]


@rows("dynamic", [False, True])
@rows(("x", "w", "attributes"), PLANES)
def test_planes(x: Shape, w: Shape, attributes: dict[str, Any], dynamic: bool) -> None:
    agree("Conv", x, w, dynamic, **attributes)


@rows("dynamic", [False, True])
@rows(
    ("x", "w", "attributes"),
    [
        ((2, 3, 19), (4, 3, 5), {"pads": [2, 2]}),
        ((1, 3, 19), (3, 1, 5), {"pads": [0, 3], "strides": [2], "group": 3}),
        ((1, 4, 19), (4, 2, 5), {"pads": [4, 0], "group": 2}),
        ((1, 3, 19), (4, 3, 3), {"dilations": [3]}),
        ((2, 3, 7, 8, 9), (4, 3, 3, 2, 3), {"pads": [1] * 6, "strides": [1, 2, 2]}),
        ((1, 4, 7, 8, 9), (4, 2, 3, 2, 3), {"group": 2}),
        ((1, 2, 7, 8, 9), (4, 2, 3, 2, 3), {"dilations": [2, 1, 2]}),
    ],
)
def test_lines_and_solids(x: Shape, w: Shape, attributes: dict[str, Any], dynamic: bool) -> None:
    agree("Conv", x, w, dynamic, **attributes)


def test_padding_that_is_same_needs_no_operator() -> None:
    fit = ops(agree("Conv", (1, 8, 9, 9), (8, 8, 3, 3), pads=[1, 1, 1, 1]))
    assert fit == ["TRANSPOSE", "CONV_2D", "TRANSPOSE"]
    begin = ops(agree("Conv", (1, 8, 8, 8), (8, 8, 3, 3), pads=[1, 1, 1, 1], strides=[2, 2]))
    assert begin == ["TRANSPOSE", "PAD", "CONV_2D", "TRANSPOSE"]


def test_same_lower_with_open_sizes_is_refused() -> None:
    given = model(
        "Conv", (1, 3, 9, 8), (4, 3, 3, 3),
        dynamic=True, bias=True, auto_pad="SAME_LOWER", strides=[2, 2],
    )  # fmt: skip
    with pytest.raises(UnsupportedError, match="dynamic_shape: auto_pad=SAME_LOWER"):
        lower(given)


@rows(
    ("w", "attributes"),
    [
        ((1, 3, 5, 5), {"pads": [2, 2, 2, 2]}),
        ((1, 3, 3, 3), {"strides": [2, 3]}),
        ((2, 3, 3, 5), {"pads": [1, 0, 1, 4]}),
        ((3, 3, 3, 5), {"auto_pad": "SAME_UPPER"}),
    ],
)
def test_few_output_channels(w: Shape, attributes: dict[str, Any]) -> None:
    agree("Conv", (2, 3, 11, 53), w, **attributes)


def test_one_channel_over_a_long_line() -> None:
    assert "STRIDED_SLICE" not in ops(agree("Conv", (1, 1, 1034), (1, 1, 256), strides=[2]))


@rows("dynamic", [False, True])
@rows("extra", [[0, 0], [1, 0], [0, 1]])
@rows(
    ("k", "s", "pads"),
    [(3, 2, [1] * 4), (4, 2, [1] * 4), (2, 2, [0] * 4), (3, 3, [0, 1, 2, 0]), (5, 3, [2] * 4)],
)
def test_transposed(k: int, s: int, pads: list[int], extra: list[int], dynamic: bool) -> None:
    shapes = (2, 3, 5, 6), (3, 4, k, k)
    agree("ConvTranspose", *shapes, dynamic, strides=[s, s], pads=pads, output_padding=extra)


@rows("dynamic", [False, True])
@rows(
    ("w", "attributes"),
    [
        ((4, 3, 3, 3), {"group": 2, "strides": [2, 2], "pads": [1, 0, 2, 1]}),
        ((4, 1, 3, 3), {"group": 4, "strides": [2, 2], "pads": [1] * 4, "output_padding": [1, 1]}),
        ((4, 2, 4, 4), {"group": 4, "strides": [2, 2], "pads": [1] * 4}),
        ((4, 2, 3, 2), {"dilations": [2, 3], "strides": [2, 1], "pads": [1] * 4}),
        ((4, 2, 1, 1), {"auto_pad": "SAME_UPPER", "strides": [2, 3]}),
        ((4, 2, 5, 5), {"auto_pad": "SAME_LOWER", "strides": [2, 3]}),
    ],
)
def test_transposed_variants(w: Shape, attributes: dict[str, Any], dynamic: bool) -> None:
    agree("ConvTranspose", (1, 4, 5, 6), w, dynamic, **attributes)


@rows("auto_pad", ["NOTSET", "SAME_UPPER", "SAME_LOWER"])
@rows("size", [[10, 18], [9, 17], [11, 18], [12, 20]])
def test_transposed_to_a_size(size: list[int], auto_pad: str) -> None:
    attributes: dict[str, Any] = {
        "strides": [2, 3],
        "output_shape": size,
        "auto_pad": auto_pad,
    }
    agree("ConvTranspose", (1, 3, 5, 6), (3, 4, 3, 3), **attributes)


@rows(
    ("x", "w", "attributes"),
    [
        ((1, 3, 9), (3, 4, 4), {"strides": [2], "pads": [1, 1]}),
        ((2, 4, 9), (4, 1, 3), {"strides": [3], "pads": [1, 0], "group": 4}),
        ((1, 3, 5, 4, 3), (3, 4, 3, 2, 3), {"strides": [2, 1, 2], "pads": [1, 0, 1, 0, 1, 1]}),
        ((1, 4, 5, 4, 3), (4, 2, 3, 2, 3), {"group": 2}),
    ],
)
def test_transposed_lines_and_solids(x: Shape, w: Shape, attributes: dict[str, Any]) -> None:
    agree("ConvTranspose", x, w, **attributes)
    agree("ConvTranspose", x, w, dynamic=True, bias=False, **attributes)
