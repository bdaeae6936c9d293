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
from pathlib import Path

from edgeinfer.bounded import read_bounded
from edgeinfer.bundle.cache import private_folder
from edgeinfer.bundle.made import state_root
from edgeinfer.errors import OutputError, SignatureError

_FOLDER = "counters"
_LOCK = "lock"
_MOST = 1 << 10
"""Bytes of a counter."""


def raise_counter(key: str, name: str, counter: int) -> None:
    """Refuse a counter below the highest that was seen, else remember it.

    Args:
        key: id of the key that signed it.
        name: of the model.
        counter: as it is signed.

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
            digest = hashlib.sha256(f"{key}\0{name}".encode()).hexdigest()
            _compare(folder / digest, name, counter)
    except OSError as e:
        text = f"counters cannot be kept: {e.strerror or e}"
        raise OutputError(
            f"{e.filename or root}: {text}; without them nothing shows that one fell"
        ) from e


def _compare(place: Path, name: str, counter: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        text = read_bounded(place, _MOST)
        if not text.isdigit():
            raise OSError(errno.EINVAL, "it holds no number; write the highest there", str(place))
        seen = int(text)
        if counter < seen:
            raise SignatureError(
                f"has counter {counter}, and {seen} was seen here: an older {name[:60]!r} in its "
                "place"
            )
        if counter == seen:
            return
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
