import resource
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

import edgeinfer
from edgeinfer.convert.passes.inference import (
    Inference,
    InferenceFailedError,
    infer_shapes,
    is_generated,
)
from edgeinfer.convert.passes.shapes import InferShapes
from tests.convert.passes.rewriting import parse

TEXT = "g (float[N,4] x, int64[2] t) => (float[A,B] y) { a = Reshape(x, t) b = Relu(a) y = Neg(b) }"


def test_what_is_told_between_two_rounds_is_carried_on() -> None:
    model = parse(TEXT)
    for node in model.graph:
        node.outputs[0].shape = None
    inference = Inference(model)
    inference.run()
    a, b = model.graph[0].outputs[0], model.graph[1].outputs[0]
    assert b.shape is not None
    assert all(is_generated(d) for d in b.shape)
    a.shape = ir.Shape(["N", 4])
    inference.tell({a})
    inference.run()
    assert str(b.shape) == "[N,4]"


def test_what_long_vectors_hold_is_not_followed() -> None:
    """It takes about 150 bytes an element, also where nothing is known of them."""
    long = 1 << 22
    text = f"g (float[{long}] x) => (float[N] y) {{ a = Neg(x) b = Add(a, x) y = Mul(b, a) }}"
    proto = ir.to_proto(parse(text))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = infer_shapes(proto)
    assert found.graph.output[0].type.tensor_type.shape.dim[0].dim_value == long
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


def test_a_branch_sees_the_values_of_outer_constants() -> None:
    model = parse(
        "g (float[N,4] x, bool c) => (float[A,B,D] y) <int64[1] a = {1}> { y = If(c)"
        " <then_branch = t () => (float[A,B,D] o) { u = Unsqueeze(x, a) o = Neg(u) },"
        " else_branch = e () => (float[A,B,D] p) { p = Unsqueeze(x, a) }> }"
    )
    branch = model.graph[0].attributes["then_branch"].as_graph()
    branch[0].outputs[0].shape = None
    Inference(model).run()
    assert str(branch[0].outputs[0].shape) == "[N,1,4]"
    assert not branch.initializers


def test_a_model_onnx_cannot_infer_says_why() -> None:
    model = parse("g (float[3] x) => (float[3] y) { y = Neg(x) }")
    model.opset_imports.clear()
    with pytest.raises(InferenceFailedError, match="shape inference failed"):
        Inference(model).run()


@pytest.mark.parametrize("output", ["float", "float[2,4,3,5]"])
def test_group_normalization_has_the_shape_of_its_input(output: str) -> None:
    """onnx 1.23 infers the shape of the scale, (4,)."""
    model = ir.from_onnx_text(
        f"""<ir_version: 10, opset_import: ["": 24]>
        g (float[2,4,3,5] x, float[4] s, float[4] b) => ({output} y)
        {{ y = GroupNormalization<num_groups=2>(x, s, b) }}"""
    )
    for value in model.graph.outputs:
        value.shape = None if output == "float" else value.shape
    InferShapes()(model)
    assert model.graph.outputs[0].shape == ir.Shape([2, 4, 3, 5])


def test_a_product_with_weights_of_a_few_bits_has_a_shape() -> None:
    """onnx has no schema of it; what stands for it while shapes are inferred is gone after."""
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["": 24, "com.microsoft": 1]>
        g (float16[2,M,64] x, uint8[24,2,16] w, float16[48] s) => (float16[2,M,24] y) {
            a = com.microsoft.MatMulNBits<K=64, N=24, bits=4, block_size=32>(x, w, s)
            b = Relu(a)
            y = Neg(b)
        }"""
    )
    InferShapes()(model)
    inner = model.graph[1].outputs[0]
    assert (inner.shape, inner.dtype) == (ir.Shape([2, "M", 24]), ir.DataType.FLOAT16)
    assert [v.name for v in model.graph.inputs] == ["x", "w", "s"]
    assert model.graph[0].op_type == "MatMulNBits"


def test_shapes_go_on_behind_what_only_onnx_runtime_has() -> None:
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["": 24, "com.microsoft": 1]>
        g (float[2,M,64] x, float[64] w) => (float[2,M,64] y) {
            a, , , s = com.microsoft.SkipSimplifiedLayerNormalization(x, x, w)
            b = com.microsoft.QuickGelu(a)
            c, , , t = com.microsoft.SkipSimplifiedLayerNormalization(s, b, w)
            y = Add(c, t)
        }"""
    )
    InferShapes()(model)
    made = [v for n in model.graph for v in n.outputs if v.name]
    assert [v.shape for v in made] == [ir.Shape([2, "M", 64])] * 6
    assert model.graph[0].op_type == "SkipSimplifiedLayerNormalization"


def test_what_a_map_is_made_into_has_no_type_that_could_be_measured(tmp_path: Path) -> None:
    """onnx says of it that it is a tensor, of elements without a kind."""
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 19, "ai.onnx.ml" : 3]> g (float[1,2] x) => (float y) '
        "{ r = ai.onnx.ml.DictVectorizer<int64_vocabulary=[1]>(x) c = Cast<to=1>(r)"
        " y = ReduceMax<keepdims=0>(c) }"
    )
    onnx.save(model, tmp_path / "m.onnx")
    found = edgeinfer.check(tmp_path / "m.onnx", targets=["cpu", "openvino", "rpi5", "ios"])
    for problems in found.values():
        assert [p.op for p in problems] == ["ai.onnx.ml::DictVectorizer"]
