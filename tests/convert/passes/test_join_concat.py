import numpy as np
import pytest

from edgeinfer.convert.passes.join_concat import JoinConcat
from tests.convert.passes.rewriting import check, check_left_alone, parse

X = np.array([[1.0, 2.0]], np.float32)
PASSES = [JoinConcat()]
HEAD = "g (float[1,2] x) => (float[1,N] y) { a = Relu(x) b = Neg(x) "


def test_a_chain_becomes_one() -> None:
    model = parse(
        HEAD + "c = Concat<axis=1>(a, b) d = Concat<axis=1>(x, c) e = Concat<axis=1>(d, a) "
        "y = Concat<axis=1>(b, e) }"
    )
    made = check(model, PASSES, {"Relu": 1, "Neg": 1, "Concat": 1}, {"x": X})
    (last,) = [n for n in made.graph if n.op_type == "Concat"]
    assert [v.name for v in last.inputs if v is not None] == ["b", "x", "a", "b", "a"]


def test_two_chains_meet() -> None:
    model = parse(
        HEAD + "c = Concat<axis=1>(a, b) d = Concat<axis=1>(x, a) y = Concat<axis=1>(c, x, d) }"
    )
    check(model, PASSES, {"Relu": 1, "Neg": 1, "Concat": 1}, {"x": X})


@pytest.mark.parametrize(
    "body",
    [
        # Another axis, and one that is counted from the other end.
        "c = Concat<axis=0>(a, b) d = Concat<axis=0>(x, x) y = Concat<axis=1>(c, d) }",
        "c = Concat<axis=-1>(a, b) y = Concat<axis=1>(c, x) }",
        # Another reader, the same reader twice.
        "c = Concat<axis=1>(a, b) d = Exp(c) y = Concat<axis=1>(c, d) }",
        "c = Concat<axis=1>(a, b) y = Concat<axis=1>(c, c) }",
    ],
)
def test_others_stay(body: str) -> None:
    check_left_alone(parse(HEAD + body), *PASSES)


def test_an_output_stays() -> None:
    check_left_alone(
        parse(
            "g (float[1,2] x) => (float[1,4] c, float[1,6] y) "
            "{ c = Concat<axis=1>(x, x) y = Concat<axis=1>(c, x) }"
        ),
        *PASSES,
    )


def test_what_a_branch_reads_from_outside_stays() -> None:
    check_left_alone(
        parse(
            "g (bool t, float[1,2] x) => (float[1,N] y) { c = Concat<axis=1>(x, x) y = If(t) <"
            "then_branch = t () => (float[1,N] o) { o = Concat<axis=1>(c, x) },"
            "else_branch = e () => (float[1,N] p) { p = Neg(x) }> }"
        ),
        *PASSES,
    )
