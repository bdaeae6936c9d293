"""bfloat16 in terms of float32: what remains, the numbers, and what is left alone."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnx.reference
import onnx_ir as ir
import pytest

from edgeinfer.convert.lower.bfloat import as_single
from edgeinfer.convert.passes.infra import all_nodes, is_op, walk

BRAIN = ml_dtypes.bfloat16
HEAD = '<ir_version: 10, opset_import: ["" : 24]> agraph '
BRANCHES = """(bfloat16[4] x, bool c) => (bfloat16[4] y) {
    a = Mul(x, x)
    y = If(c) <then_branch = t () => (bfloat16[4] p) { p = Add(a, x) },
               else_branch = e () => (bfloat16[4] q) { q = Identity(a) }>
}"""
TURNS = """(bfloat16[4] x, int64 n) => (bfloat16[4] y, bfloat16[k, 4] rows) {
    start = Constant<value = bool {1}>()
    y, rows = Loop(n, start, x) <body = b (int64 i, bool on, bfloat16[4] s)
        => (bool go, bfloat16[4] t, bfloat16[4] row) {
            go = Identity(on) t = Mul(s, x) row = Neg(t) }>
}"""


def _model(text: str) -> ir.Model:
    model = onnx.shape_inference.infer_shapes(onnx.parser.parse_model(HEAD + text))
    read: ir.Model = ir.from_proto(model)
    return read


def _run(model: ir.Model, feeds: dict[str, object]) -> list[object]:
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    found: list[object] = onnx.reference.ReferenceEvaluator(proto).run(None, feeds)
    return found


def _computing(model: ir.Model) -> list[ir.Node]:
    """Operators next to casts that read or make bfloat16."""
    return [
        n
        for n in all_nodes(model)
        if not is_op(n, "Cast")
        and any(v is not None and v.dtype == ir.DataType.BFLOAT16 for v in (*n.inputs, *n.outputs))
    ]


@pytest.mark.parametrize("turns", [1, 5])
def test_turns_round_each_result(turns: int) -> None:
    model = _model(TURNS)
    x = np.array([1.0078125, -0.3, 3.0, 1e-3], BRAIN)
    assert as_single(model) > 0
    assert not _computing(model)
    y, rows = _run(model, {"x": x, "n": np.array(turns)})
    want = x
    for turn in range(turns):
        want = want * x
        np.testing.assert_array_equal(np.asarray(rows)[turn], -want)
    assert np.asarray(y).dtype == BRAIN
    np.testing.assert_array_equal(y, want)


@pytest.mark.parametrize("taken", [True, False])
def test_branches_give_float32_that_is_rounded(taken: bool) -> None:
    model = _model(BRANCHES)
    x = np.array([1.0078125, -0.3, 300.0, 1e-3], BRAIN)
    assert as_single(model) > 0
    assert not _computing(model)
    inner = [g for g in walk(model.graph) if g is not model.graph]
    assert [g.outputs[0].dtype for g in inner] == [ir.DataType.FLOAT] * 2
    (y,) = _run(model, {"x": x, "c": np.array(taken)})
    np.testing.assert_array_equal(y, x * x + x if taken else x * x)


def test_attributes_that_name_the_type_name_float32() -> None:
    model = _model("""(float[2] x) => (bfloat16[3] y) {
        size = Constant<value_ints=[3]>()
        y = ConstantOfShape<value = bfloat16[1] {16320}>(size)
    }""")
    as_single(model)
    assert not _computing(model)
    (y,) = _run(model, {"x": np.zeros(2, np.float32)})
    np.testing.assert_array_equal(y, np.full(3, 1.5, BRAIN))


def test_names_of_outputs_stay() -> None:
    model = _model("(bfloat16[2] x) => (bfloat16[2] y, bfloat16[2] z) { y = Neg(x) z = Abs(y) }")
    as_single(model)
    assert [v.name for v in model.graph.outputs] == ["y", "z"]
    assert {v.dtype for v in model.graph.outputs} == {ir.DataType.BFLOAT16}
    assert as_single(model) == 0


def test_other_types_are_left_alone() -> None:
    model = _model("(float[2] x, int64[2] n) => (float[2] y) { f = Cast<to=1>(n) y = Add(x, f) }")
    before = ir.to_proto(model).SerializeToString()
    assert as_single(model) == 0
    assert ir.to_proto(model).SerializeToString() == before
