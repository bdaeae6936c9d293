import dataclasses
import itertools
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from edgeinfer import profiles
from edgeinfer.backends import registry
from edgeinfer.backends.base import Artifact, LoadOptions
from edgeinfer.convert import passes
from edgeinfer.convert.lower import target_for
from edgeinfer.convert.lower.target import LowerOptions
from edgeinfer.convert.quantize import readback
from edgeinfer.convert.quantize.calibrate.ranges import Range
from edgeinfer.convert.quantize.calibration import limits_of
from edgeinfer.convert.quantize.rewrite import qdq
from edgeinfer.profiles.schema import Quantization
from tests.convert.quantize.conftest import LIMITS, graph
from tests.processor import skip_where_openvino_saturates

TARGETS = [("onnxruntime", "onnx"), ("openvino", "openvino_ir"), ("rpi4", "tflite")]


def limits(target: str, format: str, **changes: object) -> Quantization:
    return dataclasses.replace(limits_of(profiles.load(target), format), **changes)  # type: ignore[arg-type]


def run(
    model: ir.Model, target: str, format: str, folder: Path, *feeds: np.ndarray
) -> list[np.ndarray]:
    folder.mkdir(parents=True, exist_ok=True)
    profile = profiles.load(target)
    lowered = target_for(format).lower(model, profile, LowerOptions("fp32"), folder)
    specs = passes.input_specs(model), passes.output_specs(model)
    backend = registry.get(lowered.engines[0].backend)
    executable = backend.load(Artifact(format, lowered.files[0], *specs), LoadOptions(threads=1))
    try:
        name = specs[0][0].name
        return [next(iter(executable.run({name: f}).values())) for f in feeds]
    finally:
        executable.close()


def product() -> ir.Model:
    return graph(
        """<ir_version: 10, opset_import: ["" : 24]>
        net (float[1,2] x) => (float[1,1] y) <float[2,1] w, float[1] b>
        { y = Gemm(x, w, b) }""",
        w=np.full((2, 1), 127.0, np.float32),
        b=np.zeros(1, np.float32),
    )


@pytest.mark.parametrize(("target", "format"), TARGETS)
def test_the_largest_sum_of_products_does_not_saturate(
    target: str, format: str, tmp_path: Path
) -> None:
    """255 times 127, twice, is 64770: more than the 16 bits that AVX2 adds such pairs in."""
    ranges = {"x": Range(0.0, 255.0), "y": Range(0.0, 64770.0)}
    written = qdq.write(product(), limits(target, format, float_results=()), ranges)
    (y,) = run(written.model, target, format, tmp_path, np.full((1, 2), 255.0, np.float32))
    assert y[0, 0] == pytest.approx(64770.0, abs=64770.0 / 255 / 2)


def test_the_largest_sum_is_exact_where_the_result_is_float(tmp_path: Path) -> None:
    written = qdq.write(
        product(),
        limits("onnxruntime", "onnx"),
        {"x": Range(0.0, 255.0), "y": Range(0.0, 64770.0)},
    )
    x = np.full((1, 2), 255.0, np.float32)
    assert run(written.model, "onnxruntime", "onnx", tmp_path, x)[0][0, 0] == 64770.0


@pytest.mark.parametrize(("target", "format"), TARGETS)
def test_values_beyond_the_range_saturate_and_ties_go_to_even(
    target: str, format: str, tmp_path: Path
) -> None:
    model = graph(
        """<ir_version: 10, opset_import: ["" : 24]>
        net (float[1,6] x) => (float[1,6] y) <float[6,6] w, float[6] b>
        { y = Gemm(x, w, b) }""",
        w=np.eye(6, dtype=np.float32),
        b=np.zeros(6, np.float32),
    )
    ranges = {"x": Range(0.0, 255.0), "y": Range(0.0, 255.0)}
    written = qdq.write(model, limits(target, format, float_results=()), ranges)
    x = np.array([[-1e9, 1e9, 0.5, 1.5, 2.5, 254.5]], np.float32)
    (y,) = run(written.model, target, format, tmp_path, x)
    np.testing.assert_allclose(y, [[0, 255, 0, 2, 2, 254]], atol=1e-3)


def net(last: str = "s") -> tuple[ir.Model, dict[str, Range], list[np.ndarray]]:
    rng = np.random.default_rng(0)

    def weights(*shape: int) -> np.ndarray:
        return np.asarray(rng.normal(size=shape) / np.sqrt(np.prod(shape[1:])), np.float32)

    model = graph(
        """<ir_version: 10, opset_import: ["" : 24]>
        net (float[1,3,16,16] x) => (float[1,10] y)
        <float[8,3,3,3] w1, float[8] b1, float[8,1,3,3] w2, float[8] b2, float[8,8,1,1] w3,
         float[8] b3, float zero, float six, float[512,10] w4, float[10] b4>
        {
          a = Conv<pads=[1,1,1,1]>(x, w1, b1)
          ar = Relu(a)
          d = Conv<group=8, pads=[1,1,1,1]>(ar, w2, b2)
          dr = Clip(d, zero, six)
          p = Conv(dr, w3, b3)
          s = Add(ar, p)
          m = MaxPool<kernel_shape=[2,2], strides=[2,2]>(LAST)
          f = Flatten(m)
          y = Gemm(f, w4, b4)
        }""".replace("LAST", last),
        w1=weights(8, 3, 3, 3), b1=weights(8), w2=weights(8, 1, 3, 3), b2=weights(8),
        w3=weights(8, 8, 1, 1), b3=weights(8), zero=np.array(0, np.float32),
        six=np.array(6, np.float32), w4=weights(512, 10), b4=weights(10),
    )  # fmt: skip
    model = passes.normalise(model).model
    feeds = [rng.uniform(-1, 1, (1, 3, 16, 16)).astype(np.float32) for _ in range(20)]
    wide = model.clone()
    inner = [v for n in wide.graph for v in n.outputs]
    names = [v.name or "" for v in inner]
    wide.graph.outputs.clear()
    wide.graph.outputs.extend(inner)
    import onnxruntime

    proto = ir.to_proto(wide).SerializeToString()
    session = onnxruntime.InferenceSession(proto, providers=["CPUExecutionProvider"])
    seen = [dict(zip(names, session.run(names, {"x": f}), strict=True)) | {"x": f} for f in feeds]
    ranges = {
        n: Range(min(0.0, *(float(s[n].min()) for s in seen)), max(float(s[n].max()) for s in seen))
        for n in seen[0]
        if seen[0][n].dtype == np.float32
    }
    return model, ranges, feeds


