"""An output that is a list of tensors becomes its tensors; another list is refused in words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import edgeinfer
from edgeinfer.errors import SourceError, UnsupportedError

SEVERAL = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[N, 3] x) => (float[N, 3] y, seq(float[N, 3]) scores)
{
    y = Relu (x)
    a = Neg (x)
    scores = SequenceConstruct (a, y, x)
}
"""
ONE = SEVERAL.replace("(a, y, x)", "(a)")
TAKEN = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[N, 3] x) => (float[N, 3] y, seq(float[N, 3]) scores)
{
    y = Relu (x)
    scores_0 = Abs (x)
    b = Neg (scores_0)
    scores = SequenceConstruct (y, b)
}
"""
INPUT = """
<ir_version: 8, opset_import: ["" : 17]>
net (seq(float[N, 3]) x) => (float[N, 3] y)
{
    i = Constant <value_int = 0> ()
    y = SequenceAt (x, i)
}
"""
FEED = np.array([[1.0, -2.0, 3.0], [-4.0, 5.0, -6.0]], np.float32)


def source(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(text)


@pytest.mark.sample(3)
@pytest.mark.parametrize("text", [SEVERAL, ONE])
@pytest.mark.parametrize("target", ["onnxruntime", "openvino", "rpi5"])
def test_a_list_at_the_end_becomes_its_tensors(text: str, target: str, tmp_path: Path) -> None:
    proto = source(text)
    plain = onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    y, scores = plain.run(None, {"x": FEED})
    result = edgeinfer.export(proto, tmp_path / "m.edge", targets=[target])
    assert any(
        "a list of tensors, cut off" in line for c in result.report.changes for line in c.lines
    )
    with edgeinfer.load(tmp_path / "m.edge", measure=False) as session:
        found = session.run({"x": FEED})
    assert [*found] == ["y", *(f"scores_{n}" for n in range(len(scores)))]
    for got, right in zip(found.values(), [y, *scores], strict=True):
        np.testing.assert_array_equal(got, right)


def test_lists_that_stay_are_refused_in_words(tmp_path: Path) -> None:
    for text, said in (
        (TAKEN, "output 'scores' is a list of tensors"),
        (INPUT, "input 'x' is a list of tensors"),
    ):
        with pytest.raises(SourceError, match=said):
            edgeinfer.export(source(text), tmp_path / "m.edge", targets=["onnxruntime"])
        with pytest.raises((SourceError, UnsupportedError)):
            edgeinfer.export(source(text), tmp_path / "m.edge", targets=["rpi5", "ios"])
    assert not (tmp_path / "m.edge").exists()
