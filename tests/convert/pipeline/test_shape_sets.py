"""Several shapes for an input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import edgeinfer
from edgeinfer.convert.pipeline.shape_sets import shape_sets
from edgeinfer.errors import InputError, UsageError

NET = """<ir_version: 10, opset_import: ["" : 20]>
g (float[N,3,T] x, float[N,T] m) => (float[N,T] y) {
    a = Constant<value_ints=[1]>() s = ReduceSum<keepdims=0>(x, a) t = Tanh(s) y = Mul(t, m) }"""


def test_one_shape_each_is_no_set() -> None:
    assert shape_sets({"x": (1, None), "k": [(5,)], "s": ()}) == (
        {"x": (1, None), "k": (5,), "s": ()},
        (),
    )


def test_what_sets_share_is_fixed() -> None:
    assert shape_sets({"x": ((1, 3), (2, 3)), "k": (5,)}) == (
        {"x": (None, 3), "k": (5,)},
        ({"x": (1, 3), "k": (5,)}, {"x": (2, 3), "k": (5,)}),
    )


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"x": ((1,), (2,)), "k": ((1,), (2,), (3,))}, "'x' has 2, 'k' has 3"),
        ({"x": ((1, None), (2, 3))}, "'x': each needs a number for every axis"),
        ({"x": ((1, 2), (2, 3, 4))}, "'x': each needs a number for every axis"),
        ({"x": ((1, 2), (1, 2))}, "given twice"),
        ({"x": (1, (1, 2))}, "expected numbers, or shapes"),
    ],
)
def test_what_is_no_set_is_refused(given: Any, fault: str) -> None:
    with pytest.raises(UsageError, match=fault):
        shape_sets(given)


def test_each_set_is_checked_and_runs_from_one_file(tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_litert")
    path = tmp_path / "net.onnx"
    onnx.save(onnx.parser.parse_model(NET), path)
    shapes = ((1, 3, 5), (4, 3, 9))
    result = edgeinfer.export(
        path, tmp_path / "m.edge", targets=("cpu", "android"), input_shapes={"x": shapes}
    )
    assert {v.format for v in result.manifest.variants} >= {"onnx", "tflite"}
    assert [i.shape for i in result.manifest.inputs] == [("N", 3, "T"), ("N", "T")]
    tried = {v.feeds["x"].shape for v in result.report.vectors}
    assert tried == set(shapes)
    notes = next(v.notes for v in result.report.variants if v.id.startswith("android"))
    assert any("2 signatures" in line and "x_4x3x9" in line for line in notes)
    rng = np.random.default_rng(0)
    with edgeinfer.load(result.path, backend="litert") as session:
        for n, channels, t in shapes:
            feeds = {
                "x": rng.normal(size=(n, channels, t)).astype(np.float32),
                "m": rng.normal(size=(n, t)).astype(np.float32),
            }
            want = np.tanh(feeds["x"].sum(1)) * feeds["m"]
            np.testing.assert_allclose(session.run(feeds)["y"], want, rtol=1e-5, atol=1e-6)
        feeds = {"x": np.ones((2, 3, 5), np.float32), "m": np.ones((2, 5), np.float32)}
        known = r"signature \(m=1x5, x=1x3x5; m=4x9, x=4x3x9\), received"
        with pytest.raises(InputError, match=known):
            session.run(feeds)
