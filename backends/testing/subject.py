"""What is checked: a backend, and how a model becomes a file that it opens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from edgeinfer.backends.base import Artifact, Backend, Executable, LoadOptions
from edgeinfer.backends.testing.cases import Case
from edgeinfer.records import dataclass
from edgeinfer.types import Dim, TensorSpec

MakeArtifact = Callable[[bytes, Path], Artifact]
"""Takes a serialized ONNX model and an empty folder."""


def describe(model: bytes) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Return the inputs and outputs of a serialized ONNX model."""
    import onnx

    graph = onnx.load_from_string(model).graph
    return tuple(map(_spec, graph.input)), tuple(map(_spec, graph.output))


def onnx_artifact(model: bytes, folder: Path) -> Artifact:
    """Write the model as it is; for backends that open ONNX."""
    path = folder / "model.onnx"
    path.write_bytes(model)
    return Artifact("onnx", path, *describe(model))


@dataclass(frozen=True)
class Subject:
    """A backend under test.

    Attributes:
        backend: the backend.
        make_artifact: writes a model in the format to be checked; ONNX unless given.
        known_failures: reason by name of the check that is known to fail.
        label: tells two subjects of one backend apart.
    """

    backend: Backend
    make_artifact: MakeArtifact = onnx_artifact
    known_failures: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    label: str = ""

    def __str__(self) -> str:
        return self.label or self.backend.name

    def artifact(self, case: Case, folder: Path) -> Artifact:
        """Write a case's model into a folder of its own."""
        place = folder / case.name
        place.mkdir(parents=True, exist_ok=True)
        return self.make_artifact(case.model(), place)

    def load(self, case: Case, folder: Path, **options: Any) -> Executable:
        """Write a case's model and open it."""
        return self.backend.load(self.artifact(case, folder), LoadOptions(**options))


def _spec(value: Any) -> TensorSpec:
    import onnx

    tensor = value.type.tensor_type
    name = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).name
    dtype = "string" if tensor.elem_type == onnx.TensorProto.STRING else name
    return TensorSpec(value.name, dtype, tuple(_dim(dim) for dim in tensor.shape.dim))


def _dim(dim: Any) -> Dim:
    return int(dim.dim_value) if dim.HasField("dim_value") else str(dim.dim_param) or None
