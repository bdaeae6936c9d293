"""Weights that kernels multiply with as they are stored."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import edgeinfer
from edgeinfer.convert.lower.tflite.precision import layers
from edgeinfer.convert.passes import normalise
from edgeinfer.convert.passes.join_dynamic import JoinDynamic
from edgeinfer.convert.quantize.recipe import recipe
from edgeinfer.convert.quantize.rewrite import weight_only
from tests.convert.lower.tflite.run import expected, lower, model_of, ops, outputs
from tests.processor import skip_where_onnxruntime_saturates

DYNAMIC, BLOCKS = "dynamic_wi8_afp32", "weight_only_wi4b32_afp32"

RNG = np.random.default_rng(0)


def net() -> ir.Model:
    """A convolution, a depthwise one, a product with a bias."""
    text = """g (float[1,3,8,8] x) => (float[1,40] y) {
        a = Conv<pads=[1,1,1,1]>(x, w) b = Relu(a)
        c = Conv<group=64, pads=[1,0,1,0]>(b, d) e = GlobalAveragePool(c) f = Flatten(e)
        h = MatMul(f, m) y = Add(h, bias) }"""
    model = model_of(text.replace("{\n", WEIGHTS + "{\n", 1))
    for name, shape in (("w", (64, 3, 3, 3)), ("d", (64, 1, 3, 1)), ("m", (64, 40))):
        values = RNG.normal(size=shape).astype(np.float32)
        model.graph.initializers[name].const_value = ir.tensor(values, name=name)
    return normalise(model).model


WEIGHTS = """<float[64,3,3,3] w = {%s}, float[64,1,3,1] d = {%s}, float[64,40] m = {%s},
    float[40] bias = {%s}>""" % tuple(  # noqa: UP031  (braces in the text)
    ", ".join(["0.5"] * n) for n in (1728, 192, 2560, 40)
)


def decibels(got: np.ndarray, want: np.ndarray) -> float:
    return float(20 * np.log10(np.linalg.norm(want) / np.linalg.norm(got - want)))


def image() -> dict[str, np.ndarray]:
    return {"x": RNG.normal(size=(1, 3, 8, 8)).astype(np.float32)}


def test_dynamic_weights_reach_the_kernels_that_take_them() -> None:
    model = net()
    data = lower(weight_only.write(model, recipe(DYNAMIC)).model)
    # Only the depthwise convolution, too small to be stored, keeps floats.
    assert ops(data).count("DEQUANTIZE") == 0
    assert [o for o in ops(data) if o in {"CONV_2D", "FULLY_CONNECTED"}] == [
        "CONV_2D",
        "FULLY_CONNECTED",
    ]
    feeds = image()
    want = expected(model, feeds)["y"]
    for xnnpack in (True, False):
        assert decibels(outputs(data, feeds, xnnpack=xnnpack)["y"], want) > 30


def test_the_precision_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "m.tflite"
    path.write_bytes(lower(weight_only.write(net(), recipe(DYNAMIC)).model))
    found = {y.op: (y.activations, y.weights, y.channels) for y in layers(path) if y.weights}
    assert found["CONV_2D"] == ("dynamic", "int8", 64)
    assert found["FULLY_CONNECTED"] == ("dynamic", "int8", 40)
    assert found["DEPTHWISE_CONV_2D"][1] == "fp32"


def test_a_model_that_measures_by_itself_keeps_its_own_arithmetic() -> None:
    """Without the recipe's mark nothing says that another way of measuring would do."""
    skip_where_onnxruntime_saturates()
    written = weight_only.write(net(), recipe(DYNAMIC)).model
    written.metadata_props.clear()
    assert "CONV_2D" in ops(lower(written))
    feeds = image()
    got, want = outputs(lower(written), feeds)["y"], expected(written, feeds)["y"]
    assert decibels(got, want) > 60


def test_products_are_joined_in_either_order() -> None:
    text = """g (float[2,4] x) => (float[2,3] y)
    <int8[4,3] w = {1,2,3,4,5,6,7,8,9,10,11,12}, int8[3] o = {0,0,0}, float[3] k = {1,2,3}> {
        q, s, z = DynamicQuantizeLinear(x) p = MatMulInteger(q, w, z, o) f = Cast<to=1>(p)
        t = Mul(k, s) y = Mul(t, f) }"""
    model = model_of(text)
    assert JoinDynamic()(model).modified
    assert [n.op_type for n in model.graph] == ["DequantizeLinear", "MatMul"]
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    want = x @ (np.arange(1, 13).reshape(4, 3) * np.array([1, 2, 3]))
    np.testing.assert_allclose(expected(model, {"x": x})["y"], want)


