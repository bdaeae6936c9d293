"""One bundle holds fp32 and precisions that need consent; each was judged, none is stored twice."""

import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import pytest

from edgeinfer import profiles
from edgeinfer.backends.base import Device, Probe
from edgeinfer.backends.onnxruntime.backend import OnnxRuntimeBackend
from edgeinfer.convert.options import ConvertOptions
from edgeinfer.convert.pipeline.entry import ExportResult, export
from edgeinfer.convert.pipeline.request import check_request
from edgeinfer.convert.pipeline.rows import conversions
from edgeinfer.convert.quantize.half import stage
from edgeinfer.errors import UsageError

MODEL = """
<ir_version: 10, opset_import: ["" : 20]>
agraph (float[1,3,12,12] x) => (float[1,8,10,10] y)
{
    a = Conv <pads=[1,1,1,1]> (x, w)
    b = Add (a, far)
    c = Relu (b)
    y = Conv (c, v)
}
"""


def written(folder: Path, far: float) -> Path:
    """A net of differences of what lies near ``far``, of which few bits hold little."""
    model = onnx.parser.parse_model(MODEL)
    rng = np.random.default_rng(0)
    v = rng.integers(-3, 4, (8, 72))
    v[:, 0] -= v.sum(axis=1)
    arrays = {
        "w": rng.normal(size=(8, 3, 3, 3)),
        "v": v.reshape(8, 8, 3, 3),
        "far": np.float32(far),
    }
    for name, array in arrays.items():
        tensor = onnx.numpy_helper.from_array(np.asarray(array, np.float32), name)
        model.graph.initializer.append(tensor)
    path = folder / "m.onnx"
    onnx.save(model, path)
    return path


Convert = Callable[..., ExportResult]


@pytest.fixture
def convert(tmp_path: Path) -> Convert:
    def run(*targets: str, also: str, far: float = 0.5, **more: object) -> ExportResult:
        path = written(tmp_path, far)
        return export(path, tmp_path / "m.edge", targets=targets, also=[also], **more)  # type: ignore[arg-type]

    return run


def lines(made: ExportResult) -> str:
    return "\n".join(line for c in made.report.changes for line in c.lines)


def test_told_rows_are_the_files_of_fp32(convert: Convert) -> None:
    made = convert("openvino", "cuda", also="bf16,tf32")
    found = {v.id: v for v in made.manifest.variants}
    assert list(found) == [
        *("openvino-openvino_ir-fp32", "openvino-openvino_ir-bf16"),
        *("cuda-onnx-fp32", "cuda-onnx-tf32"),
        "cuda-onnx-bf16",
    ]
    for plain, kind in (("openvino-openvino_ir", "bf16"), ("cuda-onnx", "tf32")):
        row = found[f"{plain}-{kind}"]
        assert row.files == found[f"{plain}-fp32"].files
        assert (row.precision, row.computed_in, row.consent) == (kind, kind, kind)
        assert found[f"{plain}-fp32"].consent == ""
    own = found["cuda-onnx-bf16"]
    assert (own.computed_in, own.consent) == ("", "bf16")
    with zipfile.ZipFile(made.path) as bundle:
        names = [n for n in bundle.namelist() if n.endswith((".bin", ".onnx"))]
    assert len(names) == 3
    assert {r.id for r in made.report.variants} == found.keys()


