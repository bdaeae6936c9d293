import onnx
import onnx_ir as ir

from edgeinfer.convert.lower.single import op_name, single, walk
from tests.convert.lower.running import model

TEXT = """g (float[N,4] x, bool c) => (float[N,4] y)
    <float[4,4] w = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}, int64[1] k = {0}, float[100] big> {
    a = MatMul(x, w)
    [named] b = com.acme.Foo(a)
    y = If(c) <
        then_branch = t () => (float[N,4] u) { u = Relu(a) },
        else_branch = e () => (float[N,4] v) { v = Identity(a) }
    >
}"""


def test_walk_reaches_subgraphs_and_numbers_what_has_no_name() -> None:
    found = [(name, op_name(node)) for name, node in walk(model(TEXT))]
    assert found == [
        ("#0", "MatMul"),
        ("named", "com.acme::Foo"),
        ("#2", "If"),
        ("#3", "Relu"),
        ("#4", "Identity"),
    ]


def test_single_keeps_small_constants_and_the_types_of_the_others() -> None:
    whole = model("g (float[N,4] x) => (float[N,4] y) <int64[2] s = {0, 4}> { y = Reshape(x, s) }")
    data = single(next(iter(whole.graph)), whole)
    assert data is not None
    proto = onnx.load_from_string(data)
    assert [i.name for i in proto.graph.input] == ["x0"]
    assert [onnx.numpy_helper.to_array(t).tolist() for t in proto.graph.initializer] == [[0, 4]]
    assert proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "N"
    onnx.checker.check_model(proto)


def test_large_constants_stay_out() -> None:
    whole = model("g (float[1,100] x) => (float[1,100] y) { y = Identity(x) }")
    node = next(iter(whole.graph))
    weights = ir.Value(
        name="w",
        type=ir.TensorType(ir.DataType.FLOAT),
        shape=ir.Shape([100]),
        const_value=ir.tensor([0.5] * 100),
    )
    wide = ir.node("Add", [node.inputs[0], weights])
    data = single(wide, whole)
    assert data is not None
    assert len(onnx.load_from_string(data).graph.initializer) == 0


def test_equal_nodes_give_equal_bytes_whatever_they_are_called() -> None:
    whole = model("g (float[2] x) => (float[2] y) { [a] a = Relu(x) [b] y = Relu(a) }")
    first, second = (single(n, whole) for _, n in walk(whole))
    assert first == second


def test_unknown_rank_is_left_out_on_request() -> None:
    whole = model("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    node = whole.graph[0]
    assert single(node, whole, ranked=True) == single(node, whole)
    whole.graph.inputs[0].shape = None
    assert single(node, whole, ranked=True) is None
    assert single(node, whole) is not None


def test_nodes_with_subgraphs_or_unknown_types_are_left_out() -> None:
    whole = model(TEXT)
    answers = {node.op_type: single(node, whole) for _, node in walk(whole)}
    assert answers["If"] is None
    assert answers["MatMul"] is not None
