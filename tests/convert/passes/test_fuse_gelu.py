import math

import numpy as np
import pytest

from edgeinfer.convert.passes.fuse_gelu import FuseGelu
from edgeinfer.types import Array
from tests.convert.passes.fusing import check_fused, check_left_alone

HEAD = "g (float[2,3,16] x) => (float[2,3,16] y) "
CONSTANTS = (
    "<float half = {0.5}, float one = {1}, float root = {1.4142135}, float inverse = {0.70710677},"
    " float three = {3}, float two = {2}, float c = {0.044715}, float s = {0.7978846}> "
)
X = (4 * np.random.default_rng(0).standard_normal((2, 3, 16))).astype(np.float32)

ERF = {
    "torchscript": "{ d = Div(x, root) e = Erf(d) a = Add(e, one) m = Mul(x, a) y = Mul(m, half) }",
    "dynamo": "{ d = Div(x, root) e = Erf(d) a = Add(e, one) m = Mul(half, a) y = Mul(x, m) }",
    "half_first": "{ h = Mul(x, half) d = Mul(x, inverse) e = Erf(d) a = Add(one, e)"
    " y = Mul(h, a) }",
    "half_last": "{ d = Mul(inverse, x) e = Erf(d) a = Add(e, one) m = Mul(a, x) y = Div(m, two) }",
}
TANH = {
    "pow": "{ p = Pow(x, three) m = Mul(c, p) i = Add(x, m) k = Mul(s, i) t = Tanh(k)"
    " a = Add(t, one) h = Mul(half, a) y = Mul(x, h) }",
    "products": "{ q = Mul(x, x) p = Mul(x, q) m = Mul(c, p) i = Add(m, x) k = Mul(s, i)"
    " t = Tanh(k) a = Add(one, t) h = Mul(x, a) y = Mul(half, h) }",
    "factored": "{ h = Mul(x, half) u = Mul(x, s) v = Mul(x, c) w = Mul(v, x) a = Add(w, one)"
    " k = Mul(u, a) t = Tanh(k) b = Add(t, one) y = Mul(h, b) }",
}


def exact(x: Array) -> Array:
    erf = np.vectorize(math.erf)
    wide = x.astype(np.float64)
    return np.asarray(0.5 * wide * (1 + erf(wide / math.sqrt(2))))


def approximate(x: Array) -> Array:
    wide = x.astype(np.float64)
    return np.asarray(
        0.5 * wide * (1 + np.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)))
    )


@pytest.mark.parametrize("form", ERF)
def test_the_erf_formula_becomes_gelu(form: str) -> None:
    model = check_fused(HEAD + CONSTANTS + ERF[form], [FuseGelu()], {"Gelu": 1}, {"x": X}, exact(X))
    assert model.graph.node(0).attributes.get_string("approximate") == "none"


@pytest.mark.parametrize("form", TANH)
def test_the_tanh_formula_becomes_gelu(form: str) -> None:
    model = check_fused(
        HEAD + CONSTANTS + TANH[form], [FuseGelu()], {"Gelu": 1}, {"x": X}, approximate(X)
    )
    assert model.graph.node(0).attributes.get_string("approximate") == "tanh"


def test_extreme_values_stay_what_they_are() -> None:
    x = np.array([np.inf, 1e30, 100, -100, -1e-30, 0, np.nan], np.float32)
    text = "g (float[7] x) => (float[7] y) " + CONSTANTS + ERF["torchscript"]
    check_fused(text, [FuseGelu()], {"Gelu": 1}, {"x": x})


def test_two_of_them_in_a_row_are_both_found() -> None:
    body = ERF["dynamo"].rstrip("} ").replace("y =", "u =")
    second = " d2 = Div(u, root) e2 = Erf(d2) a2 = Add(e2, one) m2 = Mul(half, a2) y = Mul(u, m2) }"
    check_fused(HEAD + CONSTANTS + body + second, [FuseGelu()], {"Gelu": 2}, {"x": X})


def test_one_in_a_subgraph_is_found() -> None:
    text = (
        "g (bool p, float[4] x) => (float[4] y) " + CONSTANTS + "{ y = If (p) <"
        " then_branch = t () => (float[4] u) { d = Div(x, root) e = Erf(d) a = Add(e, one)"
        " m = Mul(x, a) u = Mul(m, half) },"
        " else_branch = f () => (float[4] w) { w = Relu(x) }> }"
    )
    feeds = {"p": np.array(True), "x": X[0, 0, :4]}
    check_fused(text, [FuseGelu()], {"If": 1, "Gelu": 1, "Relu": 1}, feeds)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("float half = {0.5}", "float half = {0.501}"),
        ("float one = {1}", "float one = {1.001}"),
        ("float root = {1.4142135}", "float root = {1.415}"),
        ("float half = {0.5}", "float[1,1,1,1] half = {0.5}"),
    ],
)
def test_other_constants_are_left_alone(old: str, new: str) -> None:
    head = "g (float[2,3,16] x) => (y) "
    check_left_alone(head + CONSTANTS.replace(old, new) + ERF["torchscript"], FuseGelu())


def test_another_factor_is_left_alone() -> None:
    body = ERF["torchscript"].replace("m = Mul(x, a)", "r = Relu(x) m = Mul(r, a)")
    check_left_alone(HEAD + CONSTANTS + body, FuseGelu())


def test_an_inner_value_that_is_an_output_is_left_alone() -> None:
    text = HEAD.replace("=> (", "=> (float[2,3,16] e, ") + CONSTANTS + ERF["torchscript"]
    check_left_alone(text, FuseGelu())


def test_an_inner_value_with_another_reader_is_left_alone() -> None:
    text = HEAD.replace("=> (", "=> (float[2,3,16] z, ") + CONSTANTS
    check_left_alone(text + ERF["torchscript"].replace("}", " z = Relu(e) }"), FuseGelu())


@pytest.mark.parametrize("kind", ["float16", "double"])
def test_other_types_are_left_alone(kind: str) -> None:
    constants = (CONSTANTS if kind == "double" else HALVES).replace("float ", kind + " ")
    text = HEAD.replace("float", kind) + constants + ERF["torchscript"]
    check_left_alone(text, FuseGelu())


HALVES = "<float half = {14336}, float one = {15360}, float root = {15784}> "
"""0.5, 1 and the root of 2 as the bits of half precision, as ONNX text wants them."""
