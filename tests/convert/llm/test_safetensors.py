"""Headers of safetensors files that ask for more than anybody computes."""

import json
import struct
import time
from pathlib import Path

import pytest

from edgeinfer.convert.llm import safetensors, source
from edgeinfer.errors import SourceError


def test_a_tensor_of_many_axes_is_refused_before_its_size_is_computed(tmp_path: Path) -> None:
    shape = [2**62] * 50_000
    header = json.dumps({"t": {"dtype": "F32", "shape": shape, "data_offsets": [0, 4]}}).encode()
    place = tmp_path / "model.safetensors"
    place.write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 4)
    begin = time.process_time()
    with pytest.raises(SourceError, match="a tensor of 50000 axes, at most 8 are read"):
        safetensors.read(tmp_path)
    assert time.process_time() - begin < 1


def test_a_header_of_brackets_is_refused(tmp_path: Path) -> None:
    """Eight bytes of it take 280 in memory."""
    header = b'{"__metadata__":[' + b'{"":{}},' * 1_000_000 + b"0]}"
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(SourceError, match="8000020 characters of JSON that take"):
        safetensors.read(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_bytes(header)
    with pytest.raises(SourceError, match="8000020 characters of JSON that take"):
        safetensors.read(tmp_path)
    (tmp_path / "config.json").write_bytes(header)
    with pytest.raises(SourceError, match="8000020 characters of JSON that take"):
        source.read_json(tmp_path / "config.json")


def test_a_file_has_so_many_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safetensors, "MOST_TENSORS", 2)
    entry = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    header = json.dumps(dict.fromkeys("abc", entry)).encode()
    place = tmp_path / "model.safetensors"
    place.write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 4)
    with pytest.raises(SourceError, match="3 tensors, at most 2 are read"):
        safetensors.read(tmp_path)
