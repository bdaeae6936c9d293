"""What ``edgeinfer[apple]`` installs converts and judges without ONNX Runtime."""

import json
import sys
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import edgeinfer
from edgeinfer.convert.passes.constants import FoldConstants
from edgeinfer.convert.quantize.calibrate.observe import watched
from edgeinfer.convert.sources import read
from edgeinfer.convert.verify import Vector
from edgeinfer.convert.verify.oracles import Oracles
from edgeinfer.errors import EdgeInferError, RunError, VerifyError

GOLDEN = Path(__file__).parents[1] / "golden"
# ONNX has an operator that fails on it, and we have none of our own: refused.
UNKNOWN = "nonmaxsuppression_nms_defaults_max_output_absent_0_6664f0"
X = np.array([0.5, 2.0], np.float32)


@pytest.fixture(autouse=True)
def absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if it were not installed: to import it is an error, and nothing finds it."""
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.setitem(sys.modules, "openvino", None)


def model(text: str, imports: str = '"": 20') -> ir.Model:
    return ir.from_onnx_text(f"<ir_version: 10, opset_import: [{imports}]>\n{text}")


def test_onnx_operators_confirm_float64() -> None:
    with Oracles(model("g (float[2] x) => (float[2] y) { a = Exp(x) y = Neg(a) }")) as oracles:
        expected = oracles.expected([Vector({"x": X}, "user:a")])
    (answer,) = expected.answers
    assert (answer.oracle, answer.agreed) == ("float64", ("onnx operators", "float64"))
    assert expected.notes == ()
    np.testing.assert_allclose(answer.outputs["y"], -np.exp(X), rtol=1e-7)
    assert answer.outputs["y"].dtype == np.float32


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.onnx")), ids=lambda p: p.stem)
def test_faults_of_onnx_operators_are_not_taken_for_right(path: Path) -> None:
    arrays = np.load(path.with_suffix(".npz"))
    feeds = {n[3:]: arrays[n] for n in arrays.files if n.startswith("in_")}
    with Oracles(ir.load(path)) as oracles:
        if path.stem == UNKNOWN:
            with pytest.raises(VerifyError, match=r"NonMaxSuppression.* ONNX Runtime may: pip"):
                oracles.expected([Vector(feeds, "user:a")])
            return
        answer = oracles.expected([Vector(feeds, "user:a")]).answers[0]
    for name, value in answer.outputs.items():
        expected = arrays[f"out_{name}"]
        rtol = 1e-2 if expected.dtype == np.float16 else 1e-4
        np.testing.assert_allclose(value, expected, rtol=rtol, atol=1e-5)


def test_of_a_disputed_operator_the_definition_stands_and_it_is_named() -> None:
    text = "g (float16[1,300] x) => (float16[1,1] y) { y = ReduceL2(x) }"
    feeds = {"x": np.full((1, 300), 300, np.float16)}
    with Oracles(model(text, '"": 18')) as oracles:
        expected = oracles.expected([Vector(feeds, "user:a")])
    (answer,) = expected.answers
    assert answer.agreed == ("float64", "definitions")
    assert "alone disagrees at ReduceL2" in expected.notes[0]
    assert answer.outputs["y"][0, 0] == np.float16(300 * 300**0.5)


def test_other_inputs_than_declared_are_refused_one_by_one() -> None:
    text = "g (float[2, N] x) => (float[2, N] y) { y = Exp(x) }"
    with Oracles(model(text)) as oracles:
        for bad in (np.zeros((3, 2), np.float32), np.zeros(2, np.float32), np.zeros((2, 2))):
            with pytest.raises(RunError, match="the model declares FLOAT"):
                oracles.run({"x": bad})
        assert oracles.run({"x": np.zeros((2, 5), np.float32)})["y"].shape == (2, 5)


def test_who_knows_an_operator_is_said() -> None:
    text = "g (float[2] x) => (float[2] y) { y = com.microsoft.FastGelu(x) }"
    with (
        Oracles(model(text, '"": 20, "com.microsoft": 1')) as oracles,
        pytest.raises(RunError, match=r"FastGelu; ONNX Runtime may: pip install 'edgeinfer\["),
    ):
        oracles.run({"x": X})


def test_constants_fold_to_the_same() -> None:
    text = """g (float[2, 3] x) => (float[2, 3] y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}> {
        t = Transpose<perm = [1, 0]>(w) y = Add(x, t) }"""
    made = FoldConstants()(model(text)).model
    assert [n.op_type for n in made.graph] == ["Add"]
    (node,) = made.graph
    (_, right) = node.inputs
    assert right is not None
    folded = ir.convenience.get_const_tensor(right)
    assert folded is not None
    np.testing.assert_array_equal(folded.numpy(), [[1, 3, 5], [2, 4, 6]])


def test_declared_sizes_are_tried() -> None:
    text = """<ir_version: 8, opset_import: ["":17]> g (float[N] x) => (float[1, 5] t) {
        t = NonZero(x) }"""
    found = read(onnx.parser.parse_model(text))
    assert any("a trial run gives" in line for line in found.notes.lines), found.notes.lines


def test_declared_sizes_of_minus_one_are_open() -> None:
    text = """<ir_version: 8, opset_import: ["":17]> g (float[N] x) => (float[1, 5] t) {
        t = NonZero(x) }"""
    proto = onnx.parser.parse_model(text)
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    found = read(proto)
    assert any("below zero taken for open ones ('x')" in line for line in found.notes.lines)
    assert any("a trial run gives [1, 0]" in line for line in found.notes.lines)
    (x,), (t,) = found.model.graph.inputs, found.model.graph.outputs
    for value, known in ((x, [False]), (t, [True, False])):
        assert value.shape is not None
        assert [isinstance(size, int) for size in value.shape] == known


def test_inner_values_are_seen() -> None:
    net = model("g (float[2] x) => (float[2] y) { a = Exp(x) y = Neg(a) }")
    (seen,) = watched(net, ["x", "a"], lambda: iter([{"x": X}]))
    np.testing.assert_array_equal(seen["x"], X)
    np.testing.assert_allclose(seen["a"], np.exp(X), rtol=1e-6)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "weight_only_wp4_afp16"])
def test_a_model_is_converted_for_apple(precision: str, tmp_path: Path) -> None:
    weights = np.random.default_rng(0).normal(0, 0.1, (64, 64)).astype(np.float32)
    proto = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 20]> g (float[N,64] x) => (float[N,64] y) '
        "{ a = MatMul(x, w) y = Relu(a) }"
    )
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    made = edgeinfer.export(proto, tmp_path / "m.edge", targets=["ios"], precision=precision)
    with ZipFile(made.path) as bundle:
        report = json.loads(bundle.read("report.json"))
    assert report["oracles"]["confirmed"] == report["oracles"]["asked"] > 0
    assert "onnxruntime" not in {name for v in report["vectors"] for name in v["agreed"]}


def test_other_targets_say_what_they_need(tmp_path: Path) -> None:
    proto = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 20]> g (float[2] x) => (float[2] y) { y = Exp(x) }'
    )
    with pytest.raises(EdgeInferError, match="onnxruntime"):
        edgeinfer.export(proto, tmp_path / "m.edge", targets=["cpu"])
