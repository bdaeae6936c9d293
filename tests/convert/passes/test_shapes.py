import numpy as np
import onnx_ir as ir
import pytest

from edgeinfer.convert.passes.lift_constants import LiftConstants
from edgeinfer.convert.passes.shapes import InferShapes
from tests.convert.passes.rewriting import parse


def shape_of(model: ir.Model, name: str) -> list[int | str | None]:
    (value,) = (o for g in model.graphs() for n in g for o in n.outputs if o.name == name)
    assert value.shape is not None
    return [d if isinstance(d, int) else d.value for d in value.shape]


def infer(text: str, opset: int = 24) -> ir.Model:
    model = parse(text, opset)
    LiftConstants()(model)
    model.graph.sort()
    InferShapes()(model)
    return model


SHAPE_CHAIN = (
    "g (float[N,3,H,W] x) => (float[a,b,c] y) <int64 zero = {0}, int64[1] ax = {0},"
    " int64[1] three = {3}, int64[1] rest = {-1}>"
    " { s = Shape(x) n = Gather(s, zero) u = Unsqueeze(n, ax) q = Concat<axis=0>(u, three, rest)"
    " r = Reshape(x, q) t = Transpose<perm=[0,2,1]>(r) y = Relu(t) }"
)


def test_a_reshape_to_sizes_of_its_input_is_understood() -> None:
    model = infer(SHAPE_CHAIN)
    assert shape_of(model, "r") == ["N", 3, "(H*W)"]
    assert shape_of(model, "t") == ["N", "(H*W)", 3]


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("<int64[2] t = {0,-1}> { a = Reshape(x, t) y = Neg(a) }", ["N", 12]),
        ("<int64[2] t = {-1,2}> { a = Reshape(x, t) y = Neg(a) }", ["(6*N)", 2]),
        (
            "<int64[2] t = {-1,4}> { b = Flatten<axis=1>(x) a = Reshape(b, t) y = Neg(a) }",
            ["(3*N)", 4],
        ),
        ("<int64[1] m = {-1}> { s = Shape(x) a = Expand(x, s) y = Neg(a) }", ["N", 3, 4]),
        (
            "{ s = Shape(x) z = ConstantOfShape(s) a = Add(x, z) y = Neg(a) }",
            ["N", 3, 4],
        ),
        (
            "<float[3] f = {1,1,2}> { b = Resize(x, , f) t = Constant<value_ints=[-1,24]>()"
            " a = Reshape(b, t) y = Neg(a) }",
            ["N", 24],
        ),
    ],
)
def test_sizes_follow_through(text: str, shape: list[int | str]) -> None:
    assert shape_of(infer("g (float[N,3,4] x) => (float[] y) " + text), "a") == shape


def test_a_false_declaration_inside_is_replaced() -> None:
    model = parse("g (float[2,3] x) => (float[2,3] y) { a = Neg(x) y = Relu(a) }")
    inner = model.graph[0].outputs[0]
    inner.shape, inner.dtype = ir.Shape([7, 7]), ir.DataType.INT32
    InferShapes()(model)
    assert shape_of(model, "a") == [2, 3]
    assert inner.dtype == ir.DataType.FLOAT


def test_a_false_output_shape_is_reported_and_replaced() -> None:
    model = parse("g (float[2,3] x) => (float[5,3] y) { y = Relu(x) }")
    result = InferShapes().call(model)
    assert shape_of(model, "y") == [2, 3]
    assert "'y'" in result.notes[0]


def test_a_fixed_output_of_a_dynamic_input_is_dynamic() -> None:
    assert shape_of(infer("g (float[N,3] x) => (float[1,3] y) { y = Relu(x) }"), "y") == ["N", 3]


def test_a_declared_name_is_kept_where_inference_knows_none() -> None:
    model = infer("g (float[N] x) => (int64[1,found] y) { y = NonZero(x) }")
    assert shape_of(model, "y") == [1, "found"]


def test_names_like_no_name_do_not_make_sizes_equal() -> None:
    model = parse("g (float[A,B] x) => (float[A,B] y) { y = Relu(x) }")
    model.graph.inputs[0].shape = ir.Shape(["?", "?"])
    InferShapes()(model)
    assert [d.value for d in model.graph.inputs[0].shape] == [None, None]  # type: ignore[union-attr]


def test_what_a_loop_carries_has_no_fixed_shape() -> None:
    model = infer(
        "g (int64 n, bool c, float[1] x) => (float[] y) { y = Loop(n, c, x) <"
        "body = b (int64 i, bool ci, float[1] v) => (bool co, float[] w)"
        " { co = Identity(ci) w = Concat<axis=0>(v, v) }> }"
    )
    body = next(g for g in model.graphs() if g is not model.graph)
    assert body.inputs[2].shape is None
    assert body.inputs[0].shape == ir.Shape([])


def test_weights_are_neither_read_nor_sent_to_inference() -> None:
    model = parse("g (float[N,1000] x) => (float[N,1000] y) { y = MatMul(x, w) }")

    def read() -> ir.TensorProtocol:
        raise AssertionError("the weights were read")

    weight = ir.LazyTensor(read, dtype=ir.DataType.FLOAT, shape=ir.Shape([1000, 1000]), name="w")
    value = ir.Value(name="w", const_value=weight)
    model.graph.register_initializer(value)
    model.graph[0].replace_input_with(1, value)
    InferShapes()(model)
    assert shape_of(model, "y") == ["N", 1000]
    assert model.graph.initializers["w"].const_value is weight
    assert [v.name for v in model.graph.inputs] == ["x"]


def test_a_second_run_finds_nothing_new() -> None:
    model = infer(SHAPE_CHAIN)
    assert not InferShapes()(model).modified
    assert np.all([d is not None for d in shape_of(model, "y")])
