"""A command line in this process, and a bundle small enough to read."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from edgeinfer.bundle.manifest import EngineRequirement, Manifest, SourceRecord, Variant
from edgeinfer.bundle.writer import BundleWriter
from edgeinfer.metrics import OutputMetrics
from edgeinfer.types import ImageInput, TensorSpec

GRAPH = """
<ir_version: 8, opset_import: ["" : 17]>
colours (float[N, 2, 2, 3] image) => (float[N, 3] scores)
{ scores = ReduceMean <axes = [1, 2], keepdims = 0> (image) }
"""

LABELS = ("red", "green", "blue")
RECORD = ImageInput(2, 2, layout="NHWC")


@dataclass(frozen=True)
class Result:
    """What a command did."""

    code: int
    out: str
    err: str


Cli = Callable[..., Result]


@pytest.fixture
def cli(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> Cli:
    """Run the command line with these arguments, as in a pipe 120 columns wide.

    In a folder of its own: what a command writes by default is not in another test's way.
    """
    from edgeinfer.cli.failures import guarded
    from edgeinfer.cli.group import edgeinfer

    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(tmp_path_factory.mktemp("here"))

    def call(*argv: object) -> Result:
        code = guarded(edgeinfer, [str(a) for a in argv])
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return call


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The model as a file."""
    path = tmp_path / "colours.onnx"
    onnx.save(onnx.parser.parse_model(GRAPH), str(path))
    return path


def write_bundle(
    path: Path,
    *,
    wrong_by: float = 0.0,
    vectors: int = 1,
    spread: dict[str, OutputMetrics] | None = None,
    nan_in: int | None = None,
    constraints: dict[str, str] | None = None,
    graph: str = GRAPH,
    **changes: Any,
) -> Path:
    """Write a bundle of the model without the converter.

    Args:
        path: of the bundle.
        wrong_by: error in the expected outputs.
        vectors: how many.
        spread: how much rounding alone moves the outputs.
        nan_in: vector that holds a NaN.
        constraints: of the variants.
        graph: the artifact, as text.
        changes: of the manifest.
    """
    inputs = (TensorSpec("image", "float32", ("N", 2, 2, 3)),)
    outputs = (TensorSpec("scores", "float32", ("N", 3)),)
    rng = np.random.default_rng(0)
    with BundleWriter(path) as writer:
        folder = writer.folder("variants/cpu-onnx-fp32")
        onnx.save(onnx.parser.parse_model(graph), str(folder / "model.onnx"))
        file = writer.adopt("variants/cpu-onnx-fp32/model.onnx")
        records = []
        for number in range(vectors):
            x = rng.random((2, 2, 2, 3), dtype=np.float32)
            if number == nan_in:
                x[0, 0, 0, 0] = np.nan
            y = x.mean(axis=(1, 2)) + np.float32(wrong_by)
            feeds, expected = {"image": x}, {"scores": y}
            record = writer.add_vector(
                inputs, outputs, feeds, expected, "synthetic:image", spread=spread
            )
            records.append(record)
        report = writer.add_bytes("report.json", b'{"made": "for a test"}\n')
        manifest: dict[str, Any] = {
            "name": "colours",
            "inputs": inputs,
            "outputs": outputs,
            "variants": tuple(
                Variant(
                    id=f"{target}-onnx-fp32",
                    target=target,
                    format="onnx",
                    precision="fp32",
                    files=(file,),
                    engines=(EngineRequirement("onnxruntime"),),
                    constraints=constraints or {},
                    latency_ms=0.0125,
                )
                for target in ("cpu", "onnxruntime")
            ),
            "vectors": tuple(records),
            "source": SourceRecord("onnx", "colours.onnx", "0" * 64),
            "preprocessing": {"image": RECORD},
            "labels": LABELS,
            "tools": {"onnx": "1.2.3"},
            "extra_files": (report,),
        }
        return writer.finish(Manifest(**(manifest | changes)))


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle of a model that says which colour an image has."""
    return write_bundle(tmp_path / "colours.edge")
