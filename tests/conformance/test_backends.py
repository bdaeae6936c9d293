"""Every backend of ours passes the kit that we give to others."""

from pathlib import Path

import pytest

from edgeinfer.backends.base import Artifact
from edgeinfer.backends.engines import import_openvino
from edgeinfer.backends.openvino.backend import OpenVinoBackend
from edgeinfer.backends.registry import BUILT_IN, get
from edgeinfer.backends.testing import Subject, conformance, describe
from edgeinfer.backends.testing.kit import Check

OPENVINO_LIMITS = {
    "check_numbers_of_float64_values": "openvino 2026.4 computes float64 in float32 on the CPU",
}


def openvino_ir(model: bytes, folder: Path) -> Artifact:
    """Write a model as IR with full-precision weights."""
    openvino = import_openvino()
    source = folder / "model.onnx"
    source.write_bytes(model)
    path = folder / "model.xml"
    openvino.save_model(openvino.Core().read_model(str(source)), str(path), compress_to_fp16=False)
    return Artifact("openvino_ir", path, *describe(model))


SUBJECTS = [
    Subject(get("onnxruntime")),
    Subject(get("openvino"), openvino_ir, OPENVINO_LIMITS, label="openvino-ir"),
    Subject(get("reference")),
]
READER = Subject(get("openvino"), known_failures=OPENVINO_LIMITS, label="openvino-onnx")
"""It differs in how a file is opened."""


@conformance(SUBJECTS)
def test_conformance(subject: Subject, check: Check, tmp_path: Path) -> None:
    check(subject, tmp_path)


@pytest.mark.sample(10)
@conformance([READER])
def test_a_second_format_of_one_engine(subject: Subject, check: Check, tmp_path: Path) -> None:
    check(subject, tmp_path)


def test_every_format_of_every_backend_is_checked() -> None:
    subjects = [*SUBJECTS, READER]
    checked = {(s.backend.name, "onnx") for s in subjects if s.make_artifact is not openvino_ir}
    checked |= {(s.backend.name, "openvino_ir") for s in subjects if s.make_artifact is openvino_ir}
    # LiteRT opens what our own lowering writes: its kit runs in tests/backends/litert.
    checked |= {("litert", "tflite")}
    # So do Core ML, in tests/backends/coreml, and its evaluator, in coreml_reference.
    checked |= {("coreml", "mlprogram"), ("coreml-reference", "mlprogram")}
    # TVM and Core AI, each in a file of its own there.
    checked |= {("tvm", "tvm"), ("coreai", "aimodel")}
    # Language models are no ONNX models: tests/backends/llm.
    checked |= {("llm", "llm")}
    # Graphs with regions of machine code: tests/convert/lower/regions, tests/e2e/test_regions.py.
    checked |= {("onnxruntime", "onnx_tvm")}
    # ONNX Runtime's Core ML provider runs on a Mac only; what is ours of it is tested on a fake.
    checked |= {("onnxruntime-coreml", "onnx")}
    # TensorRT is not here: its package is a stand-in in tests/backends/tensorrt, where the
    # kit runs too, and ONNX Runtime's provider is another.
    checked |= {("tensorrt", "onnx"), ("onnxruntime-tensorrt", "onnx")}
    offered = {(name, f) for name in BUILT_IN for f in get(name).capabilities().formats}
    assert checked == offered
    assert isinstance(get("openvino"), OpenVinoBackend)
