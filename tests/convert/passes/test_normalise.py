from collections.abc import Iterator

import numpy as np
import onnx_ir as ir
import pytest

from edgeinfer.convert import passes
from edgeinfer.convert.passes import OPSET, normalise
from edgeinfer.errors import UsageError
from tests.convert.passes.rewriting import assert_same_bits, f32, interface, ops, parse, run

X = np.arange(12, dtype=np.float32).reshape(2, 6)
TEXT = (
    "g (float[N,6] x) => (float[N,2,3] y) { s = Shape(x) i = Constant<value=int64[1]{0}>()"
    " n = Gather(s, i) t = Constant<value=int64[2]{2,3}>() q = Concat<axis=0>(n, t)"
    " a = Identity(x) r = Reshape(a, q) c = Constant<value=bool{1}>() y = If(c) <"
    "then_branch = b () => (float[N,2,3] o) { z = Constant<value_float=2.0>() o = Mul(r, z) },"
    "else_branch = e () => (float[N,2,3] p) { p = Neg(r) }> }"
)


def test_a_chain_of_everything_shrinks_to_its_core() -> None:
    source = parse(TEXT, 13)
    before = run(source, {"x": X})
    report = normalise(source)
    assert ops(report.model) == {"Reshape": 1, "Mul": 1}
    assert report.model.opset_imports == {"": OPSET}
    assert_same_bits(run(report.model, {"x": X})[0], before[0])
    assert interface(report.model) == interface(source)


def test_the_source_stays_as_it_was_and_its_weights_are_shared() -> None:
    source = parse(
        "g (float[1,3] x) => (float[1,3] y) <float[3] w = {1,2,3}> { y = Mul(x, w) }", 13
    )
    before = ir.to_proto(source).SerializeToString(deterministic=True)
    result = normalise(source).model
    assert ir.to_proto(source).SerializeToString(deterministic=True) == before
    tensor = source.graph.initializers["w"].const_value
    assert result.graph.initializers["w"].const_value is tensor


def test_a_second_time_changes_nothing() -> None:
    first = normalise(parse(TEXT, 13)).model
    second = normalise(first)
    assert ops(second.model) == ops(first)
    assert all(not r.ops or not any(r.ops.values()) for r in second.records)


def test_the_report_says_what_was_done() -> None:
    changes = normalise(parse(TEXT, 13)).changes
    assert "opset 13 to 24" in changes["raise_opset"]
    assert changes["inline_control_flow"] == ["1 changes: If -1, Neg -1"]


def test_progress_names_each_pass() -> None:
    seen: list[str] = []
    normalise(parse(TEXT, 13), progress=seen.append)
    assert {"fold_constants", "raise_opset", "fuse_gelu"} <= set(seen)


def test_input_shapes_are_bound_and_checked() -> None:
    result = normalise(parse(TEXT, 13), input_shapes={"x": (4, 6)}).model
    assert [s.shape for s in passes.output_specs(result)] == [(4, 2, 3)]
    with pytest.raises(UsageError, match="no input 'z'"):
        normalise(parse(TEXT, 13), input_shapes={"z": (4, 6)})


def test_a_model_that_cannot_be_raised_gets_no_operators_it_does_not_know() -> None:
    source = parse(
        "g (float[1,2] x) => (float[1,2] y, float[2] m) <float[2] s = {1, 2}>"
        " { e = Sigmoid(x) a = Mul(x, e) y, m, v, sm, sv = BatchNormalization(a, s, s, s, s) }",
        9,
    )
    report = normalise(source)
    assert ops(report.model) == {"Sigmoid": 1, "Mul": 1, "BatchNormalization": 1}
    assert report.model.opset_imports == {"": 9}
    assert "stays at opset 9" in report.changes["raise_opset"][0]


@pytest.mark.parametrize(
    "text",
    [
        "g (float[3] x) => (float[3] x) { }",
        "g (float[3] x) => (float[3] y, float[3] z) { y = Identity(x) z = Identity(x) }",
        "g (float[3] x) => (float[3] k) <float[3] k = {1,2,3}> { }",
        "g (float[3] x) => (float[3] y) { y = Constant<value=float[3]{1,2,3}>() }",
        "g (float[3] x) => (float[3] y, float[3] z) { y = Neg(x) z = Identity(y) }",
        "g (float[3] x, float[7] unused) => (float[3] y) { y = Cast<to=1>(x) }",
        "g (float[3] x) => (float[3] y) <float[3] k = {1,2,3}> { y = Exp(k) }",
    ],
)
def test_names_and_order_of_inputs_and_outputs_survive(text: str) -> None:
    source = parse(text, 18)
    feeds = {"x": f32([1, 2, 3]), "unused": np.zeros(7, np.float32)}
    report = normalise(source)
    assert interface(report.model) == interface(source)
    for old, new in zip(run(source, feeds), run(report.model, feeds), strict=True):
        assert_same_bits(old, new)


def _every_pass() -> Iterator[ir.passes.PassBase]:
    for stage in passes.NORMALISE:
        yield from stage.passes


def test_each_pass_shows_the_graph_before_and_after() -> None:
    for one in _every_pass():
        doc = type(one).__doc__ or ""
        assert "Given:" in doc, type(one).__name__
        assert "Result:" in doc, type(one).__name__


def test_an_empty_graph_survives_every_pass() -> None:
    model = parse("g () => () { }")
    for one in _every_pass():
        one(model)
    assert ops(model) == {}
