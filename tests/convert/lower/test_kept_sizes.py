"""Resizes whose scales leave the sizes as they are, as only a run decides."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import edgeinfer
from edgeinfer.convert.lower.onnxruntime.quirks import RULES
from edgeinfer.convert.lower.rules import apply
from edgeinfer.convert.passes import OPSET
from edgeinfer.convert.passes.opset import RaiseOpset
from edgeinfer.convert.verify.evaluate import Evaluator
from edgeinfer.errors import Remarks
from tests.convert.lower.running import model, ops, run

X = np.random.default_rng(0).standard_normal((1, 2, 5, 7)).astype(np.float32)
KEPT, MOVED = (np.array([1, 1, *s], np.float32) for s in ((1.1, 1.1), (1.1, 2.0)))
HOW = 'coordinate_transformation_mode="asymmetric", nearest_mode="floor"'


def _old(opset: int, text: str) -> onnx.ModelProto:
    head = f'<ir_version: 8, opset_import: ["": {opset}]> '
    return onnx.parser.parse_model(
        f"{head} g (float[1,2,5,7] x, float[4] s) => (float[1,2,a,b] y) {{ y = {text} }}"
    )


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_onnx_runtime_copies_where_all_sizes_stay(mode: str) -> None:
    """Its kernel gives x itself for scales of 1.1 that leave 5 and 7 as they are."""
    text = f"""g (float[1,2,5,7] x, float[4] s) => (float[1,2,a,b] y) {{
        y = Resize<mode="{mode}", {HOW}>(x, , s) }}"""
    made = model(text)
    assert not apply(made, RULES, Remarks())
    for scales in (KEPT, MOVED):
        feeds = {"x": X, "s": scales}
        want = Evaluator(model(text), wide=True).run(feeds)["y"]
        np.testing.assert_allclose(run(made, feeds)[0], want, rtol=1e-5, atol=1e-6)
        if mode != "nearest":
            assert np.abs(want - X).max() > 0.1 if scales is KEPT else want.shape[3] == 14


def test_what_surely_changes_a_size_stays_one_resize() -> None:
    made = model(f"""g (float[1,2,h,w] x) => (float[1,2,a,b] y) <float[4] s = {{1, 1, 2, 1.5}}> {{
        y = Resize<mode="linear", {HOW}>(x, , s) }}""")
    assert not apply(made, RULES, Remarks())
    assert ops(made) == ["Resize"]


@pytest.mark.parametrize("text", ['Upsample<mode="nearest">(x, s)', 'Resize<mode="nearest">(x, s)'])
def test_scales_that_are_inputs_are_raised(text: str) -> None:
    """Such a model stayed at its opset, where no rule looks at it."""
    source = ir.from_proto(_old(9 if "Up" in text else 10, text))
    raised = RaiseOpset(OPSET)(source.clone()).model
    assert raised.opset_imports[""] == OPSET
    for scales in ((1, 1, 1.5, 2.0), (1, 1, 0.5, 2.0), (1, 1, 0.6, 0.7)):
        if scales[2] < 1 and "Up" in text:
            continue
        feeds = {"x": X, "s": np.array(scales, np.float32)}
        np.testing.assert_array_equal(run(raised, feeds)[0], run(source, feeds)[0])


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_upsample_by_an_input_is_right_on_all(mode: str, tmp_path: Path) -> None:
    """Made-up scales of 1 to 2 keep small sizes, so that the gate refused this."""
    source = _old(9, f'Upsample<mode="{mode}">(x, s)')
    backends = {"onnxruntime": "onnxruntime", "openvino": "openvino", "rpi5": "litert"}
    made = edgeinfer.export(source, tmp_path / "m.edge", targets=list(backends))
    for backend in backends.values():
        with edgeinfer.load(made.path, backend=backend, measure=False) as session:
            for scales in (KEPT, MOVED):
                feeds = {"x": X, "s": scales}
                want = Evaluator(ir.from_proto(source), wide=True).run(feeds)["y"]
                found = session.run(feeds)["y"]
                np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)
