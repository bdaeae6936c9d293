"""The one folder on this machine where edgeinfer keeps what it can make again."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

ENV = "EDGEINFER_CACHE"


def cache_root() -> Path:
    """Return the cache folder: ``$EDGEINFER_CACHE``, or edgeinfer's in the user's cache folder."""
    given = os.environ.get(ENV)
    if given:
        return Path(given)
    import platformdirs

    return Path(platformdirs.user_cache_dir("edgeinfer", appauthor=False))


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
