"""Scans whose turns know nothing of each other become operators over all rows."""

from __future__ import annotations

import numpy as np
import pytest

from edgeinfer.convert.lower.expand import expand
from edgeinfer.convert.lower.rows import at_once
from tests.convert.lower.running import model, ops, run

RNG = np.random.default_rng(0)
X = RNG.standard_normal((4, 3)).astype(np.float32)
ROWS = RNG.standard_normal((5, 3)).astype(np.float32)

SUB = "d = Sub(v, row)"

BODIES = {
    "squares": f"{SUB} r = ReduceSumSquare<keepdims = 0>(d, last)",
    "roots": f"{SUB} q = ReduceSumSquare<keepdims = 0>(d, last) r = Sqrt(q)",
    "magnitudes": f"{SUB} a = Abs(d) r = ReduceSum<keepdims = 0>(a, last)",
    "powers": f"{SUB} a = Abs(d) p = Pow(a, three) q = ReduceSum<keepdims = 0>(p, last) "
    "r = Pow(q, third)",
    "greatest, axis kept": f"{SUB} a = Abs(d) r = ReduceMax(a, last)",
    "from the end": f"{SUB} r = ReduceL1<keepdims = 0>(d, back)",
    "all axes": f"{SUB} r = ReduceMean<keepdims = 0>(d)",
    "no reduction": f"{SUB} r = Identity(d)",
    "a row alone": "a = Mul(row, row) q = ReduceSum<keepdims = 0>(a) s = Sqrt(q) r = Mul(s, third)",
    "what is the same first": "w = Mul(v, three) d = Sub(w, row) "
    "r = ReduceMax<keepdims = 0>(d, last)",
    "a choice": f"{SUB} c = Greater(v, row) r = Where(c, d, row)",
}

CONSTANTS = "int64[1] last = {1}, int64[1] back = {-1}, float three = {3}, float third = {0.3333}"


def _scan(body: str, about: str = "", state: str = "vo = Identity(v)") -> str:
    return (
        (
            "g (float[n,3] x, float[5,3] rows) => (float[n,3] s, float y) "
            f"<{CONSTANTS}> {{ s, y = Scan<num_scan_inputs = 1{about}, "
            f"body = b (float[n,3] v, float[3] row) => (float[n,3] vo, float r) "
            f"{{ {state} {body} }}>"
            "(x, rows) }"
        )
        .replace("float r)", "r)")
        .replace("float y)", "y)")
    )


def _same(text: str) -> None:
    whole = model(text)
    feeds = {"x": X, "rows": ROWS}
    want = run(whole, feeds)
    (node,) = [n for n in whole.graph if n.op_type == "Scan"]
    assert at_once(whole, node)
    assert "Scan" not in ops(whole)
    for found, right in zip(run(whole, feeds), want, strict=True):
        assert found.shape == right.shape
        np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("body", BODIES)
def test_rows_at_once(body: str) -> None:
    _same(_scan(BODIES[body]))


@pytest.mark.parametrize("axis", [1, -1])
def test_results_side_by_side(axis: int) -> None:
    _same(_scan(BODIES["squares"], f", scan_output_axes = [{axis}]"))


def test_rows_that_are_columns() -> None:
    text = _scan(BODIES["squares"], ", scan_input_axes = [1]").replace(
        "float[5,3] rows", "float[3,5] rows"
    )
    whole = model(text)
    feeds = {"x": X, "rows": np.ascontiguousarray(ROWS.T)}
    want = run(whole, feeds)
    assert at_once(whole, next(n for n in whole.graph if n.op_type == "Scan"))
    for found, right in zip(run(whole, feeds), want, strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "text",
    [
        _scan("r = Identity(row)", state="vo = Add(v, row)"),
        _scan(BODIES["squares"], ", scan_input_directions = [1]"),
        _scan(BODIES["squares"], ", scan_output_directions = [1]"),
        _scan("r = CumSum(row, zero)").replace(
            "<int64[1] last", "<int64 zero = {0}, int64[1] last"
        ),
        _scan("r = ReduceSum<keepdims = 0>(v, last)"),
    ],
    ids=["sums", "from the end", "to the end", "another operator", "nothing of a row"],
)
def test_others_stay(text: str) -> None:
    whole = model(text)
    before = ops(whole)
    assert not at_once(whole, next(n for n in whole.graph if n.op_type == "Scan"))
    assert ops(whole) == before


def test_what_a_target_refuses_takes_that_form() -> None:
    whole = model(_scan(BODIES["squares"]))
    assert expand(whole, [n for n in whole.graph if n.op_type == "Scan"])
    assert "Scan" not in ops(whole)
