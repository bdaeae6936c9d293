import numpy as np
import pytest

from edgeinfer.convert.passes.clean_identity import RemoveIdentity
from edgeinfer.convert.passes.dead_code import RemoveDeadCode
from edgeinfer.convert.passes.shapes import InferShapes
from tests.convert.passes.rewriting import check, check_left_alone, parse

X = np.array([[-0.0, 0.0, np.inf], [-1.5, np.nan, 2.0]], np.float32)
PASSES = [InferShapes(), RemoveIdentity(), RemoveDeadCode()]


@pytest.mark.parametrize(
    "body",
    [
        "{ a = Identity(x) y = Relu(a) }",
        "{ a = Dropout(x) y = Relu(a) }",
        "{ a = Concat<axis=1>(x) y = Relu(a) }",
        "{ a = Sum(x) y = Relu(a) }",
        "{ a = Max(x) y = Relu(a) }",
        "<float one = {1}> { a = Mul(one, x) y = Relu(a) }",
        "<float[1,1] one = {1}> { a = Div(x, one) y = Relu(a) }",
        "<float z = {0}> { a = Sub(x, z) y = Relu(a) }",
        "<float[3] z = {-0.0,-0.0,-0.0}> { a = Add(x, z) y = Relu(a) }",
        "<int64[4] p = {0,0,0,0}> { a = Pad(x, p) y = Relu(a) }",
        "<int64[2] r = {1,1}> { a = Tile(x, r) y = Relu(a) }",
        "<int64[2] s = {2,1}> { a = Expand(x, s) y = Relu(a) }",
        "<int64[1] s = {0}, int64[1] e = {9223372036854775807}, int64[1] ax = {1}>"
        " { a = Slice(x, s, e, ax) y = Relu(a) }",
        "<int64[1] s = {0}, int64[1] e = {3}, int64[1] ax = {1}>"
        " { a = Slice(x, s, e, ax) y = Relu(a) }",
        '<float[2] s = {1,1}> { a = Resize<mode="nearest">(x, , s) y = Relu(a) }',
        "{ y = Identity(b) b = Relu(x) }",
    ],
)
def test_what_changes_nothing_goes(body: str) -> None:
    model = parse("g (float[2,3] x) => (float[2,3] y) " + body)
    model.graph.sort()
    check(model, PASSES, {"Relu": 1}, {"x": X})


@pytest.mark.parametrize(
    "body",
    [
        # -0.0 + 0.0 is 0.0, and 0.0 - -0.0 is 0.0 too.
        "<float z = {0}> { a = Add(x, z) y = Neg(a) }",
        "<float z = {-0.0}> { a = Sub(x, z) y = Neg(a) }",
        "<float one = {1}> { a = Div(one, x) y = Neg(a) }",
        "<float z = {0}> { a = Sub(z, x) y = Neg(a) }",
        "<float[2] o = {1,1.0000001}, int64[2] s = {2,1}>"
        " { c = Reshape(o, s) a = Mul(x, c) y = Neg(a) }",
        "<int64[4] p = {0,1,0,-1}> { a = Pad(x, p) y = Neg(a) }",
        "<int64[1] s = {-1}, int64[1] e = {-9}, int64[1] ax = {0}, int64[1] st = {-1}>"
        " { a = Slice(x, s, e, ax, st) y = Neg(a) }",
        # Without bounds, the type's limits are the bounds: infinity becomes finite.
        "{ a = Clip(x) y = Neg(a) }",
        "{ y = Identity(x) }",
    ],
)
def test_what_changes_something_stays(body: str) -> None:
    check_left_alone(parse("g (float[2,3] x) => (float[2,3] y) " + body), RemoveIdentity())


@pytest.mark.parametrize(
    ("head", "body"),
    [
        ("(float[2,3] x, int64[2] s) => (float[2,3] y)", "{ a = Expand(x, s) y = Neg(a) }"),
        (
            "(float[n,3] x, int64[1] k) => (float[n,3] y)",
            "<int64[1] three = {3}> { s = Concat<axis=0>(k, three) y = Expand(x, s) }",
        ),
    ],
)
def test_an_expansion_to_sizes_of_a_run_stays(head: str, body: str) -> None:
    model = parse(f"g {head} {body}")
    InferShapes()(model)
    check_left_alone(model, RemoveIdentity())


@pytest.mark.parametrize(
    "body",
    [
        "<float[2,3] one = {1,1,1,1,1,1}> { a = Mul(x, one) y = Neg(a) }",
        "<int64[2] s = {2,3}> { a = Expand(x, s) y = Neg(a) }",
    ],
)
def test_what_widens_the_shape_stays(body: str) -> None:
    model = parse("g (float[1,3] x) => (float[2,3] y) " + body)
    InferShapes()(model)
    check_left_alone(model, RemoveIdentity())


def test_two_outputs_of_one_value_keep_their_names() -> None:
    model = parse(
        "g (float[2,3] x) => (float[2,3] y, float[2,3] z, float[2,3] w) "
        "{ y = Relu(x) z = Identity(y) w = Identity(x) }"
    )
    check(model, PASSES, {"Relu": 1, "Identity": 2}, {"x": X})


@pytest.mark.parametrize("body", ["y = Dropout(x)", "y = Mul(one, x)", "y = Sum(x)"])
def test_between_an_input_and_an_output_an_identity_is_left(body: str) -> None:
    model = parse(f"g (float[2,3] x) => (float[2,3] y) <float one = {{1}}> {{ {body} }}")
    check(model, PASSES, {"Identity": 1}, {"x": X})


def test_an_output_that_is_an_initializer_keeps_its_identity() -> None:
    model = parse("g (float[1] x) => (float[1] y) <float[1] c = {3}> { y = Identity(c) }")
    check_left_alone(model, RemoveIdentity())


def test_a_dropout_whose_mask_is_read_stays() -> None:
    model = parse("g (float[2,3] x) => (float[2,3] y, bool[2,3] m) { y, m = Dropout(x) }")
    check_left_alone(model, RemoveIdentity())


def test_a_dropout_in_training_mode_stays() -> None:
    model = parse(
        "g (float[2,3] x) => (float[2,3] y) <float r = {0.5}, bool t = {1}>"
        " { a = Dropout(x, r, t) y = Relu(a) }"
    )
    check_left_alone(model, RemoveIdentity())
