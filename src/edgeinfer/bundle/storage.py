"""The two forms of a bundle, a folder and a zip, behind one reader."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol, cast

from edgeinfer import forks
from edgeinfer.bounded import ZIP_ERRORS, Archive, open_file
from edgeinfer.bundle.paths import collisions, path_problem
from edgeinfer.bundle.ziprules import MAX_MEMBERS, open_zip
from edgeinfer.errors import BundleError, ClosedError

if TYPE_CHECKING:
    import zipfile

    from _typeshed import WriteableBuffer

    from edgeinfer.bundle.sealing import Key, SealedReader

_MODELS = {
    ".onnx": "an ONNX model",
    ".pt2": "a PyTorch program",
    ".pt": "a PyTorch file",
    ".pth": "a PyTorch file",
    ".tflite": "a TFLite model",
    ".gguf": "a GGUF model",
}


SEALED = b"EDGEENC1"
"""What an encrypted bundle begins with."""


def is_sealed(path: Path) -> bool:
    """Whether a file begins as an encrypted bundle does."""
    with open_file(path) as stream:
        return stream.read(len(SEALED)) == SEALED


class Storage(Protocol):
    """Files by POSIX path; names were checked, contents were not."""

    def listing(self) -> dict[str, int]:
        """Return the size in bytes of every file."""
        ...

    def open(self, path: str) -> AbstractContextManager[BinaryIO]:
        """Open a file that is in the listing."""
        ...

    def path(self, path: str) -> Path | None:
        """Return where the file lies on disk; None when it has to be unpacked."""
        ...

    def close(self) -> None:
        """Release the underlying file."""
        ...


class Within:
    """A folder of another bundle, as a bundle of its own; the other one closes the file.

    Args:
        whole: Storage of the other bundle.
        folder: Path of the folder in it.
    """

    def __init__(self, whole: Storage, folder: str) -> None:
        self._whole, self._prefix = whole, f"{folder}/"
        start = len(self._prefix)
        listing = whole.listing().items()
        self._listing = {p[start:]: n for p, n in listing if p.startswith(self._prefix)}

    def listing(self) -> dict[str, int]:
        """Return the size in bytes of every file."""
        return self._listing

    def open(self, path: str) -> AbstractContextManager[BinaryIO]:
        """Open a file that is in the listing."""
        return self._whole.open(self._prefix + path)

    def path(self, path: str) -> Path | None:
        """Return where the file lies, if it does."""
        return self._whole.path(self._prefix + path)

    def close(self) -> None:
        """Nothing is held open by itself."""


class Folder:
    """A bundle that is a folder.

    Raises:
        BundleError: it holds a link, a special file or a name that no bundle may have.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._listing: dict[str, int] = {}
        self._walk(root, "")
        if clash := collisions(self._listing):
            raise BundleError(f"{root}: {clash[0]}")

    def _walk(self, folder: Path, prefix: str) -> None:
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda e: e.name):
                path = prefix + entry.name
                info = entry.stat(follow_symlinks=False)
                # Before the descent, so that a deep tree ends at the longest path allowed.
                if problem := path_problem(path):
                    raise BundleError(f"{self._root}: {path!r} {problem}")
                if stat.S_ISDIR(info.st_mode):
                    self._walk(Path(entry.path), path + "/")
                elif not stat.S_ISREG(info.st_mode):
                    raise BundleError(f"{self._root}: {path!r} is a link or a special file")
                else:
                    self._listing[path] = info.st_size
                if len(self._listing) > MAX_MEMBERS:
                    raise BundleError(f"{self._root}: has more than {MAX_MEMBERS} files")

    def listing(self) -> dict[str, int]:
        """Return the size in bytes of every file."""
        return self._listing

    @contextmanager
    def open(self, path: str) -> Iterator[BinaryIO]:
        """Open a file that is in the listing."""
        try:
            with open_file(self._root / path) as stream:
                yield stream
        except OSError as e:
            if e.filename != os.fspath(self._root / path):
                raise
            text = f"{path} cannot be read: {e.strerror}"
            raise BundleError(f"{self._root}: {text}") from e

    def path(self, path: str) -> Path:
        """Return where the file lies."""
        return self._root / path

    def close(self) -> None:
        """Nothing is held open."""


