import numpy as np
import onnx_ir as ir

from edgeinfer.convert.passes.interface import (
    DropDefaultInputs,
    NameEverything,
    input_specs,
    output_specs,
)
from edgeinfer.convert.passes.shapes import InferShapes
from edgeinfer.types import TensorSpec
from tests.convert.passes.rewriting import Feeds, check_left_alone, f32, parse, run

X = f32([[1, -2, 3]])


def test_an_input_with_a_value_becomes_a_constant() -> None:
    model = parse("g (float[1,3] x, float[3] k) => (float[1,3] y) { y = Add(x, k) }")
    value = model.graph.inputs[1]
    value.const_value = ir.tensor(f32([1, 2, 3]), name="k")
    model.graph.register_initializer(value)
    DropDefaultInputs()(model)
    assert [v.name for v in model.graph.inputs] == ["x"]
    assert list(model.graph.initializers) == ["k"]
    check_left_alone(model, DropDefaultInputs())


def test_every_node_and_value_gets_a_name_of_its_own() -> None:
    model = parse(
        "g (bool c, float[1,3] x) => (float[1,3] y) { t = Neg(x) y = If(c) <"
        "then_branch = b () => (float[1,3] o) { u = Abs(t) o = Exp(u) },"
        "else_branch = e () => (float[1,3] o) { u = Exp(t) o = Abs(u) }> }"
    )
    for graph in model.graphs():
        for node in graph:
            node.name = "same"
    NameEverything()(model)
    nodes = [n.name for g in model.graphs() for n in g]
    values = [o.name for g in model.graphs() for n in g for o in n.outputs]
    assert len(set(nodes)) == len(nodes)
    assert len(set(values)) == len(values)
    assert nodes[0] == "same"
    feeds: Feeds = {"c": np.asarray(True), "x": X}
    np.testing.assert_allclose(run(model, feeds)[0], np.exp(np.abs(-X)), rtol=1e-6)


def test_good_names_stay() -> None:
    model = parse("g (float[1,3] x) => (float[1,3] y) { a = Neg(x) y = Abs(a) }")
    model.graph[0].name, model.graph[1].name = "first", "second"
    check_left_alone(model, NameEverything())


def test_specs_say_what_is_known() -> None:
    model = parse(
        "g (float[N,3] x, string[2] s) => (int64[2,K] y, string[2] t)"
        " { a = Relu(x) y = NonZero(a) t = Identity(s) }"
    )
    model.graph.outputs[0].shape = None
    InferShapes()(model)
    assert input_specs(model) == (
        TensorSpec("x", "float32", ("N", 3)),
        TensorSpec("s", "string", (2,)),
    )
    assert output_specs(model) == (
        TensorSpec("y", "int64", (2, None)),
        TensorSpec("t", "string", (2,)),
    )
