"""Files that people write about a model's inputs and outputs: preprocessing and labels.

A preprocessing file is TOML with one table an input::

    [image]                      # the input's name; quote it when it is not a plain word
    kind = "image"               # or "audio", "tokens"
    width = 224
    height = 224
    resize = "crop"
    crop_ratio = 0.875
    mean = [0.485, 0.456, 0.406]
    std = [0.229, 0.224, 0.225]

The keys are the fields of ``ImageInput``, ``AudioInput`` and so on in ``edgeinfer.types``. What the
outputs mean is said in a pipeline file, see ``edgeinfer.media.description``.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from edgeinfer import toml
from edgeinfer.bounded import read_bounded
from edgeinfer.bundle import headrules
from edgeinfer.bundle.codec import by_kind, decode
from edgeinfer.errors import UsageError
from edgeinfer.records import dataclass
from edgeinfer.types import ImageInput, Preprocessing


@dataclass(frozen=True, slots=True)
class _Document:
    inputs: dict[str, Preprocessing]


def parse_preprocessing(path: str | Path) -> dict[str, Preprocessing]:
    """Read a preprocessing file.

    Returns:
        One record an input, by the input's name.

    Raises:
        UsageError: the file cannot be read or has unknown, missing or wrong keys; lists all.
    """
    text = read_text(Path(path))
    try:
        tables = toml.loads(text)
    except toml.TOMLDecodeError as e:
        raise UsageError(f"{path}: not TOML: {e}") from e
    if stray := [key for key, value in tables.items() if not isinstance(value, dict)]:
        keys = ", ".join(map(repr, stray))
        raise UsageError(f"{path}: {keys} outside a table; start one with [input name]")
    document, found = decode(_Document, {"inputs": {k: filled(v) for k, v in tables.items()}})
    if document is not None:
        found = [
            f"{name}.{problem}"
            for name, record in document.inputs.items()
            for problem in input_problems(record)
        ]
    if document is None or found:
        lines = [line.removeprefix("inputs").removeprefix(".") for line in found]
        is_pipeline = {"kind"}.isdisjoint(tables.get("inputs", {"kind"}))
        hint = "; tables [inputs.NAME] and [output] are for --pipeline" if is_pipeline else ""
        raise UsageError(f"{path}: " + "; ".join(lines) + known_keys(tables, lines) + hint)
    if not document.inputs:
        raise UsageError(f"{path}: no input is described; start a table with [input name]")
    return dict(document.inputs)


def read_labels(path: str | Path) -> tuple[str, ...]:
    """Read class names, one a line, in the order of the output's last axis.

    Raises:
        UsageError: the file cannot be read, is empty or has an empty line before its last name.
    """
    labels = [line.strip() for line in read_text(Path(path)).rstrip().splitlines()]
    if not labels:
        raise UsageError(f"{path}: no labels in it; write one a line")
    if "" in labels:
        line = labels.index("") + 1
        raise UsageError(f"{path}: line {line} is empty; each line is the name of one class")
    return tuple(labels)


def input_problems(record: Preprocessing) -> list[str]:
    """List what is wrong with one record, each with the name of its key."""
    found = list(headrules.input_record(record))
    if isinstance(record, ImageInput) and record.resize in ("crop", "letterbox", "pad", "line"):
        missing = [key for key in ("width", "height") if getattr(record, key) is None]
        found += [f"{key}: missing; resize = {record.resize!r} needs it" for key in missing]
    return found


def filled(table: dict[str, Any]) -> dict[str, Any]:
    """Add what TOML cannot say: it has no null."""
    if table.get("kind") != "image":
        return table
    return {"width": None, "height": None, **table}


def known_keys(tables: dict[str, Any], lines: list[str]) -> str:
    """Name the keys of the kinds in use, where one is unknown."""
    if not any(line.endswith("unknown key") for line in lines):
        return ""
    kinds = by_kind(Preprocessing)
    given = [t.get("kind") for t in tables.values() if isinstance(t, dict)]
    used = [k for k in kinds if k in given]
    parts = [
        f"{kind} has " + ", ".join(f.name for f in dataclasses.fields(kinds[kind])) for kind in used
    ]
    return f" ({'; '.join(parts)})" if parts else ""


_MOST_TEXT = 64 << 20
"""Bytes of a text; the largest are lists of labels."""


def read_text(path: Path) -> str:
    """Read a file of UTF-8 text.

    Raises:
        UsageError: it is none, or cannot be read.
    """
    try:
        text = read_bounded(path, _MOST_TEXT).decode("utf-8-sig")
        # As text files are read: every kind of line end is one.
        return text.replace("\r\n", "\n").replace("\r", "\n")
    except FileNotFoundError as e:
        raise UsageError(f"{path}: no such file") from e
    except UnicodeDecodeError as e:
        raise UsageError(f"{path}: not UTF-8 text") from e
    except OSError as e:
        raise UsageError(f"{path}: cannot be read: {e.strerror or e}") from e
