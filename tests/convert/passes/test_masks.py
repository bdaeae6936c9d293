import pytest

from edgeinfer.convert.passes.masks import keeps_a_key
from tests.convert.passes.fusing import graph

HEAD = "g (bool[N,4] c, int64[N,4] i, float[N,4] f) => (m) "
CONSTANTS = "<float one = {1}, float low = {-3.4e38}, float zero = {0}, int64[1] a = {1}> "


@pytest.mark.parametrize(
    "body",
    [
        "m = Where(c, zero, low)",
        "w = Where(c, low, zero) m = Unsqueeze(w, a)",
        "d = Cast<to = 7>(c) u = Cast<to = 1>(d) s = Sub(one, u) m = Mul(s, low)",
        "u = Cast<to = 1>(c) s = Sub(one, u) v = Unsqueeze(s, a) m = Mul(low, v)",
        "v = Unsqueeze(c, a) u = Cast<to = 1>(v) m = Mul(u, low)",
    ],
)
def test_a_mask_of_finite_numbers_and_flags_keeps_a_key(body: str) -> None:
    model = graph(HEAD + CONSTANTS + "{ " + body + " }")
    assert keeps_a_key(model.graph.outputs[0])


@pytest.mark.parametrize(
    "body",
    [
        "m = Identity(f)",
        "u = Cast<to = 1>(i) s = Sub(one, u) m = Mul(s, low)",
        "v = Unsqueeze(i, a) u = Cast<to = 1>(v) m = Mul(u, low)",
        "m = Log(f)",
        "u = Cast<to = 1>(c) m = Log(u)",
        "s = Sub(one, f) m = Mul(s, low)",
        "m = Where(c, zero, f)",
        "u = Cast<to = 1>(i) m = Mul(u, f)",
    ],
)
def test_a_mask_of_anything_else_may_not(body: str) -> None:
    model = graph(HEAD + CONSTANTS + "{ " + body + " }")
    assert not keeps_a_key(model.graph.outputs[0])


def test_no_mask_keeps_all() -> None:
    assert keeps_a_key(None)
