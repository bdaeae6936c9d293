import numpy as np
import onnx_ir as ir

from edgeinfer.convert.passes.share_duplicates import ShareInitializers, ShareNodes
from tests.convert.passes.rewriting import check, check_left_alone, f32, parse

X = f32([[1, -2, 3]])


def test_equal_initializers_are_stored_once() -> None:
    model = parse(
        "g (float[1,3] x) => (float[1,3] y) <float[3] a = {1,2,3}, float[3] b = {1,2,3}>"
        " { m = Mul(x, a) y = Add(m, b) }"
    )
    check(model, [ShareInitializers()], {"Mul": 1, "Add": 1}, {"x": X})
    assert list(model.graph.initializers) == ["a"]


def test_small_ones_and_those_of_some_operators_may_stay() -> None:
    text = (
        "g (float[1,3] x) => (float[1,3] y) <float[3] a = {1,2,3}, float[3] b = {1,2,3}>"
        " { m = Mul(x, a) y = Add(m, b) }"
    )
    for sharing in (ShareInitializers(4), ShareInitializers(3, frozenset({"Add"}))):
        model = parse(text)
        sharing(model)
        assert list(model.graph.initializers) == ["a", "b"]
    model = parse(text)
    ShareInitializers(3, frozenset({"Sub"}))(model)
    assert list(model.graph.initializers) == ["a"]


def test_initializers_that_differ_in_anything_stay() -> None:
    check_left_alone(
        parse(
            "g (float[1,3] x) => (float[1,3] y) <float[1] a = {0}, float[1] b = {-0.0},"
            " float[1,1] c = {0}, float d = {0}>"
            " { i = Add(x, a) j = Add(i, b) k = Add(j, c) y = Add(k, d) }"
        ),
        ShareInitializers(),
    )


def test_large_tensors_that_differ_at_the_end_stay() -> None:
    model = parse("g (float[1,3] x) => (float[1,3] y) { a = Mul(x, p) y = Mul(a, q) }")
    for index, (name, last) in enumerate((("p", 1.0), ("q", 2.0))):
        array = np.zeros((4000, 3), np.float32)
        array[-1, -1] = last
        value = ir.Value(name=name, const_value=ir.tensor(array, name=name))
        model.graph.register_initializer(value)
        model.graph[index].replace_input_with(1, value)
    assert not ShareInitializers()(model).modified


def test_equal_nodes_are_computed_once_and_so_is_what_follows() -> None:
    model = parse(
        "g (float[1,3] x) => (float[1,3] y)"
        " { a = Exp(x) b = Exp(x) c = Neg(a) d = Neg(b) y = Add(c, d) }"
    )
    check(model, [ShareNodes()], {"Exp": 1, "Neg": 1, "Add": 1}, {"x": X})


def test_an_output_among_equal_nodes_keeps_its_name() -> None:
    model = parse(
        "g (float[1,3] x) => (float[1,3] y, float[1,3] w)"
        " { a = Exp(x) z = Neg(a) y = Neg(a) w = Add(z, y) }"
    )
    check(model, [ShareNodes()], {"Exp": 1, "Neg": 1, "Add": 1}, {"x": X})


def test_nodes_that_differ_in_anything_stay() -> None:
    check_left_alone(
        parse(
            "g (float[1,3] x) => (float[1,3] a, float[1,3] b, float[1,3] c, float[1,3] d,"
            " float[1,3] e, float[1,3] f)"
            " { a = LeakyRelu<alpha=0.1>(x) b = LeakyRelu<alpha=0.2>(x)"
            " c = RandomUniformLike(x) d = RandomUniformLike(x) e = Sub(a, b) f = Sub(b, a) }"
        ),
        ShareNodes(),
    )


def test_two_equal_outputs_both_stay() -> None:
    check_left_alone(
        parse("g (float[1,3] x) => (float[1,3] a, float[1,3] b) { a = Exp(x) b = Exp(x) }"),
        ShareNodes(),
    )
