"""The one folder on this machine where edgeinfer keeps what it can make again."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

ENV = "EDGEINFER_CACHE"


def cache_root() -> Path:
    """Return the cache folder: ``$EDGEINFER_CACHE``, or edgeinfer's in the user's cache folder."""
    given = os.environ.get(ENV)
    if given:
        return Path(given)
    return user_cache() / "edgeinfer"


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

    Raises:
        OSError: it cannot be made or written.
    """
    folder = cache_root().joinpath(*parts)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # A folder on a read-only mount exists and passes access checks as root, so write something.
    with tempfile.TemporaryFile(dir=folder):
        pass
    return folder
