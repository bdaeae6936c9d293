"""The two forms of a bundle, a folder and a zip, behind one reader."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from edgeinfer.bounded import ZIP_ERRORS
from edgeinfer.bundle.paths import collisions, path_problem
from edgeinfer.bundle.sealing import Key, SealedReader
from edgeinfer.bundle.ziprules import MAX_MEMBERS, open_zip
from edgeinfer.errors import BundleError, ClosedError

_MODELS = {
    ".onnx": "an ONNX model",
    ".pt2": "a PyTorch program",
    ".pt": "a PyTorch file",
    ".pth": "a PyTorch file",
    ".tflite": "a TFLite model",
    ".gguf": "a GGUF model",
}


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
            with (self._root / path).open("rb") as stream:
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
        self._stream = path.open("rb")
        try:
            plain, length = self._opened()
            self._zip = open_zip(str(path), plain, length)
        except BaseException:
            self._stream.close()
            raise
        infos = self._zip.infolist()
        self._listing = {i.filename: i.file_size for i in infos if not i.is_dir()}

    def listing(self) -> dict[str, int]:
        """Return the size in bytes of every file."""
        return self._listing

    @contextmanager
    def open(self, path: str) -> Iterator[BinaryIO]:
        """Open a file that is in the listing."""
        try:
            member = self._zip.open(path)
        except ZIP_ERRORS as e:
            raise BundleError(f"{self._path}: {path} is damaged: {e}") from e
        with member as stream:
            yield cast("BinaryIO", _Member(stream, f"{self._path}: {path}"))

    def path(self, path: str) -> None:
        """A member has to be unpacked."""
        return

    def close(self) -> None:
        """Close the file."""
        self._zip.close()
        self._stream.close()

    def _opened(self) -> tuple[BinaryIO, int]:
        return self._stream, os.fstat(self._stream.fileno()).st_size


class Sealed(Zip):
    """A bundle that is an encrypted zip; what is read of it is decrypted in memory.

    Raises:
        DecryptionError: it is encrypted with another key, altered or cut off.
    """

    def __init__(self, path: Path, key: Key) -> None:
        self._key: Key | None = key
        super().__init__(path)
        # The file's own key is derived from it by now.
        self._key = None

    def _opened(self) -> tuple[BinaryIO, int]:
        if self._key is None:
            raise ClosedError(f"{self._path}: its key was forgotten")
        reader = SealedReader(self._path, self._stream, self._key)
        return cast("BinaryIO", io.BufferedReader(reader)), reader.length


class _Member:
    """A zip member whose reading errors are told apart from those of whoever takes the bytes."""

    def __init__(self, stream: object, where: str) -> None:
        self._stream = cast("BinaryIO", stream)
        self._where = where

    def read(self, size: int = -1) -> bytes:
        try:
            return self._stream.read(size)
        except ZIP_ERRORS as e:
            raise BundleError(f"{self._where} is damaged: {e}") from e


def sniff(path: Path) -> Path:
    """Return the path if its first bytes are a zip's.

    Raises:
        BundleError: it is something else; says what to do with it.
    """
    if not path.is_file():
        raise BundleError(f"{path}: is not a bundle: expected a folder or a zip file")
    with path.open("rb") as stream:
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
