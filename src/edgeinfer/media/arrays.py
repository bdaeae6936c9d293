"""Named arrays in ``.npz`` files, exact for every name a tensor may have.

NumPy's own pair is not: ``np.savez`` cannot hold an array named ``file``, and ``np.load`` gives the
array ``a`` when asked for one named ``a.npy``. Files written here are ordinary ``.npz`` files; the
name of a member is the tensor's name and ``.npy``.
"""

from __future__ import annotations

import zipfile
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from edgeinfer.bounded import ZIP_ERRORS, Archive, absence, open_file
from edgeinfer.bundle.staging import replacing
from edgeinfer.bundle.vectors import plain_array
from edgeinfer.errors import InputError, OutputError, UsageError
from edgeinfer.types import Array

SUFFIX = ".npy"

_FLOOR, _RATIO = 128 << 20, 200
"""Bytes beyond which arrays may not be so many times as large as what they are packed into."""


def read_arrays(path: str | Path) -> dict[str, Array]:
    """Read every array of an ``.npz`` file, or the one of an ``.npy`` file under the name ``""``.

    Raises:
        InputError: the file is damaged, is of another kind, or needs pickle.
        UsageError: no such file.
    """
    path = Path(path)
    if not path.is_file():
        raise UsageError(f"{path}: {absence(path)}")
    try:
        if path.suffix.lower() == ".npy":
            with open_file(path) as raw:
                return {"": _read_array(raw)}
        with open_file(path) as file, Archive(file) as archive:
            _check_size(archive, path.stat().st_size)
            return {name.removesuffix(SUFFIX): _member(archive, name) for name in _names(archive)}
    except ZIP_ERRORS as e:
        reason = " ".join(str(e).split()) or type(e).__name__
        expected = "an .npy file" if path.suffix.lower() == ".npy" else "an .npz file"
        raise InputError(str(path), expected, f"a damaged file or another kind ({reason})") from e


def lacking(arrays: Collection[str], origin: str) -> str:
    """Say what there is instead of an array that is not there."""
    if not arrays:
        return f"{origin}, which has no arrays at all"
    return f"no array of this name in {origin}, which has {', '.join(map(repr, arrays))}"


def write_arrays(path: str | Path, arrays: Mapping[str, Array]) -> None:
    """Write an ``.npz`` file atomically; an existing file is replaced.

    Text arrays are stored as fixed-width unicode, bfloat16 as float32, which holds it exactly.

    Raises:
        OutputError: the file cannot be written; nothing is left behind.
        UsageError: a name cannot be a member of a zip file.
    """
    path = Path(path)
    for name in arrays:
        if "\0" in name or len(name.encode(errors="replace")) > 60_000:
            raise UsageError(f"output {name[:40]!r}: such a name cannot be stored in an .npz file")
    try:
        with replacing(path) as new, zipfile.ZipFile(new, "w", allowZip64=True) as archive:
            for name, array in arrays.items():
                with archive.open(name + SUFFIX, "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, _storable(array), allow_pickle=False)
    except OSError as e:
        raise OutputError(f"{path}: cannot be written: {e.strerror or e}") from e


def _names(archive: zipfile.ZipFile) -> list[str]:
    names = archive.namelist()
    if len(set(names)) != len(names):
        raise ValueError("two members have one name")
    if others := [name for name in names if not name.endswith(SUFFIX)]:
        raise ValueError(f"member {others[0]!r} is no array")
    return names


def _check_size(archive: zipfile.ZipFile, packed: int) -> None:
    total = sum(info.file_size for info in archive.infolist())
    if total > _FLOOR and total > _RATIO * packed:
        raise ValueError(
            f"{packed} bytes unpack to {total >> 20} MiB, more than {_RATIO} times as much; arrays "
            "of zeros alone are written by numpy.savez"
        )


def _member(archive: zipfile.ZipFile, name: str) -> Array:
    with archive.open(name) as raw:
        return _read_array(raw)


def _read_array(raw: object) -> Array:
    read = partial(np.lib.format.read_array, raw, allow_pickle=False)  # type: ignore[arg-type]
    return plain_array(read)


def _storable(array: Array) -> Array:
    array = np.asarray(array)
    if array.dtype == object:
        return array.astype(str)
    if array.dtype.name == "bfloat16":
        return array.astype(np.float32)
    return array
