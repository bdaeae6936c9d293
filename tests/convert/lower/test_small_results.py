"""What activations give far below zero keeps its digits on every target where somebody reads it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest

from edgeinfer.types import Array
from tests.conformance.everywhere import PLACES, lacking, run_each

X = np.linspace(-50, 20, 2000).astype(np.float32)
"""The exponentials of these are normal float32, 1.702 times as far too."""


def _sigmoid(x: Array, slope: float = 1.0) -> Array:
    return np.asarray(1 / (1 + np.exp(-slope * x)))


def _mish(x: Array) -> Array:
    made: Array = x * np.tanh(np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0))
    return made


FORMS: dict[str, tuple[str, Callable[[Array], Array]]] = {
    "swish": ("s = Sigmoid(x) y = Mul(x, s)", lambda x: x * _sigmoid(x)),
    "quick gelu": (
        "a = Mul(x, k) s = Sigmoid(a) y = Mul(x, s)",
        lambda x: x * _sigmoid(x, float(np.float32(1.702))),
    ),
    "gate": (
        "s = Sigmoid(x) n = Neg(x) m = Mul(n, s) y = Div(m, k)",
        lambda x: -x * _sigmoid(x) / float(np.float32(1.702)),
    ),
    "mish": ("p = Softplus(x) t = Tanh(p) y = Mul(x, t)", _mish),
    "logarithm": ("s = Sigmoid(x) l = Log(s) y = Neg(l)", lambda x: -np.log(_sigmoid(x))),
}


HEAD = '<ir_version: 10, opset_import: ["" : 21]> g (float[2000] x) => (float[2000] y)'


@pytest.mark.parametrize("place", PLACES)
def test_far_below_zero(place: str) -> None:
    if reason := lacking(place):
        pytest.skip(reason)
    texts = {
        form: f"{HEAD} <float k = {{1.702}}> {{ {text} }}" for form, (text, _) in FORMS.items()
    }
    answers = run_each(place, {f: (onnx.parser.parse_model(t), {"x": X}) for f, t in texts.items()})
    for form, answer in answers.items():
        found, right = answer.outputs["y"], FORMS[form][1](X.astype(np.float64))
        seen = np.abs(right) > np.finfo(np.float32).tiny
        # A probability near 1 has no digits of what it lacks, which its logarithm is.
        lost = 1e-7 if form == "logarithm" else 0.0
        np.testing.assert_allclose(found[seen], right[seen], rtol=2e-5, atol=lost, err_msg=form)
