"""Transposes next to attention whose axes have one size."""

from pathlib import Path

import numpy as np
import pytest

from edgeinfer.convert.lower.openvino.heads import equal_axes
from tests.convert.lower.running import lower, model, run, run_openvino

pytest.importorskip("openvino")

BEHIND = """
g (float[1, H, L, 16] q, float[1, H, 16, S] k, float[1, H, S, 16] v) => (float[1, L, H, 16] y)
<float[1] c = {0.3535}> {
    s = Mul(q, c) m = MatMul(s, k) p = Softmax<axis = -1>(m) o = MatMul(p, v)
    y = Transpose<perm = [0, 2, 1, 3]>(o)
}
"""
BEFORE = """
g (float[1, L, H, 16] a, float[1, S, H, 16] b, float[1, S, H, 16] v) => (float[1, H, L, 16] y)
<float c = {0.3535}> {
    q = Transpose<perm = [0, 2, 1, 3]>(a) k = Transpose<perm = [0, 2, 3, 1]>(b)
    w = Transpose<perm = [0, 2, 1, 3]>(v) s = Mul(q, c) t = Mul(k, c) m = MatMul(s, t)
    p = Softmax<axis = -1>(m) y = MatMul(p, w)
}
"""


@pytest.mark.parametrize("text", [BEHIND, BEFORE])
@pytest.mark.parametrize(("heads", "queries", "keys"), [(4, 4, 4), (8, 8, 20), (4, 5, 4)])
def test_attention_is_right(text: str, heads: int, queries: int, keys: int, tmp_path: Path) -> None:
    sized = text.replace("H", str(heads)).replace("L", str(queries)).replace("S,", f"{keys},")
    of = model(sized.replace("S]", f"{keys}]"), 17)
    rng = np.random.default_rng(0)
    feeds = {
        str(v.name): rng.standard_normal(v.shape.numpy()).astype(np.float32)
        for v in of.graph.inputs
        if v.shape is not None
    }
    right = run(of, feeds)[0]
    made = lower(of, tmp_path, "openvino")
    found = run_openvino(made.files[0], *feeds.values())[0]
    np.testing.assert_allclose(found, right, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "perm", "beside", "found"),
    [
        ("1, 4, 4, 16", "0, 2, 1, 3", True, True),
        ("1, 4, 5, 16", "0, 2, 1, 3", True, False),
        ("1, 4, 4, 16", "0, 1, 3, 2", True, False),
        ("1, 4, 4, 16", "0, 2, 1, 3", False, False),
    ],
)
def test_only_equal_axes_beside_products_are_rewritten(
    shape: str, perm: str, beside: bool, found: bool
) -> None:
    end = "MatMul(t, w)" if beside else "Relu(t)"
    text = f"g (float[{shape}] x, float[1, N, M, K] w) => (float[a, b, c, d] y) {{ "
    of = model(text + f"t = Transpose<perm = [{perm}]>(x) y = {end} }}")
    assert bool(equal_axes(next(iter(of.graph)))) == found
