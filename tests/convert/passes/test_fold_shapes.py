import numpy as np
import pytest

from edgeinfer.convert.passes.dead_code import RemoveDeadCode
from edgeinfer.convert.passes.fold_shapes import FoldShapes
from edgeinfer.convert.passes.shapes import InferShapes
from tests.convert.passes.rewriting import (
    assert_same_bits,
    check,
    check_left_alone,
    ops,
    parse,
    run,
)

PASSES = [InferShapes(), FoldShapes(), RemoveDeadCode()]
CHAIN = (
    "g (float[N,3,H,W] x) => (float[a,b,c] y) <int64 zero = {0}, int64[1] ax = {0},"
    " int64[1] three = {3}, int64[1] rest = {-1}>"
    " { s = Shape(x) n = Gather(s, zero) u = Unsqueeze(n, ax) q = Concat<axis=0>(u, three, rest)"
    " y = Reshape(x, q) }"
)


def test_a_shape_chain_becomes_a_constant_with_copied_and_free_sizes() -> None:
    model = parse(CHAIN)
    x = np.arange(48, dtype=np.float32).reshape(2, 3, 2, 4)
    before = run(model, {"x": x})
    for step in PASSES:
        step(model)
    assert ops(model) == {"Reshape": 1}
    target = model.graph[0].inputs[1]
    assert target is not None
    assert target.const_value is not None
    assert target.const_value.numpy().tolist() == [0, 3, -1]
    assert_same_bits(run(model, {"x": x})[0], before[0])
    other = np.ones((5, 3, 1, 2), np.float32)
    assert run(model, {"x": other})[0].shape == (5, 3, 2)


def test_the_shape_of_a_static_value_is_a_constant() -> None:
    model = parse(
        "g (float[2,3] x) => (float[2,3] y) <int64[2] m = {2,1}>"
        " { s = Shape(x) t = Mul(s, m) k = ConstantOfShape<value=float[1]{2}>(s) y = Mul(x, k) }"
    )
    x = np.ones((2, 3), np.float32)
    check(model, PASSES, {"ConstantOfShape": 1, "Mul": 1}, {"x": x})


def test_expand_to_an_own_size_becomes_constant() -> None:
    model = parse(
        "g (float[N,1] x) => (float[N,5] y) <int64[1] five={5}, int64[1] z={0}, int64[1] o={1}>"
        " { s = Shape(x) n = Slice(s, z, o) t = Concat<axis=0>(n, five) y = Expand(x, t) }"
    )
    check(model, PASSES, {"Expand": 1}, {"x": np.ones((3, 1), np.float32)})


@pytest.mark.parametrize(
    "text",
    [
        # Two dynamic sizes, neither of them at its own axis.
        "g (float[H,W] x) => (float[W,H] y) { t = Transpose(x) s = Shape(t) y = Reshape(x, s) }",
        # A zero the model writes itself means something else where sizes are computed.
        "g (float[N,0] x, float[M] z) => (float[M,0] y)"
        " <int64[1] zero={0}> { s = Shape(z) t = Concat<axis=0>(s, zero) y = Reshape(x, t) }",
        "g (float[N,2] x, int64[2] t) => (float[A,B] y) { y = Reshape(x, t) }",
    ],
)
def test_what_only_a_run_knows_stays(text: str) -> None:
    model = parse(text)
    InferShapes()(model)
    check_left_alone(model, FoldShapes())


def test_a_shape_that_is_an_output_stays() -> None:
    check_left_alone(parse("g (float[2,3] x) => (int64[2] y) { y = Shape(x) }"), FoldShapes())
