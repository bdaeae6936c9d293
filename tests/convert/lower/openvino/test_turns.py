"""Loops that may make no turn give no rows of another run."""

import onnx_ir as ir
import pytest

from edgeinfer.convert.lower.openvino.turns import cut_unturned
from edgeinfer.errors import Remarks

MODEL = """<ir_version: 10, opset_import: ["": 20]>
g (int64 m, bool go, float[3] v) => (float[3] last, float[n,3] rows)
<int64 three = {3}, bool true = {1}> {
    last, rows = Loop(TRIPS, GO, v) <body = b (int64 i, bool c, float[3] x)
        => (bool co, float[3] xo, float[3] so) {
        co = Identity(c)
        xo = Add(x, x)
        so = Identity(xo)
    }>
}"""


def cut(trips: str, go: str) -> tuple[list[str], list[str]]:
    model = ir.from_onnx_text(MODEL.replace("TRIPS", trips).replace("GO", go))
    notes = Remarks()
    cut_unturned(model, notes)
    assert [value.name for value in model.graph.outputs] == ["last", "rows"]
    ops = [node.op_type for node in model.graph]
    return ops, list(notes.lines)


@pytest.mark.parametrize(
    ("trips", "go", "tests"),
    [
        ("m", "go", ["Greater", "And"]),
        ("m", "true", ["Greater", "And"]),
        ("three", "go", ["Greater", "And"]),
        ("m", '""', ["Greater"]),
        ('""', "go", []),
    ],
)
def test_rows_end_where_there_may_be_no_turn(trips: str, go: str, tests: list[str]) -> None:
    ops, notes = cut(trips, go)
    assert [op for op in ops if op != "Constant"] == ["Loop", *tests, "Where", "Slice"]
    assert len(notes) == 1


@pytest.mark.parametrize(("trips", "go"), [("three", "true"), ('""', "true"), ("three", '""')])
def test_loops_that_turn_surely_are_left_alone(trips: str, go: str) -> None:
    assert cut(trips, go) == (["Loop"], [])
