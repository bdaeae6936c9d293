"""Encrypting a bundle that exists, and the way back."""

from __future__ import annotations

import io
import os
import shutil
import stat
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from edgeinfer.bounded import open_file
from edgeinfer.bundle.archive import Bundle
from edgeinfer.bundle.formats import refuse_artifact
from edgeinfer.bundle.sealing import (
    CHUNK,
    HEADER,
    KEY_BYTES,
    Key,
    SealedReader,
    cipher_of,
    nonce_of,
)
from edgeinfer.bundle.staging import replacing
from edgeinfer.bundle.storage import SEALED, Sealed, is_sealed
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


def new_key(path: Path) -> Key:
    """Write a new key, readable by its owner only.

    Raises:
        UsageError: the file exists.
        OutputError: it cannot be written.
        NotAvailableError: the library is missing; has the install line.
    """
    secret = os.urandom(KEY_BYTES)
    key = Key(secret)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(secret.hex().encode() + b"\n")
    except FileExistsError:
        raise UsageError(f"{path}: exists; keys are never replaced") from None
    except OSError as e:
        # It is not whole, and it was not there before.
        with suppress(OSError):
            path.unlink()
        raise OutputError(f"{path}: cannot be written: {e.strerror or e}") from None
    return key


def is_exposed(path: Path) -> bool:
    """Whether others than the owner may read a key's file, where the system tells."""
    return os.name == "posix" and bool(stat.S_IMODE(path.stat().st_mode) & 0o077)


class SealingWriter:
    """Takes a zip's bytes in order and writes them encrypted; ``close`` writes the last chunk."""

    def __init__(self, out: BinaryIO, key: Key, chunk: int = CHUNK) -> None:
        salt = os.urandom(16)
        self._header = HEADER.pack(SEALED, bytes.fromhex(key.id), salt, chunk)
        self._cipher = cipher_of(key.for_file(salt))
        self._out, self._chunk = out, chunk
        self._rest = bytearray()
        self._number = 0
        out.write(self._header)

    def write(self, data: bytes) -> int:
        """Take some bytes."""
        self._rest += data
        # One chunk is kept back: the last one is distinguished.
        while len(self._rest) > self._chunk:
            self._put(bytes(self._rest[: self._chunk]), last=False)
            del self._rest[: self._chunk]
        return len(data)

    def flush(self) -> None:
        """Whole chunks are written as they come."""

    def close(self) -> None:
        """Write the last chunk."""
        self._put(bytes(self._rest), last=True)
        self._rest.clear()

    def _put(self, plain: bytes, *, last: bool) -> None:
        nonce = nonce_of(self._number, last)
        self._out.write(self._cipher.encrypt(nonce, plain, self._header))
        self._number += 1