class Zip:
    """A bundle that is a zip file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = open_file(path, buffering=0)
        self._is_inherited = False
        try:
            self._zip = self._read()
        except BaseException:
            self._file.close()
            raise
        forks.watch(self)
        infos = self._zip.infolist()
        self._listing = {i.filename: i.file_size for i in infos if not i.is_dir()}

    def forked(self) -> None:
        """Read the directory anew before the next file: another thread may have been at one."""
        self._is_inherited = True

    def listing(self) -> dict[str, int]:
        """Return the size in bytes of every file."""
        return self._listing

    @contextmanager
    def open(self, path: str) -> Iterator[BinaryIO]:
        """Open a file that is in the listing."""
        if self._is_inherited:
            forks.leave_behind(self._zip)
            self._zip, self._is_inherited = self._read(), False
        try:
            member = self._zip.open(path)
        except MemoryError:
            # Its header is short: this says nothing about the file.
            raise
        except ZIP_ERRORS as e:
            raise BundleError(f"{self._path}: {path} is damaged: {e}") from e
        with member as stream:
            yield cast("BinaryIO", _Member(stream, f"{self._path}: {path}"))

    def path(self, path: str) -> None:
        """A member has to be unpacked."""
        return

    def close(self) -> None:
        """Close the file."""
        if not self._is_inherited:
            self._zip.close()
        self._file.close()

    def _read(self) -> zipfile.ZipFile:
        stream = cast("BinaryIO", io.BufferedReader(_Positioned(self._file)))
        plain, length = self._opened(stream, os.fstat(self._file.fileno()).st_size)
        return open_zip(str(self._path), plain, length)

    def _opened(self, stream: BinaryIO, length: int) -> tuple[BinaryIO, int]:
        return stream, length


class Sealed(Zip):
    """A bundle that is an encrypted zip; what is read of it is decrypted in memory.

    Raises:
        DecryptionError: it is encrypted with another key, altered or cut off.
    """

    def __init__(self, path: Path, key: Key) -> None:
        self._key: Key | None = key
        self._reader: SealedReader | None = None
        super().__init__(path)
        # The file's own key is derived from it by now.
        self._key = None

    def _opened(self, stream: BinaryIO, length: int) -> tuple[BinaryIO, int]:
        if self._reader is not None:
            self._reader = self._reader.over(stream)
        elif self._key is not None:
            # Few bundles are encrypted.
            from edgeinfer.bundle.sealing import SealedReader

            self._reader = SealedReader(self._path, stream, self._key)
        else:
            raise ClosedError(f"{self._path}: its key was forgotten")
        reader = self._reader
        return cast("BinaryIO", io.BufferedReader(reader)), reader.length


class _Positioned(io.RawIOBase):
    """A file read at a place of our own: a process that was forked shares the file's with us."""

    def __init__(self, file: io.FileIO) -> None:
        self._file, self._at = file, 0

    def fileno(self) -> int:
        return self._file.fileno()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at}
        begin = start[whence] if whence in start else os.fstat(self._file.fileno()).st_size
        self._at = begin + offset
        return self._at

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        if hasattr(os, "preadv"):
            count = os.preadv(self._file.fileno(), [view], self._at)
        else:
            self._file.seek(self._at)
            count = self._file.readinto(view) or 0
        self._at += count
        return count


class _Member:
    """A zip member whose reading errors are distinguished from those of whoever takes the bytes."""

    def __init__(self, stream: object, where: str) -> None:
        self._stream = cast("BinaryIO", stream)
        self._where = where

    def read(self, size: int = -1) -> bytes:
        try:
            return self._stream.read(size)
        except MemoryError:
            raise
        except ZIP_ERRORS as e:
            raise BundleError(f"{self._where} is damaged: {e}") from e


def sniff(path: Path) -> Path:
    """Return the path if its first bytes are a zip's.

    Raises:
        BundleError: it is something else; says what to do with it.
    """
    if not path.is_file():
        raise BundleError(f"{path}: is not a bundle: expected a folder or a zip file")
    with open_file(path) as stream:
        head = stream.read(4)
    what = _MODELS.get(path.suffix.lower())
    if what is not None:
        hint = "convert it first with `edgeinfer convert`"
        raise BundleError(f"{path}: is {what}, not a bundle; {hint}")
    if not head:
        raise BundleError(f"{path}: is not a bundle: the file is empty")
    if head not in (b"PK\x03\x04", b"PK\x05\x06"):
        raise BundleError(f"{path}: is not a bundle: expected a folder or a zip file")
    return path


def is_bundle(path: Path) -> bool:
    """Whether it is meant to be a bundle; it may be a damaged one."""
    if path.is_dir():
        return (path / "manifest.json").is_file() or path.suffix == ".edge"
    if path.suffix == ".edge":
        return True
    try:
        with open_file(path) as file, Archive(file) as archive:
            return "manifest.json" in archive.namelist()
    except ZIP_ERRORS:
        return False
