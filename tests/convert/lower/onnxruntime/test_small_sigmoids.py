"""Probabilities keep the digits of small ones where somebody reads them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.convert.lower.running import lower, model, run

X = np.linspace(-80, 20, 4001).astype(np.float32).reshape(1, -1)
"""Exp overflows beyond -88, where the right value has no normal float32 either."""


@pytest.mark.parametrize("target", ["onnxruntime", "jetson-orin"])
@pytest.mark.parametrize(
    "body",
    [
        "y = Sigmoid(x)",
        "s = Sigmoid(x) t = Transpose<perm = [1, 0]>(s) y = Transpose<perm = [1, 0]>(t)",
        "s = Sigmoid(x) y = Log(s)",
    ],
    ids=["output", "moved", "logarithm"],
)
def test_small_ones_keep_their_digits(body: str, target: str, tmp_path: Path) -> None:
    whole = model(f"g (float[1,4001] x) => (float[1,4001] y) {{ {body} }}")
    (found,) = run(lower(whole, tmp_path, target=target).files[0], {"x": X})
    right = 1.0 / (1.0 + np.exp(-X.astype(np.float64)))
    if "Log" in body:
        np.testing.assert_allclose(found, np.log(right), rtol=2e-6, atol=1e-7)
    else:
        np.testing.assert_allclose(found, right, rtol=2e-6)


def test_gates_inside_keep_the_kernel(tmp_path: Path) -> None:
    whole = model("""g (float[1,4001] x) => (float[1,4001] y) {
        s = Sigmoid(x)
        m = Mul(s, x)
        y = Add(m, x)
    }""")
    assert lower(whole, tmp_path).ops == {"Sigmoid": 1, "Mul": 1, "Add": 1}
