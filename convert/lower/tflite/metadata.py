"""TFLite Model Metadata: what a file says of its inputs and outputs beyond their types.

The flatbuffer and the zip with the labels are those that Android's task libraries read. What they
have no field for (how an image is cut, ``BGR``, token inputs) is kept next to them as JSON, so that
a file which is read again gives back the very records it was written with.

Source: tensorflow_lite_support/metadata/metadata_schema.fbs, version 1.3.0.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, field
from pathlib import Path
from typing import Any

import numpy as np

from edgeinfer.bounded import ZIP_ERRORS, Archive, parse_json
from edgeinfer.bundle import headrules
from edgeinfer.records import dataclass
from edgeinfer.types import AudioInput, ImageInput, Preprocessing, TensorSpec, TokenInput

ENTRY = "TFLITE_METADATA"
OWN_ENTRY = "EDGEINFER_METADATA"
LABELS = "labels.txt"

_IDENTIFIER = b"M001"
_AXIS_LABELS, _VALUE_LABELS = 2, 3
_FEATURE, _IMAGE, _AUDIO = 1, 2, 4
_NORMALIZATION = 1
_RGB, _GRAY = 1, 2
_RECORDS: dict[str, type] = {"image": ImageInput, "audio": AudioInput, "tokens": TokenInput}
_EPOCH = (1980, 1, 1, 0, 0, 0)
_MOST_LABELS_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Carried:
    """What a file says of itself.

    Attributes:
        preprocessing: by input name.
        labels: Labels of the last axis of an output.
    """

    preprocessing: dict[str, Preprocessing] = field(default_factory=dict)
    labels: tuple[str, ...] = ()


def own_bytes(carried: Carried) -> bytes:
    """The records as JSON, the same bytes for the same records."""
    data = {
        "labels": list(carried.labels),
        "preprocessing": {name: asdict(r) for name, r in sorted(carried.preprocessing.items())},
    }
    return json.dumps(data, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()


def published_bytes(
    name: str,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    carried: Carried,
) -> bytes:
    """The flatbuffer of the published schema."""
    b = _Tables()
    labelled = _labelled(outputs, carried.labels)
    takes = [b.tensor(s, carried.preprocessing.get(s.name), False) for s in inputs]
    gives = [b.tensor(s, None, i == labelled) for i, s in enumerate(outputs)]
    files = [b.labels()] if carried.labels and labelled is None else []
    graph = b.table(5, {2: b.vector(takes), 3: b.vector(gives), 4: b.vector(files)})
    audio = any(isinstance(r, AudioInput) for r in carried.preprocessing.values())
    fields = {
        0: b.text(name),
        1: b.text("written by edgeinfer"),
        3: b.vector([graph]),
        7: b.text("1.3.0" if audio else "1.0.0"),
    }
    b.fb.Finish(b.table(8, fields), _IDENTIFIER)
    return bytes(b.fb.Output())


def _labelled(outputs: Sequence[TensorSpec], labels: Sequence[str]) -> int | None:
    """Which output has a place for each label on its last axis."""
    for index, spec in enumerate(outputs):
        if labels and spec.shape and spec.shape[-1] == len(labels):
            return index
    return None


def append_labels(path: Path, labels: Sequence[str]) -> None:
    """Append the zip with the labels, the same bytes for the same labels."""
    if not labels:
        return
    entry = zipfile.ZipInfo(LABELS, _EPOCH)
    entry.create_system = 3
    entry.external_attr = 0o644 << 16
    text = "".join(f"{_one_line(label)}\n" for label in labels)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_STORED) as archive:
        archive.writestr(entry, text.encode())


def _one_line(label: str) -> str:
    return " ".join(label.split())


class _Tables:
    """Builds tables bottom-up, as flatbuffers want."""

    def __init__(self) -> None:
        import flatbuffers

        self.fb = flatbuffers.Builder(1024)

    def text(self, value: str) -> int:
        """Add a string."""
        return int(self.fb.CreateString(value))

    def floats(self, values: Sequence[float]) -> int:
        """Add a vector of floats."""
        return int(self.fb.CreateNumpyVector(np.asarray(values, np.float32)))

    def vector(self, offsets: Sequence[int]) -> int:
        """Add a vector of tables or strings; 0 for none."""
        if not offsets:
            return 0
        self.fb.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            self.fb.PrependUOffsetTRelative(offset)
        return int(self.fb.EndVector())

    def table(
        self,
        size: int,
        offsets: Mapping[int, int],
        bytes_: Mapping[int, int] | None = None,
        words: Mapping[int, int] | None = None,
    ) -> int:
        """Add a table from its fields by number: offsets, bytes and unsigned words."""
        self.fb.StartObject(size)
        for slot, offset in offsets.items():
            if offset:
                self.fb.PrependUOffsetTRelativeSlot(slot, offset, 0)
        for slot, value in (words or {}).items():
            self.fb.PrependUint32Slot(slot, value, 0)
        for slot, value in (bytes_ or {}).items():
            self.fb.PrependUint8Slot(slot, value, 0)
        return int(self.fb.EndObject())

    def labels(self) -> int:
        """Add the description of the file of labels."""
        name, about = self.text(LABELS), self.text("class names, one a line")
        return self.table(5, {0: name, 1: about}, {2: _AXIS_LABELS})

    def tensor(self, spec: TensorSpec, record: Preprocessing | None, labelled: bool) -> int:
        """Add what is known of one input or output."""
        files = self.vector([self.labels()] if labelled else [])
        units = self.vector([self._normalization(record)] if isinstance(record, ImageInput) else [])
        content = self._content(record)
        fields = {
            0: self.text(spec.name),
            1: self.text(_about(spec, record)),
            3: content,
            4: units,
            6: files,
        }
        return self.table(7, fields)

    def _content(self, record: Preprocessing | None) -> int:
        kind, properties = _FEATURE, 0
        if isinstance(record, ImageInput) and record.layout == "NHWC" and record.color != "BGR":
            size = 0
            if record.width and record.height:
                size = self.table(2, {}, words={0: record.width, 1: record.height})
            color = _GRAY if record.color == "GRAY" else _RGB
            kind, properties = _IMAGE, self.table(2, {1: size}, {0: color})
        elif isinstance(record, AudioInput):
            kind = _AUDIO
            properties = self.table(2, {}, words={0: record.sample_rate, 1: 1})
        else:
            properties = self.table(0, {})
        return self.table(3, {1: properties}, {0: kind})

    def _normalization(self, record: ImageInput) -> int:
        """``(pixel - mean) / std`` of values 0..255."""
        count = 1 if record.color == "GRAY" else 3
        mean = [m / record.scale for m in record.mean[:count]]
        std = [s / record.scale for s in record.std[:count]]
        options = self.table(2, {0: self.floats(mean), 1: self.floats(std)})
        return self.table(2, {1: options}, {0: _NORMALIZATION})


def _about(spec: TensorSpec, record: Preprocessing | None) -> str:
    if isinstance(record, ImageInput):
        return f"{record.color} image, {record.layout}, {record.resize}"
    if isinstance(record, AudioInput):
        return f"recording, mono, {record.sample_rate} Hz"
    if isinstance(record, TokenInput):
        return f"token ids below {record.vocab_size}"
    return str(spec)


def carried_by(entries: Mapping[str, bytes], path: Path, inputs: Sequence[TensorSpec]) -> Carried:
    """Read back what a file says of itself.

    Args:
        entries: its named buffers.
        path: the file, for the labels behind it.
        inputs: in the order of the graph.

    Raises:
        ValueError: the metadata is damaged.
    """
    if OWN_ENTRY in entries:
        found = _own(entries[OWN_ENTRY])
        names = {s.name for s in inputs}
        kept = {n: r for n, r in found.preprocessing.items() if n in names}
        return Carried(kept, found.labels)
    if ENTRY not in entries:
        return Carried()
    return _published(entries[ENTRY], path, inputs)


def _own(raw: bytes) -> Carried:
    try:
        data = parse_json(raw)
        records = {}
        for name, fields in data["preprocessing"].items():
            values = {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
            records[str(name)] = _checked(_RECORDS[str(values["kind"])](**values))
        return Carried(records, tuple(map(str, data["labels"])))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{OWN_ENTRY} cannot be read: {error}") from error


def _checked(record: Preprocessing) -> Preprocessing:
    if problems := list(headrules.input_record(record)):
        raise ValueError(problems[0])
    return record


def _published(raw: bytes, path: Path, inputs: Sequence[TensorSpec]) -> Carried:
    import struct

    try:
        root = _View.root(raw)
        graph = next(iter(root.tables(3)), None)
        if graph is None:
            return Carried()
        records: dict[str, Preprocessing] = {}
        for spec, table in zip(inputs, graph.tables(2), strict=False):
            record = _record(spec, table)
            if record is not None and not list(headrules.input_record(record)):
                records[spec.name] = record
        owners = [*graph.tables(3), graph, root]
        slots = [6] * (len(owners) - 2) + [4, 6]
        names = [
            f.string(0)
            for owner, slot in zip(owners, slots, strict=True)
            for f in owner.tables(slot)
            if f.byte(2) in (_AXIS_LABELS, _VALUE_LABELS)
        ]
    except (struct.error, LookupError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{ENTRY} cannot be read: {error}") from error
    return Carried(records, _read_labels(path, names[0]) if names else ())


def _record(spec: TensorSpec, table: _View) -> Preprocessing | None:
    """An image or a recording, as far as the published fields say how it is prepared."""
    content = table.table(3)
    if content is None or spec.shape is None:
        return None
    properties = content.table(1)
    if content.byte(0) == _AUDIO and properties is not None and properties.word(0):
        return AudioInput(properties.word(0), _samples(spec))
    if content.byte(0) != _IMAGE or len(spec.shape) != 4 or spec.dtype != "float32":
        return None
    units = [u for u in table.tables(4) if u.byte(0) == _NORMALIZATION]
    options = units[0].table(1) if units else None
    if options is None:
        # Without a normalisation nothing says which numbers the model takes.
        return None
    gray = spec.shape[3] == 1
    mean, std = (_each(options.floats(slot), 1 if gray else 3) for slot in (0, 1))
    height, width = (d if isinstance(d, int) else None for d in spec.shape[1:3])
    return ImageInput(
        width,
        height,
        color="GRAY" if gray else "RGB",
        layout="NHWC",
        scale=1.0,
        mean=mean,
        std=std,
    )


def _each(values: Sequence[float], channels: int) -> tuple[float, ...]:
    return tuple(values) if len(values) == channels else (values[0],) * channels


def _samples(spec: TensorSpec) -> int | None:
    last = spec.shape[-1] if spec.shape else None
    return last if isinstance(last, int) and last > 1 else None


def _read_labels(path: Path, name: str) -> tuple[str, ...]:
    """Read the labels of the zip behind the model; none where it is not there."""
    if not zipfile.is_zipfile(path):
        return ()
    try:
        with Archive(path) as archive:
            info = archive.getinfo(name)
            if info.file_size > _MOST_LABELS_BYTES:
                raise ValueError(f"{name} has {info.file_size} bytes")
            text = io.TextIOWrapper(archive.open(info), encoding="utf-8").read()
    except ZIP_ERRORS as error:
        raise ValueError(f"its file {name!r} cannot be read: {error}") from error
    return tuple(line.strip() for line in text.splitlines())


class _View:
    """One table of a flatbuffer."""

    __slots__ = ("_left", "_table")

    def __init__(self, table: Any, left: list[int]) -> None:
        self._table, self._left = table, left

    @classmethod
    def root(cls, raw: bytes) -> _View:
        """The root table."""
        import flatbuffers

        table = flatbuffers.table.Table
        start = flatbuffers.encode.Get(flatbuffers.packer.uoffset, raw, 0)
        return cls(table(raw, start), [len(raw)])

    def _at(self, slot: int) -> int:
        return int(self._table.Offset(4 + 2 * slot))

    def table(self, slot: int) -> _View | None:
        """A field that is a table, or a union's value."""
        at = self._at(slot)
        return None if not at else self._view(self._table.Indirect(at + self._table.Pos))

    def tables(self, slot: int) -> list[_View]:
        """A field that is a vector of tables."""
        return self._vector(slot, lambda at: self._view(self._table.Indirect(at)))

    def floats(self, slot: int) -> list[float]:
        """A field that is a vector of floats."""
        from flatbuffers.number_types import Float32Flags

        found = self._vector(slot, lambda at: float(self._table.Get(Float32Flags, at)))
        if not found:
            raise ValueError("a normalisation without numbers")
        return found

    def string(self, slot: int) -> str:
        """A field that is a string; empty where there is none."""
        at = self._at(slot)
        raw: bytes = self._table.String(at + self._table.Pos) if at else b""
        return raw.decode("utf-8", "replace")

    def byte(self, slot: int) -> int:
        """A field of one byte."""
        from flatbuffers.number_types import Uint8Flags

        at = self._at(slot)
        return int(self._table.Get(Uint8Flags, at + self._table.Pos)) if at else 0

    def word(self, slot: int) -> int:
        """A field of four bytes."""
        from flatbuffers.number_types import Uint32Flags

        at = self._at(slot)
        return int(self._table.Get(Uint32Flags, at + self._table.Pos)) if at else 0

    def _vector(self, slot: int, item: Callable[[int], Any]) -> list[Any]:
        at = self._at(slot)
        if not at:
            return []
        count, start = int(self._table.VectorLen(at)), int(self._table.Vector(at))
        self._left[0] -= count
        if self._left[0] < 0:
            raise ValueError("more tables than fit into it")
        return [item(start + 4 * i) for i in range(count)]

    def _view(self, position: int) -> _View:
        import flatbuffers

        return _View(flatbuffers.table.Table(self._table.Bytes, position), self._left)
