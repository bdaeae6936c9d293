"""``squeeze(axis)`` as torch writes it: settled where one branch cannot run, else left alone."""

import numpy as np
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, RuntimeException

from edgeinfer.convert.passes import normalise
from edgeinfer.convert.passes.settle_squeeze import SettleSqueeze
from edgeinfer.convert.passes.shapes import InferShapes
from tests.convert.passes.rewriting import check, check_left_alone, f32, ops, parse, run

SQUEEZE = (
    "s = Shape(x) n = Gather<axis = 0>(s, {index}) c = Equal(n, one)"
    " h = If(c) <then_branch = t () => (float[B,C] a) {{ a = Squeeze(x, {axis}) }},"
    " else_branch = e () => (float[B,C,T] b) {{ b = Identity(x) }}>"
)
HEAD = "g (float[B,2,T] x, float[1,8,2] w, float[1,8,2] r) => (float[S,D,N,2] y)"
CONSTANTS = "<int64[1] one = {1}, int64[1] last = {-1}, int64[1] second = {2}, int64[1] zero = {0}>"
LSTM = "u = Unsqueeze(h, zero) y = LSTM<hidden_size = 2>(u, w, r)"


def graph(tail: str, *, index: str = "last", axis: str = "last", head: str = HEAD) -> str:
    return f"{head} {CONSTANTS} {{ {SQUEEZE.format(index=index, axis=axis)} {tail} }}"


def feeds(length: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {"x": (3, 2, length), "w": (1, 8, 2), "r": (1, 8, 2)}
    return {name: f32(rng.standard_normal(shape)) for name, shape in shapes.items()}


@pytest.mark.parametrize(("index", "axis"), [("last", "last"), ("second", "last")])
def test_squeezes_where_the_other_branch_has_too_many_axes(index: str, axis: str) -> None:
    model = parse(graph(LSTM, index=index, axis=axis))
    left = {"Shape": 1, "Gather": 1, "Equal": 1, "Squeeze": 1, "Unsqueeze": 1, "LSTM": 1}
    check(model, [InferShapes(), SettleSqueeze()], left, feeds(1))


def test_refuses_another_size_as_before() -> None:
    before = parse(graph(LSTM))
    after = normalise(before).model
    assert ops(after) == {"Squeeze": 1, "Unsqueeze": 1, "LSTM": 1}
    for model in (before, after):
        with pytest.raises((Fail, InvalidArgument, RuntimeException)):
            run(model, feeds(3))


def test_follows_conditions_on_the_rank() -> None:
    # The way of torch's own LSTM: what has two axes is one sequence, what has three is a batch.
    tail = (
        "q = Shape(h) z = Size(q) two = Constant<value = int64 {2}>() m = Equal(z, two)"
        " k = If(m) <then_branch = tt () => (float[P,Q,R] aa) { aa = Unsqueeze(h, zero) },"
        " else_branch = ee () => (float[P,Q,R,V] bb) { bb = Unsqueeze(h, zero) }>"
        " y = LSTM<hidden_size = 2>(k, w, r)"
    )
    after = normalise(parse(graph(tail))).model
    assert ops(after) == {"Squeeze": 1, "Unsqueeze": 1, "LSTM": 1}
    for old, new in zip(run(parse(graph(tail)), feeds(1)), run(after, feeds(1)), strict=True):
        np.testing.assert_array_equal(old, new)


def test_works_inside_a_branch() -> None:
    inner = SQUEEZE.format(index="last", axis="last") + LSTM.replace("y =", "o =")
    text = (
        "g (float[B,2,T] x, float[1,8,2] w, float[1,8,2] r, bool k) => (float[S,D,N,2] y)"
        f" {CONSTANTS} {{ y = If(k) <then_branch = f () => (float[S,D,N,2] o)"
        f" {{ v = Neg(x) {inner.replace('(x', '(v')} }},"
        " else_branch = l () => (float[S,D,N,2] p) { p = Unsqueeze(w, zero) }> }"
    )
    after = normalise(parse(text)).model
    assert ops(after) == {"If": 1, "Neg": 1, "Squeeze": 1, "Unsqueeze": 2, "LSTM": 1}
    for taken in (True, False):
        given = {**feeds(1), "k": np.asarray(taken)}
        np.testing.assert_array_equal(run(parse(text), given)[0], run(after, given)[0])


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            graph("y = Relu(h)", head="g (float[B,2,T] x) => (float y)"), id="both branches run"
        ),
        pytest.param(graph(LSTM, index="zero"), id="the size of another axis"),
        pytest.param(
            graph(LSTM).replace("b = Identity(x)", "b = Neg(x)"), id="the other branch computes"
        ),
        pytest.param(graph(LSTM).replace("{1}", "{2}"), id="another size"),
        pytest.param(
            graph(LSTM).replace("a = Squeeze(x, last)", "k = Neg(x) a = Squeeze(k, last)"),
            id="this branch computes",
        ),
    ],
)
def test_leaves_alone(text: str) -> None:
    model = parse(text)
    InferShapes()(model)
    check_left_alone(model, SettleSqueeze())
