"""The precision of a stranger's file is read where that may end."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import edgeinfer
from edgeinfer.backends.process import isolation
from edgeinfer.convert.quantize import readback, readback_apart
from edgeinfer.convert.quantize.readback_apart import precision_of
from edgeinfer.errors import LoadError, UsageError

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
g (float[1,4] x) => (float[1,4] y) <float[4,4] w =
{1,0,0,0, 0,1,0,0, 0,0,1,0, 0,0,0,1}> { y = MatMul (x, w) }"""


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(isolation.IN_PROCESS, raising=False)


@pytest.mark.usefixtures("apart")
def test_a_plain_file_has_its_precision(tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(TEXT), tmp_path / "m.onnx")
    assert precision_of(tmp_path / "m.onnx", "onnx") == "fp32"


def test_a_package_is_read_by_its_folder(tmp_path: Path) -> None:
    """The folder above was read, and every comparison of packages was a bug."""
    pytest.importorskip("coremltools")
    model = onnx.parser.parse_model(TEXT)
    made = edgeinfer.export(model, tmp_path / "m.mlpackage", targets=["macos"])
    assert precision_of(Path(made.path), "mlprogram") in ("fp32", "fp16")


@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize("limit", [120.0, 1e-3])
def test_what_cannot_be_read_asks_for_a_precision(
    limit: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readback_apart, "LONGEST_S", limit)
    (tmp_path / "m.onnx").write_bytes(b"no model")
    with pytest.raises(UsageError, match=r"its precision cannot be read \(.*\): give --precision"):
        precision_of(tmp_path / "m.onnx", "onnx")


def test_an_artifact_that_the_engine_refuses_is_no_bug(tmp_path: Path) -> None:
    text = TEXT.replace("MatMul (x, w)", 'Einsum<equation = "ij,jk,kl->il">(x, w)')
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    with pytest.raises(LoadError, match=r"onnxruntime refuses .*m\.onnx: "):
        readback.layers(tmp_path / "m.onnx", "onnx")
