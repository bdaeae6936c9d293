"""A fully masked row is not NaN in half precision when the mask is an input."""

import numpy as np
import pytest

from edgeinfer.convert.lower.halve import MASKED, halve
from edgeinfer.convert.verify.evaluate import Evaluator
from edgeinfer.errors import Remarks
from tests.convert.lower.running import check, model, ops

ADDED = """g (float[2,4,8] q, float[2,4,8] k, float[2,1,4] mask) => (float[2,4,4] y) {
    t = Transpose<perm=[0,2,1]>(k)
    s = MatMul(q, t)
    m = Add(s, mask)
    y = Softmax<axis=-1>(m)
}"""

FUSED = """g (float[2,4,8] q, float[2,4,8] k, float[2,1,4] mask) => (float[2,4,8] y) {
    y = Attention<q_num_heads=1, kv_num_heads=1>(q, k, k, mask)
}"""


def feeds(low: float) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    mask = np.zeros((2, 1, 4), np.float32)
    mask[0, 0, 2:] = low
    mask[1] = low
    return {
        "q": rng.standard_normal((2, 4, 8)).astype(np.float32),
        "k": rng.standard_normal((2, 4, 8)).astype(np.float32),
        "mask": mask,
    }


@pytest.mark.parametrize("low", [-1e9, float(np.finfo(np.float32).min)])
@pytest.mark.parametrize("text", [ADDED, FUSED], ids=["added", "fused"])
def test_fully_masked_row_of_an_input_is_not_nan(text: str, low: float) -> None:
    whole, notes = model(text), Remarks()
    expected = Evaluator(whole, wide=False).run(feeds(low))["y"]
    halve(whole, frozenset(), frozenset(), notes)
    check(whole)
    actual = Evaluator(whole, wide=False).run(feeds(low))["y"]
    assert np.isfinite(actual).all()
    np.testing.assert_allclose(actual[0], expected[0], atol=5e-3)
    assert notes.lines[0] == f"fp16: mask 'mask': what is below {MASKED:.0f} becomes {MASKED:.0f}"
    # Without the clamp it is what a plain cast makes of it.
    rounded = Evaluator(model(text), wide=False, halved="float16").run(feeds(low))["y"]
    assert np.isnan(rounded[1]).all() or text == FUSED


def test_an_ordinary_input_is_left_alone() -> None:
    whole = model("""g (float[2,4] x, float[4,4] w) => (float[2,4] y) {
        a = MatMul(x, w)
        b = Add(a, x)
        y = Sigmoid(b)
    }""")
    halve(whole, frozenset(), frozenset(), Remarks())
    assert "Max" not in ops(whole)
