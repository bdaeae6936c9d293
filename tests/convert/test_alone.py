"""``-o x.onnx`` and its like: the artifact itself, after the same checks, or one clear refusal."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import edgeinfer
from edgeinfer.convert.pipeline import entry
from edgeinfer.errors import UsageError, VerifyError

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
g (float[2,3] x) => (float[2,3] y) { y = Tanh(x) }"""
X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)


def export(output: Path, *targets: str, **options: Any) -> entry.ExportResult:
    return edgeinfer.export(
        onnx.parser.parse_model(TEXT), output, targets=targets, name="m", **options
    )


def of_onnx(path: Path) -> Any:
    import onnxruntime

    return onnxruntime.InferenceSession(path).run(None, {"x": X})[0]


def of_openvino(path: Path) -> Any:
    openvino = pytest.importorskip("openvino")
    return openvino.compile_model(path, "CPU")(X)[0]


def of_litert(path: Path) -> Any:
    litert = pytest.importorskip("ai_edge_litert.interpreter")
    interpreter = litert.Interpreter(str(path))
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], X)
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])


def of_coreml(path: Path) -> Any:
    pytest.importorskip("coremltools")
    from edgeinfer.backends import registry
    from edgeinfer.backends.base import Artifact, LoadOptions
    from edgeinfer.types import TensorSpec

    x, y = ((TensorSpec(n, "float32", (2, 3)),) for n in ("x", "y"))
    artifact = Artifact("mlprogram", path / "Manifest.json", x, y)
    return registry.get("coreml-reference").load(artifact, LoadOptions()).run({"x": X})["y"]


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("target", "name", "library", "run"),
    [
        ("cpu", "net.onnx", "onnxruntime", of_onnx),
        ("rpi5", "net.onnx", "onnxruntime", of_onnx),
        ("openvino", "net.xml", "openvino", of_openvino),
        ("rpi5", "net.tflite", "ai_edge_litert", of_litert),
        ("ios", "net.mlpackage", "coremltools", of_coreml),
    ],
)
def test_the_engine_itself_opens_it(
    target: str, name: str, library: str, run: Any, tmp_path: Path
) -> None:
    pytest.importorskip(library)
    done = export(tmp_path / name, target)
    assert done.path == done.files[0] == tmp_path / name
    np.testing.assert_allclose(run(tmp_path / name), np.tanh(X), rtol=1e-5, atol=1e-6)
    there = {f.name for f in tmp_path.iterdir()}
    beside = {f"{name}.{n}" for n in ("report.json", "report.html", "manifest.json")}
    assert there == {name, *beside} | ({"net.bin"} if name == "net.xml" else set())
    assert {f.name for f in done.files} == there
    (variant,) = json.loads((tmp_path / f"{name}.manifest.json").read_bytes())["variants"]
    assert variant["target"] == target
    with pytest.raises(UsageError, match="exists; --overwrite"):
        export(tmp_path / name, target)


def test_targets_that_share_the_file_get_one(tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_litert")
    done = export(tmp_path / "net.tflite", "rpi4", "rpi5")
    assert [v.target for v in done.manifest.variants] == ["rpi4", "rpi5"]
    assert len(done.files) == 4


@pytest.mark.parametrize(
    ("name", "targets", "why"),
    [
        ("net.tflite", ("cpu",), r"cpu writes \.onnx, \.xml, not \.tflite"),
        ("net.tflite", ("rpi5", "ios", "cuda"), r"ios writes \.mlpackage; cuda writes \.onnx, not"),
        ("net.onnx", ("tvm-x86-64-v3",), r"tvm-x86-64-v3 writes tvm, not \.onnx"),
        ("net.onnx", ("cpu", "jetson"), r"cpu \(onnx\) and jetson \(onnx\) need one each"),
        ("net.so", ("cpu",), "nothing is written with the suffix .so"),
        ("-", ("cpu",), "nothing is written to stdout"),
    ],
)
def test_what_cannot_be_one_file_is_refused(
    name: str, targets: tuple[str, ...], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=why):
        export(Path(name), *targets)
    assert not list(tmp_path.iterdir())


def test_the_model_itself_is_never_replaced(tmp_path: Path) -> None:
    model = tmp_path / "net.onnx"
    onnx.save(onnx.parser.parse_model(TEXT), str(model))
    with pytest.raises(UsageError, match="is the model itself"):
        edgeinfer.export(model, model, targets=["cpu"], overwrite=True)


def test_a_language_model_needs_a_bundle(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    with pytest.raises(UsageError, match=r"a language model is written as a bundle; end it with"):
        edgeinfer.export(tmp_path / "m.gguf", tmp_path / "m.onnx", targets=["cpu"])


def test_a_wrong_artifact_is_not_written(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=X, y=np.tanh(X) + 1)
    with pytest.raises(VerifyError):
        export(tmp_path / "net.onnx", "cpu", data=str(tmp_path / "data.npz"))
    assert [f.name for f in tmp_path.iterdir()] == ["data.npz"]
