"""``manifest.json`` of a bundle: frozen dataclasses and their strict JSON form."""

from __future__ import annotations

import math
from dataclasses import field
from typing import TYPE_CHECKING, Any

from edgeinfer.bundle import rules
from edgeinfer.bundle.codec import decode, encode
from edgeinfer.errors import BundleError
from edgeinfer.records import dataclass
from edgeinfer.types import InputRange, Preprocessing, Stored, TensorSpec
from edgeinfer.versions import accepts

if TYPE_CHECKING:
    from edgeinfer.heads import Head
    from edgeinfer.metrics import Budget, OutputMetrics

SCHEMA = (1, 5)
"""Major and minor version; a reader refuses an unknown major and ignores a newer minor's keys."""

JUDGED_ON_EXTREMES = frozenset({"fp32"})
"""Precisions at which extreme inputs are judged; others promise nothing beyond ordinary data."""

_SPREAD = ("max_abs", "max_rel", "sqnr_db", "channel_sqnr_db", "cosine")


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
        version: PEP 440 specifier of what can read the variant, e.g. ``>=1.23``; empty accepts any.
        tested: version that gave the right numbers when the bundle was made; empty where none was
            asked. An older one may run it where all test vectors are right with it too.
    """

    backend: str
    version: str = ""
    tested: str = ""

    def is_newer_than(self, version: str | None) -> bool:
        """Whether the variant was tested with a newer engine than this version."""
        return bool(self.tested) and accepts(f"<{self.tested}", version)


@dataclass(frozen=True, slots=True)
class Variant:
    """One artifact for one target.

    Attributes:
        id: ``<target>-<format>-<precision>``, unique in the bundle, also its folder's name.
        target: the target it was lowered for.
        format: ``onnx``, ``onnx_tvm``, ``openvino_ir``, ``tflite``, ``mlprogram``, ``aimodel``,
            ``tvm`` or ``llm``.
        precision: read back from the artifact, or from the engine's plan where it is given what to
            compute in; never copied from the request.
        files: the first one is what the engine opens.
        engines: backends that can run it, best first.
        constraints: what the device must have, e.g. ``{"arch": "aarch64"}``, and under ``inputs``
            which values it is right for, see ``bundle.values``.
        accuracy: per output, the metrics that were measured when the bundle was made.
        latency_ms: median on the machine that made the bundle; None when not measured.
        stored: inputs and outputs that are floats for the bundle and integers in the files, by
            name.
        unverified: why nobody ran it before the bundle was written; empty for what was checked.
        computed_in: floats that the engine is set to compute the files in, ``bf16``, ``fp16`` or
            ``tf32``; empty where it computes as they say.
        consent: kind of ``bundle.consent`` that has to be allowed; empty where nothing has to be.
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
    stored: dict[str, Stored] = field(default_factory=dict)
    unverified: str = ""
    computed_in: str = ""
    consent: str = ""

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
    spread: dict[str, dict[str, float]] = field(default_factory=dict)
    """By output name, how far apart two valid evaluations were: figures of ``OutputMetrics``. The
    device widens its budget by them as the converter did; an output without an entry has none."""
    edge: bool = False
    """An extreme that only the precisions in ``JUDGED_ON_EXTREMES`` promise to survive."""
    undecided: bool = False
    """Rounding alone decides some of its outputs, so that it is run and not judged."""

    def judged_at(self, precision: str) -> bool:
        """Whether a variant of this precision is judged on the vector."""
        if self.undecided:
            return False
        return not self.edge or precision in JUDGED_ON_EXTREMES

    def budget(self, base: Budget, output: str) -> Budget:
        """Return the budget of a precision as it counts for one output of this vector."""
        spread = self._spread(output)
        return base if spread is None else base.widened(spread)

    def decides_nothing(self, base: Budget, output: str) -> bool:
        """Whether that budget would let any answer pass, so that neither verdict would be true."""
        spread = self._spread(output)
        return spread is not None and base.refuses_nothing(spread)

    def _spread(self, output: str) -> OutputMetrics | None:
        from edgeinfer.metrics import OutputMetrics

        figures = self.spread.get(output)
        return None if figures is None else OutputMetrics(**_figures(figures))


