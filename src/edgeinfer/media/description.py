"""The file that says what goes into a model and what comes out: a pipeline file, TOML or JSON.

::

    labels = "imagenet.txt"      # class names, one a line; files lie next to this one

    [inputs.image]               # one table an input, as in a preprocessing file
    kind = "image"
    width = 224
    height = 224

    [output]                     # what the outputs mean; the keys are those of edgeinfer.heads
    kind = "classify"
    activation = "softmax"
"""

from __future__ import annotations

import dataclasses
from dataclasses import field
from pathlib import Path
from typing import Any

from edgeinfer import toml
from edgeinfer.bounded import leads_out, parse_json, read_bounded
from edgeinfer.bundle import headrules
from edgeinfer.bundle.codec import by_kind, decode
from edgeinfer.bundle.paths import path_problem
from edgeinfer.errors import UsageError
from edgeinfer.heads import Head, files_of
from edgeinfer.media.preprocessing import filled, input_problems, known_keys, read_labels, read_text
from edgeinfer.records import dataclass
from edgeinfer.types import Preprocessing, Worded


@dataclass(frozen=True, slots=True)
class Description:
    """A pipeline file, read.

    Attributes:
        preprocessing: by input name.
        head: what the outputs mean; None where nothing is said.
        labels: class names.
        files: contents of the files that records name, by their name.
    """

    preprocessing: dict[str, Preprocessing] = field(default_factory=dict)
    head: Head | None = None
    labels: tuple[str, ...] = ()
    files: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Document:
    inputs: dict[str, Preprocessing] = field(default_factory=dict)
    output: Head | None = None
    labels: str | None = None


def parse_description(path: str | Path) -> Description:
    """Read a pipeline file and the files that it names.

    Raises:
        UsageError: a file cannot be read, or has unknown, missing or wrong keys; lists all.
    """
    path = Path(path)
    data = _data(path)
    inputs = data.get("inputs")
    if isinstance(inputs, dict):
        tables = {k: filled(v) if isinstance(v, dict) else v for k, v in inputs.items()}
        data = {**data, "inputs": tables}
    document, found = decode(_Document, data)
    if document is not None:
        found = [
            f"inputs.{name}.{problem}"
            for name, record in document.inputs.items()
            for problem in input_problems(record)
        ]
        if document.output is not None:
            found += [f"output.{problem}" for problem in headrules.head(document.output)]
    if document is None or found:
        hint = known_keys(inputs if isinstance(inputs, dict) else {}, found) + _head_keys(
            data, found
        )
        raise UsageError(f"{path}: " + "; ".join(found) + hint + _other_option(data))
    if not document.inputs and document.output is None:
        raise UsageError(f"{path}: says nothing; write [inputs.NAME] and [output]")
    labels = () if document.labels is None else read_labels(_beside(path, document.labels))
    return Description(document.inputs, document.output, labels, _files(path, document))


def _data(path: Path) -> dict[str, Any]:
    text = read_text(path)
    try:
        data = parse_json(text) if path.suffix.lower() == ".json" else toml.loads(text)
    except toml.TOMLDecodeError as e:
        raise UsageError(f"{path}: not TOML: {e}") from e
    except ValueError as e:
        raise UsageError(f"{path}: not JSON: {e}") from e
    if not isinstance(data, dict):
        raise UsageError(f"{path}: expected a JSON object")
    return data


_MOST_FILE = 1 << 30
"""Bytes of a file that a description names."""


def _files(path: Path, document: _Document) -> dict[str, bytes]:
    named = {r.vocabulary for r in document.inputs.values() if isinstance(r, Worded)}
    files = {}
    for name in sorted(named.union(files_of(document.output))):
        place = _beside(path, name)
        try:
            files[name] = read_bounded(place, _MOST_FILE)
        except OSError as e:
            raise UsageError(f"{path}: {place}: {e.strerror or e}") from e
    return files


def _beside(path: Path, name: str) -> Path:
    """Return where a file lies that a description names: below it, since what it holds travels.

    Raises:
        UsageError: the name leads elsewhere.
    """
    problem, place = path_problem(name), path.parent / name
    if not problem and leads_out(place, path.parent):
        problem = "is a link that leaves the folder"
    if problem:
        raise UsageError(f"{path}: the file {name!r} {problem}; put it next to {path.name}")
    return place


def _other_option(data: dict[str, Any]) -> str:
    """Say where a file of inputs alone belongs."""
    others = set(data) - {f.name for f in dataclasses.fields(_Document)}
    if any(isinstance(data[key], dict) and "kind" in data[key] for key in others):
        return "; tables of inputs alone are for --preprocessing, and [inputs.NAME] in a pipeline"
    return ""


def _head_keys(data: dict[str, Any], found: list[str]) -> str:
    output = data.get("output")
    if not any(line.startswith("output.") and line.endswith("unknown key") for line in found):
        return ""
    kind = output.get("kind") if isinstance(output, dict) else None
    record = by_kind(Head).get(str(kind))
    if record is None:
        return ""
    return f" ({kind} has {', '.join(f.name for f in dataclasses.fields(record))})"
