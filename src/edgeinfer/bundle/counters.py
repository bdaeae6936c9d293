"""The highest counter of each signed model that this user has opened here, so that none falls.

One small file a pair of key and name, in the account's private folder (``bundle.made``): clearing
the cache does not forget it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from edgeinfer.bounded import read_bounded
from edgeinfer.bundle.cache import private_folder
from edgeinfer.bundle.made import state_root
from edgeinfer.errors import OutputError, SignatureError

_FOLDER = "counters"
_LOCK = "lock"
_MOST = 1 << 10
"""Bytes of a counter."""


def raise_counters(
    name: str, trusted: Iterable[str], signed: Mapping[str, int], *, keeps: bool = True
) -> None:
    """Refuse counters below what was seen, else remember them.

    None of a key falls, and the highest one is no lower than that of any trusted key: signatures
    can be taken out, and a key that is new here proves nothing about what the others signed.

    Args:
        name: Name of the model.
        trusted: ids of all keys whose signature would do.
        signed: the counter of each of them that signed it.
        keeps: remember them, which is for good; before that all of the bundle has to be whole.

    Raises:
        SignatureError: a higher one was seen.
        OutputError: this account has no folder to remember it in.
    """
    root = state_root()
    try:
        if root is None:
            raise FileNotFoundError(2, "this account has no folder of its own; set EDGEINFER_STATE")
        folder = private_folder(root, _FOLDER)
        with (folder / _LOCK).open("ab") as lock:
            _hold(lock.fileno())
            files = {key: folder / _digest(key, name) for key in {*trusted, *signed}}
            seen = {key: _seen(place) for key, place in files.items()}
            fallen = [(n, seen[key]) for key, n in signed.items() if n < seen[key]]
            if (most := max(signed.values())) < max(seen.values()):
                fallen.append((most, max(seen.values())))
            for counter, before in fallen:
                raise SignatureError(
                    f"has counter {counter}, and {before} was seen here: an older {name[:60]!r} in "
                    "its place"
                )
            for key, counter in signed.items():
                if keeps and counter > seen[key]:
                    _keep(files[key], counter)
    except OSError as e:
        text = f"counters cannot be kept: {e.strerror or e}"
        raise OutputError(
            f"{e.filename or root}: {text}; without them nothing shows that one fell"
        ) from e


def _digest(key: str, name: str) -> str:
    return hashlib.sha256(f"{key}\0{name}".encode()).hexdigest()


def _seen(place: Path) -> int:
    """Return the highest counter that was seen; -1 for none."""
    try:
        text = read_bounded(place, _MOST)
    except FileNotFoundError:
        return -1
    if not text.isdigit():
        raise OSError(errno.EINVAL, "it holds no number; write the highest there", str(place))
    return int(text)


def _keep(place: Path, counter: int) -> None:
    with tempfile.NamedTemporaryFile("w", dir=place.parent, delete=False) as file:
        file.write(str(counter))
        file.flush()
        os.fsync(file.fileno())
    os.replace(file.name, place)


def _hold(descriptor: int) -> None:
    """Let one process at a time look and write."""
    with contextlib.suppress(ImportError):
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX)
