"""Bundles whose machine code writes a line into a file when it is mapped, and does nothing else."""

import platform
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from edgeinfer.backends.tvm.library import append
from edgeinfer.bundle.manifest import EngineRequirement, Manifest, SourceRecord, Variant
from edgeinfer.bundle.writer import BundleWriter
from edgeinfer.heads import Classify
from edgeinfer.types import ImageInput, TensorSpec

GRAPH = """
<ir_version: 8, opset_import: ["" : 17]>
colours (float[1, 3, 8, 8] image) => (float[1, 3] scores)
{ scores = ReduceMean <axes = [2, 3], keepdims = 0> (image) }
"""
INPUTS = (TensorSpec("image", "float32", (1, 3, 8, 8)),)
OUTPUTS = (TensorSpec("scores", "float32", (1, 3)),)

_CODE = """
#include <fcntl.h>
#include <unistd.h>
static const char place[] = "%s";
__attribute__((constructor)) static void mark(void) {
    int file = open(place, O_WRONLY | O_CREAT | O_APPEND, 0666);
    if (file >= 0) { (void)!write(file, "ran\\n", 4); close(file); }
}
"""


_PLACE = "@" * 1024
"""Where the path is written in the compiled code, which is the same for all."""


@dataclass(frozen=True)
class Mark:
    """Where machine code writes that it ran."""

    path: Path

    def times(self) -> int:
        """Return how often it was mapped since the last call."""
        if not self.path.exists():
            return 0
        count = self.path.read_text().count("ran")
        self.path.unlink()
        return count


@cache
def _compiled() -> bytes:
    """Machine code that marks ``_PLACE``."""
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder, "mark.c"), Path(folder, "mark.so")
        source.write_text(_CODE % _PLACE)
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(made), str(source)], check=True)
        return made.read_bytes()


def library(folder: Path, mark: Mark, kind: str, name: str) -> Path:
    """Write a library of one of edgeinfer's kinds."""
    if shutil.which("gcc") is None or platform.machine() not in ("x86_64", "aarch64"):
        pytest.skip("needs gcc")
    made, place = folder / f"{name}.so", str(mark.path).encode()
    made.write_bytes(_compiled().replace(_PLACE.encode(), place.ljust(len(_PLACE), b"\0")))
    specs: dict[str, list[dict[str, Any]]] = {
        "inputs": [{"name": s.name, "dtype": s.dtype, "shape": s.shape} for s in INPUTS],
        "outputs": [{"name": s.name, "dtype": s.dtype, "shape": s.shape} for s in OUTPUTS],
    }
    about = {"machine": "generic", "features": [], "device": "cpu", "parallel": False}
    append(made, {**about, **specs, "kind": kind, "tvm": "0"}, [])
    return made


def write(
    place: Path,
    folder: Path,
    mark: Mark,
    formats: tuple[str, ...] = ("onnx", "tvm", "onnx_tvm"),
    name: str = "colours",
) -> Path:
    """Write a bundle of a model that tells colours, with code in every place that may have some."""
    model = onnx.parser.parse_model(GRAPH)
    with BundleWriter(place) as writer:
        variants = []
        for form in formats:
            base = f"variants/cpu-{form}-fp32"
            files = []
            if form != "tvm":
                onnx.save(model, str(writer.folder(base) / "model.onnx"))
                files.append(writer.adopt(f"{base}/model.onnx"))
            if form == "tvm":
                code = library(folder, mark, "direct", "model")
                files.append(writer.add_file(f"{base}/model.so", code))
            if form == "onnx_tvm":
                code = library(folder, mark, "regions", "regions")
                files.append(writer.add_file(f"{base}/regions.so", code))
            engine = EngineRequirement("tvm" if form == "tvm" else "onnxruntime")
            # As of every library of TVM's: a GPU of this machine is not asked to run it.
            held = {} if form == "onnx" else {"device": "cpu"}
            variants.append(
                Variant(
                    *(f"cpu-{form}-fp32", "cpu", form, "fp32", tuple(files), (engine,)),
                    constraints=held,
                )
            )
        x = np.random.default_rng(0).random((1, 3, 8, 8), np.float32)
        y = x.mean(axis=(2, 3))
        vector = writer.add_vector(INPUTS, OUTPUTS, {"image": x}, {"scores": y}, "user")
        code = library(folder, mark, "functions", "functions")
        extra = writer.add_file(f"code/{platform.machine()}.so", code)
        manifest = Manifest(
            name=name,
            inputs=INPUTS,
            outputs=OUTPUTS,
            variants=tuple(variants),
            vectors=(vector,),
            source=SourceRecord("onnx", "colours.onnx", "0" * 64),
            preprocessing={"image": ImageInput(8, 8)},
            labels=("red", "green", "blue"),
            head=Classify(top=3),
            extra_files=(extra,),
        )
        return writer.finish(manifest)
