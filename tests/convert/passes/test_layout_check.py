"""Axes that an operand does not have."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from edgeinfer.convert.passes.layout import PlanLayout
from edgeinfer.convert.passes.layout_check import check_axes
from edgeinfer.errors import SourceError

HEAD = '<ir_version: 10, opset_import: ["" : 24]>'


def model(body: str, constants: str = "") -> ir.Model:
    return ir.from_onnx_text(
        f"{HEAD} g (float[2,3] x, float[1,3,4,4] p) => (float[?] y) {constants} {{ {body} }}"
    )


@pytest.mark.parametrize(
    ("body", "constants", "said"),
    [
        (
            "y = Transpose<perm=[0,2,3,1]>(x)",
            "",
            r"perm=\[0, 2, 3, 1\], but its operand 'x' is",
        ),
        ("y = Transpose<perm=[0,0]>(x)", "", r"perm=\[0, 0\]"),
        ("y = Softmax<axis=2>(x)", "", "axis=2"),
        ("y = Concat<axis=-3>(x, x)", "", "axis=-3"),
        ("y = ReduceSum(x, a)", "<int64[1] a = {2}>", r"axes=\[2\]"),
        ("y = Slice(x, z, z, a)", "<int64[1] a = {5}, int64[1] z = {0}>", r"axes=\[5\]"),
        ("y = Conv(p, w)", "<float[1,3,1] w = {1, 2, 3}>", "weights of 3 axes"),
    ],
)
def test_are_named(body: str, constants: str, said: str) -> None:
    with pytest.raises(SourceError, match=said):
        PlanLayout()(model(body, constants))


@pytest.mark.parametrize(
    ("body", "constants"),
    [
        ("y = Transpose(x)", ""),
        ("y = Softmax(x)", ""),
        ("y = Softmax<axis=-2>(x)", ""),
        ("y = ReduceSum(x)", ""),
        ("y = Slice(x, z, z)", "<int64[1] z = {0}>"),
        ("s = Squeeze(z) y = Softmax<axis=0>(s)", "<float[1] z = {0}>"),
    ],
)
def test_others_pass(body: str, constants: str) -> None:
    check_axes(model(body, constants).graph)