@dataclass(frozen=True, slots=True)
class StateRecord:
    """What a model remembers: an output that is an input of the next run.

    Attributes:
        input: its name; zeros in the first run.
        output: its name; of the input's type and shape.
    """

    input: str
    output: str


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
    """Reports, licences, and below ``pipeline/`` the files that records of pipelines name."""
    head: Head | None = None
    """What the outputs mean; None where nothing was said."""
    states: tuple[StateRecord, ...] = ()
    """What a session passes from run to run."""
    made_on: str = ""
    """The machine that made it, whose times those of the variants are; empty where unknown."""
    ranges: dict[str, InputRange] = field(default_factory=dict)
    """What float inputs lie between, by name, and who says so: the user, data, or nobody."""

    def __repr__(self) -> str:
        ids = ", ".join(v.id for v in self.variants)
        return f"<Manifest {self.name}: {ids or 'no variants'}; {len(self.vectors)} vectors>"

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready data.

        Raises:
            BundleError: something in it could not be read back; lists everything.
        """
        data = {"schema": list(SCHEMA), **encode(self)}
        if Manifest.from_json(data) != self:
            raise BundleError("manifest: a value is not of the type that its field declares")
        return data

    @classmethod
    def from_json(cls, data: Any) -> Manifest:
        """Read it back strictly.

        Raises:
            BundleError: a key is missing or wrong, or the schema's major is unknown; lists all.
        """
        if not isinstance(data, dict):
            raise BundleError("manifest: expected a JSON object")
        newer = _check_schema(data.get("schema"))
        rest = {key: value for key, value in data.items() if key != "schema"}
        manifest, found = decode(cls, rest, extra_keys=newer)
        if manifest is not None:
            found = rules.problems(manifest)
        if manifest is None or found:
            raise BundleError(_listing(found))
        return manifest

    @property
    def parts(self) -> tuple[str, ...]:
        """Folders that are bundles of their own; see ``Bundle.part``."""
        paths = (record.path.rpartition("/") for record in self.extra_files)
        return tuple(folder for folder, _, name in paths if folder and name == rules.MANIFEST_NAME)

    def files(self) -> dict[str, FileRecord]:
        """Return every file besides the manifest itself, by path."""
        return {record.path: record for _, record in rules.records(self)}


def spread_of(metrics: OutputMetrics) -> dict[str, float]:
    """Return the figures that a vector records; an infinite ratio is left out, JSON has none."""
    figures = {name: float(getattr(metrics, name)) for name in _SPREAD}
    return {name: value for name, value in figures.items() if math.isfinite(value)}


def _figures(spread: dict[str, float]) -> dict[str, Any]:
    """Take what is known; a newer converter may have written more."""
    return {name: value for name, value in spread.items() if name in _SPREAD}


MAX_LISTED = 20
"""Problems named in one error; a hostile document could otherwise fill a terminal."""

_LONGEST = 400
"""Characters of one of them."""


def _check_schema(value: object) -> bool:
    """Return whether a newer minor wrote it; an unknown major is refused."""
    known = f"{SCHEMA[0]}.{SCHEMA[1]}"
    is_pair = isinstance(value, list) and [type(v) for v in value] == [int, int]
    if not isinstance(value, list) or not is_pair or min(value) < 0:
        raise BundleError(f"manifest: schema: expected [major, minor] like {list(SCHEMA)}")
    if value[0] != SCHEMA[0]:
        written = f"{value[0]}.{value[1]}"
        hint = "update edgeinfer" if value[0] > SCHEMA[0] else "convert the model again"
        raise BundleError(f"manifest: schema {written} is unknown, this reads {known}; {hint}")
    return bool(value[1] > SCHEMA[1])


def _listing(found: list[str]) -> str:
    more = len(found) - MAX_LISTED
    tail = f"; and {more} more" if more > 0 else ""
    shown = [line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…" for line in found]
    return "manifest: " + "; ".join(shown[:MAX_LISTED]) + tail


def __getattr__(name: str) -> Any:
    """Offer what ``codec`` needs for the fields of few bundles."""
    if name != "Head":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from edgeinfer.heads import Head

    return Head
