"""Keeps the cache below a size: bundles and engines that were not used for longest go first."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path

from edgeinfer.bundle.cache import cache_root
from edgeinfer.errors import UsageError

ENV = "EDGEINFER_CACHE_MB"
DEFAULT_MB = 20_000.0

FOLDERS = ("bundles", "engines")

_RECENT_S = 3600.0
"""What was used so lately may be about to be opened by another process."""


def limit_bytes() -> int:
    """Return how much the cache may hold.

    Raises:
        UsageError: EDGEINFER_CACHE_MB is no number.
    """
    given = os.environ.get(ENV)
    try:
        most = float(given) if given else DEFAULT_MB
    except ValueError:
        most = -1.0
    if not 0 <= most < 1e12:
        raise UsageError(f"{ENV}: expected megabytes, received {given!r}")
    return int(most * 1e6)


def used(entry: Path) -> None:
    """Note that an entry of the cache is used now."""
    with contextlib.suppress(OSError):
        os.utime(entry)


def trim(keep: Path) -> None:
    """Remove what was used longest ago until the rest fits; what is in use stays.

    Args:
        keep: the entry that is being filled.

    Raises:
        UsageError: EDGEINFER_CACHE_MB is no number.
    """
    most, root = limit_bytes(), cache_root()
    entries = []
    for name in FOLDERS:
        with contextlib.suppress(OSError):
            entries += [(e.stat().st_mtime, Path(e.path)) for e in os.scandir(root / name)]
    sizes = {path: _size(path) for _, path in entries}
    total = sum(sizes.values())
    now = time.time()
    for when, path in sorted(entries):
        if total <= most:
            return
        if path == keep or abs(now - when) < _RECENT_S:
            continue
        shutil.rmtree(path, ignore_errors=True)
        total -= sizes[path]


def _size(folder: Path) -> int:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(place, name)).st_size
    return total
