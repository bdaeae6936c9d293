"""Models that run although they are invalid: repaired with a note, the numbers as before."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx.reference import ReferenceEvaluator

from edgeinfer.convert.sources import read
from edgeinfer.errors import SourceError
from edgeinfer.types import Array


def parse(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(text)


def run(model: onnx.ModelProto, **feeds: Array) -> list[Array]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    results: list[Array] = session.run(None, feeds)
    return results


def repaired(model: onnx.ModelProto, **feeds: Array) -> tuple[ir.Model, list[str]]:
    """Read a model that runs; check that the result is valid and computes the same."""
    before = model.SerializeToString(deterministic=True)
    source = read(model)
    assert model.SerializeToString(deterministic=True) == before
    proto = ir.to_proto(source.model)
    onnx.checker.check_model(proto, full_check=True)
    for expected, actual in zip(run(model, **feeds), run(proto, **feeds), strict=True):
        np.testing.assert_array_equal(actual, expected)
    return source.model, source.notes.lines


X = np.array([1, -2, 3], np.float32)

GOOD = """
<ir_version: 8, opset_import: ["":17]>
g (float[3] x) => (float[3] y) <float[3] w = {1, 2, 3}> {
  [first] t = Mul(x, w)
  [second] y = Relu(t)
}"""


def test_a_good_model_stays_as_it_is() -> None:
    model, notes = repaired(parse(GOOD), x=X)
    assert notes == []
    assert [(node.name, node.op_type) for node in model.graph] == [
        ("first", "Mul"),
        ("second", "Relu"),
    ]


def test_unsorted_nodes() -> None:
    model = parse(GOOD)
    model.graph.node.reverse()
    with pytest.raises(onnx.checker.ValidationError):
        onnx.checker.check_model(model)
    graph, notes = repaired(model, x=X)
    assert notes == ["nodes were not in the order of their data; sorted"]
    assert [node.op_type for node in graph.graph] == ["Mul", "Relu"]


def test_unsorted_nodes_of_a_subgraph_and_what_it_captures() -> None:
    model = parse(
        """
        <ir_version: 8, opset_import: ["":17]>
        g (float[3] x, bool c) => (float[3] y) {
          [choose] y = If (c) <
            then_branch = a () => (float[3] p) { [n1] p = Neg(t)  [n0] t = Abs(s) },
            else_branch = b () => (float[3] q) { [n2] q = Identity(s) }
          >
          [twice] s = Add(x, x)
        }"""
    )
    # ONNX Runtime takes unsorted nodes, but not when a subgraph captures what comes later.
    source = read(model)
    assert source.notes.lines == ["nodes were not in the order of their data; sorted"]
    assert [node.name for node in source.model.graph] == ["twice", "choose"]
    proto = ir.to_proto(source.model)
    (y,) = run(proto, x=X, c=np.array(True))
    np.testing.assert_array_equal(y, [-2, -4, -6])


def test_cycle_is_refused() -> None:
    model = parse(
        """
        <ir_version: 8, opset_import: ["":17]>
        g (float[3] x) => (float[3] y) { t = Add(x, y)  y = Neg(t) }"""
    )
    with pytest.raises(SourceError, match="g: the nodes depend on each other in a circle"):
        read(model)


def test_tensor_that_nothing_makes_is_refused() -> None:
    model = parse(GOOD)
    model.graph.node[1].input[0] = "lost"
    with pytest.raises(SourceError, match="node 'second' reads tensor 'lost'"):
        read(model)
    model = parse(GOOD)
    model.graph.output[0].name = "lost"
    with pytest.raises(SourceError, match="output 'lost' is made by no node"):
        read(model)


def test_tensor_made_twice_is_refused() -> None:
    model = parse(GOOD)
    model.graph.node[0].output[0] = "y"
    with pytest.raises(SourceError, match="g: an invalid ONNX model") as caught:
        read(model)
    assert "\n" not in str(caught.value)


def test_nodes_without_a_name_and_with_a_shared_one() -> None:
    model = parse(
        """
        <ir_version: 8, opset_import: ["":17]>
        g (float[3] x) => (float[3] y) {
          a = Relu(x)
          [same] b = Neg(a)
          [same] c = Neg(b)
          [Relu_0] d = Abs(c)
          y = Relu(d)
        }"""
    )
    # ONNX Runtime refuses names that are shared within a graph; other engines run the model.
    source = read(model)
    names = [node.name for node in source.model.graph]
    assert names == ["Relu_1", "same", "same_0", "Relu_0", "Relu_2"]
    (y,) = run(ir.to_proto(source.model), x=X)
    np.testing.assert_array_equal(y, ReferenceEvaluator(model).run(None, {"x": X})[0])
    assert source.notes.lines == [
        "2 of 5 nodes had no name; named by operator and number",
        "1 of 5 nodes shared a name with another; numbered",
    ]


def test_names_are_unique_across_subgraphs() -> None:
    model = parse(
        """
        <ir_version: 8, opset_import: ["":17]>
        g (float[3] x, bool c) => (float[3] y) {
          [n] s = Relu(x)
          [n_if] y = If (c) <
            then_branch = a () => (float[3] p) { [n] p = Neg(s) },
            else_branch = b () => (float[3] q) { q = Neg(s) }
          >
        }"""
    )
    graph, _ = repaired(model, x=X, c=np.array(False))
    names = [node.name for node in graph.graph.all_nodes()]
    assert len(set(names)) == len(names) == 4


def test_weights_listed_as_inputs_of_an_old_model() -> None:
    model = parse(
        """
        <ir_version: 3, opset_import: ["":9]>
        g (float[3] x, float[3] w) => (float[3] y) <float[3] w = {1, 2, 3}> {
          [n] y = Mul(x, w)
        }"""
    )
    graph, notes = repaired(model, x=X)
    assert [value.name for value in graph.graph.inputs] == ["x"]
    assert list(graph.graph.initializers) == ["w"]
    assert graph.ir_version == 4
    assert notes == ["1 weight also listed as inputs; they are constants now"]


def test_unused_weight_is_dropped_but_not_one_that_is_an_output_or_captured() -> None:
    model = parse(
        """
        <ir_version: 8, opset_import: ["":17]>
        g (float[3] x, bool c) => (float[3] y, float[1] kept)
        <float[1] kept = {5}, float[3] captured = {1, 2, 3}, float[2] unused = {0, 0}> {
          [n] y = If (c) <
            then_branch = a () => (float[3] p) { [n1] p = Mul(x, captured) },
            else_branch = b () => (float[3] q) { [n2] q = Neg(x) }
          >
        }"""
    )
    graph, notes = repaired(model, x=X, c=np.array(True))
    assert sorted(graph.graph.initializers) == ["captured", "kept"]
    assert notes == ["1 weight that nothing uses dropped"]


def test_missing_opset_import() -> None:
    model = parse(GOOD)
    del model.opset_import[:]
    source = read(model)
    newest = onnx.defs.onnx_opset_version()
    assert source.notes.lines == [f"opset of ai.onnx was not stated; taken as {newest}"]
    # An engine may be older than the newest version of the operators.
    (y,) = ReferenceEvaluator(ir.to_proto(source.model)).run(None, {"x": X})
    np.testing.assert_array_equal(y, np.maximum(X * [1, 2, 3], 0))


def test_custom_domain_without_an_import_is_kept() -> None:
    model = parse(GOOD)
    model.graph.node[1].domain = "com.acme"
    source = read(model)
    assert source.notes.lines == ["opset of com.acme was not stated; taken as 1"]
    assert [node.domain for node in source.model.graph] == ["", "com.acme"]


def test_the_default_domain_under_its_other_name() -> None:
    model = parse(GOOD)
    model.opset_import[0].domain = "ai.onnx"
    graph, notes = repaired(model, x=X)
    assert graph.opset_imports == {"": 17}
    assert notes == []


def test_ir_version_of_the_future() -> None:
    model = parse(GOOD)
    model.ir_version = onnx.IR_VERSION + 1
    source = read(model)
    assert source.notes.lines == [
        f"ir_version {onnx.IR_VERSION + 1} is not known yet; written as 10"
    ]
    (y,) = run(ir.to_proto(source.model), x=X)
    np.testing.assert_array_equal(y, np.maximum(X * [1, 2, 3], 0))


def test_graph_without_a_name() -> None:
    model = parse(GOOD)
    model.graph.name = ""
    graph, notes = repaired(model, x=X)
    assert graph.graph.name == "graph"
    assert notes == ["1 graph without a name got one"]


def test_tensor_names_survive_whatever_they_hold() -> None:
    names = {
        "x": 'in "put" {}\n',
        "y": '{"1": "1_minute_timer", "2": "5_minute_timer"}',
        "w": "вес/0:0 weight",
        "t": "",
    }
    model = parse(GOOD)
    names["t"] = "a b;c"
    for node in model.graph.node:
        node.input[:] = [names[name] for name in node.input]
        node.output[:] = [names[name] for name in node.output]
    for value in (*model.graph.input, *model.graph.output, *model.graph.initializer):
        value.name = names[value.name]
    source = read(model)
    graph = source.model.graph
    assert [value.name for value in graph.inputs] == [names["x"]]
    assert [value.name for value in graph.outputs] == [names["y"]]
    assert list(graph.initializers) == [names["w"]]
    assert source.notes.lines == []


def test_functions_are_sorted_and_keep_their_imports() -> None:
    model = parse(
        """
        <ir_version: 8, opset_import: ["":17, "local":1]>
        g (float[3] x) => (float[3] y) { [call] y = local.twice(x) }
        <domain: "local", opset_import: ["":17]>
        twice (a) => (b) { [late] b = Neg(t)  [early] t = Add(a, a) }"""
    )
    source = read(model)
    (function,) = source.model.functions.values()
    assert [node.name for node in function] == ["early", "late"]
    assert source.notes.lines == ["nodes were not in the order of their data; sorted"]
    (y,) = run(ir.to_proto(source.model), x=X)
    np.testing.assert_array_equal(y, -2 * X)


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda n: n.attribute.pop(1), "has no 'else_branch'"),
        (
            lambda n: n.attribute[1].CopyFrom(onnx.helper.make_attribute("else_branch", 1)),
            "has int",
        ),
        (lambda n: n.attribute[1].g.output.pop(), "a branch with 0"),
        (lambda n: n.attribute.append(onnx.helper.make_attribute("more", 1)), "'more'"),
        (lambda n: n.input.pop(), "has 0 inputs"),
    ],
)
def test_incomplete_nodes_are_refused(edit: Callable[[Any], object], said: str) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> g (bool c, float[2] x) => (float[2] y) {
          [if] y = If(c) <then_branch = t () => (float[2] a) {a = Relu(x)},
                          else_branch = e () => (float[2] b) {b = Neg(x)}>
        }"""
    )
    (node,) = model.graph.node
    node.attribute.sort(key=lambda a: a.name, reverse=True)
    edit(node)
    with pytest.raises(SourceError, match=said):
        read(model)


@pytest.mark.parametrize(
    ("node", "said"),
    [
        ("ai.onnx.ml.Scaler <offset: int = 1> (x)", "has int as 'offset', which is floats"),
        ("com.microsoft.FastGelu (x, x, x)", "has 3 inputs, takes 2 at most"),
        ('com.microsoft.FusedMatMul <alpha: string = "a"> (x, x)', "has string as 'alpha'"),
        ('com.microsoft.BiasGelu ("", x)', r"has no input 0 \(A\)"),
    ],
)
def test_nodes_of_other_domains_are_held_to_their_definitions(node: str, said: str) -> None:
    pytest.importorskip("onnxruntime")
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3, "com.microsoft" : 1]>'
        f" g (float[2] x) => (float[2] y) {{ y = {node} }}"
    )
    with pytest.raises(SourceError, match=said):
        read(model)
