from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from edgeinfer import profiles
from edgeinfer.convert import passes
from edgeinfer.convert.quantize import readback
from edgeinfer.convert.quantize.calibration import limits_of
from edgeinfer.convert.quantize.recipe import recipe
from edgeinfer.convert.quantize.rewrite import weight_only
from edgeinfer.convert.quantize.rewrite.weights import store_blocks
from edgeinfer.convert.quantize.units import lay_out
from edgeinfer.errors import UsageError
from tests.convert.quantize.conftest import graph
from tests.convert.quantize.rewrite.test_qdq import TARGETS, run

WEIGHT8, WEIGHT4 = "weight_only_wi8_afp32", "weight_only_wi4b32_afp32"


def perceptron(rows: int) -> tuple[ir.Model, list[np.ndarray]]:
    rng = np.random.default_rng(0)
    model = graph(
        f"""<ir_version: 10, opset_import: ["" : 24]>
        net (float[4,{rows}] x) => (float[4,32] y)
        <float[{rows},64] w1, float[64] b1, float[32,64] w2, float[32] b2>
        {{ a = MatMul(x, w1)  ab = Add(a, b1)  ar = Relu(ab)  y = Gemm<transB=1>(ar, w2, b2) }}""",
        w1=(rng.normal(size=(rows, 64)) / 10).astype(np.float32),
        b1=rng.normal(size=64).astype(np.float32),
        w2=(rng.normal(size=(32, 64)) / 8).astype(np.float32),
        b2=rng.normal(size=32).astype(np.float32),
    )
    feeds = [rng.normal(size=(4, rows)).astype(np.float32) for _ in range(4)]
    return passes.normalise(model).model, feeds


def decibel(expected: list[np.ndarray], actual: list[np.ndarray]) -> float:
    noise = sum(float(np.sum((e - a) ** 2)) for e, a in zip(expected, actual, strict=True))
    return float(10 * np.log10(sum(float(np.sum(e**2)) for e in expected) / noise))


def file_of(folder: Path, format: str) -> Path:
    return next(folder.glob("model.xml" if format == "openvino_ir" else "model.*"))


@pytest.mark.sample(6)
@pytest.mark.parametrize("rows", [100, 128])
@pytest.mark.parametrize(
    ("name", "target", "format", "least", "counts"),
    [
        *((WEIGHT8, t, f, 40.0, {"fp32/int8": 2}) for t, f in TARGETS),
        (WEIGHT4, "onnxruntime", "onnx", 20.0, {"fp32/int4": 2}),
        (WEIGHT4, "openvino", "openvino_ir", 20.0, {"fp32/int4": 2}),
        ("dynamic_wi8_afp32", "onnxruntime", "onnx", 40.0, {"dynamic/int8": 2}),
    ],
)
def test_engines_hold_the_weights_in_few_bits(
    name: str,
    target: str,
    format: str,
    least: float,
    counts: dict[str, int],
    rows: int,
    tmp_path: Path,
) -> None:
    model, feeds = perceptron(rows)
    limits = limits_of(profiles.load(target), format)
    written = weight_only.write(model, recipe(name), whole_blocks=limits.whole_blocks)
    onnx.checker.check_model(ir.to_proto(written.model), full_check=True)
    expected = run(model, target, format, tmp_path / "float", *feeds)
    actual = run(written.model, target, format, tmp_path / "int", *feeds)
    assert decibel(expected, actual) > least
    if rows % 32 and limits.whole_blocks and name == WEIGHT4:
        counts = {"fp32/int4": 1, "fp32/int8": 1}
    assert readback.counts(readback.layers(file_of(tmp_path / "int", format), format)) == counts


@pytest.mark.parametrize("side", ["8", "h"])
@pytest.mark.parametrize(("target", "format"), TARGETS)
def test_convolutions_are_read_back_as_they_are_stored(
    target: str, format: str, side: str, tmp_path: Path
) -> None:
    """OpenVINO makes floats of them when it opens the file; they are stored as integers."""
    rng = np.random.default_rng(0)
    model = graph(
        f"""<ir_version: 10, opset_import: ["" : 24]>
        net (float[1,4,{side},{side}] x) => (float[1,32,{side},{side}] y)
        <float[32,4,3,3] w, float[32] b> {{
          a = Conv<pads=[1,1,1,1]>(x, w, b)
          y = Relu(a)
        }}""",
        w=rng.normal(size=(32, 4, 3, 3)).astype(np.float32),
        b=rng.normal(size=32).astype(np.float32),
    )
    x = rng.normal(size=(1, 4, 8, 8)).astype(np.float32)
    written = weight_only.write(model, recipe(WEIGHT8)).model
    expected = run(model, target, format, tmp_path / "float", x)
    actual = run(written, target, format, tmp_path / "int", x)
    assert 35.0 < decibel(expected, actual) < 70.0
    found = readback.layers(file_of(tmp_path / "int", format), format)
    assert readback.counts(found) == {"fp32/int8": 1}
    assert readback.precision_name(found) == WEIGHT8


