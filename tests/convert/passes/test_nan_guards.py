import numpy as np
import pytest

from edgeinfer.convert.passes.dead_code import RemoveDeadCode
from edgeinfer.convert.passes.nan_guards import RemoveNanGuards
from edgeinfer.convert.passes.shapes import InferShapes
from tests.convert.passes.rewriting import check, check_left_alone, parse

GUARD = "s = Softmax<axis=-1>(z) n = IsNaN(s) w = Where(n, zero, s) y = MatMul(w, v)"
HEAD = "g (float[2,3,4] q, float[2,4,3] k, float[2,3,4] v, float[3,3] given, bool[3,3] allowed)"
HEAD += " => (float[2,3,4] y) "
RNG = np.random.default_rng(0)
FEEDS = {
    "q": RNG.standard_normal((2, 3, 4)).astype(np.float32),
    "k": RNG.standard_normal((2, 4, 3)).astype(np.float32),
    "v": RNG.standard_normal((2, 3, 4)).astype(np.float32),
    "given": np.zeros((3, 3), np.float32),
    "allowed": np.ones((3, 3), np.bool_),
}
PASSES = [InferShapes(), RemoveNanGuards(), RemoveDeadCode()]
CAUSAL = "float[3,3] mask = {0,-inf,-inf, 0,0,-inf, 0,0,0}"


@pytest.mark.parametrize(
    ("constants", "body", "remaining"),
    [
        ("float zero = {0}", "z = MatMul(q, k)", {}),
        ("float zero = {0}, float scale = {0.5}", "m = MatMul(q, k) z = Mul(m, scale)", {"Mul": 1}),
        ("float zero = {0}, float two = {2}", "m = MatMul(q, k) z = Div(m, two)", {"Div": 1}),
        (f"float zero = {{0}}, {CAUSAL}", "m = MatMul(q, k) z = Add(m, mask)", {"Add": 1}),
        (f"float[1] zero = {{0}}, {CAUSAL}", "m = MatMul(q, k) z = Add(mask, m)", {"Add": 1}),
        (
            "float zero = {0}, float low = {-3.0e38}",
            "m = MatMul(q, k) b = Where(allowed, zero, low) z = Add(m, b)",
            {"Add": 1, "Where": 1},
        ),
    ],
)
def test_a_guard_that_cannot_fire_goes(
    constants: str, body: str, remaining: dict[str, int]
) -> None:
    model = parse(f"{HEAD} <{constants}> {{ {body} {GUARD} }}")
    check(model, PASSES, {"MatMul": 2, "Softmax": 1} | remaining, FEEDS)


@pytest.mark.parametrize(
    ("constants", "body"),
    [
        # A row that is masked as a whole, masks that are inputs or depend on them, and a score
        # that may be infinite by itself.
        (
            "float zero = {0}, float[3,3] mask = {0,0,0, -inf,-inf,-inf, 0,0,0}",
            "m = MatMul(q, k) z = Add(m, mask)",
        ),
        ("float zero = {0}, float[3,1] mask = {0,-inf,0}", "m = MatMul(q, k) z = Add(m, mask)"),
        ("float zero = {0}", "m = MatMul(q, k) z = Add(m, given)"),
        (
            "float zero = {0}, float low = {-inf}",
            "m = MatMul(q, k) b = Where(allowed, zero, low) z = Add(m, b)",
        ),
        ("float zero = {0}", "m = MatMul(q, k) z = Log(m)"),
        ("float zero = {1}", "z = MatMul(q, k)"),
        ("float zero = {0}, float none = {0}", "m = MatMul(q, k) z = Div(m, none)"),
    ],
)
def test_a_guard_that_may_fire_stays(constants: str, body: str) -> None:
    model = parse(f"{HEAD} <{constants}> {{ {body} {GUARD} }}")
    InferShapes()(model)
    check_left_alone(model, RemoveNanGuards())


def test_another_wheres_condition_stays() -> None:
    model = parse(
        "g (float[2,3] x, float[2,3] t) => (float[2,3] y)"
        " <float zero = {0}, float[3,3] w = {1,2,3,4,5,6,7,8,9}>"
        " { z = MatMul(x, w) s = Softmax(z) n = IsNaN(t) y = Where(n, zero, s) }"
    )
    InferShapes()(model)
    check_left_alone(model, RemoveNanGuards())
