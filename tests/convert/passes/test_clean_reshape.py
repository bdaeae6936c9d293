import numpy as np
import pytest

from edgeinfer.convert.passes.clean_reshape import CleanReshape
from edgeinfer.convert.passes.dead_code import RemoveDeadCode
from edgeinfer.convert.passes.shapes import InferShapes
from tests.convert.passes.rewriting import check, check_left_alone, ops, parse, run

X = np.arange(6, dtype=np.float32).reshape(2, 3)
PASSES = [InferShapes(), CleanReshape(), RemoveDeadCode()]


@pytest.mark.parametrize(
    "body",
    [
        "<int64[1] s = {6}, int64[2] t = {2,3}> { a = Reshape(x, s) b = Reshape(a, t) y = Neg(b) }",
        "<int64[2] t = {0,-1}> { a = Reshape(x, t) y = Neg(a) }",
        "<int64[1] u = {0}> { a = Unsqueeze(x, u) b = Squeeze(a, u) y = Neg(b) }",
        "{ a = Flatten<axis=1>(x) y = Neg(a) }",
    ],
)
@pytest.mark.parametrize("first", ["2", "N"])
def test_a_chain_back_to_the_same_shape_goes(body: str, first: str) -> None:
    if first == "N" and "{2,3}" in body:
        body = body.replace("{2,3}", "{-1,3}").replace("{6}", "{-1}")
    model = parse(f"g (float[{first},3] x) => (float[{first},3] y) " + body)
    check(model, PASSES, {"Neg": 1}, {"x": X})


def test_of_two_reshapes_the_last_one_is_left() -> None:
    model = parse(
        "g (float[2,3] x) => (float[3,2] y) <int64[2] s = {6,1}, int64[2] t = {3,-1}>"
        " { a = Reshape(x, s) y = Reshape(a, t) }"
    )
    check(model, PASSES, {"Reshape": 1}, {"x": X})


def test_a_zero_in_the_target_becomes_the_size_it_stood_for() -> None:
    model = parse(
        "g (float[2,3] x) => (float[3,2] y) <int64[2] s = {3,2}, int64[2] t = {0,2}>"
        " { a = Unsqueeze(x, u) b = Reshape(a, s) c = Relu(b) d = Unsqueeze(c, v)"
        " y = Reshape(d, t) u = Constant<value_ints=[2]>() v = Constant<value_ints=[2]>() }"
    )
    model.graph.sort()
    before = run(model, {"x": X})
    for step in PASSES:
        step(model)
    np.testing.assert_array_equal(run(model, {"x": X})[0], before[0])
    assert ops(model)["Reshape"] == 1
    assert "Unsqueeze" not in ops(model)


@pytest.mark.parametrize(
    "text",
    [
        # N is copied from the middle value, whose first axis is not that of x.
        "g (float[A,B] x) => (float[N,M] y) <int64[2] s = {-1,2}, int64[2] t = {0,-1}>"
        " { a = Reshape(x, s) b = Neg(a) y = Reshape(b, t) }",
        "g (float[2,3] x) => (float[3,2] y) <int64[2] t = {3,2}> { y = Reshape(x, t) }",
        "g (float[2,3] x) => (float[2,3] y) <int64[2] t = {2,3}> { y = Reshape(x, t) }",
        "g (float[2,3] x, int64[2] t) => (float[N,M] y) { y = Reshape(x, t) }",
    ],
)
def test_what_cannot_be_known_or_named_otherwise_stays(text: str) -> None:
    model = parse(text)
    if "A,B" in text:
        # Without inference no size is known to be equal.
        check_left_alone(model, CleanReshape())
        return
    InferShapes()(model)
    check_left_alone(model, CleanReshape())


@pytest.mark.parametrize("op", ["ReduceMean", "ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin"])
@pytest.mark.parametrize(
    ("shape", "body", "left"),
    [
        ("2,1", "<int64[1] a = {1}> { b = OP(x, a) y = Neg(b) }", {"Identity": 1, "Neg": 1}),
        ("2", "<int64[1] a = {-1}> { b = OP<keepdims=0>(x, a) y = Neg(b) }", None),
    ],
)
def test_a_reduction_of_single_elements_moves_none(
    op: str, shape: str, body: str, left: dict[str, int] | None
) -> None:
    model = parse(f"g (float[2,1] x) => (float[{shape}] y) " + body.replace("OP", op))
    check(model, PASSES, left or {"Squeeze": 1, "Neg": 1}, {"x": X[:, :1]})


@pytest.mark.parametrize(
    "text",
    [
        "g (float[2,3] x) => (float[2] y) <int64[1] a = {1}> { y = ReduceMean<keepdims=0>(x, a) }",
        "g (float[2,N] x) => (float[2] y) <int64[1] a = {1}> { y = ReduceMean<keepdims=0>(x, a) }",
        "g (float[2,1] x, int64[1] a) => (float[N] y) { y = ReduceSum<keepdims=0>(x, a) }",
        "g (float[2,1] x) => (float[1,1] y) { y = ReduceMax(x) }",
        "g (float[2,1] x) => (float[2,1] y) <int64[1] a = {1}> { y = ReduceL2(x, a) }",
    ],
)
def test_a_reduction_of_more_or_of_another_function_stays(text: str) -> None:
    model = parse(text)
    InferShapes()(model)
    check_left_alone(model, CleanReshape())
