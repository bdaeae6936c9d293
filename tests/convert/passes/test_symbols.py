import onnx_ir as ir
import pytest

from edgeinfer.convert.passes.shapes import InferShapes
from edgeinfer.convert.passes.symbols import Symbols
from tests.convert.passes.rewriting import parse

HEAD = (
    "g (float[N,3,H] x, int64[2] given) => (int64[] y) <int64 i0={0}, int64[1] i1={1},"
    " int64[1] i2={2}, int64[1] m1={-1}, int64[3] ones={1,1,1}, int64[1] v0={0},"
    " int64[1] big={9223372036854775807}> "
)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("{ y = Shape(x) }", ["N", 3, "H"]),
        ("{ y = Shape<start=1>(x) }", [3, "H"]),
        ("{ s = Shape(x) y = Slice(s, i1, big) }", [3, "H"]),
        ("{ s = Shape(x) a = Slice(s, i1, i2) y = Mul(a, i2) }", [6]),
        ("{ s = Shape(x) a = Slice(s, i2, big) y = Mul(a, i2) }", ["(2*H)"]),
        ("{ s = Shape(x) a = Slice(s, i2, big) b = Add(a, i2) y = Sub(b, a) }", [2]),
        ("{ s = Shape(x) a = Slice(s, i2, big) y = Div(a, i2) }", [None]),
        ("{ s = Shape(x) y = Gather(s, i0) }", "N"),
        ("{ s = Shape(x) t = Cast<to=6>(s) y = Cast<to=7>(t) }", ["N", 3, "H"]),
        ("{ s = Shape(x) y = Concat<axis=0>(s, given, m1) }", ["N", 3, "H", None, None, -1]),
        ("{ s = Shape(x) e = Equal(s, m1) y = Where(e, ones, s) }", ["N", 3, "H"]),
        ("{ s = Shape(x) y = ReduceProd<keepdims=0>(s, v0) }", "(3*H*N)"),
        ("{ y = Size(x) }", "(3*H*N)"),
        (
            "{ s = Shape(x) a = Slice(s, i1, i2) c = ConstantOfShape<value=int64[1]{7}>(a)"
            " y = Identity(c) }",
            [7, 7, 7],
        ),
    ],
)
def test_elements_are_followed(body: str, expected: list[int | str | None] | str) -> None:
    model = parse(HEAD + body)
    InferShapes()(model)
    found = Symbols(model).of(model.graph.outputs[0])
    assert found is not None
    shown = [e if isinstance(e, int) or e is None else e.value for e in found.ravel()]
    assert shown == (expected if isinstance(expected, list) else [expected])


def test_integer_division_truncates_towards_zero() -> None:
    model = parse("g () => (int64[2] y) <int64[2] a={-7,7}, int64[1] b={2}> { y = Div(a, b) }")
    found = Symbols(model).of(model.graph.outputs[0])
    assert found is not None
    assert found.tolist() == [-3, 3]


def test_an_index_out_of_range_is_not_followed() -> None:
    model = parse("g (float[3] x) => (int64 y) <int64 i={5}> { s = Shape(x) y = Gather(s, i) }")
    assert Symbols(model).of(model.graph.outputs[0]) is None


def test_names_with_operators_are_opaque() -> None:
    model = parse(
        "g (float[N] x) => (int64[1] y) <int64[1] two={2}> { s = Shape(x) y = Mul(s, two) }"
    )
    model.graph.inputs[0].shape = ir.Shape(["seq-len"])
    found = Symbols(model).of(model.graph.outputs[0])
    assert found is not None
    assert found.tolist() == [None]
