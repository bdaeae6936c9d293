"""Engines that were built for this machine, kept between processes.

An entry is a folder that appears whole or not at all: it is filled under another name, written
through to the disk and then renamed. Builders of one entry wait for each other by a lock of the
operating system, which a process that is killed gives back.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

from edgeinfer.bounded import sha256_of
from edgeinfer.bundle.cache import exposure, private_folder
from edgeinfer.bundle.kept import write_through
from edgeinfer.errors import LoadError
from edgeinfer.records import dataclass

RECORD = "key.json"
"""Next to the engine's files: what it was built for, and the SHA-256 of each file."""

_STAGED = ".building-"
_HASHED_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class EngineKey:
    """What an engine was built for; it fits nothing else.

    Attributes:
        artifact: digest of the files it was built from.
        facts: Facts of the machine: versions of the compiler and the driver, the device.
        options: Options of the compiler, the shapes among them.
    """

    artifact: str
    facts: Mapping[str, str]
    options: Mapping[str, str]

    @property
    def digest(self) -> str:
        """A name for the entry."""
        text = json.dumps(self.to_json(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def to_json(self) -> dict[str, object]:
        """Return JSON-ready data."""
        return {
            "artifact": self.artifact,
            "facts": dict(self.facts),
            "options": dict(self.options),
        }


class EngineStore:
    """A folder of engines.

    Args:
        root: made when something is first built.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def find(self, key: EngineKey) -> Path | None:
        """Return the folder of a whole and current engine."""
        folder = self._folder(key)
        record = _record(folder)
        if record is None or any(record.get(k) != v for k, v in key.to_json().items()):
            return None
        files = record.get("files")
        whole = isinstance(files, dict) and all(_digest(folder / n) == d for n, d in files.items())
        return folder if whole and self._is_private(folder) else None

    def _is_private(self, folder: Path) -> bool:
        """Whether nobody else could have put an engine there, which is as good as a program."""
        try:
            owners = {os.geteuid()} if hasattr(os, "geteuid") else {-1}
            return not exposure(self._root, folder, owners=owners)
        except OSError:
            return False

    def reason(self, key: EngineKey) -> str:
        """Say why there is no current engine; empty when there is one."""
        if self.find(key) is not None:
            return ""
        if self._folder(key).exists():
            return "its files are damaged"
        others = [r for f in self._entries(key) if (r := _record(f)) is not None]
        same = [r for r in others if r.get("options") == dict(key.options)]
        if same:
            return f"it was built for {_difference(same[-1], key)}"
        if others:
            return "none was built with these options and shapes"
        return "none was built yet"

    def build(
        self, key: EngineKey, make: Callable[[Path], None], waiting: Callable[[], None]
    ) -> Path:
        """Return a current engine; makes it where there is none.

        Args:
            key: what for.
            make: fills an empty folder.
            waiting: called when another process builds the same engine.

        Raises:
            LoadError: the cache cannot be written.
        """
        target = self._folder(key)
        try:
            private_folder(self._root, *target.parent.relative_to(self._root).parts)
            with _locked(target.with_name(f"{target.name}.lock"), waiting):
                if (found := self.find(key)) is not None:
                    return found
                self._clean(target)
                self._make(target, key, make)
        except OSError as error:
            raise LoadError(
                f"engine cache {self._root}: {error.strerror or error}; set EDGEINFER_CACHE to a "
                "folder that can be written and has room"
            ) from error
        return target

    def drop(self, key: EngineKey) -> None:
        """Forget an engine that its own compiler refuses."""
        shutil.rmtree(self._folder(key), ignore_errors=True)

    def _make(self, target: Path, key: EngineKey, make: Callable[[Path], None]) -> None:
        prefix = f"{_STAGED}{target.name}-"
        staged = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
        try:
            make(staged)
            files = [f for f in sorted(staged.rglob("*")) if f.is_file()]
            digests = {f.relative_to(staged).as_posix(): _digest(f) for f in files}
            record = staged / RECORD
            record.write_text(json.dumps({**key.to_json(), "files": digests}, indent=1))
            for file in (*files, record, staged):
                write_through(file)
            os.rename(staged, target)
            write_through(target.parent)
        except BaseException:
            shutil.rmtree(staged, ignore_errors=True)
            raise

    def _clean(self, target: Path) -> None:
        """Remove what a builder that was killed has left, and a damaged entry; under its lock."""
        for left in target.parent.glob(f"{_STAGED}{target.name}-*"):
            shutil.rmtree(left, ignore_errors=True)
        if target.exists():
            shutil.rmtree(target)

    def _folder(self, key: EngineKey) -> Path:
        return self._root / key.artifact[:32] / key.digest

    def _entries(self, key: EngineKey) -> list[Path]:
        """Other engines of the same artifact, oldest first."""
        parent = self._folder(key).parent
        found = []
        for folder in parent.glob("[0-9a-f]*") if parent.is_dir() else ():
            # Another process may remove one meanwhile.
            with contextlib.suppress(OSError):
                if folder.is_dir():
                    found.append((folder.stat().st_mtime, folder))
        return [folder for _, folder in sorted(found)]


def digest_of(path: Path) -> str:
    """Return the digest of a model: of its file, and of those next to it that it names."""
    text = path.read_bytes()
    beside = [
        file
        for file in sorted(path.parent.rglob("*"))
        if file != path and file.is_file() and file.name.encode() in text
    ]
    del text
    total = hashlib.sha256()
    for file in (path, *beside):
        total.update(
            f"{file.relative_to(path.parent).as_posix()}\n{file.stat().st_size}\n".encode()
        )
        with file.open("rb") as opened:
            while block := opened.read(_HASHED_BYTES):
                total.update(block)
    return total.hexdigest()


def _difference(record: Mapping[str, object], key: EngineKey) -> str:
    before = record.get("facts")
    known = before if isinstance(before, dict) else {}
    changed = [
        f"{name} {known.get(name, 'unknown')}, this is {now}"
        for name, now in key.facts.items()
        if known.get(name) != now
    ]
    return "; ".join(changed) or "another machine"


def _record(folder: Path) -> dict[str, object] | None:
    try:
        found = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _digest(path: Path) -> str | None:
    try:
        found = path.stat()
        return _hashed(str(path), found.st_ino, found.st_size, found.st_mtime_ns)
    except OSError:
        return None


@lru_cache(maxsize=256)
def _hashed(path: str, *_: int) -> str:
    """Hash a file; the further arguments tell versions of it apart."""
    with open(path, "rb") as file:
        return sha256_of(file).hex()


@contextlib.contextmanager
def _locked(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold a lock; the file stays, or two processes could hold one of the same name."""
    with path.open("a+b") as file:
        if not _lock(file, wait=False):
            waiting()
            _lock(file, wait=True)
        yield


def _lock(file: BinaryIO, *, wait: bool) -> bool:
    """Lock an open file until it is closed; False when another process holds it."""
    if sys.platform == "win32":
        import msvcrt

        while True:
            try:
                file.seek(0)
                # This call itself gives up after ten seconds.
                msvcrt.locking(file.fileno(), msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
            except OSError:
                if not wait:
                    return False
            else:
                return True
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True
