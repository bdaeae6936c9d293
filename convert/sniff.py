"""What a path holds, decided by its bytes first and its extension last.

Only what ``read`` can take comes back; everything else is refused in one line that says what the
file is and which tool makes a readable model of it.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from edgeinfer.bounded import ZIP_ERRORS, Archive, open_file, parse_json
from edgeinfer.errors import SourceError
from edgeinfer.records import dataclass
from edgeinfer.wire import Wire, walk

Kind = Literal["onnx", "pt2", "tflite"]

GGUF_MAGIC = b"GGUF"

_HEAD = 4096


@dataclass(frozen=True, slots=True)
class _Refusal:
    """What a file is, and what to do instead."""

    what: str
    advice: str


_KERAS_H5 = _Refusal(
    "a Keras HDF5 model",
    "make an ONNX model of it: python -m tf2onnx.convert --keras MODEL.h5 --output model.onnx",
)
_KERAS = _Refusal(
    "a Keras 3 model",
    'make an ONNX model of it in Keras: model.export("model.onnx", format="onnx")',
)
_TFLITE_MAGIC = b"TFL3"
_TFLITE_NAME = _Refusal(
    "not a .tflite model in spite of its name, or a damaged one",
    "write or download it again",
)
_SAVED_MODEL = _Refusal(
    "a TensorFlow SavedModel, not supported as a source yet",
    "make an ONNX model of it: python -m tf2onnx.convert --saved-model FOLDER --output model.onnx",
)
_GRAPH_DEF = _Refusal(
    "a frozen TensorFlow graph",
    "make an ONNX model of it: python -m tf2onnx.convert --graphdef MODEL.pb --inputs IN:0 "
    "--outputs OUT:0 --output model.onnx",
)
_TORCHSCRIPT = _Refusal(
    "a TorchScript archive",
    "pass the torch.nn.Module it was made from with example_inputs, or save that with "
    "torch.export.save(torch.export.export(module, args), 'model.pt2')",
)
_STATE_DICT = _Refusal(
    "a PyTorch pickle (weights without a graph)",
    "load it into its torch.nn.Module and pass that with example_inputs, or save it with "
    "torch.export.save(torch.export.export(module, args), 'model.pt2')",
)
_SAFETENSORS = _Refusal(
    "a safetensors file (weights without a graph)",
    "load it into its torch.nn.Module and pass that with example_inputs, or give an ONNX export",
)
_GGUF = _Refusal(
    "a GGUF language model, of which there is no graph",
    "`edgeinfer convert` and `edgeinfer inspect` take it; nothing else does",
)
_COREML = _Refusal(
    "a Core ML model, which is a result and not a source",
    "give the ONNX or PyTorch model it was made from",
)
_OPENVINO = _Refusal(
    "an OpenVINO IR, which is a result and not a source",
    "give the model it was made from, or run the IR with OpenVINO itself",
)
_TENSORRT = _Refusal(
    "a TensorRT engine, which only runs on the device it was built for",
    "give the ONNX model it was built from",
)
_ORT = _Refusal(
    "a model in ONNX Runtime's own ORT format, which cannot be read back",
    "give the .onnx file it was made from",
)
_CTRANSLATE2 = _Refusal(
    "a CTranslate2 model (weights without a graph)",
    "give the original PyTorch model or an ONNX export of it",
)
_PADDLE = _Refusal(
    "a Paddle model",
    "make an ONNX model of it: paddle2onnx --model_dir FOLDER --save_file model.onnx",
)
_TFJS = _Refusal(
    "a TensorFlow.js model",
    "make an ONNX model of it: python -m tf2onnx.convert --tfjs MODEL.json --output model.onnx",
)
_NCNN = _Refusal("an ncnn model", "give the ONNX or PyTorch model it was made from")
_MNN = _Refusal("an MNN model", "give the ONNX or PyTorch model it was made from")
_CAFFE = _Refusal("a Caffe model", "give an ONNX export of it")
_LFS = _Refusal("a Git LFS pointer, not the model itself", "fetch the file: git lfs pull")
_HTML = _Refusal("a web page, so the download failed", "download the file again")
_COMPRESSED = _Refusal("a compressed file", "unpack it first")
_BUNDLE = _Refusal("an edgeinfer bundle, which is converted already", "use: edgeinfer run BUNDLE")
_SEALED = _Refusal(
    "an encrypted edgeinfer bundle, which is converted already", "use: edgeinfer run BUNDLE"
)

_MAGIC: tuple[tuple[int, bytes, _Refusal], ...] = (
    (0, b"\x89HDF\r\n\x1a\n", _KERAS_H5),
    (0, b"EDGEENC1", _SEALED),
    (4, b"ORTM", _ORT),
    (0, GGUF_MAGIC, _GGUF),
    (0, b"ftrt", _TENSORRT),
    (0, b"ptrt", _TENSORRT),
    (0, b"version https://git-lfs", _LFS),
    (0, b"7767517\n", _NCNN),
    (0, b"\x1f\x8b", _COMPRESSED),
    (0, b"\x28\xb5\x2f\xfd", _COMPRESSED),
    (0, b"\xfd7zXZ\x00", _COMPRESSED),
    (0, b"7z\xbc\xaf\x27\x1c", _COMPRESSED),
    (0, b"\x80\x02", _STATE_DICT),
    (0, b"\x80\x03", _STATE_DICT),
    (0, b"\x80\x04", _STATE_DICT),
)

_EXTENSIONS: Mapping[str, _Refusal] = MappingProxyType(
    {
        ".h5": _KERAS_H5,
        ".hdf5": _KERAS_H5,
        ".keras": _KERAS,
        ".tflite": _TFLITE_NAME,
        ".lite": _TFLITE_NAME,
        ".pb": _GRAPH_DEF,
        ".jit": _TORCHSCRIPT,
        ".pt": _STATE_DICT,
        ".pth": _STATE_DICT,
        ".ckpt": _STATE_DICT,
        ".safetensors": _SAFETENSORS,
        ".gguf": _GGUF,
        ".mlmodel": _COREML,
        ".mlpackage": _COREML,
        ".mlmodelc": _COREML,
        ".engine": _TENSORRT,
        ".plan": _TENSORRT,
        ".trt": _TENSORRT,
        ".ort": _ORT,
        ".pdmodel": _PADDLE,
        ".caffemodel": _CAFFE,
        ".mnn": _MNN,
    }
)


def is_llm(model: object) -> bool:
    """Whether a model is the path of a GGUF file or of a folder with a config.json."""
    if not isinstance(model, str | Path):
        return False
    path = Path(model)
    try:
        if path.is_dir():
            return (path / "config.json").is_file()
        with open_file(path) as file:
            return file.read(len(GGUF_MAGIC)) == GGUF_MAGIC
    # Whoever reads it says why it cannot be read.
    except OSError:
        return False


def sniff(path: Path) -> Kind:
    """Say what a path holds.

    Raises:
        SourceError: it is not there, cannot be opened or is not a model that can be read.
    """
    try:
        if path.is_dir():
            raise _refuse(path, _folder(path))
        if not path.exists():
            raise SourceError(f"{path}: no such file; give the path of a model")
        if not path.is_file():
            raise SourceError(f"{path}: not a regular file; give the path of a model")
        with open_file(path) as file:
            head = file.read(_HEAD)
    except OSError as error:
        raise SourceError(f"{path}: cannot be opened: {error.strerror or error}") from error
    if not head:
        raise SourceError(f"{path}: empty file; write or download the model again")
    if head.startswith(b"PK\x03\x04"):
        return _archive(path)
    if head[4:8] == _TFLITE_MAGIC:
        return "tflite"
    refusal = _by_magic(head)
    if refusal is not None:
        raise _refuse(path, refusal)
    return _protobuf(path, head)


def _refuse(path: Path, refusal: _Refusal) -> SourceError:
    return SourceError(f"{path}: {refusal.what}; {refusal.advice}")


def _folder(path: Path) -> _Refusal:
    names = {p.name for p in path.iterdir()}
    if "saved_model.pb" in names or "saved_model.pbtxt" in names:
        return _SAVED_MODEL
    if path.suffix in (".mlpackage", ".mlmodelc"):
        return _COREML
    if "manifest.json" in names and "variants" in names:
        return _BUNDLE
    if "__model__" in names or "inference.pdmodel" in names:
        return _PADDLE
    models = sorted(n for n in names if n.endswith((".onnx", ".pt2", ".tflite")))
    if models:
        return _Refusal("a folder, not a model", f"give the file: {path / models[0]}")
    if "adapter_config.json" in names:
        return _Refusal(
            "a low-rank adapter, which changes a model and is none",
            "convert its model, and give it with that: --adapter NAME=FOLDER",
        )
    if any(n.endswith(".safetensors") or n == "pytorch_model.bin" for n in names):
        return _Refusal(
            "a folder of weights without a graph, not supported as a source yet",
            "pass the torch.nn.Module with example_inputs, or give an ONNX export",
        )
    return _Refusal(
        "a folder, not a model",
        "give the path of an .onnx, .pt2, .tflite or .gguf file, or a folder of Hugging Face's "
        "with a config.json",
    )


def _archive(path: Path) -> Kind:
    """Tell the many formats that are zip files apart by their members."""
    try:
        with open_file(path) as file, Archive(file) as archive:
            names = archive.namelist()
    except ZIP_ERRORS as error:
        raise SourceError(
            f"{path}: a damaged or truncated zip archive ({error}); write or download it again"
        ) from error
    leaves = {name.split("/", 1)[-1] for name in names}
    if "archive_format" in leaves and any(n.startswith("models/") for n in leaves):
        return "pt2"
    if "serialized_exported_program.json" in leaves | set(names):
        return "pt2"
    if "archive_format" in leaves:
        raise _refuse(path, _Refusal("a compiled AOTInductor package", _TORCHSCRIPT.advice))
    if "data.pkl" in leaves:
        raise _refuse(path, _TORCHSCRIPT if "constants.pkl" in leaves else _STATE_DICT)
    if "model.weights.h5" in names or ("config.json" in names and path.suffix == ".keras"):
        raise _refuse(path, _KERAS)
    if "manifest.json" in names and any(n.startswith("variants/") for n in names):
        raise _refuse(path, _BUNDLE)
    if any(n.endswith(".mlmodel") for n in names):
        raise _refuse(path, _COREML)
    raise _refuse(path, _Refusal("a zip archive", "unpack it and give the model inside"))


def _by_magic(head: bytes) -> _Refusal | None:
    for offset, magic, refusal in _MAGIC:
        if head[offset : offset + len(magic)] == magic:
            return refusal
    if _is_safetensors(head):
        return _SAFETENSORS
    if _is_ctranslate2(head):
        return _CTRANSLATE2
    return _by_text(head)


def _is_safetensors(head: bytes) -> bool:
    """Eight bytes of length, then a JSON object."""
    if len(head) < 10 or head[8:9] != b"{":
        return False
    (length,) = struct.unpack("<Q", head[:8])
    return 2 <= length < 1 << 30 and head[9:10] in (b'"', b"}", b" ", b"\n")


def _is_ctranslate2(head: bytes) -> bool:
    """A version, then the length-prefixed name of a model specification ending in ``Spec``."""
    if len(head) < 12:
        return False
    version, length = struct.unpack("<IH", head[:6])
    name = head[6 : 6 + length].rstrip(b"\x00")
    return 1 <= version < 100 and 4 < length < 100 and name.isalnum() and name.endswith(b"Spec")


def _by_text(head: bytes) -> _Refusal | None:
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError as error:
        # The head may end inside a character.
        if error.start < len(head) - 4:
            return None
        text = head[: error.start].decode("utf-8")
    if any(ord(c) < 32 and c not in "\t\n\r\f" for c in text):
        return None
    start = text.lstrip("\ufeff \t\r\n")[:200].lower()
    if start.startswith(("<!doctype html", "<html")):
        return _HTML
    if "<net" in text and start.startswith(("<?xml", "<net")):
        return _OPENVINO
    if '"modelTopology"' in text or '"graph-model"' in text:
        return _TFJS
    if start.startswith("{") and _looks_like_json(text):
        return _Refusal("a JSON file, not a model", "give an .onnx, .pt2 or .tflite file")
    return _Refusal("a text file, not a model", "give an .onnx, .pt2 or .tflite file")


def _looks_like_json(text: str) -> bool:
    try:
        parse_json(text)
    except ValueError:
        return len(text) >= _HEAD // 4
    return True


def _protobuf(path: Path, head: bytes) -> Kind:
    """Accept an ONNX model; name other protobuf formats, and what is wrong with a damaged one."""
    with open_file(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        wire = walk(data)
    if wire is not None:
        if _is_onnx(wire):
            if wire.missing_bytes:
                raise SourceError(
                    f"{path}: a truncated ONNX model: {wire.missing_bytes} bytes are missing at "
                    "the end; write or download it again"
                )
            return "onnx"
        refusal = _other_protobuf(wire, path)
        if refusal is not None:
            raise _refuse(path, refusal)
    suffix = path.suffix.lower()
    if suffix in (".onnx", ".pt2"):
        raise SourceError(
            f"{path}: not {'an ONNX' if suffix == '.onnx' else 'a .pt2'} model in spite of its "
            f"name, or a damaged one (starts with {head[:8].hex(' ')}); write or download it again"
        )
    if suffix in _EXTENSIONS:
        raise _refuse(path, _EXTENSIONS[suffix])
    raise SourceError(
        f"{path}: not a known model format (starts with {head[:8].hex(' ')}); "
        "give an .onnx, .pt2 or .tflite file"
    )


def _is_onnx(wire: Wire) -> bool:
    """ModelProto: 1 ir_version, 7 graph, 8 opset_import; nothing above 26."""
    has_graph = wire.fields.get(7) == 2
    return has_graph and (wire.fields.get(1) in (0, None)) and max(wire.fields) <= 30


def _other_protobuf(wire: Wire, path: Path) -> _Refusal | None:
    fields = wire.fields
    if any(200 <= number < 3000 for number in fields) and fields.get(1) == 0:
        return _COREML
    if wire.missing_bytes:
        return None
    if path.suffix in (".pdmodel", ".mlmodel", ".caffemodel"):
        return _EXTENSIONS[path.suffix]
    if fields == {1: 0, 2: 2}:
        return _SAVED_MODEL
    if fields.get(1) == 2 and set(fields) <= {1, 2, 3, 4, 5}:
        return _GRAPH_DEF
    return None
