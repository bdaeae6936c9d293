"""Floats are rounded before the zero point is added."""

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from edgeinfer.backends.engines import import_openvino
from edgeinfer.convert.lower.openvino import integers, shifts
from edgeinfer.convert.quantize.calibrate.ranges import Range
from edgeinfer.convert.quantize.calibration import limits_of
from edgeinfer.convert.quantize.rewrite import qdq
from edgeinfer.profiles import load
from tests.convert.quantize.conftest import graph

RNG = np.random.default_rng(0)
ROWS, WIDTH = 512, 64
SPAN = Range(-5.0, 3.0)


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A normalisation before one product, and a second product behind it."""
    model = graph(
        f"""<ir_version: 10, opset_import: ["" : 20]>
        net (float[{ROWS},{WIDTH}] x) => (float[{ROWS},{WIDTH}] z)
        <float[{WIDTH}] g, float[{WIDTH}] b, float[{WIDTH},{WIDTH}] w, float[{WIDTH},{WIDTH}] v>
        {{
          n = LayerNormalization(x, g, b)
          y = MatMul(n, w)
          r = Relu(y)
          z = MatMul(r, v)
        }}""",
        g=np.ones(WIDTH, np.float32),
        b=np.zeros(WIDTH, np.float32),
        w=np.eye(WIDTH, dtype=np.float32),
        v=np.eye(WIDTH, dtype=np.float32),
    )
    ranges = {"n": SPAN, "y": SPAN, "r": Range(0.0, 3.0), "z": SPAN}
    limits = limits_of(load("openvino"), "openvino_ir")
    path = tmp_path_factory.mktemp("shifts") / "model.onnx"
    ir.save(qdq.write(model, limits, ranges).model, path)
    return import_openvino().Core().read_model(path)


def roundings(model: Any) -> list[str]:
    return [
        n.input_value(0).get_node().get_type_name()
        for n in model.get_ordered_ops()
        if n.get_type_name() == "FakeQuantize"
    ]


def test_only_floats_that_no_product_gives_are_rounded_so(read: Any) -> None:
    model = read.clone()
    integers.tidy(model)
    before = roundings(model)
    shifts.round_before_shift(model)
    after = roundings(model)
    assert before.count("Round") == 0
    assert after.count("Round") == 1
    assert after[0] == "Round"
    assert len(after) == len(before) > 1


@pytest.mark.parametrize("form", [False, True])
def test_values_beside_halfway_are_rounded_as_the_standard_says(form: bool) -> None:
    """With the zero point added first, a float32 of 140.5 has no room for a millionth."""
    openvino = import_openvino()
    opset = openvino.opset13
    scale, zero = np.float32(2.0**-5), 130
    low, high = -zero * scale, (255 - zero) * scale
    x = opset.parameter([1, 80], np.float32, name="x")
    bounds = [opset.constant(np.float32(e)) for e in (low, high, low, high)]
    model = openvino.Model([opset.fake_quantize(opset.abs(x), *bounds, 256)], [x])
    if form:
        shifts.round_before_shift(model)
    steps = np.repeat(np.arange(40) + 0.5, 2).astype(np.float32)
    steps[::2] = np.nextafter(steps[::2], np.float32(0.0))
    steps[1::2] = np.nextafter(steps[1::2], np.float32(100.0))
    given = (steps * scale)[None]
    compiled = openvino.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    wrong = compiled(given)[0] != np.rint(steps) * scale
    assert wrong.any() != form


@pytest.mark.parametrize(
    ("low", "high", "levels"),
    [
        (-0.25, 0.75, 256),  # its zero is between two integers
        (0.0, 1.0, 256),  # nothing is added
        (-1.27, 1.27, 255),
        (0.0, 0.0, 256),
        (-1e-38, 1e-38, 256),
    ],
)
def test_what_has_no_zero_point_to_add_stays(low: float, high: float, levels: int) -> None:
    openvino = import_openvino()
    opset = openvino.opset13
    x = opset.parameter([1, 8], np.float32)
    bounds = [opset.constant(np.float32(e)) for e in (low, high, low, high)]
    model = openvino.Model([opset.fake_quantize(opset.softmax(x, -1), *bounds, levels)], [x])
    shifts.round_before_shift(model)
    assert roundings(model) == ["Softmax"]


def test_attention_stays_one_kernel() -> None:
    """The Transpose behind it was left outside when the product was with one number."""
    openvino = import_openvino()
    opset = openvino.opset13

    def transposes(model: Any) -> int:
        compiled = openvino.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        nodes = compiled.get_runtime_model().get_ops()
        return [n.get_rt_info()["layerType"].astype(str) for n in nodes].count("Transpose")

    heads = [opset.parameter([1, 4, 16, 8], np.float32) for _ in range(3)]
    scores = opset.softmax(opset.matmul(heads[0], heads[1], False, True), -1)
    moved = opset.transpose(opset.matmul(scores, heads[2], False, False), [0, 2, 1, 3])
    rows = opset.reshape(moved, [1, 16, 32], False)
    bounds = [opset.constant(np.float32(e)) for e in (-1.5, 1.05, -1.5, 1.05)]
    model = openvino.Model([opset.fake_quantize(rows, *bounds, 256)], heads)
    before = transposes(model)
    shifts.round_before_shift(model)
    assert roundings(model) == ["Round"]
    assert transposes(model) == before
