"""Result files: written whole or not at all, and never in place of something else."""

from __future__ import annotations

import os
from pathlib import Path

from edgeinfer.bounded import open_file
from edgeinfer.bundle.staging import replacing
from edgeinfer.errors import OutputError, UsageError


def check_output(
    path: Path, suffix: str, magic: bytes, *, overwrite: bool, option: str = "-o"
) -> None:
    """Refuse a name that a result should not take, before anything slow starts.

    An earlier result of the same kind, or an empty file, may be replaced; anything else needs
    ``overwrite``.

    Args:
        path: as the user gave it.
        suffix: that the name must have.
        magic: what a file of this kind starts with.
        overwrite: replace whatever file is there.
        option: Option that named it.

    Raises:
        UsageError: the name is not of this kind or is taken.
        OutputError: its folder is not there or not writable.
    """
    if path.suffix.lower() != suffix:
        raise UsageError(f"{option} {path}: expected a name that ends with {suffix}")
    if path.is_dir():
        raise UsageError(f"{option} {path}: is a folder")
    if not path.parent.is_dir():
        raise OutputError(f"{path}: the folder {path.parent} does not exist")
    if not os.access(path.parent, os.W_OK):
        raise OutputError(f"{path}: the folder {path.parent} cannot be written")
    if path.exists() and not overwrite:
        with open_file(path) as file:
            start = file.read(len(magic))
        if start and start != magic:
            kind = suffix.removeprefix(".")
            hint = "; add --overwrite" if option == "-o" else ""
            raise UsageError(f"{option} {path}: exists and is no {kind} file{hint}")


def write_bytes(path: Path, content: bytes, *, overwrite: bool) -> None:
    """Write a file atomically.

    Raises:
        OutputError: it cannot be written; nothing is left behind.
        UsageError: it exists and ``overwrite`` is not set.
    """
    if path.exists() and not overwrite:
        raise UsageError(f"{path}: exists; add --overwrite")
    try:
        with replacing(path) as new:
            new.write_bytes(content)
    except OSError as e:
        raise OutputError(f"{path}: cannot be written: {e.strerror or e}") from e
