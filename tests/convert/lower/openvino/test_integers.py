"""Fewer operators for the same integers."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from edgeinfer.backends.engines import import_openvino
from edgeinfer.convert.lower.openvino.integers import tidy
from edgeinfer.convert.quantize.calibrate.ranges import Range
from edgeinfer.convert.quantize.calibration import limits_of
from edgeinfer.convert.quantize.rewrite import qdq
from edgeinfer.profiles import load
from tests.convert.quantize.conftest import graph
from tests.processor import skip_where_openvino_saturates

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = graph(
        """<ir_version: 10, opset_import: ["" : 20]>
        net (float[1,4,8,8] x) => (float[1,4,4,4] y)
        <float[4,4,3,3] w, float[4] b, float[4,4,1,1] v, float[4] c>
        {
          a = Conv<pads=[1,1,1,1]>(x, w, b)
          r = Relu(a)
          p = Conv(r, v, c)
          s = Add(r, p)
          y = MaxPool<kernel_shape=[2,2], strides=[2,2]>(s)
        }""",
        w=RNG.normal(size=(4, 4, 3, 3)).astype(np.float32),
        b=RNG.normal(size=4).astype(np.float32),
        v=RNG.normal(size=(4, 4, 1, 1)).astype(np.float32),
        c=RNG.normal(size=4).astype(np.float32),
    )
    ranges = {n: Range(-12.0, 14.0) for n in "xpsy"} | {"r": Range(0.0, 15.0)}
    limits = limits_of(load("openvino"), "openvino_ir")
    path = tmp_path_factory.mktemp("integers") / "model.onnx"
    ir.save(qdq.write(model, limits, ranges).model, path)
    return path


def kinds(model: Any) -> list[str]:
    return [node.get_type_name() for node in model.get_ordered_ops()]


def answers(model: Any) -> list[Any]:
    compiled = (
        import_openvino().Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    )
    rng = np.random.default_rng(1)
    feeds = [rng.uniform(-4, 4, (1, 4, 8, 8)).astype(np.float32) for _ in range(8)]
    return [compiled({"x": f})["y"].copy() for f in feeds]


def test_a_rounding_is_one_operator_and_done_once(written: Path) -> None:
    model = import_openvino().Core().read_model(written)
    before = kinds(model)
    tidy(model)
    after = kinds(model)
    assert len(after) < 0.6 * len(before)
    # x, r, p and s; what the pooling moves is not rounded again, but what comes out of the net is.
    assert after.count("FakeQuantize") == 5
    assert after.count("Convert") == 2
    assert not {"Subtract", "ShapeOf", "Reshape"} & set(after)
    assert model.output(0).get_any_name() == "y"


def test_the_numbers_are_the_graphs_to_the_step(written: Path) -> None:
    import onnxruntime

    model = import_openvino().Core().read_model(written)
    tidy(model)
    session = onnxruntime.InferenceSession(written, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(1)
    feeds = [rng.uniform(-4, 4, (1, 4, 8, 8)).astype(np.float32) for _ in range(8)]
    expected = [session.run(None, {"x": f})[0] for f in feeds]
    step = 26.0 / 255
    steps = np.abs(np.stack(answers(model)) - np.stack(expected)) / step
    assert np.mean(steps < 0.01) > 0.97
    assert steps.max() < 1.001


def test_the_plan_still_computes_with_integers(written: Path) -> None:
    openvino = import_openvino()
    model = openvino.Core().read_model(written)
    tidy(model)
    compiled = openvino.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    plan = compiled.get_runtime_model().get_ordered_ops()
    read = [
        op.input(0).get_element_type().get_type_name()
        for op in plan
        if str(op.get_rt_info()["layerType"].astype(str)) == "Convolution"
    ]
    assert read == ["u8", "u8"]


def test_products_with_one_and_biases_of_another_shape(tmp_path: Path) -> None:
    model = graph(
        """<ir_version: 10, opset_import: ["" : 20]>
        net (float[1,4] x) => (float[1,3] y) <float[4,3] w, float[3] b>
        { y = Gemm(x, w, b) }""",
        w=RNG.normal(size=(4, 3)).astype(np.float32),
        b=RNG.normal(size=3).astype(np.float32),
    )
    ir.save(model, tmp_path / "m.onnx")
    core = import_openvino().Core()
    plain, tidied = core.read_model(tmp_path / "m.onnx"), core.read_model(tmp_path / "m.onnx")
    tidy(tidied)
    assert "Multiply" not in kinds(tidied)
    x = RNG.normal(size=(1, 4)).astype(np.float32)
    both = [core.compile_model(m, "CPU")({"x": x})["y"] for m in (plain, tidied)]
    np.testing.assert_array_equal(*both)


def _embedding() -> ir.Model:
    return graph(
        """<ir_version: 10, opset_import: ["" : 20]>
        net (int64[1,64] t) => (float[1,8,64] y)
        <float[256,16] table, float[8,16,3] w, float[8] b>
        {
          e = Gather(table, t)
          x = Transpose<perm=[0,2,1]>(e)
          y = Conv<pads=[1,1]>(x, w, b)
        }""",
        table=RNG.normal(size=(256, 16)).astype(np.float32),
        w=RNG.normal(size=(8, 16, 3)).astype(np.float32),
        b=RNG.normal(size=8).astype(np.float32),
    )


def test_rows_of_a_stored_table_are_not_rounded_again(tmp_path: Path) -> None:
    skip_where_openvino_saturates()
    model, path = _embedding(), tmp_path / "model.onnx"
    ranges = dict.fromkeys("ex", Range(-4.0, 5.0)) | {"y": Range(-60.0, 60.0)}
    limits = limits_of(load("openvino"), "openvino_ir")
    ir.save(qdq.write(model, limits, ranges).model, path)
    core = import_openvino().Core()
    tokens = np.random.default_rng(2).integers(0, 256, (1, 64))
    results = []
    for change in (False, True):
        read = core.read_model(path)
        if change:
            before = kinds(read).count("FakeQuantize")
            tidy(read)
            # What goes into the convolution was stored rounded; what comes out nothing rounds.
            assert (before, kinds(read).count("FakeQuantize")) == (1, 0)
        compiled = core.compile_model(read, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        results.append(compiled({"t": tokens})["y"].copy())
    np.testing.assert_allclose(results[1], results[0], atol=1e-4)


def test_rows_are_rounded_where_their_steps_differ(tmp_path: Path) -> None:
    model, path = _embedding(), tmp_path / "model.onnx"
    ranges = dict.fromkeys("ex", Range(-4.0, 5.0)) | {"y": Range(-60.0, 60.0)}
    limits = limits_of(load("openvino"), "openvino_ir")
    written = qdq.write(model, limits, ranges).model
    coarse = ir.val("coarse", const_value=ir.tensor(np.float32(0.5), name="coarse"))
    written.graph.register_initializer(coarse)
    rounding = next(n for n in written.graph if n.op_type == "QuantizeLinear")
    rounding.replace_input_with(1, coarse)
    ir.save(written, path)
    read = import_openvino().Core().read_model(path)
    before = kinds(read).count("FakeQuantize")
    tidy(read)
    assert kinds(read).count("FakeQuantize") == before
