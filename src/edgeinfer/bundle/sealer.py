"""Encrypting a bundle that exists, and the way back."""

from __future__ import annotations

import io
import shutil
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, cast

from edgeinfer.bounded import open_file
from edgeinfer.bundle.archive import Bundle
from edgeinfer.bundle.formats import refuse_artifact
from edgeinfer.bundle.sealing import CHUNK, Key, SealedReader, SealingWriter
from edgeinfer.bundle.staging import replacing
from edgeinfer.bundle.storage import Sealed, is_sealed
from edgeinfer.bundle.writer import is_bundle_file, zip_member
from edgeinfer.errors import BundleError, OutputError, UsageError


def seal(
    location: Path,
    output: Path,
    key: Key,
    *,
    overwrite: bool = False,
    trust: Mapping[str, Any] | None = None,
) -> None:
    """Write a bundle encrypted; nothing of it is written in plain.

    Signatures are in it and stay good: they are over the manifest. What is encrypted is checked
    first, so that no damage is sealed in, and what was sealed is compared with that.

    Args:
        location: Location of the bundle, a folder or a zip.
        output: the new file.
        key: to encrypt with.
        overwrite: replace what is there.
        trust: options of opening it, such as keys that must have signed it.

    Raises:
        UsageError: it is encrypted already, or the output exists.
        BundleError: it is damaged, or somebody changed it meanwhile.
        OutputError: the output cannot be written.
    """
    _check_output(location, output, overwrite)
    # Before a key is requested: it may be encrypted with one that is not here.
    if location.is_file() and is_sealed(location):
        raise UsageError(f"{location}: is encrypted already")
    with Bundle.open(location, **(trust or {})) as opened:
        checked = opened.full_digest, opened.signatures()

    def write(out: IO[bytes]) -> None:
        sealing = SealingWriter(cast("io.BufferedWriter", out), key)
        if location.is_dir():
            # The writer cannot go back; a zip that is written in order does not need to.
            with zipfile.ZipFile(cast("IO[bytes]", sealing), "w", zipfile.ZIP_STORED) as archive:
                for path in sorted(p for p in location.rglob("*") if p.is_file()):
                    name, size = path.relative_to(location).as_posix(), path.stat().st_size
                    with (
                        open_file(path) as stream,
                        archive.open(zip_member(name, size), "w") as entry,
                    ):
                        shutil.copyfileobj(stream, entry, CHUNK)
        else:
            with open_file(location) as stream:
                shutil.copyfileobj(stream, cast("IO[bytes]", sealing), CHUNK)
        sealing.close()

    def check(new: Path) -> None:
        # The name may have been given to something else since it was checked.
        try:
            with Bundle(location, Sealed(new, key)) as sealed:
                sealed.check()
                found = sealed.full_digest, sealed.signatures()
        except BundleError as e:
            raise BundleError(f"{location}: changed while it was encrypted ({e})") from e
        if found != checked:
            raise BundleError(f"{location}: changed while it was encrypted")

    _write(output, write, check)


def unseal(location: Path, output: Path, key: Key, *, overwrite: bool = False) -> None:
    """Write an encrypted bundle in plain, whole or not at all.

    Raises:
        UsageError: it is not encrypted, or the output exists.
        DecryptionError: it is encrypted with another key, altered or cut off.
        OutputError: the output cannot be written.
    """
    if not location.is_file() or not is_sealed(location):
        raise UsageError(f"{location}: is not encrypted")
    _check_output(location, output, overwrite)

    def write(out: IO[bytes]) -> None:
        with open_file(location) as stream:
            reader = io.BufferedReader(SealedReader(location, stream, key))
            shutil.copyfileobj(reader, out, CHUNK)

    _write(output, write)


def _check_output(location: Path, output: Path, overwrite: bool) -> None:
    if not location.exists():
        raise UsageError(f"{location}: no such file or folder")
    if output.is_dir():
        raise UsageError(f"{output}: is a folder")
    refuse_artifact(output, "what is written is a bundle")
    if output.exists():
        if output.samefile(location):
            raise UsageError(f"{output}: is the bundle itself; give it another name")
        if not is_bundle_file(output):
            raise UsageError(f"{output}: exists and is not a bundle; choose another output")
        if not overwrite:
            raise UsageError(f"{output}: exists; add --overwrite")


def _write(
    output: Path,
    write: Callable[[IO[bytes]], None],
    check: Callable[[Path], None] = lambda new: None,
) -> None:
    try:
        with replacing(output) as new:
            with new.open("wb") as out:
                write(out)
            check(new)
    except OSError as e:
        raise OutputError(f"{output}: cannot be written: {e.strerror or e}") from e
