"""The folders on this machine that edgeinfer keeps for one user, and who else could change them."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

ENV = "EDGEINFER_CACHE"

FOLDERS = frozenset({
    *("bundles", "engines", "code", "llm-kernels", "search"),
    *("coreml", "onnxruntime-coreml", "locks"),
    *("litert-trials", "onnxruntime-regions-trials", "tvm-trials", "code-trials"),
})  # fmt: skip
"""All folders of the cache: what is not here is not edgeinfer's, and is not emptied."""

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def cache_root() -> Path:
    """Return the cache folder: ``$EDGEINFER_CACHE``, or edgeinfer's in the user's cache folder.

    Of a folder where every user keeps files, such as ``/tmp``, it is a folder of this user's own.
    """
    given = os.environ.get(ENV)
    if not given:
        return user_cache() / "edgeinfer"
    folder = Path(given)
    return folder / f"edgeinfer-{owner()}" if _is_everybodys(folder) else folder


def user_cache() -> Path:
    """Return where programs of this user keep what they can make again."""
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA") or str(Path.home() / "AppData/Local")
        return Path(local)
    if sys.platform == "darwin":
        return Path.home() / "Library/Caches"
    given = os.environ.get("XDG_CACHE_HOME", "").strip()
    return Path(given) if given else Path.home() / ".cache"


def writable_folder(*parts: str) -> Path:
    """Make a private folder below the cache.

    Args:
        parts: its path; the first is one of ``FOLDERS``.

    Raises:
        OSError: it cannot be made or written, or others than this user could change what is in it.
    """
    if parts and parts[0] not in FOLDERS:
        raise ValueError(f"{parts[0]!r} is no folder of the cache, see FOLDERS")
    return private_folder(cache_root(), *parts)


def readable_folder(*parts: str) -> Path | None:
    """Return a folder below the cache that nobody but this user and root could have filled."""
    folder = cache_root().joinpath(*parts)
    try:
        problem = exposure(cache_root(), folder, owners={owner(), 0})
    except OSError:
        return None
    return None if problem else folder


def is_own_file(path: Path) -> bool:
    """Whether nobody but this user and root could have made a file.

    Raises:
        OSError: it, or its folder, may not be looked at.
    """
    owners = {owner(), 0}
    if os.name == "posix":
        found = path.lstat()
        if found.st_uid not in owners or not stat.S_ISREG(found.st_mode):
            return False
    return not exposure(path.parent, path.parent, owners=owners)


def private_folder(root: Path, *parts: str) -> Path:
    """Make a folder whose every level, from ``root`` down, is this user's alone.

    Raises:
        OSError: it cannot be made or written, or others than this user could change what is in it.
    """
    for level in reversed(root.parents):
        _make(level)
    folder = root.joinpath(*parts)
    for level in _levels(root, folder):
        _make(level)
        # Each before the next is made in it.
        if problem := exposure(root, level, owners={owner()}):
            raise PermissionError(errno.EPERM, problem)
    _write_something(folder)
    return folder


def exposure(root: Path, folder: Path, *, owners: Collection[int]) -> str:
    """Say why others could change what lies in a folder; empty when they cannot.

    Every level from ``root`` to ``folder`` has to be a folder, no link, of one of the owners, which
    nobody else may write. Above it are folders of the system; there it is enough that not everybody
    may rename what is in them.

    Raises:
        OSError: a level is missing or may not be looked at.
    """
    if os.name != "posix":
        # Access there is by lists, which profile folders get from the system.
        return ""
    for level in _levels(root, folder):
        found = level.lstat()
        if stat.S_ISLNK(found.st_mode):
            return f"{level} is a link"
        if not stat.S_ISDIR(found.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(level))
        if found.st_uid not in owners:
            return f"{level} belongs to another user (number {found.st_uid})"
        if found.st_mode & _OTHERS_WRITE:
            return f"{level} can be written by others: chmod go-w {level}"
    for level in Path(os.path.realpath(root)).parents:
        mode = level.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            return f"everybody may rename what is in {level}"
    return ""


def _write_something(folder: Path) -> None:
    """Raise where nothing can be written: a read-only mount passes access checks as root."""
    with suppress(OSError, AttributeError):
        os.close(os.open(folder, os.O_TMPFILE | os.O_WRONLY, 0o600))
        return
    # A system or a file system without nameless files, or this attempt raises the error.
    import tempfile

    with tempfile.TemporaryFile(dir=folder):
        pass


def _make(folder: Path) -> None:
    if not folder.exists():
        folder.mkdir(mode=0o700, exist_ok=True)


def _levels(root: Path, folder: Path) -> Iterator[Path]:
    yield root
    for part in folder.relative_to(root).parts:
        root = root / part
        yield root


def _is_everybodys(folder: Path) -> bool:
    """Whether all may write into a folder, and nobody may touch what is another's."""
    try:
        mode = folder.stat().st_mode
    except OSError:
        return False
    return bool(os.name == "posix" and mode & stat.S_IWOTH and mode & stat.S_ISVTX)


def owner() -> int:
    """Return the number of this user; -1 where the system has none."""
    return os.geteuid() if hasattr(os, "geteuid") else -1
