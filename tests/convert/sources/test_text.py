"""Texts that are no UTF-8 are read, in every field; names still agree."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser
import pytest

from edgeinfer.convert import sources
from edgeinfer.convert.sources.text import is_damaged

TEXT = """<ir_version: 8, opset_import: ["" : 17], producer_name: "maker_of">
graph_of (float[batch_of,4] input_of) => (float[batch_of,4] output_of) {
  [node_of] middle_of = Relu(input_of)
  output_of = LeakyRelu<alpha=0.1>(middle_of)
}"""


@pytest.mark.parametrize("name", ["maker", "graph", "batch", "input", "output", "node", "middle"])
@pytest.mark.parametrize("from_file", [True, False])
def test_bytes_are_written_out(name: str, from_file: bool, tmp_path: Path) -> None:
    whole = onnx.parser.parse_model(TEXT).SerializeToString()
    raw = whole.replace(f"{name}_of".encode(), b"\xff\xfe" + f"{name}_of".encode()[2:])
    given = onnx.ModelProto.FromString(raw)
    assert is_damaged(given)
    path = tmp_path / "m.onnx"
    path.write_bytes(raw)
    source = sources.read(path if from_file else given)
    assert given.SerializeToString() == raw
    assert any("no UTF-8" in line for line in source.notes.lines)
    (x,) = source.model.graph.inputs
    assert x.name == (r"\xff\xfeput_of" if name == "input" else "input_of")
    assert [n.op_type for n in source.model.graph] == ["Relu", "LeakyRelu"]


def test_whole_texts_are_left_alone() -> None:
    model = onnx.parser.parse_model(TEXT)
    model.graph.doc_string = "größer"
    assert not is_damaged(model)
    assert all("UTF-8" not in line for line in sources.read(model).notes.lines)
