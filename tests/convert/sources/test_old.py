"""Models from before opset 7."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import numpy_helper

from edgeinfer.convert.passes import normalise
from edgeinfer.convert.sources import read
from edgeinfer.errors import SourceError

X = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)


def model(body: str, constants: str = "", opset: int = 6) -> onnx.ModelProto:
    text = f"""<ir_version: 3, opset_import: ["" : {opset}]>
        g (float[2,3,4] x) => (float[2,3,4] y) {constants} {{ {body} }}"""
    proto = onnx.parser.parse_model(text)
    for tensor in proto.graph.initializer:
        info = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        proto.graph.input.append(info)
    return proto


def outputs(source: onnx.ModelProto | Path) -> np.ndarray:
    proto = ir.to_proto(ir.external_data.load_to_model(normalise(read(source).model).model))
    assert [v.name for v in proto.graph.input] == ["x"]
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    made: np.ndarray = session.run(None, {"x": X})[0]
    return made


SLOPES = "<float[3] s = {0.1, 0.5, -2}>"
ONES = ", float[3] t = {4, 4, 4}>"
ONE = np.float32(4)
ELU = np.where(X < 0, np.expm1(X), X)
K = np.array([0.1, 0.5, -2], np.float32)[:, None]


@pytest.mark.parametrize(
    ("made", "want"),
    [
        (model("y = Relu(x)"), np.maximum(X, 0)),
        (model("y = Relu(x)", opset=1), np.maximum(X, 0)),
        (model("y = PRelu(x, s)", SLOPES), np.where(X < 0, X * K, X)),
        (
            model("t = PRelu(x, s) y = PRelu(t, s)", SLOPES),
            np.where(X < 0, np.where(X * K < 0, X * K * K, X * K), X),
        ),
        (model("y = Add<broadcast=1>(x, t)", "<float[4] t = {1, 2, 3, 4}>"), X + np.arange(1, 5)),
        (model("y = Sub(x, x)"), X - X),
        (model("t = Dropout<is_test=1>(x) y = Elu<consumed_inputs=[0]>(t)", opset=1), ELU),
        (
            model("y = BatchNormalization<is_test=1>(x, s, s, s, t)", SLOPES[:-1] + ONES),
            X * K / np.sqrt(ONE + 1e-5) + K - K * K / np.sqrt(ONE + 1e-5),
        ),
        (
            model("y = Pow<broadcast=1>(x, t)", "<float[3,4] t = {1,2,3,4,1,2,3,4,1,2,3,4}>"),
            X ** np.tile(np.arange(1, 5, dtype=np.float32), (3, 1)),
        ),
    ],
    ids=["Relu", "Relu-1", "PRelu", "PRelu-shared", "Add", "Sub", "Elu-1", "Norm", "Pow"],
)
def test_mean_what_they_meant(made: onnx.ModelProto, want: np.ndarray) -> None:
    before = made.SerializeToString()
    np.testing.assert_allclose(outputs(made), want, rtol=1e-6)
    assert made.SerializeToString() == before
    assert any("by onnx's converter" in note for note in read(made).notes.lines)


def test_large_weights_stay_in_the_file(tmp_path: Path) -> None:
    weights = np.random.default_rng(1).normal(size=(4, 4)).astype(np.float32)
    wide = np.eye(4, 300000, dtype=np.float32)
    made = model("h = MatMul(x, w) g = MatMul(h, a) y = MatMul(g, b)")
    for name, value in (("w", weights), ("a", wide), ("b", wide.T.copy())):
        made.graph.initializer.append(numpy_helper.from_array(value, name))
    onnx.save(made, tmp_path / "old.onnx")
    np.testing.assert_allclose(outputs(tmp_path / "old.onnx"), X @ weights, rtol=1e-5)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("y = PRelu(x, x)", "not constant"),
        ("y = Upsample<scales=[1.0,1.0,1.0]>(x)", "Upsample was another operator"),
        ("y = BatchNormalization(x, s, s, s, s)", "without is_test=1 is for training"),
        (
            "b = Cast<to=9>(x) u = Upsample<scales=[1.0,1.0,1.0]>(x) "
            "y = If<then_branch = t () => (p) { p = Relu(x) }, "
            "else_branch = e () => (q) { q = Abs(x) }>(b)",
            "If has a body; Upsample was another operator",
        ),
        ("y = Dropout<is_test=0>(x)", "Dropout without is_test=1 is for training"),
        *(
            (f"y = {op}<axis=1, broadcast=1>(x, s)", "by onnx's converter")
            for op in ("Add", "Sub", "Mul", "Div", "Pow")
        ),
    ],
)
def test_what_the_converter_does_not_know_is_told(body: str, said: str) -> None:
    with pytest.raises(
        SourceError, match=rf"opset 6 cannot be raised to 7.*{said}.*export the model again"
    ):
        read(model(body, SLOPES))
