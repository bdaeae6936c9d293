"""Scores that half precision does not hold before they are scaled."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from edgeinfer.convert.passes import normalise
from edgeinfer.convert.verify.evaluate import Evaluator
from edgeinfer.types import Array
from tests.conformance.everywhere import PLACES, lacking, run_each
from tests.convert.lower.running import model, ops

SHAPE = (1, 2, 8, 64)
SIZES = "float16[1,2,8,64] q, float16[1,2,8,64] k, float16[1,2,8,64] v"
SCORES = "e = Constant<value_float=8.0>() c = Cast<to=10>(e) t = Transpose<perm=[0,1,3,2]>(k)"
FORMS = {
    "divided": "s = MatMul(q, t) d = Div(s, c) p = Softmax(d)",
    "masked": "s = MatMul(q, t) d = Div(s, c) a = Add(d, m) p = Softmax(a)",
    "chosen": "s = MatMul(q, t) d = Div(s, c) l = Neg(m) b = Cast<to=9>(l) "
    "a = Where(b, m, d) p = Softmax(a)",
    "masked first": "s = MatMul(q, t) a = Add(s, m) d = Div(a, c) p = Softmax(d)",
    "not scaled": "s = MatMul(q, t) p = Softmax(s)",
}
MASK = np.where(np.arange(8) < 6, 0, -10000).astype(np.float16)


def _model(form: str) -> ir.Model:
    return model(f"""g ({SIZES}, float16[8] m) => (float16[1,2,8,64] y) {{
        {SCORES} {FORMS[form]} y = MatMul(p, v) }}""")


def _feeds(form: str) -> dict[str, Array]:
    numbers = np.random.default_rng(3)
    made = {n: numbers.standard_normal(SHAPE) * s for n, s in (("q", 60), ("k", 60), ("v", 1))}
    return {n: a.astype(np.float16) for n, a in made.items()} | {"m": MASK}


def _right(form: str, feeds: dict[str, Array]) -> Array:
    q, k, v, m = (feeds[n].astype(np.float64) for n in "qkvm")
    scores = q @ k.swapaxes(2, 3)
    scores = {
        "divided": scores / 8,
        "masked": scores / 8 + m,
        "chosen": np.where(m < 0, m, scores / 8),
        "masked first": (scores + m) / 8,
        "not scaled": scores,
    }[form]
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(shares / shares.sum(-1, keepdims=True) @ v)


@pytest.mark.parametrize("form", FORMS)
def test_the_oracle_holds_scores_that_half_precision_does_not(form: str) -> None:
    """Infinite scores made every answer NaN, and that was what was right."""
    feeds = _feeds(form)
    for source in (_model(form), normalise(_model(form)).model):
        found = Evaluator(source, wide=True).run(feeds)["y"]
        np.testing.assert_allclose(found, _right(form, feeds), rtol=2e-3, atol=4e-3)


def test_the_queries_are_scaled_and_the_product_stays_half() -> None:
    """What cannot be scaled first is computed in single precision."""
    scaled = normalise(_model("masked")).model
    assert ops(scaled) == ["Transpose", "Div", "MatMul", "Add", "Cast", "Softmax", "Cast", "MatMul"]
    assert next(n for n in scaled.graph if n.op_type == "MatMul").outputs[0].dtype == (
        ir.DataType.FLOAT16
    )
    wide = normalise(_model("not scaled")).model
    assert next(n for n in wide.graph if n.op_type == "MatMul").outputs[0].dtype == (
        ir.DataType.FLOAT
    )


def test_queries_that_were_scaled_stay_as_they_are() -> None:
    source = model(f"""g ({SIZES}) => (float16[1,2,8,64] y) {{
        {SCORES} r = Div(q, c) s = MatMul(r, t) p = Softmax(s) y = MatMul(p, v) }}""")
    made = normalise(source).model
    assert next(n for n in made.graph if n.op_type == "MatMul").outputs[0].dtype == (
        ir.DataType.FLOAT16
    )


@pytest.mark.parametrize("place", PLACES)
def test_large_scores_are_right_everywhere(place: str) -> None:
    if reason := lacking(place):
        pytest.skip(reason)
    feeds = {form: _feeds(form) for form in FORMS}
    answers = run_each(place, {f: (ir.to_proto(_model(f)), feeds[f]) for f in FORMS})
    for form, answer in answers.items():
        assert not answer.refused, form
        want = _right(form, feeds[form])
        np.testing.assert_allclose(answer.outputs["y"], want, rtol=5e-3, atol=1e-2, err_msg=form)
