"""What a Scan over an axis without rows is written as; its numbers are in ``test_loops``."""

import onnx_ir as ir

from edgeinfer.convert.lower.onnxruntime.unscanned import scan_one_row
from edgeinfer.errors import Remarks
from tests.convert.lower.running import model, ops

SUM = """g (float[3] s, float[N,3] x) => (float[3] t, float[N,3] y) {
    t, y = Scan<num_scan_inputs = 1, body = b (float[3] a, float[3] r) => (float[3] c, float[3] o)
    { c = Add(a, r) o = Neg(c) }>(s, x)
}"""


def test_rows_that_are_surely_there_are_left_alone() -> None:
    fixed = model(SUM.replace("N,3", "4,3"))
    before = ir.to_proto(fixed).SerializeToString()
    scan_one_row(fixed, notes := Remarks())
    assert ir.to_proto(fixed).SerializeToString() == before
    assert not notes.lines


def test_it_says_what_it_did() -> None:
    changed = model(SUM)
    scan_one_row(changed, notes := Remarks())
    (line,) = notes.lines
    assert "of no rows it makes none" in line
    assert ops(changed).count("Scan") == 1
