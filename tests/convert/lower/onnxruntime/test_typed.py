"""The form for a compiler with strong types: standard operators, roundings in pairs."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator
from onnx_ir.passes.common import RemoveUnusedNodesPass

from edgeinfer.backends.engines import import_onnxruntime
from edgeinfer.convert.lower import target_for
from edgeinfer.convert.lower.onnxruntime.typed import (
    TYPED_KEY,
    expand_newer,
    join_pairs,
    parts_of,
)
from edgeinfer.convert.lower.target import LowerOptions
from edgeinfer.convert.quantize import readback
from edgeinfer.errors import Remarks
from edgeinfer.profiles import load
from edgeinfer.types import Array

HEAD = '<ir_version: 10, opset_import: ["" : 21]> g '
NEW = '<ir_version: 12, opset_import: ["" : 24]> g '


def run(model: ir.Model, x: Array) -> Array:
    session = import_onnxruntime().InferenceSession(
        ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    found: Array = session.run(None, {"x": x})[0]
    return found


def ops(model: ir.Model) -> list[str]:
    return [n.op_type for n in model.graph]


def test_operators_newer_than_the_parser_become_their_definition() -> None:
    model = ir.from_onnx_text(NEW + "(float[2,3] x) => (float[2,3] y) { y = Swish(x) }")
    model = expand_newer(model, notes := Remarks())
    assert "Swish" not in ops(model)
    assert notes.lines == ["Swish: newer than opset 21: replaced by its definition"]
    x = np.linspace(-4, 4, 6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_allclose(run(model, x), x / (1 + np.exp(-x)), rtol=1e-5)


def test_operators_that_the_parser_knows_stay() -> None:
    model = ir.from_onnx_text(NEW + "(float[2,3] x) => (float[2,3] y) { y = Gelu(x) }")
    expand_newer(model, notes := Remarks())
    assert ops(model) == ["Gelu"]
    assert notes.lines == []


def as_model(proto: onnx.ModelProto) -> ir.Model:
    model: ir.Model = ir.from_proto(onnx.shape_inference.infer_shapes(proto))
    return model


QKV = "float[2,3,5,8] q, float[2,3,7,8] k, float[2,3,7,4] v"


def attended(extra: str, attributes: str = "", given: str = "q, k, v") -> ir.Model:
    options = f"<{attributes}>" if attributes else ""
    body = f"{{ y = Attention {options} ({given}) }}"
    text = f"{NEW}({QKV}{extra}) => (float[2,3,5,4] y) {body}"
    model = as_model(onnx.parser.parse_model(text))
    model.graph[0].name = "a"
    return model


@pytest.mark.parametrize(
    ("extra", "attributes", "given", "plain"),
    [
        ("", "", "q, k, v", True),
        ("", "scale = 0.25", "q, k, v", True),
        (", float[5,7] m", "", "q, k, v, m", True),
        (", float[2,1,5,7] m", "", "q, k, v, m", True),
        (", bool[5,7] m", "", "q, k, v, m", False),
        ("", "is_causal = 1", "q, k, v", False),
        ("", "softcap = 2.0", "q, k, v", False),
    ],
)
def test_attention_is_the_same_in_products(
    extra: str, attributes: str, given: str, plain: bool
) -> None:
    rng = np.random.default_rng(0)
    model = attended(extra, attributes, given)
    feeds = {
        v.name: (
            rng.random(v.shape.numpy()) > 0.3
            if v.dtype == ir.DataType.BOOL
            else rng.standard_normal(v.shape.numpy(), np.float32)
        )
        for v in model.graph.inputs
        if v.shape is not None
    }
    evaluate = ReferenceEvaluator
    want = evaluate(ir.to_proto(model)).run(None, feeds)[0]
    model = expand_newer(model, Remarks())
    found = ops(model)
    assert "Attention" not in found
    if plain:
        kinds = ["Mul", "Transpose", "MatMul", *(["Add"] if "m" in given else []), "Softmax"]
        assert sorted(found) == sorted([*kinds, "MatMul"])
    session = import_onnxruntime().InferenceSession(
        ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    np.testing.assert_allclose(session.run(None, feeds)[0], want, rtol=1e-5, atol=1e-6)


def test_a_node_that_stays_in_single_precision_does_so_in_parts() -> None:
    model = expand_newer(attended(""), Remarks())
    names = {n.name for n in model.graph}
    assert parts_of(model, {"a"}) == names | {"a"}
    assert parts_of(model, {"b"}) == {"b"}


PAIR = """(float16[4] x) => (float16[4] y)
<float s = {SCALE}, int8 z = {0}> {
    a = Cast<to = 1>(x)
    q = QuantizeLinear(a, s, z)
    d = DequantizeLinear(q, s, z)
    h = Cast<to = 10>(d)
    y = Relu(h)
}"""


def pair(scale: float) -> ir.Model:
    proto = onnx.parser.parse_model(HEAD + PAIR.replace("SCALE", str(scale)))
    return as_model(proto)


def test_a_pair_beside_half_precision_takes_and_gives_it() -> None:
    model = pair(0.1)
    x = np.array([-1, 0.26, 3, 99], np.float16)
    before = run(model, x)
    join_pairs(model, notes := Remarks())
    RemoveUnusedNodesPass()(model)
    assert ops(model) == ["QuantizeLinear", "DequantizeLinear", "Relu"]
    # One rounding of the scale to half precision apart.
    np.testing.assert_allclose(run(model, x), before, rtol=2e-3)
    assert notes.lines == []


def test_a_scale_that_half_precision_cannot_hold_stays() -> None:
    model = pair(1e-6)
    join_pairs(model, notes := Remarks())
    assert ops(model) == ["Cast", "QuantizeLinear", "DequantizeLinear", "Cast", "Relu"]
    assert notes.lines == ["2 roundings keep scales in fp32: half precision does not hold them"]


@pytest.mark.parametrize("target", ["jetson", "jetson-orin", "jetson-thor"])
def test_no_operator_of_a_vendor_is_written(target: str, tmp_path: Path) -> None:
    model = ir.from_onnx_text(NEW + "(float[2,3] x) => (float[2,3] y) { y = Gelu(x) }")
    lowered = target_for("onnx").lower(model, load(target), LowerOptions(), tmp_path)
    written = ir.load(lowered.files[0])
    assert {n.domain for n in written.graph} == {""}
    assert written.opset_imports[""] == 21
    assert written.metadata_props[TYPED_KEY] == "1"
    assert [e.backend for e in lowered.engines] == [
        "tensorrt",
        "onnxruntime-tensorrt",
        "onnxruntime",
    ]


@pytest.mark.parametrize(
    ("stored", "point", "kind"),
    [("int8", "int8", "static_wi8_ai8"), ("float8e4m3fn", "float8e4m3fn", "fp8")],
)
def test_precision_is_read_from_the_pairs(
    stored: str, point: str, kind: str, tmp_path: Path
) -> None:
    graph = f"""(float[1,4] x) => (float[1,2] y)
    <float s = {{0.1}}, {point} z = {{0}}, {stored}[4,2] w = {{0,0,0,0,0,0,0,0}}> {{
        q = QuantizeLinear(x, s, z)
        d = DequantizeLinear(q, s, z)
        v = DequantizeLinear(w, s, z)
        y = MatMul(d, v)
    }}"""
    proto = onnx.parser.parse_model(HEAD + graph)
    proto.metadata_props.add(key=TYPED_KEY, value="1")
    onnx.save(proto, tmp_path / "m.onnx")
    found = readback.layers(tmp_path / "m.onnx", "onnx")
    assert readback.precision_name(found, "fp32") == kind
    assert readback.precision_name(found, "fp16+fp32") == f"{kind}+fp16"
