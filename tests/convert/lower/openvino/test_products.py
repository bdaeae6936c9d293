"""Products of integers without a bias, on one thread."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from edgeinfer.backends.engines import import_openvino
from edgeinfer.convert.lower.openvino import integers, products
from edgeinfer.convert.quantize.calibrate.ranges import Range
from edgeinfer.convert.quantize.calibration import limits_of
from edgeinfer.convert.quantize.rewrite import qdq
from edgeinfer.profiles import load
from tests.convert.quantize.conftest import graph
from tests.processor import skip_where_openvino_saturates

RNG = np.random.default_rng(0)
W, V = (RNG.normal(size=s).astype(np.float32) / 8 for s in ((48, 64), (64, 48)))


def answer(tmp_path: Path, rows: int, bias: str) -> tuple[np.ndarray, np.ndarray]:
    """What the plugin gives for two products in a row, and what is right."""
    more = {} if bias == "none" else {"b": np.full(64, float(bias), np.float32)}
    model = graph(
        f"""<ir_version: 10, opset_import: ["" : 20]>
        net (float[{rows},48] x) => (float[{rows},48] y)
        <float[48,64] w, float[64,48] v{", float[64] b" if more else ""}>
        {{
          m = {"MatMul(x, w)" if not more else "Gemm(x, w, b)"}
          r = Relu(m)
          y = MatMul(r, v)
        }}""",
        w=W,
        v=V,
        **more,
    )
    ranges = {"x": Range(-2.0, 2.0), "r": Range(0.0, 6.0), "y": Range(-8.0, 8.0)}
    path = tmp_path / "model.onnx"
    ir.save(qdq.write(model, limits_of(load("openvino"), "openvino_ir"), ranges).model, path)
    core = import_openvino().Core()
    written = core.read_model(path)
    integers.tidy(written)
    products.give_biases(written)
    options = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    compiled = core.compile_model(written, "CPU", options)
    x = RNG.uniform(-2, 2, (rows, 48)).astype(np.float32)
    wanted = np.maximum(x @ W + (float(bias) if more else 0.0), 0.0) @ V
    return compiled({"x": x})["y"].copy(), wanted


@pytest.mark.parametrize("bias", ["none", "0.0", "0.25"])
@pytest.mark.parametrize("rows", [1, 8, 9])
def test_they_are_right(rows: int, bias: str, tmp_path: Path) -> None:
    skip_where_openvino_saturates()
    found, wanted = answer(tmp_path, rows, bias)
    assert np.abs(found - wanted).max() < 0.05 * np.abs(wanted).max()


def test_names_stay_and_biases_that_differ_are_left_alone(tmp_path: Path) -> None:
    model = graph(
        """<ir_version: 10, opset_import: ["" : 20]>
        net (float[1,48] x) => (float[1,64] y) <float[48,64] w, float[64] b>
        { y = Gemm(x, w, b) }""",
        w=W,
        b=RNG.normal(size=64).astype(np.float32),
    )
    ranges = {"x": Range(-2.0, 2.0), "y": Range(-8.0, 8.0)}
    path = tmp_path / "model.onnx"
    ir.save(qdq.write(model, limits_of(load("openvino"), "openvino_ir"), ranges).model, path)
    written = import_openvino().Core().read_model(path)
    integers.tidy(written)
    assert products.give_biases(written) == 0
    assert written.output(0).get_any_name() == "y"


def test_sums_of_integers_get_no_bias(tmp_path: Path) -> None:
    weights = RNG.integers(-128, 128, (48, 64), np.int8)
    model = graph(
        """<ir_version: 10, opset_import: ["" : 20]>
        net (uint8[4,48] x) => (int32[4,64] y) <int8[48,64] w> { y = MatMulInteger(x, w) }""",
        w=weights,
    )
    path = tmp_path / "model.onnx"
    ir.save(model, path)
    core = import_openvino().Core()
    written = core.read_model(path)
    assert products.give_biases(written) == 0
    x = RNG.integers(0, 256, (4, 48), np.uint8)
    found = core.compile_model(written, "CPU")({"x": x})["y"]
    np.testing.assert_array_equal(found, x.astype(np.int32) @ weights.astype(np.int32))
