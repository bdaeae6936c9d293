"""Conditions known only at run time: both branches computed, one taken; what that cannot do."""

from __future__ import annotations

import re

import numpy as np
import onnx_ir as ir
import pytest

from edgeinfer.convert.lower.tvm.branches import BRANCHES, obstacle, select
from edgeinfer.convert.passes import normalise
from edgeinfer.types import Array

NESTED = """
<ir_version: 10, opset_import: ["": 21]>
net (bool[1] c, bool d, float[2,3] x) => (float[2,3] y, float s) {
    z = Neg(x)
    y, s = If(c) <
        then_branch = t () => (float[2,3] a, float m) {
            a = If(d) <
                then_branch = tt () => (float[2,3] p) { p = Exp(z) },
                else_branch = te () => (float[2,3] p) { p = Identity(z) }
            >
            m = ReduceMax<keepdims=0>(a)
        },
        else_branch = e () => (float[2,3] a, float m) {
            z2 = Mul(x, x)
            a = Add(z2, z)
            m = ReduceSum<keepdims=0>(a)
        }
    >
}
"""


def _nested(c: bool, d: bool, x: Array) -> tuple[Array, Array]:
    if c:
        y = np.exp(-x) if d else -x
        return y, y.max()
    y = x * x - x
    return y, y.sum()


def test_the_taken_branch_gives_the_results() -> None:
    pytest.importorskip("tvm", reason="apache-tvm is not installed")
    from tests.convert.lower.tvm.run import outputs

    x = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
    model = ir.from_onnx_text(NESTED)
    for c in (True, False):
        for d in (True, False):
            got = outputs(model, {"c": np.array([c]), "d": np.array(d), "x": x})
            want = _nested(c, d, x)
            assert got["s"].shape == ()
            np.testing.assert_allclose(got["y"], want[0], rtol=1e-6)
            np.testing.assert_allclose(got["s"], want[1], rtol=1e-6)


def test_nothing_is_left_of_what_can_be_computed_twice() -> None:
    model = normalise(ir.from_onnx_text(NESTED)).model
    assert select(model) == 2
    assert [n.op_type for n in model.graph].count("Where") == 3
    assert not any(n.op_type == "If" for n in model.graph)


@pytest.mark.parametrize(
    ("inputs", "then", "other", "why"),
    [
        ("float[4] x, int64[4] k", "Neg(x)", "Gather(x, k)", "Gather .* read beyond"),
        ("int64[4] x, int64[1] k", "Neg(x)", "Div(x, k)", "Div .* divide by zero"),
        ("int64[4] x, int64[1] k", "Neg(x)", "Mod(x, k)", "Mod .* divide by zero"),
        ("float[4] x, float[4] k", "Neg(x)", "Concat<axis=0>(x, k)", "sizes"),
    ],
)
def test_what_may_fail_where_it_is_not_taken_is_named(
    inputs: str, then: str, other: str, why: str
) -> None:
    kind = inputs.split("[", maxsplit=1)[0]
    model = ir.from_onnx_text(
        f'<ir_version: 10, opset_import: ["": 21]> net (bool c, {inputs}) => ({kind}[n] y) {{ '
        f"y = If(c) <then_branch = t () => ({kind}[n] a) {{ a = {then} }}, "
        f"else_branch = e () => ({kind}[n] a) {{ a = {other} }}> }}"
    )
    normal = normalise(model).model
    node = next(n for n in normal.graph if n.op_type == "If")
    assert set(BRANCHES) <= set(node.attributes)
    assert re.search(why, obstacle(node)), obstacle(node)
    assert select(normal) == 0


def test_a_divisor_that_is_known_may_stay() -> None:
    model = ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["": 21]> net (bool c, int64[4] x) => (int64[4] y) '
        "<int64 k = {3}> { y = If(c) <then_branch = t () => (int64[4] a) { a = Div(x, k) }, "
        "else_branch = e () => (int64[4] a) { a = Neg(x) }> }"
    )
    assert select(normalise(model).model) == 1
