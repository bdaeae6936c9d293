"""TFLite Model Metadata: the published tables, the labels behind the model, and the way back."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from edgeinfer.convert.lower.target import LowerOptions
from edgeinfer.convert.lower.tflite.metadata import ENTRY, OWN_ENTRY, Carried, carried_by
from edgeinfer.convert.lower.tflite.target import TfliteTarget
from edgeinfer.convert.passes import normalise
from edgeinfer.convert.sources import read
from edgeinfer.convert.sources.tflite.file import load
from edgeinfer.types import AudioInput, ImageInput, Preprocessing, TensorSpec, TokenInput
from tests.convert.lower.tflite.run import outputs, profile

NET = """<ir_version: 10, opset_import: ["" : 24]>
net (float[1,4,4,3] image, float[1,8] sound) => (float[1,3] a, float[1,2] scores)
<int64[2] axes = {1, 2}, int64[2] two = {0, 1}, int64[1] last = {1}> {
  a = ReduceMean<keepdims=0>(image, axes)
  scores = Gather<axis=1>(sound, two)
}"""
IMAGE = ImageInput(
    4, 4, resize="crop", crop_ratio=0.875, layout="NHWC", mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4)
)
RECORDS: dict[str, Preprocessing] = {"image": IMAGE, "sound": AudioInput(16000, 8)}
LABELS = ("cat", "large  dog")
INPUTS = (
    TensorSpec("image", "float32", (1, 4, 4, 3)),
    TensorSpec("sound", "float32", (1, 8)),
)


def made(
    folder: Path, records: dict[str, Preprocessing] | None = None, labels: tuple[str, ...] = ()
) -> Path:
    options = LowerOptions(preprocessing=records or {}, labels=labels)
    model = normalise(ir.from_onnx_text(NET)).model
    folder.mkdir(exist_ok=True)
    return TfliteTarget().lower(model, profile(), options, folder).files[0]


def entries(path: Path) -> dict[str, bytes]:
    file = load(path)
    return {name: file.read(span) for name, span in file.metadata.items()}


def test_nothing_is_written_where_nothing_is_known(tmp_path: Path) -> None:
    path = made(tmp_path)
    assert entries(path) == {}
    assert not zipfile.is_zipfile(path)


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    records = {**RECORDS, "sound": TokenInput(99)}
    found = read(made(tmp_path, records, LABELS))
    assert found.preprocessing == records
    assert found.labels == LABELS


def test_others_read_the_published_part(tmp_path: Path) -> None:
    path = made(tmp_path, RECORDS, LABELS)
    published = {ENTRY: entries(path)[ENTRY]}
    found = carried_by(published, path, INPUTS)
    # One label a line, so white space inside is one blank; numbers are for pixels of 0 to 255.
    assert found.labels == ("cat", "large dog")
    image = found.preprocessing["image"]
    assert isinstance(image, ImageInput)
    assert (image.width, image.height, image.layout, image.scale) == (4, 4, "NHWC", 1.0)
    np.testing.assert_allclose(image.mean, np.array(IMAGE.mean) * 255, rtol=1e-6)
    np.testing.assert_allclose(image.std, np.array(IMAGE.std) * 255, rtol=1e-6)
    assert found.preprocessing["sound"] == AudioInput(16000, 8)
    assert published[ENTRY][4:8] == b"M001"


def test_equal_requests_give_equal_bytes(tmp_path: Path) -> None:
    files = [made(tmp_path / n, RECORDS, LABELS) for n in ("a", "b")]
    first, second = (hashlib.sha256(f.read_bytes()).hexdigest() for f in files)
    assert first == second


def test_litert_runs_a_file_with_labels_behind_it(tmp_path: Path) -> None:
    feeds = {
        "image": np.ones((1, 4, 4, 3), np.float32),
        "sound": np.arange(8, dtype=np.float32)[None],
    }
    got = outputs(made(tmp_path, RECORDS, LABELS), feeds)
    np.testing.assert_array_equal(got["scores"], [[0, 1]])


def test_labels_that_no_output_has_room_for_belong_to_the_graph(tmp_path: Path) -> None:
    path = made(tmp_path, labels=("only one",))
    assert carried_by({ENTRY: entries(path)[ENTRY]}, path, INPUTS) == Carried({}, ("only one",))


@pytest.mark.parametrize("entry", [ENTRY, OWN_ENTRY])
def test_damaged_metadata_is_left_out_with_a_note(tmp_path: Path, entry: str) -> None:
    path = made(tmp_path, RECORDS, LABELS)
    file = load(path)
    raw = bytearray(path.read_bytes())
    start, length = file.metadata[entry]
    raw[start : start + length] = b"\xff" * length
    path.write_bytes(raw)
    if entry == ENTRY:
        with pytest.raises(ValueError, match="cannot be read"):
            carried_by({ENTRY: b"\xff" * length}, path, INPUTS)
        return
    found = read(path)
    assert (found.preprocessing, found.labels) == ({}, ())
    assert any("metadata was left out" in line for line in found.notes.lines)


def test_a_record_of_an_input_that_is_gone_is_left_out(tmp_path: Path) -> None:
    path = made(tmp_path, RECORDS)
    found = carried_by(entries(path), path, INPUTS[1:])
    assert list(found.preprocessing) == ["sound"]
