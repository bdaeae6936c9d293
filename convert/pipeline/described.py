"""What a pipeline file says, checked against the model and put into the bundle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from edgeinfer.bundle.headrules import FOLDER, pipeline_problems
from edgeinfer.bundle.manifest import FileRecord
from edgeinfer.bundle.writer import BundleWriter
from edgeinfer.errors import UsageError
from edgeinfer.heads import Classify, DetectGrid, DetectRows, Head, Prototypes, Segment
from edgeinfer.media.description import Description
from edgeinfer.types import (
    AudioInput,
    ImageInput,
    NoiseInput,
    Preprocessing,
    TensorSpec,
    TokenInput,
)

_CONVERTED = (ImageInput, AudioInput, TokenInput, NoiseInput)
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
    description: Description,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    labels: Sequence[str] = (),
) -> None:
    """Hold a description and names of classes against the model's inputs and outputs.

    Raises:
        UsageError: they do not fit; lists everything.
    """
    files = {f"{FOLDER}/{name}" for name in description.files}
    records, head = description.preprocessing, description.head
    found = list(pipeline_problems(inputs, outputs, records, head, files))
    if found:
        raise UsageError("pipeline file: " + "; ".join(found))
    scores = _scores(head, outputs)
    count = scores.shape[-1] if scores is not None and scores.shape else None
    if scores is not None and labels and isinstance(count, int) and len(labels) != count > 1:
        raise UsageError(
            f"{len(labels)} labels for the {count} classes of output {scores.name!r}: give one for "
            "each, in the order of the classes"
        )


def _scores(head: Head | None, outputs: Sequence[TensorSpec]) -> TensorSpec | None:
    """Return the output with a score for each class, where there is no doubt which it is."""
    if isinstance(head, Classify) and head.output is not None:
        found = [spec for spec in outputs if spec.name == head.output]
    elif isinstance(head, Classify | None):
        found = [spec for spec in outputs if "float" in spec.dtype]
    else:
        found = []
    is_row = len(found) == 1 and found[0].shape is not None and len(found[0].shape) < 3
    return found[0] if is_row else None


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
