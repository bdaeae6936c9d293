"""What integers lie between."""

import pytest

from edgeinfer.convert.lower.whole_spans import Spans
from tests.convert.lower.running import model

INT64 = (-(1 << 63), (1 << 63) - 1)


@pytest.mark.parametrize(
    ("body", "span"),
    [
        ("y = Add(x, k)", (-3, 17)),
        ("y = Mul(x, k)", (-70, 70)),
        ("y = Neg(x)", (-10, 10)),
        ("y = Abs(x)", (0, 10)),
        ("y = Mod(x, k)", (0, 6)),
        ("y = Mod<fmod = 1>(x, k)", (-6, 6)),
        ("y = Div(x, k)", (-10, 10)),
        ("y = Max(x, k)", (7, 10)),
        ("y = Clip(x, k)", (7, 10)),
        ("y = ArgMax(x)", (0, 4)),
        ("y = CumSum(x, z)", (-40, 40)),
        ("a = ReduceSum(x) y = Reshape(a, one)", (-40, 40)),
        ("b = Cast<to = 2>(x) y = Cast<to = 7>(b)", (0, 255)),
        ("f = Cast<to = 1>(x) y = Cast<to = 7>(f)", (-10, 10)),
        ("f = Cast<to = 1>(x) e = Exp(f) y = Cast<to = 7>(e)", INT64),
        ("f = Cast<to = 1>(x) g = Mul(f, h) y = Cast<to = 7>(g)", (-15, 15)),
        ("f = Cast<to = 1>(x) e = Floor(f) g = Div(e, h) y = Cast<to = 7>(g)", (-7, 6)),
        ("f = Cast<to = 1>(x) t = Tanh(f) g = Mul(t, h) y = Cast<to = 7>(g)", (-1, 1)),
        ("c = Less(x, k) y = Where(c, x, k)", (-10, 10)),
        ("y = Max(x, z, k)", (7, 10)),
        ("y = Min(x, k, z)", (-10, 0)),
        ("y = MatMul(x, x)", (-400, 400)),
        (
            "a = Reshape(x, rows) b = Gemm<alpha = 2.0, beta = 3.0, transA = 1>(a, a, k) "
            "y = Reshape(b, m)",
            (-379, 421),
        ),
        ("f = Cast<to = 1>(x) g = Exp(f) h2 = Pow(g, k) y = Cast<to = 7>(h2)", INT64),
        ("a = Reshape(x, rows) b = ReduceSum(a, axis) y = Reshape(b, m)", (-20, 20)),
        ("a = Reshape(x, rows) b = CumSum(a, z) y = Reshape(b, m)", (-20, 20)),
        ("y = ReduceProd(x)", (-10_000, 10_000)),
        ("y = Pow(x, k)", (-(10**7), 10**7)),
        ("y = Pad(x, two, k)", (-10, 10)),
        ("a = Abs(x) y = Pad(a, two)", (0, 10)),
        ("y, i = TopK(x, one)", (-10, 10)),
        ("v, y = TopK(x, one)", (0, 4)),
        ('y = ScatterElements<reduction = "add">(x, j, x)', (-50, 50)),
        ('y = ScatterElements<reduction = "max">(x, j, k4)', (-10, 99)),
        ('y = ScatterElements<reduction = "mul">(x, j, x)', (-100000, 100000)),
    ],
)
def test_spans_follow_operators(body: str, span: tuple[int, int]) -> None:
    known = "int64 k = {7}, int64 z = {0}, int64[1] one = {1}, float h = {1.5}, "
    known += "int64[2] two = {1,1}, int64[4] j = {0,0,0,0}, int64[4] k4 = {99,1,2,3}, "
    known += "int64[2] rows = {2,2}, int64[1] axis = {1}, int64[1] m = {-1}"
    of = model(f"g (int64[4] x) => (int64[n] y) <{known}> {{ {body} }}")
    assert Spans({"x": (-10, 10)}).of(of.graph.outputs[0]) == span


def test_floats_whose_square_no_float_holds_have_no_end() -> None:
    of = model("g (float[4] x) => (float y) { a = ReduceSumSquare<keepdims = 0>(x) y = Mul(a, a) }")
    assert Spans({"x": (-(1 << 1000), 1 << 1000)}).of(of.graph.outputs[0]) == (0, float("inf"))
    of = model("g (float[4] x) => (float y) { a = ReduceSumSquare<keepdims = 0>(x) y = Sub(a, a) }")
    assert Spans({"x": (-(1 << 1000), 1 << 1000)}).of(of.graph.outputs[0]) is not None
