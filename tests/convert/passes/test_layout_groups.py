"""Group normalisation that was written as instance normalisation."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from edgeinfer.convert.passes import normalise
from edgeinfer.convert.passes.layout_groups import FuseGroups
from tests.convert.lower.tflite.run import check, model_of, ops

RNG = np.random.default_rng(0)
HEAD = """<float[3] s = {1, 2, -1}, float[3] b = {0.5, 0, 1},
    float[6,1,1] k = {1, 2, 3, 4, 5, 6}, float[6,1,1] c = {-1, 0, 1, 2, 3, 4},
    int64[3] groups = {0, 3, -1}, int64[4] back = {%s}, float[3,1,1,1] wide = {1, 2, 3}>"""


def net(body: str, shape: str = "2,6,4,5", back: str = "2,6,4,5", out: str = "2,6,4,5") -> ir.Model:
    text = f"g (float[{shape}] x) => (float[{out}] y) {HEAD % back} {{ {body} }}"
    return normalise(model_of(text)).model


GROUPS = "r = Reshape(x, groups) n = InstanceNormalization<epsilon=0.001>(r, s, b)"


def kinds(model: ir.Model) -> list[str]:
    FuseGroups()(model)
    return [n.op_type for n in model.graph]


@pytest.mark.parametrize(
    ("body", "kept"),
    [
        (GROUPS + " y = Reshape(n, back)", ["GroupNormalization"]),
        (GROUPS + " q = Reshape(n, back) m = Mul(q, k) y = Add(c, m)", ["GroupNormalization"]),
        (GROUPS + " q = Reshape(n, back) y = Add(q, c)", ["GroupNormalization"]),
        (
            GROUPS + " q = Reshape(n, back) m = Add(q, c) y = Mul(m, k)",
            ["GroupNormalization", "Mul"],
        ),
    ],
)
def test_one_operator_with_equal_numbers(body: str, kept: list[str]) -> None:
    assert kinds(net(body)) == kept
    x = RNG.normal(size=(2, 6, 4, 5)).astype(np.float32)
    check(net(body), {"x": x})


def test_a_picture_that_another_reshape_has_taken() -> None:
    model = net(GROUPS + " y = Reshape(n, back)", shape="2,2,3,4,5")
    assert kinds(model) == ["Reshape", "GroupNormalization"]
    x = RNG.normal(size=(2, 2, 3, 4, 5)).astype(np.float32)
    check(net(GROUPS + " y = Reshape(n, back)", shape="2,2,3,4,5"), {"x": x})


@pytest.mark.parametrize(
    ("body", "back", "out"),
    [
        (GROUPS + " y = Reshape(n, back)", "2,3,8,5", "2,3,8,5"),
        (GROUPS + " y = Reshape(n, back)", "1,12,4,5", "1,12,4,5"),
        (GROUPS + " q = Reshape(n, back) p = ReduceSum(n) y = Add(q, p)", "2,6,4,5", "2,6,4,5"),
    ],
)
def test_what_is_no_group_normalisation_is_left(body: str, back: str, out: str) -> None:
    model = net(body, back=back, out=out)
    left = kinds(model)
    if back == "2,3,8,5":
        # As many groups as channels.
        assert left == ["Reshape", "GroupNormalization"]
    else:
        assert "InstanceNormalization" in left
    x = RNG.normal(size=(2, 6, 4, 5)).astype(np.float32)
    check(net(body, back=back, out=out), {"x": x})


def test_a_constant_that_widens_the_result_is_left() -> None:
    body = GROUPS + " q = Reshape(n, back) y = Mul(q, wide)"
    model = net(body, shape="1,6,4,5", back="1,6,4,5", out="3,6,4,5")
    assert kinds(model) == ["GroupNormalization", "Mul"]


def test_no_transposes_around_it() -> None:
    weights = ", ".join(["0.25"] * 36)
    body = """a = Conv(x, w) r = Reshape(a, groups) n = InstanceNormalization(r, s, b)
        q = Reshape(n, back) m = Mul(q, k) e = Add(m, c) y = Conv(e, w)"""
    head = HEAD.replace("float[3] s", f"float[6,6,1,1] w = {{{weights}}}, float[3] s")
    text = f"g (float[2,6,4,5] x) => (float[2,6,4,5] y) {head % '2,6,4,5'} {{ {body} }}"
    found = ops(check(text, {"x": RNG.normal(size=(2, 6, 4, 5)).astype(np.float32)}))
    assert found.count("TRANSPOSE") == 2
