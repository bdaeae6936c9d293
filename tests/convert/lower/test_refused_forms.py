"""What one target takes, the others take: forms that lowerings refuse take their definitions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from edgeinfer import profiles
from edgeinfer.backends import registry
from edgeinfer.backends.base import Artifact, LoadOptions
from edgeinfer.convert.lower import LowerOptions, target_for
from edgeinfer.convert.passes import normalise
from edgeinfer.convert.passes.interface import input_specs, output_specs
from edgeinfer.types import Array

TARGETS = {
    "openvino": ("openvino_ir", "openvino"),
    "rpi5": ("tflite", "litert"),
    "ios": ("mlprogram", "coreml-reference"),
}
TVM = ("tvm-x86-64-v3", ("tvm", "tvm"))

FORMS = {
    "cubic": "g (float[1,2,5,6] x, float[1,3,4,2] k) => (float[1,2,3,4] y) "
    '{ y = GridSample<mode="cubic">(x, k) }',
    "volume": "g (float[1,2,3,4,5] x, float[1,2,3,4,3] k) => (float[1,2,2,3,4] y) "
    '{ y = GridSample<padding_mode="border">(x, k) }',
    "largest of a region": "g (float[1,2,6,6] x, float[2,4] k) => (float[2,2,2,2] y) "
    "<int64[2] i = {0, 0}> { y = RoiAlign<mode=\"max\", output_height=2, output_width=2, "
    "sampling_ratio=1>(x, k, i) }",
    "half of a spectrum": "g (float[1,16,1] x) => (float[1,9,2] y) { y = DFT<onesided=1>(x) }",
    "parts of a tensor": "g (float[6,3] x) => (float[2,3] a, float[2,9] y) <int64 n = {2}, "
    "int64 i = {0}> { s = SplitToSequence<axis=0>(x, n) a = SequenceAt(s, i) "
    "y = ConcatFromSequence<axis=1>(s) }",
}  # fmt: skip


def model(text: str) -> ir.Model:
    return ir.from_onnx_text(f'<ir_version: 10, opset_import: ["" : 21]> {text}')


def feeds(of: ir.Model) -> dict[str, Array]:
    random = np.random.default_rng(0)
    return {
        v.name or "": random.uniform(-1, 1, v.shape.numpy()).astype(np.float32)
        if v.name != "k" or len(v.shape) != 2
        else np.array([[0, 0, 4, 5], [1, 2, 5, 3]], np.float32)
        for v in of.graph.inputs
        if v.shape is not None
    }


def lowered(
    source: ir.Model, given: dict[str, Array], folder: Path, target: str, how: tuple[str, str]
) -> list[Array]:
    format, engine = how
    of = normalise(source).model
    folder = folder / "variant"
    folder.mkdir()
    written = target_for(format).lower(of, profiles.load(target), LowerOptions(), folder)
    artifact = Artifact(format, written.files[0], input_specs(of), output_specs(of))
    executable = registry.get(engine).load(artifact, LoadOptions(threads=1))
    try:
        found = executable.run(given)
    finally:
        executable.close()
    return [found[v.name or ""] for v in of.graph.outputs]


def compare(text: str, folder: Path, target: str, how: tuple[str, str]) -> None:
    of = model(text)
    given = feeds(of)
    session = ort.InferenceSession(
        ir.to_proto(of).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    want = session.run(None, given)
    for found, right in zip(lowered(of, given, folder, target, how), want, strict=True):
        assert found.shape == right.shape
        np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-4)


@pytest.mark.sample(6)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("target", TARGETS)
def test_forms(target: str, form: str, tmp_path: Path) -> None:
    compare(FORMS[form], tmp_path, target, TARGETS[target])


RECURRENT = """g (float[3,2,4] x) => (float[3,1,2,2] y)
    <int32[2] l = {3, 1}, float[1,2,4] w = {0.1,0.2,-0.3,0.4,0.5,-0.6,0.7,0.8},
     float[1,2,2] r = {0.3,-0.2,0.1,0.4}>
    { y = RNN<hidden_size=2>(x, w, r, "", l) }"""


@pytest.mark.slow
@pytest.mark.parametrize("form", [*FORMS, "recurrent"])
def test_forms_as_machine_code(form: str, tmp_path: Path) -> None:
    pytest.importorskip("tvm")
    compare(FORMS.get(form, RECURRENT), tmp_path, *TVM)
