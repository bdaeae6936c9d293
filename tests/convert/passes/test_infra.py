import numpy as np

from edgeinfer.convert.passes.infra import (
    Namer,
    add_initializer,
    constant,
    ints,
    remove_node,
    replace_value,
    same_shape,
    static_shape,
)
from tests.convert.passes.rewriting import f32, ops, parse, run

X = f32([1, -2, 3])


def test_replacing_an_inner_value_moves_its_readers() -> None:
    model = parse("g (float[3] x) => (float[3] y) { a = Neg(x) b = Abs(x) y = Relu(b) }")
    a, b = model.graph[0].outputs[0], model.graph[1].outputs[0]
    assert replace_value(b, a)
    remove_node(model.graph[1])
    np.testing.assert_array_equal(run(model, {"x": X})[0], [0, 2, 0])


def test_replacing_an_output_hands_its_name_over() -> None:
    model = parse("g (float[3] x) => (float[3] y) { a = Neg(x) y = Identity(a) }")
    assert replace_value(model.graph.outputs[0], model.graph[0].outputs[0])
    remove_node(model.graph[1])
    assert [v.name for v in model.graph.outputs] == ["y"]
    assert ops(model) == {"Neg": 1}


def test_an_output_is_not_replaced_by_an_input_an_initializer_or_another_output() -> None:
    model = parse(
        "g (float[3] x) => (float[3] y, float[3] z, float[3] w) <float[3] k = {1,2,3}>"
        " { y = Neg(x) z = Identity(y) w = Identity(k) }"
    )
    y, z, w = model.graph.outputs
    assert not replace_value(z, y)
    assert not replace_value(z, model.graph.inputs[0])
    assert not replace_value(w, model.graph.initializers["k"])
    assert [v.name for v in model.graph.outputs] == ["y", "z", "w"]


def test_new_names_are_free_in_subgraphs_too() -> None:
    model = parse(
        "g (bool c, float[3] x) => (float[3] y) { y = If(c) <"
        "then_branch = t () => (float[3] a) { a = Neg(x) },"
        "else_branch = e () => (float[3] a_1) { a_1 = Abs(x) }> }"
    )
    namer = Namer(model)
    assert [namer.fresh("a"), namer.fresh("a"), namer.fresh("b")] == ["a_2", "a_3", "b"]


def test_constants_are_read_and_inputs_are_not() -> None:
    model = parse("g (float[2,N] x) => (float[2,N] y) { y = Neg(x) }")
    value = add_initializer(model.graph, "k", np.array([1, -1], np.int64))
    assert ints(value) == [1, -1]
    assert constant(model.graph.inputs[0]) is None
    assert static_shape(value) == (2,)
    assert static_shape(model.graph.inputs[0]) is None


def test_equal_names_make_equal_shapes_and_unknown_sizes_none() -> None:
    model = parse("g (float[2,N] x, float[2,N] z, float[2,M] w) => (float[2,N] y) { y = Neg(x) }")
    x, z, w = model.graph.inputs
    assert same_shape(x, z)
    assert not same_shape(x, w)
    x.shape = z.shape = None
    assert not same_shape(x, z)
