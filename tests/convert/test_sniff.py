"""Each file that is not a model gets one line: what it is, and what to do."""

import io
import json
import os
import struct
import zipfile
from pathlib import Path

import onnx
import onnx.parser
import pytest

from edgeinfer.convert.sniff import sniff
from edgeinfer.convert.sources import read
from edgeinfer.errors import SourceError


def model_bytes() -> bytes:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["":17]> g (float[2] x) => (float[2] y) { y = Relu(x) }'
    )
    return bytes(model.SerializeToString())


def zipped(*names: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in names:
            archive.writestr(name, b"x")
    return buffer.getvalue()


def varint_field(number: int, value: int) -> bytes:
    return bytes([number << 3, value])


def bytes_field(number: int, content: bytes) -> bytes:
    tag = (number << 3) | 2
    head = bytes([tag & 0x7F | 0x80, tag >> 7]) if tag > 127 else bytes([tag])
    return head + bytes([len(content)]) + content


SAFETENSORS = struct.pack("<Q", 2) + b'{"'
CTRANSLATE2 = struct.pack("<IH", 6, 12) + b"WhisperSpec\x00" + bytes(50)
COREML = varint_field(1, 7) + bytes_field(2, b"\x0a\x01\x02") + bytes_field(502, b"abc")
SAVED_MODEL = varint_field(1, 1) + bytes_field(2, b"\x12\x34")
GRAPH_DEF = bytes_field(1, b"\x0a\x05input\x12\x0bPlaceholder") * 3

REFUSED = {
    "empty": ("m.onnx", b"", "empty file"),
    "text": ("m.onnx", b"hello, this is not a model\n", "a text file, not a model"),
    "json": ("m.json", b'{"a": [1, 2]}', "a JSON file"),
    "tfjs": ("model.json", json.dumps({"modelTopology": {}}).encode(), "tf2onnx.convert --tfjs"),
    "web page": ("m.onnx", b"<!DOCTYPE html><html>404</html>", "download failed"),
    "git lfs": ("m.onnx", b"version https://git-lfs.github.com/spec/v1\noid", "git lfs pull"),
    "tflite": ("m.bin", b"\x1c\x00\x00\x00TFL3" + bytes(60), "damaged or truncated .tflite file"),
    "keras h5": ("m.onnx", b"\x89HDF\r\n\x1a\n" + bytes(60), "tf2onnx.convert --keras"),
    "keras 3": ("m.keras", zipped("config.json", "model.weights.h5"), 'format="onnx"'),
    "savedmodel": ("saved_model.pb", SAVED_MODEL, "tf2onnx.convert --saved-model"),
    "graphdef": ("frozen.pb", GRAPH_DEF, "tf2onnx.convert --graphdef"),
    "torchscript": ("m.pt", zipped("m/data.pkl", "m/constants.pkl"), "TorchScript"),
    "state dict": ("m.pth", zipped("m/data.pkl", "m/data/0"), "weights without a graph"),
    "old pickle": ("m.pth", b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", "PyTorch pickle"),
    "safetensors": ("m.bin", SAFETENSORS + b'a":{}}', "a safetensors file"),
    "gguf": ("m.bin", b"GGUF\x03\x00\x00\x00" + bytes(50), "a GGUF language model"),
    "mlmodel": ("m.bin", COREML, "a Core ML model"),
    "mlpackage zip": ("m.zip", zipped("m.mlpackage/Data/model.mlmodel"), "a Core ML model"),
    "openvino": ("m.xml", b'<?xml version="1.0"?>\n<net name="a" version="11">', "an OpenVINO IR"),
    "encrypted bundle": ("m.edge", b"EDGEENC1" + bytes(50), "an encrypted edgeinfer bundle"),
    "tensorrt": ("m.onnx", b"ftrt" + bytes(50), "a TensorRT engine"),
    "tensorrt by name": ("m.engine", bytes(range(255, 100, -1)), "a TensorRT engine"),
    "ort format": ("m.ort", b"\x18\x00\x00\x00ORTM" + bytes(50), "ONNX Runtime's own ORT format"),
    "ctranslate2": ("model.bin", CTRANSLATE2, "a CTranslate2 model"),
    "ncnn": ("m.param", b"7767517\n1 1\n", "an ncnn model"),
    "gzip": ("m.onnx.gz", b"\x1f\x8b\x08" + bytes(20), "unpack it first"),
    "zip": ("m.zip", zipped("m.onnx"), "a zip archive"),
    "bundle": ("m.edge", zipped("manifest.json", "variants/cpu/m.onnx"), "edgeinfer run"),
    "compiled pt2": ("m.pt2", zipped("m/archive_format", "m/data/x.so"), "AOTInductor"),
    "damaged zip": ("m.pt2", zipped("a")[:40], "damaged or truncated zip"),
    "noise": ("m.onnx", bytes(range(255, 100, -1)), "not an ONNX model in spite of its name"),
    "unknown": ("picture", b"\x89PNG\r\n\x1a\n" + bytes(50), "starts with 89 50 4e 47"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_in_one_line(case: str, tmp_path: Path) -> None:
    name, content, words = REFUSED[case]
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(SourceError) as caught:
        read(path)
    message = str(caught.value)
    assert words in message
    assert message.startswith(str(path))
    assert "\n" not in message
    assert ";" in message or case == "unknown"


FOLDERS = {
    "savedmodel": (("saved_model.pb",), "m", "tf2onnx.convert --saved-model"),
    "mlpackage": (("Manifest.json",), "m.mlpackage", "a Core ML model"),
    "bundle": (("manifest.json", "variants"), "m.edge", "edgeinfer run"),
    "paddle": (("inference.pdmodel",), "m", "paddle2onnx"),
    "with a model": (("a.txt", "net.onnx"), "m", "net.onnx"),
    "hugging face": (("config.json", "model.safetensors"), "m", "weights without a graph"),
    "adapter": (("adapter_config.json", "a.safetensors"), "m", "--adapter NAME=FOLDER"),
    "other": (("a.txt",), "m", "a folder, not a model.*gguf file, or a folder of Hugging Face"),
}


@pytest.mark.parametrize("case", FOLDERS)
def test_folder_is_refused(case: str, tmp_path: Path) -> None:
    names, folder, words = FOLDERS[case]
    path = tmp_path / folder
    path.mkdir()
    for name in names:
        (path / name).write_bytes(b"x")
    with pytest.raises(SourceError, match=words):
        read(path)


def test_missing_file_and_device_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no such file"):
        read(tmp_path / "absent.onnx")
    os.mkfifo(tmp_path / "pipe.onnx")
    with pytest.raises(SourceError, match="not a regular file"):
        read(tmp_path / "pipe.onnx")


def test_a_path_component_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(model_bytes())
    with pytest.raises(SourceError):
        read(tmp_path / "m.onnx" / "x.onnx")


def test_every_truncation_of_a_model_is_refused_or_noted(tmp_path: Path) -> None:
    whole = model_bytes()
    path = tmp_path / "m.onnx"
    for length in range(1, len(whole)):
        path.write_bytes(whole[:length])
        try:
            source = read(path)
        except SourceError:
            continue
        # Cut between two whole fields: all that can be missing is the opset.
        assert any("opset" in line for line in source.notes.lines), length


def test_truncation_says_how_much_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(model_bytes()[:-12])
    with pytest.raises(SourceError, match=r"a truncated ONNX model: \d+ bytes are missing"):
        read(path)


def test_onnx_is_known_whatever_it_is_called(tmp_path: Path) -> None:
    for name in ("m.onnx", "m.bin", "m.pb", "m.tflite", "m"):
        (tmp_path / name).write_bytes(model_bytes())
        assert sniff(tmp_path / name) == "onnx"


def test_pt2_is_known_by_its_members(tmp_path: Path) -> None:
    path = tmp_path / "m.anything"
    path.write_bytes(zipped("m/archive_format", "m/models/model.json"))
    assert sniff(path) == "pt2"


def test_utf8_text_cut_inside_a_character_is_text(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"a" + "ä".encode() * 4000)
    with pytest.raises(SourceError, match="a text file"):
        read(path)
