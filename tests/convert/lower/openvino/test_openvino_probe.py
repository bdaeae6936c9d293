import pytest

from edgeinfer.convert.lower.openvino.probe import OpenVinoProbe
from tests.convert.lower.running import model

pytest.importorskip("openvino")


@pytest.fixture(scope="module")
def probe() -> OpenVinoProbe:
    return OpenVinoProbe()


def test_a_bug_of_ours_is_not_taken_for_an_answer(probe: OpenVinoProbe) -> None:
    with pytest.raises(TypeError):
        probe._ask(12, stored=False)  # type: ignore[arg-type]


def test_nodes_of_unknown_rank_are_not_asked_about(probe: OpenVinoProbe) -> None:
    whole = model("g (float[N,2] x, float[2,2] w) => (float[N,2] y) { y = MatMul(x, w) }")
    whole.graph.inputs[0].shape = None
    assert probe.problems(whole) == []


def test_failure_of_the_whole_model_names_the_node_and_the_cause(probe: OpenVinoProbe) -> None:
    whole = model("""g (float[1,2,8] x) => (float[1,2,8] a, float[1,2,8] y) {
        [one] a = Softplus(x)
        [two] y = Softplus(x)
    }""")
    error = RuntimeError(
        "Model wasn't fully converted. Failed operations detailed log:\n-- Softplus-24 with a "
        "message:\nWhile validating ONNX node '<Node(Softplus): y>': Check 'rank().is_static()' "
        "failed at src/x.cpp:38:\nFrontEnd API failed with GeneralFailure:\n"
        "The input data tensor's rank has to be known (static)\nSummary:\n"
        "-- Conversion is failed for: Softplus-24"
    )
    assert [str(p) for p in probe.explain(error, whole)] == [
        f"Softplus 'two': dynamic_shape: OpenVINO {probe.version}: The input data tensor's rank "
        "has to be known (static) (fixed input shapes may fold away what the reader stumbles over)"
    ]


def test_operators_without_conversion_are_found_by_name(probe: OpenVinoProbe) -> None:
    whole = model("g (float[2] x) => (float[2] y) { [a] a = Relu(x) [b] y = Abs(a) }")
    error = RuntimeError(
        "Summary: -- No conversion rule found for operations: ai.onnx.x.Foo, Abs-24 To facilitate"
    )
    assert [(p.node, p.reason) for p in probe.explain(error, whole)] == [("b", "unsupported_op")]


def test_message_without_names_is_passed_on(probe: OpenVinoProbe) -> None:
    whole = model("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    (found,) = probe.explain(RuntimeError("out of\nluck"), whole)
    assert (found.node, found.detail) == ("#all", "out of luck")


def test_what_cannot_be_read_back_from_a_file_is_lacking(probe: OpenVinoProbe) -> None:
    cache = "float[1,2,8,16]"
    whole = model(
        "g (float[1,1,64] q, float[1,1,32] k, float[1,1,32] v, "
        f"{cache} p, {cache} r, int32[1,1] s, int32 t) => (float[1,1,64] y, {cache} a, {cache} b) "
        "{ y, a, b = com.microsoft.GroupQueryAttention<num_heads=4, kv_num_heads=2>"
        "(q, k, v, p, r, s, t) }"
    )
    whole.opset_imports["com.microsoft"] = 1
    (node,) = whole.graph
    assert "GroupQueryAttention" in probe.fault(node, whole)
    assert probe.lacking(whole) == [node]
