"""Our resizing gives ONNX Runtime's numbers in every mode, up, down and unevenly."""

import itertools
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from edgeinfer.convert.verify.operators import OPERATORS, Unhandled
from edgeinfer.types import Array

HOW = [
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
]
MODES: list[dict[str, Any]] = [
    {"mode": "linear"},
    {"mode": "cubic"},
    {"mode": "cubic", "cubic_coeff_a": -0.5, "exclude_outside": 1},
    *(
        {"mode": "nearest", "nearest_mode": n}
        for n in ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")
    ),
]


def by_engine(x: Array, sizes: list[int], attrs: dict[str, Any]) -> Array:
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Resize", ["x", "", "", "s"], ["y"], **attrs)],
        "g",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, x.shape)],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(np.array(sizes), "s")],
    )
    imports = [onnx.helper.make_opsetid("", 19)]
    m = onnx.helper.make_model(graph, opset_imports=imports, ir_version=10)
    session = ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])
    result: Array = session.run(None, {"x": x})[0]
    return result


@pytest.mark.sample(30)
@pytest.mark.parametrize(("how", "mode"), list(itertools.product(HOW, MODES)))
@pytest.mark.parametrize("size", [(12, 16), (3, 4), (11, 5)])
def test_numbers(how: str, mode: dict[str, Any], size: tuple[int, int]) -> None:
    attrs = {"coordinate_transformation_mode": how, **mode}
    x = np.random.default_rng(0).standard_normal((1, 2, 6, 8)).astype(np.float32)
    sizes = np.array([1, 2, *size])
    (got,) = OPERATORS["Resize"](attrs, 19, [x.astype(np.float64), None, None, sizes])
    np.testing.assert_allclose(got, by_engine(x, list(sizes), attrs), atol=1e-4)


def test_upsample_is_asymmetric() -> None:
    x = np.array([[[[1.0, 2.0]]]])
    (got,) = OPERATORS["Upsample"]({"mode": "nearest"}, 9, [x, np.array([1, 1, 1, 2])])
    np.testing.assert_array_equal(got, [[[[1, 1, 2, 2]]]])


@pytest.mark.parametrize(
    "attrs",
    [
        {"antialias": 1},
        {"keep_aspect_ratio_policy": "not_larger"},
        {"coordinate_transformation_mode": "tf_crop_and_resize"},
    ],
)
def test_corners_are_left_to_the_reference(attrs: dict[str, Any]) -> None:
    x, sizes = np.ones((1, 1, 4, 4)), np.array([1, 1, 2, 2])
    with pytest.raises(Unhandled):
        OPERATORS["Resize"]({"mode": "linear", **attrs}, 19, [x, None, None, sizes])
