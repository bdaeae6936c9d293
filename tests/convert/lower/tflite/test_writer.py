"""The file: what is in it, and that LiteRT reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.convert.lower.tflite import writer
from edgeinfer.convert.lower.tflite.builder import Builder
from edgeinfer.convert.lower.tflite.readback import read_back
from edgeinfer.convert.lower.tflite.writer import Metadata, write
from tests.convert.lower.tflite.run import outputs

schema = pytest.importorskip("ai_edge_litert.schema_py_generated")

X = np.arange(12, dtype=np.float32).reshape(3, 4)
W = np.linspace(-1, 1, 20, dtype=np.float32).reshape(4, 5)


def graph() -> Builder:
    """``y = x . W + W[0]``, with the weights as a transposed view, and the view twice."""
    g = Builder()
    x = g.tensor((3, 4), np.float32, "x")
    g.inputs = [x]
    options: dict[str, Any] = {"fused_activation_function": 0, "weights_format": 0}
    options |= {"keep_num_dims": False, "asymmetric_quantize_inputs": False}
    weights = [g.transpose(g.const(W), [1, 0]), g.const(np.ascontiguousarray(W.T))]
    a, b = (g.emit("FULLY_CONNECTED", [x, w, None], (3, 5), **options) for w in weights)
    y = g.binary("ADD", g.binary("ADD", a, b), g.const(W[0]))
    y.name = "y"
    g.outputs = [y]
    return g


def written(path: Path, **options: Any) -> bytes:
    write(graph(), path, input_names=["x"], output_names=["y"], **options)
    return path.read_bytes()


def check(data: bytes) -> None:
    got = outputs(data, {"x": X})["y"]
    np.testing.assert_allclose(got, 2 * X @ W + W[0], rtol=1e-6)


def test_the_file_runs(tmp_path: Path) -> None:
    check(written(tmp_path / "m.tflite"))


def test_equal_graphs_give_equal_bytes(tmp_path: Path) -> None:
    assert written(tmp_path / "a.tflite") == written(tmp_path / "b.tflite")


def test_equal_constants_are_stored_once(tmp_path: Path) -> None:
    model = schema.ModelT.InitFromPackedBuf(written(tmp_path / "m.tflite"), 0)
    sizes = [b.data.nbytes for b in model.buffers if b.data is not None]
    assert sizes.count(W.nbytes) == 1


def test_constants_are_aligned(tmp_path: Path) -> None:
    data = written(tmp_path / "m.tflite")
    for values in (np.ascontiguousarray(W.T), W[0]):
        assert data.index(values.tobytes()) % writer.ALIGNMENT == 0


def test_constants_beyond_a_flatbuffer_follow_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "INLINE_LIMIT", 0)
    data = written(tmp_path / "m.tflite")
    model = schema.Model.GetRootAs(data, 0)
    found = [model.Buffers(i) for i in range(model.BuffersLength())]
    assert {b.DataLength() for b in found} == {0}
    assert sum(b.Size() for b in found) >= W.nbytes
    check(data)


def test_signature_and_metadata_are_found_again(tmp_path: Path) -> None:
    data = written(tmp_path / "m.tflite", metadata=[Metadata("note", b"hello")])
    model = schema.ModelT.InitFromPackedBuf(data, 0)
    (signature,) = model.signatureDefs
    assert signature.signatureKey == b"serving_default"
    assert [t.name for t in signature.inputs + signature.outputs] == [b"x", b"y"]
    (entry,) = model.metadata
    assert bytes(model.buffers[entry.buffer].data) == b"hello"
    check(data)


def test_read_back_tells_operators_and_types(tmp_path: Path) -> None:
    written(tmp_path / "m.tflite")
    assert read_back(tmp_path / "m.tflite") == ("fp32", {"ADD": 2, "FULLY_CONNECTED": 2})


def test_an_option_the_schema_lacks_is_an_error(tmp_path: Path) -> None:
    g = graph()
    g.ops[-1].options["colour"] = 1
    with pytest.raises(ValueError, match="no field 'colour'"):
        write(g, tmp_path / "m.tflite", input_names=["x"], output_names=["y"])
