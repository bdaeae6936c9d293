"""Five traps that real collections hold: each gets the right verdict."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import edgeinfer
from edgeinfer.errors import VerifyError
from tests.zoo import fetch


@pytest.mark.models
def test_same_name_other_weights_is_refused(tmp_path: Path) -> None:
    """``hey_rhasspy`` ships as ONNX and as TFLite with other weights: outputs differ by 0.6."""
    litert = pytest.importorskip("ai_edge_litert.interpreter")
    interpreter = litert.Interpreter(str(fetch("wake-hey-rhasspy.tflite")))
    interpreter.allocate_tensors()
    source, target = interpreter.get_input_details()[0], interpreter.get_output_details()[0]
    rng = np.random.default_rng(0)
    x = rng.normal(0, 10, source["shape"]).astype(np.float32)
    interpreter.set_tensor(source["index"], x)
    interpreter.invoke()
    y = interpreter.get_tensor(target["index"])
    model = fetch("wake-hey-rhasspy.onnx")
    graph = onnx.load(model).graph
    data = [{graph.input[0].name: x, graph.output[0].name: y}]
    with pytest.raises(VerifyError, match="expected outputs"):
        edgeinfer.export(model, tmp_path / "m.edge", data=data)
    assert not (tmp_path / "m.edge").exists()


@pytest.mark.models
def test_near_equal_twin_is_refused(tmp_path: Path) -> None:
    """``silero_vad_half`` is close to its siblings and not equal: 0.026 against 0.005."""
    import onnxruntime

    twin, model = fetch("silero-vad-half.onnx"), fetch("silero-vad-16k-op15.onnx")
    session = onnxruntime.InferenceSession(str(twin))
    rng = np.random.default_rng(0)
    feeds = {
        "input": rng.normal(0, 0.05, (1, 576)).astype(np.float32),
        "state": np.zeros((2, 1, 128), np.float32),
        "sr": np.array(16000, np.int64),
    }
    taken = {i.name for i in session.get_inputs()}
    outputs = session.run(None, {k: v for k, v in feeds.items() if k in taken})
    names = [o.name for o in session.get_outputs()]
    data = [{**feeds, **dict(zip(names, outputs, strict=True))}]
    with pytest.raises(VerifyError, match="expected outputs"):
        edgeinfer.export(model, tmp_path / "m.edge", data=data)


def test_unsorted_nodes_are_sorted_with_a_note(tmp_path: Path) -> None:
    chain = "".join(f"x{i} = Tanh(x{i - 1}) " for i in range(1, 40))
    graph = f"g (float[N] x0) => (float[N] y) {{ {chain} y = Relu(x39) }}"
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {graph}')
    rng = np.random.default_rng(0)
    order = rng.permutation(len(model.graph.node))
    nodes = [model.graph.node[i] for i in order]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    with pytest.raises(onnx.checker.ValidationError):
        onnx.checker.check_model(model)
    path = tmp_path / "unsorted.onnx"
    onnx.save(model, path)
    result = edgeinfer.export(path, tmp_path / "m.edge")
    lines = [line for c in result.report.changes if c.stage == "source" for line in c.lines]
    assert any("sort" in line for line in lines), lines
    assert result.report.passed


def test_false_declared_shape_is_repaired_with_a_note(tmp_path: Path) -> None:
    w = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 7])],
        [onnx.numpy_helper.from_array(w, "w")],
    )
    path = tmp_path / "false.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    result = edgeinfer.export(path, tmp_path / "m.edge")
    assert result.manifest.outputs[0].shape == (2, 3)
    lines = [line for c in result.report.changes if c.stage == "source" for line in c.lines]
    assert any("declared as [2, 7], the graph gives [2, 3]" in line for line in lines), lines
    x = np.ones((2, 4), np.float32)
    with edgeinfer.load(result.path) as session:
        np.testing.assert_allclose(session(x), x @ w, rtol=1e-6)


@pytest.mark.models
def test_json_in_a_tensor_name_survives(tmp_path: Path) -> None:
    model = fetch("wake-timer.onnx")
    names = [o.name for o in onnx.load(model).graph.output]
    assert names[0].startswith("{")
    result = edgeinfer.export(model, tmp_path / "m.edge", targets=("cpu", "openvino"))
    assert [o.name for o in result.manifest.outputs] == names
    for backend in ("onnxruntime", "openvino"):
        with (
            edgeinfer.load(result.path, backend=backend) as session,
            edgeinfer.Bundle.open(result.path) as bundle,
        ):
            feeds, expected = next(bundle.vectors())
            np.testing.assert_allclose(session.run(feeds)[names[0]], expected[names[0]], atol=1e-5)


def test_nan_that_openvino_would_hide_is_refused(tmp_path: Path) -> None:
    graph = "g (float[N] x) => (float[N] y) { y = Relu(x) }"
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {graph}')
    bundle = edgeinfer.export(
        model, tmp_path / "m.edge", targets=("cpu", "openvino"), name="relu"
    ).path
    x = np.array([np.nan, -1, np.inf], np.float32)
    with edgeinfer.load(bundle, backend="onnxruntime") as session:
        np.testing.assert_array_equal(session(x), np.array([np.nan, 0, np.inf], np.float32))
    with edgeinfer.load(bundle, backend="openvino") as session:
        np.testing.assert_array_equal(session(x[1:]), np.array([0, np.inf], np.float32))
        with pytest.raises(edgeinfer.errors.InputError, match="backend='onnxruntime'"):
            session(x)


def test_a_softplus_written_out_overflows_inside_and_is_taken(tmp_path: Path) -> None:
    """OpenVINO fuses it, and is right where float32 is infinite on the way."""
    graph = "g (float[N] x) => (float[N] y) <float k = {1}> { e = Exp(x) a = Add(e, k) y = Log(a) }"
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {graph}')
    made = edgeinfer.export(model, tmp_path / "m.edge", targets=("openvino",), name="softplus")
    with edgeinfer.load(made.path, measure=False) as session:
        x = np.array([-3, 0, 100, 6e4], np.float32)
        np.testing.assert_allclose(session(x), np.logaddexp(x, 0), rtol=1e-6)
    assert edgeinfer.verify(made.path).passed
