"""A small bundle, made anew for each test."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.bundle.manifest import EngineRequirement, Manifest, SourceRecord, Variant
from edgeinfer.bundle.writer import BundleWriter
from edgeinfer.types import ImageInput, TensorSpec

MODEL = b"not really a model, but bytes with a hash" * 100
INPUTS = (TensorSpec("x", "float32", ("N", 4)), TensorSpec("ids", "int64", ("N",)))
OUTPUTS = (TensorSpec('{"1": "y"}', "float32", ("N", 4)),)


def write_bundle(
    output: str | Path,
    *,
    overwrite: bool = False,
    model: bytes = MODEL,
    weights: bytes = b"weights",
) -> Manifest:
    feeds = {"x": np.arange(8, dtype=np.float32).reshape(2, 4), "ids": np.array([5, -1])}
    expected = {'{"1": "y"}': np.full((2, 4), 0.5, np.float32)}
    with BundleWriter(output, overwrite=overwrite) as writer:
        files = tuple(
            writer.add_bytes(f"variants/cpu-onnx-fp32/{name}", data)
            for name, data in (("model.onnx", model), ("model.onnx.data", weights))
        )
        vector = writer.add_vector(INPUTS, OUTPUTS, feeds, expected, "user")
        report = writer.add_bytes("report.json", b'{"fine": true}')
        manifest = Manifest(
            name="small",
            inputs=INPUTS,
            outputs=OUTPUTS,
            variants=(
                Variant(
                    id="cpu-onnx-fp32",
                    target="cpu",
                    format="onnx",
                    precision="fp32",
                    files=files,
                    engines=(EngineRequirement("onnxruntime", ">=1.23"),),
                    accuracy={'{"1": "y"}': {"max_abs": 1e-6}},
                    latency_ms=1.5,
                ),
            ),
            vectors=(vector,),
            source=SourceRecord("onnx", "small.onnx", "0" * 64),
            preprocessing={"x": ImageInput(4, None)},
            labels=("cat", "dög"),
            tools={"onnx": "1.23"},
            extra_files=(report,),
        )
        writer.finish(manifest)
    return manifest


@pytest.fixture
def zipped(tmp_path: Path) -> Path:
    write_bundle(tmp_path / "small.edge")
    return tmp_path / "small.edge"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_bundle(f"{tmp_path / 'small'}/")
    return tmp_path / "small"


@pytest.fixture
def manifest(zipped: Path) -> Manifest:
    from edgeinfer.bundle.archive import Bundle

    with Bundle.open(zipped) as bundle:
        return bundle.manifest


@pytest.fixture
def writer_of_small() -> Callable[..., Manifest]:
    return write_bundle


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small tmpfs cannot be mounted here (needs root)")
    yield place
    subprocess.run(["umount", str(place)], check=True)
