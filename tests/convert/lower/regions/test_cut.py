"""Parts of a graph taken out and replaced."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeinfer.backends.onnxruntime.regions import DOMAIN
from edgeinfer.convert.lower.regions import cut
from tests.convert.lower.regions.made import model

TEXT = """(float[2,3] x, float[3,3] w) => (float[2,3] y, float[2,3] b)
<float[2,3] a, float[2,3] b, float[2,3] c, float[2,3] d>
{ a = MatMul(x, w)  b = Relu(a)  c = Exp(b)  d = Add(c, a)  y = Neg(d) }"""


def _part(source: ir.Model, *names: str) -> list[ir.Node]:
    return [n for n in source.graph if n.name in names]


def test_border_has_what_others_read_and_what_the_graph_gives() -> None:
    source = model(TEXT)
    edge = cut.border(source.graph, _part(source, "b", "c", "d"))
    assert [v.name for v in edge.inputs] == ["a"]
    # b is a result of the graph, d is read by Neg.
    assert [v.name for v in edge.outputs] == ["b", "d"]


def test_a_part_alone_has_its_weights_and_types() -> None:
    source = model(TEXT)
    weights = np.arange(9, dtype=np.float32).reshape(3, 3)
    value = source.graph.inputs.pop(1)
    value.const_value = ir.tensor(weights, name="w")
    source.graph.register_initializer(value)
    part = cut.taken_out(source, _part(source, "a", "b"))
    assert [v.name for v in part.graph.inputs] == ["x"]
    assert [v.name for v in part.graph.outputs] == ["a", "b"]
    assert str(part.graph.outputs[0].shape) == "[2,3]"
    held = part.graph.initializers["w"].const_value
    assert held is not None
    np.testing.assert_array_equal(held.numpy(), weights)
    # The source is as it was.
    assert [n.op_type for n in source.graph] == ["MatMul", "Relu", "Exp", "Add", "Neg"]


def test_an_operator_takes_the_place_under_the_same_names() -> None:
    source = model(TEXT)
    cut.put_in(source, _part(source, "b", "c", "d"), "Region0", [np.ones(4, np.float32)])
    assert [(n.domain, n.op_type) for n in source.graph] == [
        ("", "MatMul"),
        (DOMAIN, "Region0"),
        ("", "Neg"),
    ]
    node = source.graph.node("Region0")
    assert [v.name for v in node.inputs if v is not None] == ["a", "Region0_w"]
    assert [v.name for v in node.outputs] == ["b", "d"]
    assert [v.name for v in source.graph.outputs] == ["y", "b"]
    assert source.graph.opset_imports[DOMAIN] == 1


def test_an_operator_stands_behind_all_that_it_reads() -> None:
    source = model(
        """(float[2] x) => (float[2] y) <float[2] a, float[2] b, float[2] c>
        { a = Relu(x)  b = Exp(x)  c = Neg(a)  y = Add(c, b) }"""
    )
    # Between a and y stands b, which the part reads.
    cut.put_in(source, _part(source, "a", "c", "y"), "Region0", [])
    assert [n.op_type for n in source.graph] == ["Exp", "Region0"]
    assert [v.name for v in source.graph.node("Region0").inputs if v is not None] == ["x", "b"]


def test_the_engines_own_gelu_becomes_the_formula() -> None:
    source = model("(float[4] x) => (float[4] y) { y = com.microsoft.Gelu(x) }")
    part = cut.taken_out(source, list(source.graph))
    assert {n.op_type for n in part.graph} == {"Constant", "Div", "Erf", "Add", "Mul"}
    assert all(n.domain == "" for n in part.graph)
    assert [v.name for v in part.graph.outputs] == ["y"]
