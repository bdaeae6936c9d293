import numpy as np
import onnx_ir as ir
import pytest

from edgeinfer.convert.passes.match import (
    Match,
    Number,
    OneOf,
    OpPattern,
    Pattern,
    SharedPattern,
    op,
    var,
)
from tests.convert.passes.fusing import graph

x, y = var("x"), var("y")


def matches(pattern: Pattern, body: str, inputs: str = "float[2,3] a, float[2,3] b") -> list[Match]:
    model = graph(f"g ({inputs}) => (z) {body}")
    return list(pattern.match(model.graph.outputs[0], Match()))


def test_an_operator_and_its_variable_are_found() -> None:
    (found,) = matches(op.Relu(x), "{ z = Relu(a) }")
    assert found.values["x"].name == "a"
    assert [n.op_type for n in found.nodes] == ["Relu"]


def test_another_operator_is_not_found() -> None:
    assert not matches(op.Relu(x), "{ z = Tanh(a) }")


def test_another_domain_is_not_found() -> None:
    model = ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["": 24, "acme": 1]>\n'
        "g (float[2] a) => (float[2] z) { z = acme.Relu(a) }"
    )
    assert not list(op.Relu(x).match(model.graph.outputs[0], Match()))


def test_a_variable_used_twice_must_be_one_value() -> None:
    assert matches(op.Sub(x, x), "{ z = Sub(a, a) }")
    assert not matches(op.Sub(x, x), "{ z = Sub(a, b) }")


@pytest.mark.parametrize("body", ["{ r = Relu(a) z = Max(r, b) }", "{ r = Relu(a) z = Max(b, r) }"])
def test_operands_of_commutative_operators_come_in_any_order(body: str) -> None:
    assert matches(op.Max(op.Relu(x), y), body)


def test_operands_of_other_operators_keep_their_order() -> None:
    assert not matches(op.Sub(op.Relu(x), y), "{ r = Relu(a) z = Sub(b, r) }")


@pytest.mark.parametrize(
    "body",
    [
        "<float h = {0.5}> { m = Mul(a, b) z = Mul(h, m) }",
        "<float h = {0.5}> { m = Mul(b, h) z = Mul(a, m) }",
        "<float t = {2}> { m = Mul(b, a) z = Div(m, t) }",
        "<float t = {2}> { m = Div(a, t) z = Mul(m, b) }",
        "<float t = {4}, float d = {2}> { m = Div(a, t) n = Mul(b, d) z = Mul(m, n) }",
        "<float[1,1] h = {0.5}> { m = Mul(a, h) z = Mul(m, b) }",
    ],
)
def test_a_product_is_found_in_every_order(body: str) -> None:
    found = matches(0.5 * x * y, body)
    assert {(f.values["x"].name, f.values["y"].name) for f in found} == {("a", "b"), ("b", "a")}


@pytest.mark.parametrize(
    "body",
    [
        "<float t = {2}> { z = Pow(a, t) }",
        "<int64 t = {2}> { z = Pow(a, t) }",
        "{ z = Mul(a, a) }",
    ],
)
def test_a_square_is_a_power_or_a_product(body: str) -> None:
    assert matches((x**2).named("s"), body)


@pytest.mark.parametrize(
    "body",
    [
        "{ s = Sqrt(b) z = Div(a, s) }",
        "{ s = Sqrt(b) r = Reciprocal(s) z = Mul(r, a) }",
        "<float o = {1}> { s = Sqrt(b) r = Div(o, s) z = Mul(a, r) }",
        "<float e = {-0.5}> { r = Pow(b, e) z = Mul(a, r) }",
        "<float e = {0.5}> { s = Pow(b, e) z = Div(a, s) }",
    ],
)
def test_an_inverse_root_is_found_in_every_spelling(body: str) -> None:
    assert matches(x * y**-0.5, body)


def test_a_quotient_is_not_a_product() -> None:
    assert not matches(x * y, "{ z = Div(a, b) }")


def test_a_factor_with_another_use_is_not_opened() -> None:
    body = "<float h = {0.5}> { m = Mul(a, h) n = Relu(m) z = Mul(m, n) }"
    (found,) = matches(x * op.Relu(x), body)
    assert found.values["x"].name == "m"


@pytest.mark.parametrize("wanted", [0.1, 1 / 3, 1.702, 0.7071067811865476])
@pytest.mark.parametrize("name", ["float", "double", "float16"])
def test_a_literal_is_found_in_the_rounding_of_its_type(wanted: float, name: str) -> None:
    text = repr(float(np.float32(wanted)) if name == "float" else wanted)
    if name == "float16":
        text = str(int(np.float16(wanted).view(np.uint16)))
    kind, body = f"{name}[2] a", f"<{name} c = {{{text}}}> {{ z = Mul(a, c) }}"
    assert matches(wanted * x, body, kind)


