"""Which bundles this user's converter made on this machine: their machine code may run here.

The list is one empty file a bundle, named by the SHA-256 of its manifest, in a private folder. It
belongs to the account, not to an environment: ``HOME`` and ``EDGEINFER_CACHE`` do not move it, so
that a bundle stays known whichever way a process is started. Where the account has no folder that
can be written, the list is in the cache.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from edgeinfer.bundle.cache import cache_root, exposure, private_folder

ENV = "EDGEINFER_STATE"
"""Another place for what edgeinfer must not forget."""

_FOLDER = "made-here"


def state_root() -> Path | None:
    """Return the account's folder for what cannot be made again; None where it has none."""
    given = os.environ.get(ENV)
    if given:
        return Path(given)
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return Path(local, "edgeinfer-state") if local else None
    import pwd

    try:
        home = Path(pwd.getpwuid(os.geteuid()).pw_dir)
    # A user of a container may have a number and nothing else.
    except KeyError:
        return None
    if sys.platform == "darwin":
        return home / "Library/Application Support/edgeinfer"
    return home / ".local/state/edgeinfer"


def remember_made(digest: str) -> str:
    """Note that this machine made the bundle whose manifest has this SHA-256, in hexadecimal.

    Returns:
        Why it could not be noted; empty when it was.
    """
    problems = []
    for root in _roots():
        try:
            place = private_folder(root, _FOLDER) / digest
            os.close(os.open(place, os.O_WRONLY | os.O_CREAT | _NO_FOLLOW, 0o600))
        except OSError as e:
            problems.append(f"{root}: {e.strerror or e}")
        else:
            return ""
    return "; ".join(problems)


def is_made_here(digest: str) -> bool:
    """Whether this machine made the bundle whose manifest has this SHA-256."""
    for root in _roots():
        folder = root / _FOLDER
        try:
            owners = {os.geteuid()} if hasattr(os, "geteuid") else set()
            is_there = (folder / digest).is_file()
            if is_there and not exposure(root, folder, owners=owners):
                return True
        except OSError:
            continue
    return False


def _roots() -> Iterator[Path]:
    found = state_root()
    if found is not None:
        yield found
    # The cache may have come from anywhere, so it counts only where there is no better place.
    if found is None or not _may_be_made(found):
        yield cache_root()


def _may_be_made(folder: Path) -> bool:
    """Whether a folder is there, or could be, for this process to write."""
    there = next((p for p in (folder, *folder.parents) if p.exists()), None)
    return there is not None and there.is_dir() and os.access(there, os.W_OK)


_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
