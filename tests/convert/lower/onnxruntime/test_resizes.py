"""Resize of some axes becomes one of all axes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

from edgeinfer.convert.lower.onnxruntime.quirks import RULES
from edgeinfer.convert.lower.rules import apply
from edgeinfer.errors import Remarks
from edgeinfer.types import Array

HOW = 'mode="linear", coordinate_transformation_mode="half_pixel"'


def _run(model: ir.Model, feeds: dict[str, Array]) -> Array:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    proto = ir.to_proto(model).SerializeToString()
    session = onnxruntime.InferenceSession(proto, options, providers=["CPUExecutionProvider"])
    made: Array = session.run(None, feeds)[0]
    return made


def _model(inputs: str, tail: str, constants: str = "") -> ir.Model:
    text = f"""<ir_version: 10, opset_import: ["" : 24]>
        net ({inputs}) => (float[n,3,h,w] y) <{constants}> {{ {tail} }}"""
    return ir.from_onnx_text(text)


SIZES = f"y = Resize<axes=[-1, 2], {HOW}>(x, , , s)"
SCALES = f"y = Resize<axes=[3], {HOW}>(x, , s)"


@pytest.mark.parametrize(
    ("inputs", "tail", "constants", "given"),
    [
        ("float[2,3,4,5] x", SIZES, "int64[2] s = {7, 6}", None),
        ("float[n,3,4,5] x", SIZES, "int64[2] s = {7, 6}", None),
        ("float[2,3,4,5] x, int64[2] s", SIZES, "", np.array([7, 6])),
        ("float[n,3,a,b] x, int64[2] s", SIZES, "", np.array([7, 6])),
        ("float[n,3,a,b] x", SCALES, "float[1] s = {2.0}", None),
        ("float[n,3,a,b] x, float[1] s", SCALES, "", np.array([1.5], np.float32)),
    ],
)
def test_others_keep_their_sizes(
    inputs: str, tail: str, constants: str, given: Array | None
) -> None:
    feeds: dict[str, Array] = {
        "x": np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32)
    }
    if given is not None:
        feeds["s"] = given
    model = _model(inputs, tail, constants)
    want = _run(model, feeds)
    notes = Remarks()
    assert apply(model, RULES, notes) == []
    (resize,) = (n for n in model.graph.all_nodes() if n.op_type == "Resize")
    assert "axes" not in resize.attributes
    assert notes.lines[0] == (
        "Resize: sizes of some axes are lost where transposes are moved: rewritten"
    )
    np.testing.assert_array_equal(_run(model, feeds), want)
    assert apply(model, RULES, Remarks()) == []


def test_what_depends_on_the_axes_is_left_alone() -> None:
    how = f'axes=[2, 3], keep_aspect_ratio_policy="not_larger", {HOW}'
    model = _model("float[2,3,4,5] x", f"y = Resize<{how}>(x, , , s)", "int64[2] s = {7, 6}")
    assert apply(model, RULES, Remarks()) == []
    (resize,) = model.graph
    assert "axes" in resize.attributes