@pytest.mark.parametrize("near", [0.4999, 0.50001, 0.5000003])
def test_a_near_constant_is_another_one(near: float) -> None:
    assert not matches(0.5 * x, f"<float c = {{{near!r}}}> {{ z = Mul(a, c) }}")


def test_a_half_precision_literal_in_single_precision_is_another_one() -> None:
    rounded = float(np.float16(0.7071067811865476))
    assert not matches(x / 2**0.5, f"<float c = {{{rounded!r}}}> {{ z = Mul(a, c) }}")


def test_an_array_is_no_scalar() -> None:
    assert not matches(0.5 * x, "<float[3] c = {0.5, 0.5, 0.5}> { z = Mul(a, c) }")


def test_a_constant_that_raises_the_rank_is_no_scalar() -> None:
    assert not matches(0.5 * x, "<float[1,1,1] c = {0.5}> { z = Mul(a, c) }")


def test_an_initializer_that_a_caller_may_set_is_no_constant() -> None:
    model = graph("g (float[2,3] a, float c) => (float[2,3] z) <float c = {0.5}> { z = Mul(a, c) }")
    assert not list((0.5 * x).match(model.graph.outputs[0], Match()))


def test_an_integer_is_no_scalar() -> None:
    assert not matches(2.0 * x, "<int64 c = {2}> { z = Mul(a, c) }", "int64[2] a")


@pytest.mark.parametrize(
    ("body", "offset"),
    [
        ("<float c = {3}> { z = Add(a, c) }", 3.0),
        ("<float c = {3}> { z = Add(c, a) }", 3.0),
        ("<float c = {3}> { z = Sub(a, c) }", -3.0),
    ],
)
def test_an_offset_is_captured(body: str, offset: float) -> None:
    (found,) = matches(x + Number("c"), body)
    assert found.numbers["c"] == offset


def test_a_constant_minus_a_value_is_no_offset() -> None:
    assert not matches(x + Number("c"), "<float c = {3}> { z = Sub(c, a) }")


def test_a_captured_coefficient_joins_all_constants() -> None:
    body = "<float c = {3}, float d = {2}> { m = Mul(a, c) z = Div(m, d) }"
    (found,) = matches(Number("k") * x, body)
    assert found.numbers["k"] == 1.5


def test_a_captured_coefficient_is_one_where_there_is_none() -> None:
    (found,) = matches(Number("k") * x, "{ z = Mul(a, b) }")
    assert (found.numbers["k"], found.values["x"].name) == (1.0, "z")


def test_a_number_used_twice_must_be_one_number() -> None:
    pattern = op.Sub(x + Number("c"), y + Number("c"))
    body = "<float c = {3}, float d = {%s}> { m = Add(a, c) n = Add(b, d) z = Sub(m, n) }"
    assert matches(pattern, body % "3")
    assert not matches(pattern, body % "4")


def test_alternatives_are_tried_in_order() -> None:
    pattern = OneOf((op.Relu(x), op.Tanh(x)))
    assert pattern.roots == {"Relu", "Tanh"}
    assert matches(pattern, "{ z = Tanh(a) }")


def test_shared_nodes_are_kept_apart() -> None:
    (found,) = matches(op.Tanh(SharedPattern(op.Relu(x))), "{ r = Relu(a) z = Tanh(r) }")
    assert [n.op_type for n in found.nodes] == ["Tanh"]
    assert [n.op_type for n in found.shared] == ["Relu"]


def test_a_condition_on_the_node_is_asked() -> None:
    first = OpPattern("Softmax", (x,), lambda n: n.attributes.get_int("axis", -1) == 0)
    assert matches(first, "{ z = Softmax<axis = 0>(a) }")
    assert not matches(first, "{ z = Softmax(a) }")


def test_a_missing_optional_input_is_another_node() -> None:
    pattern = op.Clip(x, 0.0, 6.0)
    assert matches(pattern, "<float l = {0}, float h = {6}> { z = Clip(a, l, h) }")
    assert not matches(pattern, "<float l = {0}> { z = Clip(a, l) }")
    assert not matches(pattern, "<float h = {6}> { z = Clip(a, , h) }")


def test_a_coefficient_inside_a_product_cannot_be_captured() -> None:
    with pytest.raises(TypeError, match="outermost"):
        _ = (Number("k") * x) * y


def test_a_chain_of_thousands_of_products_is_not_opened() -> None:
    nodes = " ".join(f"m{i + 1} = Mul(m{i}, a)" for i in range(3000))
    assert not matches(0.5 * x * y, f"{{ m0 = Relu(a) {nodes} z = Mul(m3000, a) }}")
