"""Constants in a row: which of them are taken away again, which leave a float's range together."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from edgeinfer.convert.passes.cancellation import leaves_range, takers

HEAD = """<ir_version: 10, opset_import: ["" : 26]> g (float[2,3] x) => (float[2,3] y)
<float m = {12582912.0}, float n = {-12582912.0}, float half = {0.5}, float mhalf = {6291456.0},
float[3] row = {12582912.0, 0, 1}, float mean = {0.4}, float big = {1e30}, float lo = {0},
float small = {1e-30}, int64[2] s = {2, 3}>"""


def _first(body: str) -> ir.Node:
    nodes = list(ir.from_onnx_text(f"{HEAD} {{ {body} }}").graph)
    for node in nodes:
        for output in node.outputs:
            output.dtype = ir.DataType.FLOAT
    return nodes[0]


@pytest.mark.parametrize(
    ("body", "taker"),
    [
        ("t = Add(x, m) y = Sub(t, m)", "Sub"),
        ("t = Sub(x, m) y = Add(m, t)", "Add"),
        ("t = Sub(m, x) y = Sub(m, t)", "Sub"),
        ("t = Add(m, x) y = Add(t, n)", "Add"),
        ("t = Add(x, m) u = Mul(t, half) y = Sub(u, mhalf)", "Sub"),
        ("t = Add(x, m) u = Div(t, half) v = Neg(u) w = Add(v, m) y = Add(w, m)", "Add"),
        ("t = Add(x, row) y = Sub(t, m)", "Sub"),
        ("t = Add(x, m) u = Relu(t) v = Reshape(u, s) y = Sub(v, m)", "Sub"),
        ("t = Add(x, m) u = BitCast<to = 6>(t) y = Cast<to = 1>(u)", "BitCast"),
    ],
)
def test_what_is_taken_away(body: str, taker: str) -> None:
    assert [node.op_type for node in takers(_first(body))] == [taker]


@pytest.mark.parametrize(
    "body",
    [
        "t = Sub(x, mean) y = Div(t, half)",
        "t = Sub(x, half) y = Add(t, mean)",
        "t = Add(x, m) y = Add(t, m)",
        "t = Add(x, m) y = Sub(t, x)",
        "t = Mul(x, m) y = Sub(t, m)",
        "t = Add(x, lo) y = Sub(t, m)",
        "t = Add(x, m) y = Exp(t)",
        "t = Add(x, row) u = Reshape(t, s) y = Sub(u, row)",
    ],
)
def test_what_is_kept(body: str) -> None:
    assert not takers(_first(body))


@pytest.mark.parametrize(
    ("body", "is_beyond"),
    [
        ("t = Mul(x, big) y = Mul(t, big)", True),
        ("t = Div(x, small) y = Mul(t, big)", True),
        ("t = Mul(x, small) u = Neg(t) y = Mul(u, small)", True),
        ("t = Mul(x, big) y = Mul(t, small)", False),
        ("t = Mul(x, big) u = Add(t, m) y = Mul(u, big)", False),
        ("t = Add(x, big) y = Mul(t, big)", False),
    ],
)
def test_what_leaves_the_range(body: str, is_beyond: bool) -> None:
    assert leaves_range(_first(body)) is is_beyond
