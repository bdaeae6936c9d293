"""What a pipeline file says, checked against the model and put into the bundle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from edgeinfer.bundle.headrules import FOLDER, pipeline_problems
from edgeinfer.bundle.manifest import FileRecord
from edgeinfer.bundle.writer import BundleWriter
from edgeinfer.errors import UsageError
from edgeinfer.heads import DetectGrid, DetectRows, Head, Prototypes, Segment
from edgeinfer.media.description import Description
from edgeinfer.types import AudioInput, ImageInput, Preprocessing, TensorSpec, TokenInput

_CONVERTED = (ImageInput, AudioInput, TokenInput)
"""Records by which test inputs are made; the others matter on the device only."""


def records_for(
    description: Description, preprocessing: Mapping[str, Preprocessing]
) -> Mapping[str, Preprocessing]:
    """Return the records that the conversion itself is to follow.

    Raises:
        UsageError: inputs are described twice.
    """
    if preprocessing and description.preprocessing:
        raise UsageError("preprocessing and a pipeline file both describe inputs; give one of them")
    said = {n: r for n, r in description.preprocessing.items() if isinstance(r, _CONVERTED)}
    return said or preprocessing


def check_described(
    description: Description, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> None:
    """Hold a description against the model's inputs and outputs.

    Raises:
        UsageError: they do not fit; lists everything.
    """
    files = {f"{FOLDER}/{name}" for name in description.files}
    records, head = description.preprocessing, description.head
    found = list(pipeline_problems(inputs, outputs, records, head, files))
    if found:
        raise UsageError("pipeline file: " + "; ".join(found))


def head_in_layout(
    head: Head | None, outputs: Sequence[TensorSpec], last: Sequence[str], first: Sequence[str]
) -> Head | None:
    """Let a head read its output in the layout that the output was converted to."""
    if isinstance(head, DetectGrid | DetectRows) and isinstance(head.extra, Prototypes):
        extra = head.extra
        if extra.output in last or extra.output in first:
            head = replace(head, extra=replace(extra, channels_last=extra.output in last))
    if not isinstance(head, Segment | DetectGrid):
        return head
    name = outputs[0].name if head.output is None else head.output
    if name not in last and name not in first:
        return head
    if isinstance(head, Segment):
        return replace(head, channels_last=name in last)
    return replace(head, channels_first=name in first)


def add_files(description: Description, writer: BundleWriter) -> tuple[FileRecord, ...]:
    """Put the files that records name into the bundle."""
    files = description.files.items()
    return tuple(writer.add_bytes(f"{FOLDER}/{name}", data) for name, data in files)
