from pathlib import Path

import numpy as np
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from tests.convert.lower.coreml.run import check, evaluate, floats, lower, model_of, refusal


def test_shapes_of_a_run() -> None:
    text = (
        "g (float[N,3,M] x) => (float[P,3] y) <int64[1] m = {-1}, int64[1] t = {3}, "
        "int64 z = {0}, int64 u = {2}> "
        "{s = Shape(x) a = Gather(s, z) b = Gather(s, u) p = Mul(a, b) o = Reshape(p, m) "
        "q = Concat<axis=0>(o, t) r = Transpose<perm=[0,2,1]>(x) y = Reshape(r, q)}"
    )
    check(text, {"x": floats(2, 3, 4)}, {"x": floats(1, 3, 5)})


def test_tensors_without_elements_are_refused() -> None:
    text = (
        "g (float[4] x) => (float[0] y) <int64[1] b = {3}, int64[1] e = {3}> {y = Slice(x, b, e)}"
    )
    assert refusal(text)[0].reason == "dynamic_shape"


def test_what_lies_halfway_is_refused_where_only_a_run_knows_the_ratio() -> None:
    text = "g (float[1,2,h,w] x, int64[2] s) => (y) {y = Resize<axes=[2,3]>(x, , , s)}"
    (problem,) = refusal(text)
    assert "engines disagree on what lies halfway" in problem.detail
    assert "--input-shape" in problem.hint


def test_cubic_grid_of_volumes(tmp_path: Path) -> None:
    """ONNX Runtime has none: ONNX's reference tells."""
    call = 'GridSample<mode="cubic">(x, p)'
    text = f"g (float[1,2,4,5,3] x, float[1,2,2,2,3] p) => (y) {{y = {call}}}"
    feeds = {"x": floats(1, 2, 4, 5, 3), "p": floats(1, 2, 2, 2, 3, seed=5)}
    (want,) = ReferenceEvaluator(ir.to_proto(model_of(text))).run(None, feeds)
    got = evaluate(text, lower(text, tmp_path), feeds)["y"]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
