"""Bounds of integers from the request to the manifest and the run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import edgeinfer
from edgeinfer.errors import RunError, UnsupportedError

pytest.importorskip("coremltools")

TEXT = """<ir_version: 9, opset_import: ["" : 20]>
    g (int64[N] x) => (int64[N] y) { y = Mul(x, x) }"""


def test_bounds_that_were_declared_are_recorded_and_enforced(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(TEXT), path)
    with pytest.raises(UnsupportedError, match="may leave int32"):
        edgeinfer.export(path, tmp_path / "without.edge", targets=("ios",))
    bounds = {"x": (-3, 1000)}
    made = edgeinfer.export(path, tmp_path / "m.edge", targets=("ios",), integers=bounds)
    (variant,) = made.manifest.variants
    assert json.loads(variant.constraints["integers"]) == {"x": [-3, 1000]}
    with edgeinfer.load(made.path, backend="coreml-reference") as session:
        np.testing.assert_array_equal(session.run({"x": np.array([-3, 1000])})["y"], [9, 10**6])
        with pytest.raises(RunError, match="1001 is not between -3 and 1000"):
            session.run({"x": np.array([1001])})
