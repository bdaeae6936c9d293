"""What the name of an output asks for: a bundle, or the plain artifact of a format."""

from __future__ import annotations

import os
from pathlib import Path

from edgeinfer.errors import UsageError

SUFFIXES = {
    "onnx": ".onnx",
    "openvino_ir": ".xml",
    "tflite": ".tflite",
    "mlprogram": ".mlpackage",
    "aimodel": ".aimodel",
}
"""Formats that are of use without edgeinfer, with the suffix that their artifact has."""

FOLDERS = frozenset({"mlprogram", "aimodel"})
"""Those whose artifact is a folder."""

BUNDLE = ".edge"


def format_of(output: str | os.PathLike[str] | None) -> str:
    """Return the format of the plain artifact that a name asks for; empty for a bundle's name.

    Raises:
        UsageError: the name is neither a bundle's nor an artifact's.
    """
    if output is None:
        return ""
    text = os.fspath(output)
    if text == "-":
        raise UsageError("output '-': nothing is written to stdout; name a file, such as x.edge")
    suffix = Path(text).suffix.lower()
    is_folder = text.endswith(tuple(s for s in (os.sep, os.altsep, "/") if s))
    for format, own in SUFFIXES.items():
        if suffix == own:
            if is_folder and format not in FOLDERS:
                raise UsageError(f"output {text!r}: {own} is a file; leave the slash out")
            return format
    if suffix in ("", BUNDLE) or is_folder or Path(text).is_dir():
        return ""
    known = ", ".join(SUFFIXES.values())
    raise UsageError(
        f"output {text!r}: nothing is written with the suffix {suffix}; a bundle ends with "
        f"{BUNDLE} (or with a slash, as a folder), a plain artifact with one of {known}"
    )


def refuse_artifact(output: str | os.PathLike[str], why: str) -> None:
    """Refuse the name of a plain artifact for what is a bundle.

    Raises:
        UsageError: it is one.
    """
    path = Path(output)
    if path.suffix.lower() in SUFFIXES.values():
        raise UsageError(f"{path}: {why}; end it with {BUNDLE}")
