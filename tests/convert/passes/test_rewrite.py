import time

import numpy as np
import onnx_ir as ir
import pytest

from edgeinfer.convert.passes import FUSIONS
from edgeinfer.convert.passes.fuse_rms_norm import FuseRmsNorm
from edgeinfer.convert.passes.fuse_silu import FuseSilu
from edgeinfer.convert.passes.rewrite import Fusion
from tests.convert.passes.fusing import check_fused, graph, ops, run

X = np.linspace(-4, 4, 4).astype(np.float32)
SILU = "g (float[4] x) => (float[4] y) { s = Sigmoid(x) y = Mul(x, s) }"


def test_an_older_opset_is_left_alone() -> None:
    model = ir.from_onnx_text('<ir_version: 10, opset_import: ["": 20]>\n' + SILU)
    assert not FuseSilu()(model).modified


def test_the_count_is_the_number_of_matches() -> None:
    model = graph(
        "g (float[4] x) => (float[4] y, float[4] z) { s = Sigmoid(x) y = Mul(x, s) r = Relu(x)"
        " t = Sigmoid(r) z = Mul(t, r) }"
    )
    result = FuseSilu()(model)
    assert (result.modified, getattr(result, "count", None)) == (True, 2)


def test_type_shape_and_name_of_the_value_are_kept() -> None:
    model = check_fused(SILU, [FuseSilu()], {"Swish": 1}, {"x": X})
    (out,) = model.graph.outputs
    assert (out.name, out.dtype, str(out.shape)) == ("y", ir.DataType.FLOAT, "[4]")


def test_new_names_meet_no_old_ones() -> None:
    model = graph(
        "g (float[2,4] x, float[2,4] w) => (float[2,4] y) <int64[1] last = {-1}, float e = {0.5}>"
        " { p = Mul(x, x) v = ReduceMean(p, last) a = Add(v, e) r = Sqrt(a) n = Div(x, r)"
        " y = Add(n, w) }"
    )
    model.graph.inputs[1].name = "n.scale"
    feeds = {"x": np.eye(2, 4, dtype=np.float32), "n.scale": np.ones((2, 4), np.float32)}
    before = run(model, feeds)[0]
    assert FuseRmsNorm()(model).modified
    assert "n.scale" not in model.graph.initializers
    np.testing.assert_allclose(run(model, feeds)[0], before, rtol=1e-6)


def test_a_value_of_an_outer_graph_is_not_pulled_into_a_body() -> None:
    text = (
        "g (bool p, float[4] x) => (float[4] y) { s = Sigmoid(x) y = If (p) <"
        " then_branch = t () => (float[4] u) { u = Mul(x, s) },"
        " else_branch = f () => (float[4] w) { w = Neg(x) }> }"
    )
    model = graph(text)
    assert not FuseSilu()(model).modified


def test_a_value_that_a_body_reads_is_no_inner_value() -> None:
    text = (
        "g (bool p, float[4] x) => (float[4] y, float[4] z) { s = Sigmoid(x) z = Mul(x, s)"
        " y = If (p) < then_branch = t () => (float[4] u) { u = Neg(s) },"
        " else_branch = f () => (float[4] w) { w = Neg(x) }> }"
    )
    model = graph(text)
    assert not FuseSilu()(model).modified
    assert run(model, {"p": np.array(True), "x": X})[0].shape == (4,)


def test_a_match_is_tried_in_every_way_before_it_is_declined() -> None:
    model = graph("g (float[4] x) => (float[4] y) { s = Sigmoid(x) t = Sigmoid(s) y = Mul(s, t) }")
    assert FuseSilu()(model).modified
    assert ops(model) == {"Sigmoid": 1, "Swish": 1}


def test_all_fusions_of_a_large_graph_take_seconds_at_most() -> None:
    nodes = " ".join(f"s{i} = Sigmoid(m{i}) m{i + 1} = Mul(m{i}, s{i})" for i in range(2000))
    model = graph(f"g (float[4] x) => (float[4] y) {{ m0 = Relu(x) {nodes} y = Relu(m2000) }}")
    start = time.process_time()
    for one in FUSIONS:
        one(model)
    assert ops(model) == {"Relu": 2, "Swish": 2000}
    assert time.process_time() - start < 20


@pytest.mark.parametrize(
    "one",
    [f for f in FUSIONS if isinstance(f, Fusion)],
    ids=lambda one: type(one).__name__,
)
def test_each_fusion_says_how_the_graph_looks_before_and_after(one: Fusion) -> None:
    assert "Given::" in (one.__doc__ or "")
    assert "Result::" in (one.__doc__ or "")
