import numpy as np

from edgeinfer.convert.passes.dead_code import RemoveDeadCode
from tests.convert.passes.rewriting import check, check_left_alone, f32, parse

X = f32([[1, -2, 3]])


def test_what_no_output_needs_goes() -> None:
    model = parse(
        "g (float[1,3] x, float[1,3] unused) => (float[1,3] y) <float[2] w = {1,2}>"
        " { y = Relu(x) a = Exp(x) b = Neg(a) }"
    )
    check(model, [RemoveDeadCode()], {"Relu": 1}, {"x": X, "unused": X})
    assert [v.name for v in model.graph.inputs] == ["x", "unused"]
    assert not model.graph.initializers


def test_an_optional_output_nobody_reads_goes() -> None:
    model = parse("g (float[1,1,4] x) => (float[1,1,2] y) { y, i = MaxPool<kernel_shape=[3]>(x) }")
    check(model, [RemoveDeadCode()], {"MaxPool": 1}, {"x": np.ones((1, 1, 4), np.float32)})
    assert len(model.graph[0].outputs) == 1


def test_code_inside_branches_is_swept_and_what_they_read_outside_stays() -> None:
    model = parse(
        "g (bool c, float[1,3] x) => (float[1,3] y) { a = Neg(x) b = Exp(x)"
        " y = If(c) <then_branch = t () => (float[1,3] o) { o = Relu(a) dead = Abs(b) },"
        " else_branch = e () => (float[1,3] p) { p = Abs(x) }> }"
    )
    check(
        model,
        [RemoveDeadCode()],
        {"Neg": 1, "If": 1, "Relu": 1, "Abs": 1},
        {"c": np.asarray(True), "x": X},
    )


def test_an_output_in_the_middle_stays() -> None:
    check_left_alone(
        parse("g (float[1,3] x) => (float[1,3] y, float[1,3] z) { y = Relu(x) z = Neg(y) }"),
        RemoveDeadCode(),
    )
