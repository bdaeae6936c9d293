"""Sizes that a run gives and that do not fit: every format's run fails, as the definition does."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.conformance.everywhere import PLACES, lacking, run

HEAD = '<ir_version: 10, opset_import: ["": 21]> g '
BODY = "{ z = Expand(x, s) y = Relu(z) }"
X = np.ones((2, 3), np.float32)


@pytest.mark.sample(each="place")
@pytest.mark.parametrize("place", [p for p in PLACES if p != "coreai"])
@pytest.mark.parametrize(
    "declared",
    [
        "(float[2,3] x, int64[2] s) => (float[2,3] y)",
        "(float[n,3] x, int64[2] s) => (float[m,3] y)",
    ],
)
def test_an_expansion_to_sizes_that_do_not_fit_fails(declared: str, place: str) -> None:
    if why := lacking(place):
        pytest.skip(why)
    model = onnx.parser.parse_model(HEAD + declared + BODY)
    if place == "openvino" and "float[2,3] x" in declared:
        with pytest.raises(AssertionError, match="whatever sizes a run gives"):
            run(place, model, {"x": X, "s": np.array([2, 3])})
        return
    for sizes in ([2, 3], [1, 1], [2, 1]):
        found = run(place, model, {"x": X, "s": np.array(sizes)})
        np.testing.assert_array_equal(found.outputs["y"], X)
    for sizes in ([2, 4], [3, 3]):
        with pytest.raises(Exception, match=r"(?i)broadcast|expand|shape|size") as failed:
            run(place, model, {"x": X, "s": np.array(sizes)})
        assert "SIG" not in str(failed.value)