@pytest.mark.parametrize("zeros", ["1,0,0", "0,0,1"])
def test_shifted_weights_are_left_alone(zeros: str) -> None:
    text = f"""g (float[2,2] x) => (float[2,3] y)
    <int8[2,3] w = {{1,2,3,4,5,6}}, int8[3] o = {{{zeros}}}, float[3] k = {{1,2,3}}> {{
        q, s, z = DynamicQuantizeLinear(x) p = MatMulInteger(q, w, z, o) f = Cast<to=1>(p)
        t = Mul(k, s) y = Mul(t, f) }}"""
    assert not JoinDynamic()(model_of(text)).modified


def product(rows: int, columns: int) -> ir.Model:
    zeros = ", ".join(["0.0"] * (rows * columns))
    model = model_of(f"""g (float[N,{rows}] x) => (float[N,{columns}] y)
        <float[{rows},{columns}] w = {{{zeros}}}> {{ y = MatMul(x, w) }}""")
    values = np.random.default_rng(1).normal(size=(rows, columns)).astype(np.float32)
    model.graph.initializers["w"].const_value = ir.tensor(values, name="w")
    return normalise(model).model


def test_blocks_of_4_bits_are_in_the_file_and_are_right() -> None:
    model = product(64, 24)
    written = weight_only.write(model, recipe(BLOCKS), positive_blocks=True).model
    data = lower(written)
    assert len(data) < 64 * 24 + 1200
    x = {"x": np.random.default_rng(2).normal(size=(3, 64)).astype(np.float32)}
    want = expected(written, x)["y"]
    for xnnpack in (True, False):
        # The weights are exact; activations are rounded to 8 bits in each row.
        assert decibels(outputs(data, x, xnnpack=xnnpack)["y"], want) > 36


def test_blocks_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "m.tflite"
    written = weight_only.write(product(64, 24), recipe(BLOCKS), positive_blocks=True).model
    path.write_bytes(lower(written))
    (layer,) = [y for y in layers(path) if y.weights]
    assert (layer.op, layer.activations, layer.weights) == ("FULLY_CONNECTED", "dynamic", "int4")


@pytest.mark.parametrize(("rows", "positive"), [(64, False), (80, True)])
def test_blocks_that_the_kernel_would_read_otherwise_stay_floats(rows: int, positive: bool) -> None:
    """Negative scales, and blocks that do not fill the summed axis."""
    written = weight_only.write(product(rows, 24), recipe(BLOCKS), positive_blocks=positive).model
    data = lower(written)
    assert len(data) > rows * 24 * 4
    x = {"x": np.random.default_rng(2).normal(size=(3, rows)).astype(np.float32)}
    np.testing.assert_allclose(
        outputs(data, x)["y"], expected(written, x)["y"], rtol=1e-5, atol=1e-5
    )


def test_a_scale_that_joins_stored_weights_leaves_them_stored(tmp_path: Path) -> None:
    taps = RNG.normal(size=(64, 40)).round(4)
    factors = np.array([-0.5, 0, *[1.5] * 38])
    listed = [", ".join(map(str, v.ravel().tolist())) for v in (taps, factors)]
    model = model_of(f"""g (float[2,64] x) => (float[2,40] y)
        <float[64,40] m = {{{listed[0]}}}, float[40] k = {{{listed[1]}}}> {{
        h = MatMul(x, m) y = Mul(h, k) }}""")
    model = weight_only.write(normalise(model).model, recipe(DYNAMIC)).model
    data = lower(model)
    assert ops(data) == ["FULLY_CONNECTED"]
    path = tmp_path / "model.tflite"
    path.write_bytes(data)
    (layer,) = layers(path)
    assert layer.weights == "int8"
    feeds = {"x": RNG.normal(size=(2, 64)).astype(np.float32)}
    want = feeds["x"] @ taps * factors
    assert decibels(outputs(data, feeds)["y"], want) > 35


@pytest.mark.sample(2)
@pytest.mark.parametrize("target", ["rpi4", "rpi5", "android"])
@pytest.mark.parametrize("precision", [DYNAMIC, BLOCKS])
def test_targets_with_tflite_take_the_recipes(target: str, precision: str, tmp_path: Path) -> None:
    ir.save(product(64, 24), tmp_path / "m.onnx")
    result = edgeinfer.export(
        tmp_path / "m.onnx", tmp_path / "m.edge", targets=[target], precision=precision
    )
    (variant,) = [v for v in result.manifest.variants if v.format == "tflite"]
    assert variant.precision == precision
