"""What ONNX Runtime alone has, and our files for it, is known to the evaluator."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from onnx_ir.passes.common import RemoveUnusedNodesPass

from edgeinfer import profiles
from edgeinfer.convert.lower import onnxruntime as lowering
from edgeinfer.convert.lower import target_for
from edgeinfer.convert.lower.onnxruntime.recurrent import multiply_stored
from edgeinfer.convert.lower.target import LowerOptions
from edgeinfer.convert.quantize.recipe import recipe
from edgeinfer.convert.quantize.rewrite import weight_only
from edgeinfer.convert.verify import contrib
from edgeinfer.convert.verify.evaluate import Evaluator
from edgeinfer.convert.verify.half import run_file
from tests.convert.quantize.conftest import graph

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_file_with_the_contrib_gelu_is_judged(tmp_path: Path, precision: str) -> None:
    model = graph(
        """<ir_version: 10, opset_import: ["" : 24]>
        net (float[2,8] x) => (float[2,8] y) <float[8,8] w> {
          a = MatMul(x, w) b = Gelu(a) y = MatMul(b, w) }""",
        w=RNG.normal(size=(8, 8)).astype(np.float32),
    )
    options = LowerOptions(precision)
    path = target_for("onnx").lower(model, profiles.load("cuda"), options, tmp_path).files[0]
    domains = {n.op_type: n.domain for n in ir.load(path).graph}
    # In half precision the operator stays the standard's.
    assert domains["Gelu"] == (contrib.DOMAIN if precision == "fp32" else "")
    feeds = {"x": RNG.normal(size=(2, 8)).astype(np.float32)}
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (right,) = session.run(["y"], feeds)
    step = 2.0**-23 if precision == "fp32" else 2.0**-10
    found = run_file(path, feeds)["y"]
    np.testing.assert_allclose(found, right, rtol=8 * step, atol=8 * step * np.abs(right).max())


def test_an_lstm_with_stored_integers_is_judged(tmp_path: Path) -> None:
    shapes = {"w": (1, 96, 48), "r": (1, 96, 24), "b": (1, 192)}
    model = graph(
        """<ir_version: 10, opset_import: ["" : 22]>
        net (float[5,2,48] x) => (float[5,1,2,24] y, float[1,2,24] h, float[1,2,24] c)
        <float[1,96,48] w, float[1,96,24] r, float[1,192] b>
        { y, h, c = LSTM<hidden_size=24>(x, w, r, b) }""",
        **{n: (0.2 * RNG.normal(size=s)).astype(np.float32) for n, s in shapes.items()},
    )
    stored = weight_only.write(model, recipe("weight_only_wi8_afp32"), recurrent=("LSTM",)).model
    feeds = {"x": RNG.normal(size=(5, 2, 48)).astype(np.float32)}
    right = Evaluator(stored, wide=False).run(feeds)
    assert multiply_stored(stored) == 1
    RemoveUnusedNodesPass()(stored)
    found = Evaluator(stored, wide=False).run(feeds)
    for name, value in right.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6)
    ir.save(stored, tmp_path / "stored.onnx")
    options = onnxruntime.SessionOptions()
    # Without it processors without VNNI add up in 16 bits, which saturate.
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(
        tmp_path / "stored.onnx", options, providers=["CPUExecutionProvider"]
    )
    for name, value in zip(right, session.run(list(right), feeds), strict=True):
        # It rounds what it takes to 8 bits.
        error = np.square(found[name] - value).sum() / np.square(value).sum()
        assert error < 1e-3, name


@pytest.mark.parametrize(
    ("about", "given"),
    [
        ("input_forget = 1, clip = 0.5", '""'),
        ('activations = ["HardSigmoid", "Relu", "Elu"]', '""'),
        ("hidden_size = 6", "n"),
    ],
    ids=["coupled and clipped", "functions", "lengths"],
)
def test_an_lstm_of_integers_has_all_options_of_an_lstm(about: str, given: str) -> None:
    scales = np.full((1, 24), 0.02, np.float32)
    model = graph(
        f"""<ir_version: 10, opset_import: ["" : 22, "com.microsoft": 1]>
        net (float[4,2,5] x, int32[2] n) => (float[4,1,2,6] y)
        <int8[1,5,24] w, int8[1,6,24] r, float[1,24] s, int8[1,24] z> {{
          y = com.microsoft.DynamicQuantizeLSTM<hidden_size = 6, {about}>
              (x, w, r, "", {given}, "", "", "", s, z, s, z) }}""".replace(
            "hidden_size = 6, hidden_size", "hidden_size"
        ),
        w=RNG.integers(-31, 31, (1, 5, 24)).astype(np.int8),
        r=RNG.integers(-31, 31, (1, 6, 24)).astype(np.int8),
        s=scales,
        z=np.zeros((1, 24), np.int8),
    )
    feeds = {"x": RNG.normal(size=(4, 2, 5)).astype(np.float32), "n": np.array([4, 2], np.int32)}
    data = ir.to_proto(model).SerializeToString()
    (right,) = onnxruntime.InferenceSession(data).run(None, feeds)
    found = Evaluator(model, wide=True).run(feeds)["y"]
    assert np.abs(found - right).max() < 0.03 * np.abs(right).max()


def test_what_we_write_is_known() -> None:
    (folder,) = lowering.__path__
    texts = {p.stem: p.read_text("utf-8") for p in Path(folder).glob("*.py")}
    # What the source wrote keeps its operators; ``zero_points`` only gives their operands names.
    del texts["zero_points"]
    assert {n for n, text in texts.items() if contrib.DOMAIN in text} == {"faster", "recurrent"}
    assert set(re.findall(r'_DOMAIN, "(\w+)"', texts["recurrent"])) == {"DynamicQuantizeLSTM"}
    # The others are nodes that change their domain, and one of them its name.
    assert texts["faster"].count(f'"{contrib.DOMAIN}", None') == 2
    assert {"DynamicQuantizeLSTM", "Gelu", "QuickGelu"} <= set(contrib.KNOWN)


@pytest.mark.parametrize("alpha", ["", "<alpha = 1.0>"])
def test_a_quick_gelu_is_judged_with_its_own_default(alpha: str) -> None:
    text = f"""<ir_version: 10, opset_import: ["": 20, "com.microsoft": 1]>
        g (float[5] x) => (float[5] y) {{ y = com.microsoft.QuickGelu{alpha}(x) }}"""
    x = np.linspace(-3, 3, 5, dtype=np.float32)
    found = Evaluator(graph(text), wide=True).run({"x": x})["y"]
    right = x / (1 + np.exp(-x.astype(float) * (1.0 if alpha else 1.702)))
    np.testing.assert_allclose(found, right, rtol=1e-6)