@pytest.mark.parametrize(("target", "format"), TARGETS[:2])
def test_a_batch_of_matrices_is_read_back_as_it_is_stored(
    target: str, format: str, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    model = graph(
        """<ir_version: 10, opset_import: ["" : 24]>
        net (float[4,8,32] x) => (float[4,8,16] y) <float[4,32,16] w> { y = MatMul(x, w) }""",
        w=rng.normal(size=(4, 32, 16)).astype(np.float32),
    )
    written = weight_only.write(model, recipe(WEIGHT8)).model
    x = rng.normal(size=(4, 8, 32)).astype(np.float32)
    run(written, target, format, tmp_path / "int", x)
    found = readback.layers(file_of(tmp_path / "int", format), format)
    assert readback.counts(found) == {"fp32/int8": 1}


def test_what_has_no_kernel_for_stored_weights_stays_float() -> None:
    """LiteRT has none for convolutions over three axes and for a batch of matrices."""
    rng = np.random.default_rng(0)
    model = graph(
        """<ir_version: 10, opset_import: ["" : 24]>
        net (float[1,8,8,8,8] x, float[4,8,32] z) => (float[1,8,6,6,6] y, float[4,8,16] p)
        <float[8,8,3,3,3] w, float[4,32,16] v> { y = Conv(x, w)  p = MatMul(z, v) }""",
        w=rng.normal(size=(8, 8, 3, 3, 3)).astype(np.float32),
        v=rng.normal(size=(4, 32, 16)).astype(np.float32),
    )
    for target, format in TARGETS:
        flat = limits_of(profiles.load(target), format).flat
        written = weight_only.write(model, recipe(WEIGHT8), flat=flat)
        assert len(written.units) == (0 if target == "rpi4" else 2)
        units = lay_out(model, limits_of(profiles.load(target), format)).units
        assert any(u.op == "Conv" for u in units) == (target != "rpi4")


@pytest.mark.parametrize("rows", [64, 100, 128])
def test_packed_blocks_are_onnx_runtimes_bit_for_bit(rows: int, tmp_path: Path) -> None:
    import onnxruntime

    weights = np.random.default_rng(rows).normal(size=(rows, 64)).astype(np.float32)
    model = graph(
        f"""<ir_version: 10, opset_import: ["" : 24]>
        net (float[1,{rows}] x) => (float[1,64] y) <float[{rows},64] w> {{ y = MatMul(x, w) }}""",
        w=weights,
    )
    stored = store_blocks(weights, 32)
    written = weight_only.write(model, recipe(WEIGHT4)).model
    ir.save(written, tmp_path / "in.onnx")
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "out.onnx")
    level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.graph_optimization_level = level
    onnxruntime.InferenceSession(tmp_path / "in.onnx", options, providers=["CPUExecutionProvider"])
    fused = next(n for n in ir.load(tmp_path / "out.onnx").graph if n.op_type == "MatMulNBits")
    packed, scale = (fused.inputs[i].const_value.numpy() for i in (1, 2))  # type: ignore[union-attr]
    # (N, blocks, 16): two unsigned steps around 8 in each byte, the first in the low half; what
    # fills up the last block is multiplied with nothing.
    count = -(-rows // 32)
    steps = (stored.values.T + 8).astype(np.uint8)
    halves = np.stack([packed & 15, packed >> 4], axis=-1).reshape(64, count * 32)
    np.testing.assert_array_equal(halves[:, :rows], steps[:, :rows])
    np.testing.assert_array_equal(scale.reshape(64, count), stored.scale.T)


def test_small_and_named_weights_stay_float() -> None:
    model, _ = perceptron(100)
    first = next(n.name or "" for n in model.graph if n.op_type in ("MatMul", "Gemm"))
    written = weight_only.write(model, recipe(WEIGHT8), kept=frozenset({first}))
    assert [name for _, name in written.float_nodes] == [first]
    small = graph(
        """<ir_version: 10, opset_import: ["" : 24]>
        net (float[1,8] x) => (float[1,8] y) <float[8,8] w> { y = MatMul(x, w) }""",
        w=np.eye(8, dtype=np.float32),
    )
    assert weight_only.write(small, recipe(WEIGHT8)).units == ()


@pytest.mark.parametrize(("rows", "columns", "stored"), [(64, 10, True), (4, 60, False)])
def test_weights_are_stored_where_that_takes_less_room(
    rows: int, columns: int, stored: bool
) -> None:
    """The bytes that are saved against those of scales and of one more operator."""
    model = graph(
        f"""<ir_version: 10, opset_import: ["" : 24]>
        net (float[1,{rows}] x) => (float[1,{columns}] y) <float[{rows},{columns}] w>
        {{ y = MatMul(x, w) }}""",
        w=np.random.default_rng(0).normal(size=(rows, columns)).astype(np.float32),
    )
    assert bool(weight_only.write(model, recipe(WEIGHT8)).units) == stored


def test_weights_that_two_nodes_read_are_stored_once() -> None:
    model = graph(
        """<ir_version: 10, opset_import: ["" : 24]>
        net (float[1,64] x) => (float[1,64] y) <float[64,64] w>
        { a = MatMul(x, w)  y = MatMul(a, w) }""",
        w=np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32),
    )
    written = weight_only.write(model, recipe(WEIGHT8)).model
    assert sum(n.op_type == "DequantizeLinear" for n in written.graph) == 1


def test_unknown_recipe_is_told() -> None:
    with pytest.raises(UsageError, match="precision 'int3' is unknown; known: fp32"):
        recipe("int3")