def test_the_graph_is_valid_and_nothing_but_roundings_was_added() -> None:
    model, ranges, _ = net()
    before = ir.to_proto(model).SerializeToString()
    written = qdq.write(model, LIMITS, ranges)
    assert ir.to_proto(model).SerializeToString() == before
    onnx.checker.check_model(ir.to_proto(written.model), full_check=True)
    left = [n.op_type for n in written.model.graph if "QuantizeLinear" not in n.op_type]
    assert [op for op in left if op != "DequantizeLinear"] == [n.op_type for n in model.graph]
    assert [v.name for v in written.model.graph.outputs] == ["y"]
    biases = [
        v.const_value
        for v in written.model.graph.initializers.values()
        if v.const_value is not None and v.const_value.dtype == ir.DataType.INT32
    ]
    assert len(biases) == 4


@pytest.mark.parametrize(("target", "format"), TARGETS)
def test_engines_compute_with_integers_and_stay_close(
    target: str, format: str, tmp_path: Path
) -> None:
    model, ranges, feeds = net()
    written = qdq.write(model, limits(target, format), ranges)
    expected = run(model, target, format, tmp_path / "float", *feeds)
    actual = run(written.model, target, format, tmp_path / "int", *feeds)
    noise = sum(float(np.sum((e - a) ** 2)) for e, a in zip(expected, actual, strict=True))
    signal = sum(float(np.sum(e**2)) for e in expected)
    assert 10 * np.log10(signal / noise) > 25.0
    file = next((tmp_path / "int").glob("model.*ml" if format == "openvino_ir" else "model.*"))
    found = readback.layers(file, format)
    assert readback.precision_name(found) == "static_wi8_ai8"
    assert readback.counts(found) == {"int8/int8": 4}


@pytest.mark.parametrize("last", ["p", "s"])
def test_one_graph_gives_the_same_numbers_everywhere(last: str, tmp_path: Path) -> None:
    skip_where_openvino_saturates()
    model, ranges, feeds = net(last)
    shared = limits("rpi4", "tflite")
    outputs = {}
    for target, format in TARGETS:
        stored = limits(target, format).activations
        same = dataclasses.replace(shared, activations=stored, format=format)
        written = qdq.write(model, same, ranges)
        outputs[target] = np.concatenate(
            run(written.model, target, format, tmp_path / target, *feeds)
        )
        step = written.scales["y"].scale
    assert len(outputs) >= 3
    for a, b in itertools.combinations(outputs, 2):
        steps = np.abs(outputs[a] - outputs[b]) / step
        assert np.mean(steps < 1.001) >= 0.99, (a, b)


def test_what_is_kept_stays_float() -> None:
    model, ranges, _ = net()
    first = next(n.name for n in model.graph if n.op_type == "Conv")
    written = qdq.write(model, LIMITS, ranges, kept=frozenset({first or ""}))
    conv = next(n for n in written.model.graph if n.name == first)
    assert conv.inputs[1] is not None
    assert conv.inputs[1].const_value is not None
    assert conv.inputs[1].dtype == ir.DataType.FLOAT
    assert written.float_nodes == (("Conv", first),)


def test_an_output_that_is_read_inside_too_is_rounded_once() -> None:
    model = graph(
        """<ir_version: 10, opset_import: ["" : 24]>
        net (float[1,2] x) => (float[1,2] y, float[1,2] z) <float[2,2] w>
        { y = MatMul(x, w)  z = MatMul(y, w) }""",
        w=np.eye(2, dtype=np.float32),
    )
    spans = dict.fromkeys("xyz", Range(-1.0, 1.0))
    written = qdq.write(model, LIMITS, spans).model
    assert [v.name for v in written.graph.outputs] == ["y", "z"]
    assert sum(n.op_type == "QuantizeLinear" for n in written.graph) == 3
    onnx.checker.check_model(ir.to_proto(written), full_check=True)


def test_sixteen_bit_activations_have_no_zero_point() -> None:
    model, ranges, _ = net()
    written = qdq.write(model, LIMITS, ranges, bits=16)
    assert {s.dtype for s in written.scales.values()} == {"int16"}
    assert {s.zero for s in written.scales.values()} == {0}
    onnx.checker.check_model(ir.to_proto(written.model), full_check=True)
