"""``manifest.json`` of a bundle: frozen dataclasses and their strict JSON form."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from edgeinfer.types import Preprocessing, TensorSpec

SCHEMA = (1, 0)
"""Major and minor version; a reader refuses an unknown major and ignores an unknown minor's keys."""


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A file of the bundle.

    Attributes:
        path: POSIX path relative to the bundle's root.
        sha256: lower-case hex digest of its bytes.
        size_bytes: its length.
    """

    path: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class EngineRequirement:
    """The engine that can run a variant.

    Attributes:
        backend: name of the backend, e.g. ``onnxruntime``.
        version: PEP 440 specifier, e.g. ``>=1.23``; empty accepts any.
    """

    backend: str
    version: str = ""


@dataclass(frozen=True, slots=True)
class Variant:
    """One artifact for one target.

    Attributes:
        id: ``<target>-<format>-<precision>``, unique in the bundle, also its folder's name.
        target: the target it was lowered for.
        format: ``onnx``, ``openvino_ir``, ``tflite``, ``mlprogram`` or ``tvm``.
        precision: read back from the artifact, never copied from the request.
        files: the first one is what the engine opens.
        engines: backends that can run it, best first.
        constraints: what the device must have, e.g. ``{"arch": "aarch64"}``.
        accuracy: per output, the metrics that were measured when the bundle was made.
        latency_ms: median on the machine that made the bundle; None when not measured.
    """

    id: str
    target: str
    format: str
    precision: str
    files: tuple[FileRecord, ...]
    engines: tuple[EngineRequirement, ...]
    constraints: dict[str, str] = field(default_factory=dict)
    accuracy: dict[str, dict[str, float]] = field(default_factory=dict)
    latency_ms: float | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes of all its files."""
        return sum(f.size_bytes for f in self.files)


@dataclass(frozen=True, slots=True)
class VectorRecord:
    """One test vector: an ``.npz`` with ``in/<index>`` and ``out/<index>`` arrays.

    The index is the position in the manifest's inputs and outputs, because a tensor name may hold
    characters that a zip member's name may not.
    """

    file: FileRecord
    origin: str
    """``user``, ``calibration`` or ``synthetic:<kind>``."""


@dataclass(frozen=True, slots=True)
class SourceRecord:
    """The model that the bundle was made from.

    Attributes:
        format: ``onnx``, ``torch``, ``pt2``.
        name: file name, or the class of a module.
        sha256: digest of the file (of the exported model for a module).
        file: its normalised copy inside the bundle; None when left out.
    """

    format: str
    name: str
    sha256: str
    file: FileRecord | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything a runtime must know before it opens an artifact."""

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    variants: tuple[Variant, ...]
    vectors: tuple[VectorRecord, ...]
    source: SourceRecord
    preprocessing: dict[str, Preprocessing] = field(default_factory=dict)
    """By input name; an input without an entry is a plain tensor."""
    labels: tuple[str, ...] = ()
    """Class names in the order of the output's last axis; empty when unknown."""
    tools: dict[str, str] = field(default_factory=dict)
    """Package name to version, of everything that took part in the conversion."""
    extra_files: tuple[FileRecord, ...] = ()
    """Reports and licences."""

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        raise NotImplementedError

    @classmethod
    def from_json(cls, data: Any) -> Manifest:
        """Read it back strictly.

        Raises:
            BundleError: a key is missing, of the wrong type, or the schema's major is unknown.
        """
        raise NotImplementedError
