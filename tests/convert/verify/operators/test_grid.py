"""Cubic samples next to an image are those of an image whose border goes on."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from edgeinfer.convert.verify.evaluate import Evaluator
from tests.conformance.everywhere import PLACES, lacking, run

RNG = np.random.default_rng(0)
X = RNG.normal(size=(2, 3, 5, 6)).astype(np.float32)
GRID = RNG.normal(size=(2, 4, 3, 2)).astype(np.float32) * 1.2
MORE = 16


def _model(padding: str, sizes: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 21]> g (float[2,3,{sizes}] x, float[2,4,3,2] grid)'
        f' => (float[2,3,4,3] y) {{ y = GridSample<mode="cubic", padding_mode="{padding}",'
        " align_corners=1>(x, grid) }"
    )


def _right() -> np.ndarray:
    wide = np.pad(X, ((0, 0), (0, 0), (MORE, MORE), (MORE, MORE)), mode="edge")
    sizes = np.array([6, 5])
    places = (GRID.astype(np.float64) + 1) / 2 * (sizes - 1) + MORE
    grid = (places / (sizes + 2 * MORE - 1) * 2 - 1).astype(np.float32)
    model = _model("zeros", f"{5 + 2 * MORE},{6 + 2 * MORE}")
    (y,) = ReferenceEvaluator(model).run(None, {"x": wide, "grid": grid})
    return np.asarray(y)


def test_the_oracle_holds_neighbours_to_the_border() -> None:
    feeds = {"x": X, "grid": GRID}
    found = Evaluator(ir.from_proto(_model("border", "5,6")), wide=True).run(feeds)["y"]
    np.testing.assert_allclose(found, _right(), rtol=1e-4, atol=1e-4)


@pytest.mark.sample(3)
@pytest.mark.parametrize("place", [p for p in PLACES if p != "coreai"])
def test_every_format_does_so_too(place: str) -> None:
    if why := lacking(place):
        pytest.skip(why)
    found = run(place, _model("border", "5,6"), {"x": X, "grid": GRID})
    np.testing.assert_allclose(found.outputs["y"], _right(), rtol=1e-4, atol=1e-4)
