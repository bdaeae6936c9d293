"""Rows that are taken out of a constant."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from edgeinfer.convert.quantize import readback
from edgeinfer.convert.quantize.calibrate.ranges import Range
from edgeinfer.convert.quantize.rewrite import qdq
from edgeinfer.convert.quantize.units import array_of, lay_out
from tests.convert.quantize.conftest import LIMITS, graph
from tests.convert.quantize.rewrite.test_qdq import limits, run

TARGETS = [
    *[("onnxruntime", "onnx"), ("openvino", "openvino_ir"), ("android", "tflite")],
]
TABLE = np.random.default_rng(0).normal(size=(300, 16)).astype(np.float32)
IDS = [np.array([[3, 299, 0, 17, 17, 250, 8, 1]], np.int64)]


def reader() -> tuple[ir.Model, dict[str, Range]]:
    """Words, a convolution over them, the largest of each channel, two classes."""
    rng = np.random.default_rng(1)
    model = graph(
        """<ir_version: 10, opset_import: ["" : 24]>
        net (int64[1,8] x) => (float[1,2] y)
        <float[300,16] table, float[16,16,3] w, float[16] b, int64[1] last, float[16,2] v,
         float[2] c>
        {
          e = Gather(table, x)
          t = Transpose<perm=[0,2,1]>(e)
          a = Conv<pads=[1,1]>(t, w, b)
          r = Relu(a)
          m = ReduceMax<keepdims=0>(r, last)
          y = Gemm(m, v, c)
        }""",
        table=TABLE,
        w=(rng.normal(size=(16, 16, 3)) / 7).astype(np.float32),
        b=rng.normal(size=16).astype(np.float32),
        last=np.array([2], np.int64),
        v=rng.normal(size=(16, 2)).astype(np.float32),
        c=np.zeros(2, np.float32),
    )
    ranges = {n: Range(-2.0, 2.0) for n in "et"} | {n: Range(0.0, 6.0) for n in "rm"}
    return model, ranges | {"y": Range(-20.0, 20.0)}


@pytest.mark.parametrize(("target", "format"), TARGETS)
def test_what_is_read_as_integers_is_stored_as_such(
    target: str, format: str, tmp_path: Path
) -> None:
    model, ranges = reader()
    written = qdq.write(model, limits(target, format), ranges)
    (expected,) = run(model, target, format, tmp_path / "float", *IDS)
    (actual,) = run(written.model, target, format, tmp_path / "int", *IDS)
    assert np.abs(actual - expected).max() < 0.03 * np.abs(expected).max() + 0.1
    names = ("model.bin", "model.onnx", "model.tflite")
    sizes = [
        sum(f.stat().st_size for n in names for f in (tmp_path / kind).rglob(n))
        for kind in ("float", "int")
    ]
    assert sizes[1] < 0.5 * sizes[0]


def test_the_range_covers_rows_that_calibration_did_not_see() -> None:
    model, ranges = reader()
    scale = qdq.write(model, limits("onnxruntime", "onnx"), ranges).scales["e"]
    low, high = ((end - scale.zero) * scale.scale for end in scale.ends)
    assert low <= TABLE.min() + scale.scale
    assert high >= TABLE.max() - scale.scale


def test_tflite_computes_all_of_it_with_integers(tmp_path: Path) -> None:
    model, ranges = reader()
    written = qdq.write(model, limits("android", "tflite"), ranges)
    run(written.model, "android", "tflite", tmp_path, *IDS)
    layers = readback.layers(tmp_path / "model.tflite", "tflite")
    assert readback.counts(layers) == {"int8/int8": 2}
    ops = [y.op for y in layers]
    assert ops.count("DEQUANTIZE") == 1
    assert "QUANTIZE" not in ops


def embedding() -> ir.Model:
    return graph(
        """<ir_version: 10, opset_import: ["" : 24]>
        net (int64[1,8] x) => (float[1,8,16] y) <float[300,16] table, float[16] scale>
        { e = Gather(table, x)  y = LayerNormalization(e, scale) }""",
        table=TABLE * np.logspace(-2, 2, 300, dtype=np.float32)[:, None],
        scale=np.ones(16, np.float32),
    )


@pytest.mark.parametrize(("target", "format"), TARGETS)
def test_what_is_read_as_floats_has_a_scale_for_each_row(
    target: str, format: str, tmp_path: Path
) -> None:
    model = embedding()
    written = qdq.write(model, limits(target, format), {"e": Range(-1.0, 1.0)})
    onnx.checker.check_model(ir.to_proto(written.model), full_check=True)
    (expected,) = run(model, target, format, tmp_path / "float", *IDS)
    (actual,) = run(written.model, target, format, tmp_path / "int", *IDS)
    assert np.abs(actual - expected).max() < 0.03
    assert "e" not in written.scales


@pytest.mark.parametrize(
    "text",
    [
        # Too small; rows of another axis; ids that are constant.
        "(int64[1,8] x) => (float[1,8,2] y) <float[300,2] t> { y = Gather(t, x) }",
        "(int64[8] x) => (float[300,8] y) <float[300,16] t> { y = Gather<axis=1>(t, x) }",
    ],
)
def test_other_tables_stay(text: str) -> None:
    sizes = (300, 2) if "[300,2]" in text else (300, 16)
    model = graph(f'<ir_version: 10, opset_import: ["" : 24]> net {text}', t=TABLE[:, : sizes[1]])
    assert lay_out(model, LIMITS).units == []


def test_what_is_as_far_from_zero_on_both_sides_needs_no_zero_point() -> None:
    model, ranges = reader()
    found = {}
    for target, format in TARGETS:
        written = qdq.write(model, limits(target, format), ranges)
        read = next(n for n in written.model.graph if n.outputs[0].name == "e.dq")
        take = next(n for n in written.model.graph if n.outputs[0] is read.inputs[0])
        stored = array_of(take.inputs[0])
        zero = int(array_of(read.inputs[2])) if len(read.inputs) > 2 else 0
        found[target] = (
            str(stored.dtype),
            zero,
            stored.astype(int) - zero,
            written.scales["e"].scale,
        )
    assert found["onnxruntime"][:2] == ("uint8", 128)
    assert found["openvino"][:2] == ("int8", 0)
    assert found["android"][:2] == ("int8", 0)
    for _, _, steps, scale in found.values():
        np.testing.assert_array_equal(steps, found["onnxruntime"][2])
        assert scale == found["onnxruntime"][3]


def test_what_is_mostly_on_one_side_keeps_a_zero_point() -> None:
    model, ranges = reader()
    model.graph.initializers["table"].const_value = ir.tensor(np.abs(TABLE) - 0.1)
    scale = qdq.write(model, limits("openvino", "openvino_ir"), ranges | {"e": Range(-0.1, 2.0)})
    assert 0 < scale.scales["e"].zero < 100
