"""Comparisons with NaN, and what is chosen by them, on every target.

A compiler that takes "not greater" for "less or equal" has NaN be a number.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest

from edgeinfer.bundle.values import FINITE, KEY, NOT_NAN
from edgeinfer.types import Array
from tests.conformance.everywhere import PLACES, lacking, run, run_each

NAN, INF = np.nan, np.inf
X = np.array([NAN, INF, -INF, 0.5, -2, 0, NAN, 3], np.float32)
Y = np.array([0, NAN, 1, NAN, -2, 0, NAN, 1], np.float32)

Definition = Callable[[Array, Array], Array]

TRUTHS: dict[str, Definition] = {
    "a = Greater(x, y) o = Not(a)": lambda x, y: ~(x > y),
    "a = Less(x, y) o = Not(a)": lambda x, y: ~(x < y),
    "a = GreaterOrEqual(x, y) o = Not(a)": lambda x, y: ~(x >= y),
    "a = LessOrEqual(x, y) o = Not(a)": lambda x, y: ~(x <= y),
    "a = Equal(x, y) o = Not(a)": lambda x, y: ~(x == y),
    "a = Greater(x, zero) o = Not(a)": lambda x, y: ~(x > 0),
    "a = Less(x, x) o = Not(a)": lambda x, y: np.ones(x.shape, bool),
    "a = Less(x, one) b = Greater(x, zero) c = And(a, b) o = Not(c)": lambda x, y: (
        ~((x < 1) & (x > 0))
    ),
    "a = Less(x, zero) b = Greater(x, zero) c = Or(a, b) o = Not(c)": lambda x, y: (
        ~((x < 0) | (x > 0))
    ),
    "a = Less(x, y) b = GreaterOrEqual(x, y) o = Or(a, b)": lambda x, y: (x < y) | (x >= y),
    "a = Less(x, zero) b = GreaterOrEqual(x, zero) o = Xor(a, b)": lambda x, y: (x < 0) ^ (x >= 0),
    "a = Sub(x, y) b = Greater(a, zero) o = Not(b)": lambda x, y: ~((x - y) > 0),
}

NUMBERS: dict[str, Definition] = {
    "a = Less(x, y) b = Not(a) o = Where(b, x, y)": lambda x, y: np.where(~(x < y), x, y),
    "a = Greater(x, y) o = Where(a, x, y)": lambda x, y: np.where(x > y, x, y),
    "a = Greater(x, y) o = Where(a, y, x)": lambda x, y: np.where(x > y, y, x),
    "a = Greater(x, zero) o = Where(a, x, zero)": lambda x, y: np.where(x > 0, x, 0),
    "a = LessOrEqual(x, zero) o = Where(a, zero, x)": lambda x, y: np.where(x <= 0, 0, x),
    "a = Less(x, zero) n = Neg(x) o = Where(a, n, x)": lambda x, y: np.where(x < 0, -x, x),
    "a = Less(x, zero) b = GreaterOrEqual(x, zero) c = Where(b, one, y) o = Where(a, zero, c)": (
        lambda x, y: np.where(x < 0, 0, np.where(x >= 0, 1, y))
    ),
    "a = Less(x, zero) b = Not(a) c = Where(b, one, y) d = GreaterOrEqual(x, zero) "
    "o = Where(d, zero, c)": lambda x, y: np.where(x >= 0, 0, np.where(~(x < 0), 1, y)),
    "a = Equal(x, x) b = Not(a) o = Where(b, zero, x)": lambda x, y: np.where(x != x, 0, x),
    "a = Greater(x, y) b = Not(a) o = Cast<to = 1>(b)": lambda x, y: (~(x > y)) * 1.0,
    "o = Max(x, y)": np.maximum,
    "o = Min(x, y)": np.minimum,
    "o = Clip(x, zero, one)": lambda x, y: np.clip(x, 0, 1),
    "o = Sub(x, x)": lambda x, y: x - x,
    "o = Mul(x, zero)": lambda x, y: x * 0,
}


HEAD = '<ir_version: 10, opset_import: ["" : 21]> g (float[8] x, float[8] y)'


def _case(text: str) -> tuple[onnx.ModelProto, dict[str, Array]]:
    kind = "bool" if text in TRUTHS else "float"
    model = onnx.parser.parse_model(
        f"{HEAD} => ({kind}[8] o) <float zero = {{0}}, float one = {{1}}> {{ {text} }}"
    )
    return model, {"x": X, "y": Y}


@pytest.mark.parametrize("place", PLACES)
@np.errstate(invalid="ignore")
def test_what_is_no_number_compares_with_none(place: str) -> None:
    if reason := lacking(place):
        pytest.skip(reason)
    definitions = TRUTHS | NUMBERS
    found = run_each(place, {text: _case(text) for text in definitions})
    for text, answers in found.items():
        if KEY in answers.constraints:
            # What one of them loses says nothing of the others.
            answers = run(place, *_case(text))
        taken = np.ones(X.shape, bool)
        # Sessions refuse what the artifact says that it would lose.
        if answers.constraints.get(KEY) in (NOT_NAN, FINITE):
            taken &= ~(np.isnan(X) | np.isnan(Y))
        if answers.constraints.get(KEY) == FINITE:
            taken &= ~(np.isinf(X) | np.isinf(Y))
        right = definitions[text](X, Y)
        np.testing.assert_array_equal(answers.outputs["o"][taken], right[taken], err_msg=text)
