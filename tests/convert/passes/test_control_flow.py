import numpy as np
import pytest

from edgeinfer.convert.passes.control_flow import InlineControlFlow
from tests.convert.passes.rewriting import check, check_left_alone, f32, parse

X = f32([[1, -2, 3]])
IF = (
    "y = If(c) <then_branch = t () => (float[1,3] o) <float k = {2}> { a = Mul(z, k) o = Exp(a) },"
    " else_branch = e () => (float[1,3] p) { p = Abs(z) }>"
)


@pytest.mark.parametrize(
    ("condition", "remaining"),
    [("1", {"Neg": 1, "Mul": 1, "Exp": 1}), ("0", {"Neg": 1, "Abs": 1})],
)
def test_the_branch_that_is_taken_stays(condition: str, remaining: dict[str, int]) -> None:
    model = parse(
        f"g (float[1,3] x) => (float[1,3] y) <bool c = {{{condition}}}> {{ z = Neg(x) {IF} }}"
    )
    check(model, [InlineControlFlow()], remaining, {"x": X})


def test_names_that_are_taken_outside_get_a_number() -> None:
    model = parse(
        "g (float[1,3] x) => (float[1,3] y, float[1,3] w) <bool c = {1}> { z = Neg(x) y = If(c) <"
        "then_branch = t () => (float[1,3] o) <float k = {2}> { a = Mul(z, k) o = Exp(a) },"
        "else_branch = e () => (float[1,3] p) { p = Abs(z) }>"
        " w = If(c) <then_branch = t2 () => (float[1,3] o) <float k = {3}>"
        " { a = Mul(z, k) o = Exp(a) }, else_branch = e2 () => (float[1,3] p) { p = Abs(z) }> }"
    )
    check(model, [InlineControlFlow()], {"Neg": 1, "Mul": 2, "Exp": 2}, {"x": X})
    names = [o.name for n in model.graph for o in n.outputs]
    assert len(names) == len(set(names))


def test_a_branch_inside_a_branch_is_inlined_too() -> None:
    model = parse(
        "g (float[1,3] x) => (float[1,3] y) <bool c = {1}> { y = If(c) <"
        "then_branch = t () => (float[1,3] o) { a = Neg(x) o = If(c) <"
        "then_branch = tt () => (float[1,3] oo) { oo = Exp(a) },"
        "else_branch = te () => (float[1,3] op) { op = Abs(a) }> },"
        "else_branch = e () => (float[1,3] p) { p = Abs(x) }> }"
    )
    check(model, [InlineControlFlow()], {"Neg": 1, "Exp": 1}, {"x": X})


def test_a_branch_inside_an_unknown_branch_is_inlined_there() -> None:
    model = parse(
        "g (bool d, float[1,3] x) => (float[1,3] y) <bool c = {0}> { y = If(d) <"
        "then_branch = t () => (float[1,3] o) { a = Neg(x) o = If(c) <"
        "then_branch = tt () => (float[1,3] oo) { oo = Exp(a) },"
        "else_branch = te () => (float[1,3] op) { op = Abs(a) }> },"
        "else_branch = e () => (float[1,3] p) { p = Abs(x) }> }"
    )
    feeds = {"d": np.asarray(True), "x": X}
    check(model, [InlineControlFlow()], {"If": 1, "Neg": 1, "Abs": 2}, feeds)


def test_a_branch_that_gives_a_constant_keeps_the_outputs_name() -> None:
    model = parse(
        "g (float[1,3] x) => (float[1,3] y, float[1,3] z) <bool c = {1}> { y, z = If(c) <"
        "then_branch = t () => (float[1,3] o, float[1,3] q) <float[1,3] o = {1,2,3}>"
        " { q = Neg(x) },"
        "else_branch = e () => (float[1,3] p, float[1,3] r) { p = Abs(x) r = Exp(x) }> }"
    )
    check(model, [InlineControlFlow()], {"Identity": 1, "Neg": 1}, {"x": X})


def test_two_outputs_of_one_value_keep_their_names() -> None:
    model = parse(
        "g (float[1,3] x) => (float[1,3] y, float[1,3] z) <bool c = {1}> { y, z = If(c) <"
        "then_branch = t () => (float[1,3] o, float[1,3] q) { o = Neg(x) q = Identity(o) },"
        "else_branch = e () => (float[1,3] p, float[1,3] r) { p = Abs(x) r = Exp(x) }> }"
    )
    check(model, [InlineControlFlow()], {"Identity": 1, "Neg": 1}, {"x": X})


def test_a_condition_that_is_an_input_stays() -> None:
    check_left_alone(
        parse(f"g (bool c, float[1,3] z) => (float[1,3] y) {{ {IF} }}"), InlineControlFlow()
    )