@pytest.mark.parametrize("uses_it", [False, True])
def test_a_gpu_that_no_engine_here_uses_computes_nothing(
    uses_it: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Next to a GPU and an ONNX Runtime without CUDA, tf32 was refused for want of a check."""
    gpu = Device("gpu", "H200")
    found = Probe(
        "onnxruntime", "1", (gpu, Device("cpu", "x")) if uses_it else (Device("cpu", "x"),)
    )
    monkeypatch.setattr(stage, "cuda_devices", lambda: (gpu,))
    monkeypatch.setattr(OnnxRuntimeBackend, "probe", lambda self: found)
    assert stage.is_here("tf32", profiles.load("cuda"), "onnx") is uses_it


def test_a_precision_that_changes_nothing_is_left_out(tmp_path: Path) -> None:
    """Nobody said what the input holds, so every layer of it stays fp32."""
    net = """<ir_version: 10, opset_import: ["": 20]> g (float[N,4] x) => (float[N,4] y)
        <float[4] w = {1.5, -2.0, 0.25, 3.0}> { a = Mul(x, w) y = Add(a, x) }"""
    onnx.save(onnx.parser.parse_model(net), tmp_path / "m.onnx")
    made = export(
        *(tmp_path / "m.onnx", tmp_path / "m.edge"), targets=["onnxruntime", "rpi5"], also=["fp16"]
    )
    assert {v.precision for v in made.manifest.variants} == {"fp32"}
    told = lines(made)
    same = "was left out: nothing in it is other than in fp32, which is there"
    assert f"fp16: onnxruntime, rpi5 (onnx) {same}" in told
    assert f"fp16: rpi5 (tflite) {same}" in told
    assert "fp16: fp16:" not in told
    with zipfile.ZipFile(made.path) as bundle:
        assert not any("fp16" in name for name in bundle.namelist())


def test_what_is_wrong_is_left_out_and_told(convert: Convert) -> None:
    made = convert("openvino", "cuda", also="bf16,tf32", far=4096.0)
    ids = {v.id for v in made.manifest.variants}
    assert ids == {"openvino-openvino_ir-fp32", "cuda-onnx-fp32"}
    told = lines(made)
    assert "openvino (openvino_ir) in bf16 was refused: openvino: output 'y': " in told
    assert "cuda (onnx) in tf32 was refused: half-arithmetic: output 'y': " in told
    assert "bf16: cuda (onnx) was left out: " in told
    with zipfile.ZipFile(made.path) as bundle:
        assert not any("bf16" in name for name in bundle.namelist())


def test_integers_stand_beside_fp32(convert: Convert, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    samples = tmp_path / "samples.npz"
    np.savez(samples, x=rng.random((16, 3, 12, 12), np.float32))
    made = convert("onnxruntime", also="int8,fp16", calibration=str(samples), force=True)
    found = {v.precision: v for v in made.manifest.variants}
    assert set(found) >= {"fp32", "static_wi8_ai8"}
    assert [found[p].consent for p in ("fp32", "static_wi8_ai8")] == ["", "int8"]
    assert any(v.consent == "fp16" for v in made.manifest.variants)
    assert made.report.quantization is not None
    # A device judges integers on the vectors that they were judged on here.
    assert all(v.edge or not v.origin.startswith("synth") for v in made.manifest.vectors)


def test_what_is_kept_of_each_precision_lies_apart(convert: Convert, tmp_path: Path) -> None:
    convert("onnxruntime", also="fp16", keep=tmp_path / "kept")
    kept = tmp_path / "kept"
    assert (kept / "1-read.onnx").is_file()
    assert (kept / "fp16" / "1-read.onnx").is_file()
    assert [p.name for p in kept.glob("*/*-fp16")] == ["3-onnxruntime-onnx-fp16"]


def test_the_command_of_a_report_asks_for_the_same(convert: Convert) -> None:
    made = convert("openvino", also="bf16")
    assert "--also bf16" in made.report.command


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"also": ["fp32"]}, "--also fp32: name a recipe such as bf16"),
        ({"also": ["auto"]}, "--also auto: name a recipe such as bf16"),
        ({"also": ["bf17"]}, "precision 'bf17' is unknown"),
        ({"also": ["tf32"]}, "--also tf32: not possible on openvino; possible on one at least: bf"),
        ({"also": ["bf16"], "precision": "fp16"}, "--also bf16: the first one is 'fp16'"),
        ({"also": ["bf16"], "output": "m.xml"}, "--also bf16: one artifact has one precision"),
    ],
)
def test_what_makes_no_sense_is_refused(more: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_request(ConvertOptions(model="m.onnx", targets=("openvino",), **more))  # type: ignore[arg-type]


def test_each_target_has_files_where_its_engine_cannot_be_told() -> None:
    asked = check_request(
        ConvertOptions(model="m.onnx", targets=("cpu", "rpi5"), also=["bf16,fp16", "int8"])
    )
    assert asked.also == ("bf16", "fp16", "static_wi8_ai8")
    found = {
        r.precision: [(p.name, *p.formats, *p.optional_formats) for p in r.profiles]
        for r in conversions(asked)
    }
    assert found == {
        "fp16": [("cpu", "onnx"), ("rpi5", "tflite", "onnx")],
        "static_wi8_ai8": [("cpu", "onnx", "openvino_ir"), ("rpi5", "tflite", "onnx")],
    }
