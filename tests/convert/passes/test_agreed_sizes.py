"""Open sizes that can only be one number."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from edgeinfer.convert.passes import normalise
from edgeinfer.convert.passes.agreed_sizes import agreed_sizes

HEADER = '<ir_version: 10, opset_import: ["" : 24]>'
GRU = """g (float[frames,batch,8] x, float[1,{state},4] h, float[1,12,8] w, float[1,12,4] r)
    => (float[a,b,c,d] y) {{ z = Neg(x) y = GRU<hidden_size=4>(z, w, r, , , h) }}"""


def found(text: str) -> dict[str, list[int | None]]:
    return agreed_sizes(normalise(ir.from_onnx_text(HEADER + text)).model)


@pytest.mark.parametrize(
    ("state", "expected"), [("1", {"x": [None, 1, 8]}), ("n", {}), ("batch", {})]
)
def test_the_batch_of_a_recurrent_operator_is_that_of_its_state(
    state: str, expected: dict[str, list[int | None]]
) -> None:
    assert found(GRU.format(state=state)) == expected


def test_the_state_follows_the_data() -> None:
    text = GRU.format(state="n").replace("frames,batch", "frames,3")
    assert found(text) == {"h": [1, 3, 4]}


def test_the_batch_is_first_in_the_other_layout() -> None:
    text = GRU.format(state="2").replace("1,2,4", "2,1,4").replace("<hidden", "<layout=1, hidden")
    assert found(text) == {"x": [2, None, 8]}


def test_parts_of_a_concat_have_equal_sizes() -> None:
    text = """g (float[n,m] x, float[2,5] k) => (float[a,b] y) { y = Concat<axis=-1>(x, k) }"""
    assert found(text) == {"x": [2, None]}


def test_broadcasting_ties_nothing() -> None:
    assert found("g (float[n,4] x, float[1,4] k) => (float[n,4] y) { y = Add(x, k) }") == {}


def test_a_branch_that_may_not_run_ties_nothing() -> None:
    text = """g (float[n] x, float[1,2] k, bool c) => (float[a,b] y) {
        s = Unsqueeze(x, one)
        y = If(c) <then_branch = t () => (float[a,b] p) { p = Concat<axis=1>(s, k) },
                   else_branch = e () => (float[a,b] q) { q = Neg(s) }> }"""
    assert found(text.replace("bool c)", "bool c, int64[1] one)")) == {}
