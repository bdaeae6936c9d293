"""Resizes that are written as products with weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import edgeinfer
from edgeinfer.errors import InputError, UnsupportedError

CROP = 'coordinate_transformation_mode="tf_crop_and_resize", extrapolation_value=7.0'


@pytest.mark.parametrize(
    ("how", "given", "values"),
    [
        ("antialias=1", "x, , s", {"s": np.array([1, 1, 0.5, 0.7], np.float32)}),
        (
            CROP,
            "x, r, , z",
            {"r": np.array([0, 0, 0.2, 0.2, 1, 1, 1.3, 0.8], np.float32), "z": [1, 1, 5, 5]},
        ),
    ],
)
def test_an_infinity_is_right_or_refused(
    how: str, given: str, values: dict[str, Any], tmp_path: Path
) -> None:
    """Zero times it is no number: all elements of its row and column were NaN."""
    text = (
        f"g (float[1,1,6,6] x) => (float[a,b,c,d] y) "
        f'{{ y = Resize<mode="linear", {how}>({given}) }}'
    )
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {text}')
    for name, array in values.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    onnx.save(model, tmp_path / "m.onnx")
    x = np.random.default_rng(0).standard_normal((1, 1, 6, 6)).astype(np.float32)
    infinite = np.where(np.eye(6) > 0, np.inf, x).astype(np.float32)
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    edgeinfer.export(tmp_path / "m.onnx", targets=["openvino", "rpi5"], output=tmp_path / "m.edge")
    for backend in ("openvino", "litert"):
        with edgeinfer.load(tmp_path / "m.edge", backend=backend) as loaded:
            (want,) = session.run(None, {"x": x})
            np.testing.assert_allclose(loaded.run({"x": x})["y"], want, rtol=1e-4, atol=1e-5)
            (want,) = session.run(None, {"x": infinite})
            try:
                found = loaded.run({"x": infinite})["y"]
            except InputError as error:
                assert "expected finite values" in str(error)  # noqa: PT017
                continue
            np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("target", ["openvino", "ios"])
@pytest.mark.parametrize(
    ("mode", "scale", "is_refused"),
    [
        ('"asymmetric", nearest_mode="floor"', 1.1, True),
        ('"asymmetric", nearest_mode="floor"', 3.0, False),
        ('"asymmetric", nearest_mode="floor"', 1.7, True),
        ('"half_pixel"', 2.0, False),
    ],
)
def test_nearest_by_rounding_needs_sizes(
    mode: str, scale: float, is_refused: bool, target: str, tmp_path: Path
) -> None:
    source = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 20]> g (float[1,1,h] x) => (float[1,1,n] y)
        <float[3] s = {{1, 1, {scale}}}> {{
        y = Resize<mode="nearest", coordinate_transformation_mode={mode}>(x, , s) }}"""
    )
    options: dict[str, Any] = {"targets": [target]}
    if is_refused:
        with pytest.raises(UnsupportedError, match=r"dynamic_shape.*--input-shape"):
            edgeinfer.export(source, tmp_path / "m.edge", **options)
        options["input_shapes"] = {"x": (1, 1, 32)}
    edgeinfer.export(source, tmp_path / "m.edge", **options)
