"""Bundles of tiny models, written without the converter."""

import importlib.util
import platform
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import pytest

from edgeinfer.backends.tvm.plain_functions import Functions
from edgeinfer.bundle.manifest import EngineRequirement, Manifest, SourceRecord, Variant
from edgeinfer.bundle.writer import BundleWriter
from edgeinfer.convert.lower.tvm.machines import machine
from edgeinfer.convert.machine_code import functions as making
from edgeinfer.types import TensorSpec

MakeBundle = Callable[..., Path]

_DTYPES = {1: "float32", 6: "int32", 7: "int64"}


def _specs(values: Any) -> tuple[TensorSpec, ...]:
    found = []
    for value in values:
        tensor = value.type.tensor_type
        dims = tuple(
            d.dim_value if d.HasField("dim_value") else d.dim_param for d in tensor.shape.dim
        )
        found.append(TensorSpec(value.name, _DTYPES[tensor.elem_type], dims))
    return tuple(found)


def write_graph(
    folder: Path, name: str, graph: str, files: Mapping[str, bytes] | None = None, **said: Any
) -> Path:
    """Write a bundle of an ONNX text."""
    text = f'<ir_version: 8, opset_import: ["" : 17]>\n{graph}'
    model = onnx.parser.parse_model(text)
    onnx.checker.check_model(model)
    with BundleWriter(folder / f"{name}.edge") as writer:
        variants = writer.folder("variants/cpu-onnx-fp32")
        onnx.save(model, str(variants / "model.onnx"))
        file = writer.adopt("variants/cpu-onnx-fp32/model.onnx")
        extra = [writer.add_bytes(f"pipeline/{n}", data) for n, data in (files or {}).items()]
        engine = EngineRequirement("onnxruntime")
        variant = Variant("cpu-onnx-fp32", "cpu", "onnx", "fp32", (file,), (engine,))
        manifest = Manifest(
            name=name,
            inputs=_specs(model.graph.input),
            outputs=_specs(model.graph.output),
            variants=(variant,),
            vectors=(),
            source=SourceRecord("onnx", f"{name}.onnx", "0" * 64),
            extra_files=tuple(extra),
            **said,
        )
        return writer.finish(manifest)


@pytest.fixture
def make(tmp_path: Path) -> MakeBundle:
    """Write a bundle of an ONNX text into the test's folder."""
    return partial(write_graph, tmp_path)


def made_here(cache: Path, **kinds: Any) -> Path:
    """Make the functions around models for this machine."""
    made_for = machine("x86-64-v3")
    if platform.machine() != made_for.arch:
        pytest.skip(f"code for {made_for.arch}")
    if importlib.util.find_spec("tvm") is None or shutil.which(made_for.linker) is None:
        pytest.skip("needs TVM and gcc")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGEINFER_CACHE", str(cache))
        return making.library(made_for, **kinds)


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The functions around models for this machine, made once."""
    return made_here(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def functions(library: Path) -> Functions:
    return Functions(library)
