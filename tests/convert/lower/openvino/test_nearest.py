"""Nearest neighbours where two are equally near: the upper one, as ``round_prefer_ceil`` says."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.conformance.everywhere import lacking, run


@pytest.mark.sample(8)
@pytest.mark.parametrize("transform", ["half_pixel", "asymmetric", "align_corners"])
@pytest.mark.parametrize(("high", "wide"), [(3, 8), (6, 2), (1, 6), (3, 4)])
@pytest.mark.parametrize("by", ["sizes", "scales"])
def test_ties_go_up(transform: str, high: int, wide: int, by: str) -> None:
    if reason := lacking("openvino"):
        pytest.skip(reason)
    if by == "scales" and transform == "align_corners":
        pytest.skip("refused where scales give no whole size")
    given = {
        "sizes": f"int64[4] s = {{2, 1, {high}, {wide}}}",
        "scales": f"float[4] s = {{1, 1, {high / 3}, {wide / 4}}}",
    }[by]
    places = "x, , , s" if by == "sizes" else "x, , s"
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]> '
        f"g (float[2,1,3,4] x) => (float[2,1,{high},{wide}] y) <{given}> {{ "
        'y = Resize <mode = "nearest", nearest_mode = "round_prefer_ceil", '
        f'coordinate_transformation_mode = "{transform}"> ({places}) }}'
    )
    x = np.arange(24, dtype=np.float32).reshape(2, 1, 3, 4)
    found, right = (run(p, model, {"x": x}).outputs["y"] for p in ("openvino", "onnxruntime"))
    np.testing.assert_array_equal(found, right)
