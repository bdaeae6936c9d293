from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from edgeinfer import profiles
from edgeinfer.convert.lower import target_for
from edgeinfer.convert.lower.target import ARITHMETIC_KEY, LowerOptions
from edgeinfer.convert.quantize import readback
from edgeinfer.convert.quantize.calibrate.ranges import Range
from edgeinfer.convert.quantize.calibration import limits_of
from edgeinfer.convert.quantize.rewrite import fallback, qdq
from tests.convert.quantize.conftest import LIMITS, graph

KEPT = frozenset({"Conv_2"})


def written() -> tuple[ir.Model, dict[str, Range], np.ndarray]:
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(8, 8, 3, 3)).astype(np.float32)
    model = graph(
        """<ir_version: 10, opset_import: ["" : 24]>
        net (float[1,8,8,8] x) => (float[1,8,8,8] y) <float[8,8,3,3] w, float[8,8,3,3] v>
        {
          a = Conv<pads=[1,1,1,1]>(x, w)
          r = Relu(a)
          b = Conv<pads=[1,1,1,1]>(r, v)
          s = Relu(b)
          y = Conv<pads=[1,1,1,1]>(s, w)
        }""",
        w=weights,
        v=weights[::-1].copy(),
    )
    ranges = {n: Range(-10.0, 10.0) for n in ("x", "y")} | {n: Range(0.0, 40.0) for n in "rs"}
    return qdq.write(model, LIMITS, ranges, kept=KEPT).model, ranges, weights


def operand(model: ir.Model, index: int) -> ir.Node:
    node = next(n for n in model.graph if n.name == "Conv_2")
    value = node.inputs[index]
    maker = None if value is None else value.producer()
    assert maker is not None
    return maker


def stored(node: ir.Node) -> ir.DataType | None:
    assert node.inputs[0] is not None
    return node.inputs[0].dtype


def test_weights_alone_are_stored_in_8_bits() -> None:
    model, ranges, weights = written()
    assert fallback.candidates(model, KEPT) == ["Conv_2"]
    assert fallback.apply(model, KEPT, "wi8", LIMITS, ranges) == 1
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    made = operand(model, 1)
    assert (made.op_type, stored(made)) == ("DequantizeLinear", ir.DataType.INT8)
    steps, scale = (v.const_value.numpy() for v in made.inputs[:2])  # type: ignore[union-attr]
    error = np.abs(steps * scale.reshape(-1, 1, 1, 1) - weights[::-1])
    assert np.all(error <= 0.5001 * scale.reshape(-1, 1, 1, 1))


def test_weights_in_half_precision() -> None:
    model, ranges, _ = written()
    assert fallback.apply(model, KEPT, "fp16", LIMITS, ranges) == 1
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    made = operand(model, 1)
    assert (made.op_type, stored(made)) == ("Cast", ir.DataType.FLOAT16)


def test_weights_that_half_precision_cannot_hold_stay() -> None:
    model, ranges, weights = written()
    node = next(n for n in model.graph if n.name == "Conv_2")
    value = node.inputs[1]
    assert value is not None
    value.const_value = ir.tensor(weights * np.float32(1e6))
    assert fallback.apply(model, KEPT, "fp16", LIMITS, ranges) == 0


def test_activations_of_16_bits_have_scales_of_their_own() -> None:
    model, ranges, _ = written()
    assert fallback.apply(model, KEPT, "ai16", LIMITS, ranges) == 1
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    before = operand(model, 0)
    rounding = before.inputs[0].producer()  # type: ignore[union-attr]
    assert (before.op_type, stored(before)) == ("DequantizeLinear", ir.DataType.INT16)
    assert rounding is not None
    scale = before.inputs[1].const_value.numpy()  # type: ignore[union-attr]
    assert scale == pytest.approx(40.0 / 32767)
    relu = next(n for n in model.graph if n.name == "Relu_3")
    (after,) = {u.op_type for u, _ in relu.outputs[0].uses()}
    assert after == "QuantizeLinear"


def test_activations_are_measured_in_each_run_where_kernels_do_so() -> None:
    model, ranges, _ = written()
    assert fallback.apply(model, KEPT, "dynamic", replace(LIMITS, format="tflite"), ranges) == 1
    made = operand(model, 1)
    assert (made.op_type, stored(made)) == ("DequantizeLinear", ir.DataType.INT8)
    assert made.metadata_props[ARITHMETIC_KEY] == "dynamic"
    others = [n for n in model.graph if n is not made and n.op_type == "DequantizeLinear"]
    assert others
    assert not any(ARITHMETIC_KEY in n.metadata_props for n in others)


def test_onnx_has_such_kernels_for_products_alone() -> None:
    model, ranges, _ = written()
    assert fallback.apply(model, KEPT, "dynamic", replace(LIMITS, format="onnx"), ranges) == 0
    product = graph(
        """<ir_version: 10, opset_import: ["" : 24]>
        net (float[1,32] x) => (float[1,32] y) <float[32,32] w> { y = MatMul(x, w) }""",
        w=np.random.default_rng(0).normal(size=(32, 32)).astype(np.float32),
    )
    name = product.graph[0].name or ""
    assert fallback.apply(product, {name}, "dynamic", replace(LIMITS, format="onnx"), {}) == 1
    onnx.checker.check_model(ir.to_proto(product), full_check=True)
    assert "MatMulInteger" in {n.op_type for n in product.graph}


@pytest.mark.parametrize(("form", "kind"), [("dynamic", "dynamic/int8"), ("wi8", "fp32/int8")])
def test_in_tflite_marked_layers_alone_multiply_so(form: str, kind: str, tmp_path: Path) -> None:
    model, ranges, _ = written()
    profile = profiles.load("android")
    assert fallback.apply(model, KEPT, form, limits_of(profile, "tflite"), ranges) == 1
    lowered = target_for("tflite").lower(model, profile, LowerOptions("fp32"), tmp_path)
    found = readback.counts(readback.layers(lowered.files[0], "tflite"))
    assert found == {kind: 1, "int8/int8": 2}


def test_float_changes_nothing() -> None:
    model, ranges, _ = written()
    before = ir.to_proto(model).SerializeToString()
    assert fallback.apply(model, KEPT, "fp32", LIMITS, ranges) == 0
    assert ir.to_proto(model).SerializeToString() == before
