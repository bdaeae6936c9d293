"""Run a library nobody has run before in a process of its own.

A library is machine code: one that was damaged, or made for another CPU than it says, may end the
process at its first instruction. A child loads it and runs it once on zeros; how that ended is
remembered by the file's SHA-256, so the next load of the same bytes costs a hash.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from functools import lru_cache
from pathlib import Path

import numpy as np

from edgeinfer.backends import child
from edgeinfer.bundle.cache import writable_folder
from edgeinfer.errors import LoadError, NotAvailableError

FOLDER = "tvm-trials"
TIMEOUT_S = 600

_OK = "ok"
_remembered: dict[str, str] = {}


def check_runs(path: Path, version: str) -> None:
    """Try a library unless these bytes were tried before with this runtime.

    A process that is here to be ended needs no trial.

    Raises:
        LoadError: the trial ended the process, or no process could be started.
    """
    if child.is_expendable():
        return
    found = path.stat()
    digest = _sha256(str(path), found.st_ino, found.st_size, found.st_mtime_ns)
    key = hashlib.sha256(f"{digest}-{version}".encode()).hexdigest()
    verdict = _remembered.get(key) or _recall(key)
    if verdict is None:
        verdict = _try(path)
        _keep(key, verdict)
    _remembered[key] = verdict
    if verdict != _OK:
        raise LoadError(f"tvm: {path} ends the process: {verdict}")


@lru_cache(maxsize=64)
def _sha256(path: str, *_: int) -> str:
    """Hash a file; the further arguments tell versions of it apart."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _recall(key: str) -> str | None:
    try:
        return (writable_folder(FOLDER) / key).read_text(encoding="utf-8") or None
    except OSError:
        return None


def _keep(key: str, verdict: str) -> None:
    # A cache that cannot be written costs a trial at each start, nothing else.
    with contextlib.suppress(OSError):
        folder = writable_folder(FOLDER)
        with tempfile.NamedTemporaryFile("w", dir=folder, delete=False, encoding="utf-8") as file:
            file.write(verdict)
        os.replace(file.name, folder / key)


def _try(path: Path) -> str:
    try:
        process = child.Child(__name__, keep_errors=True)
    except NotAvailableError as error:
        raise LoadError(
            f"tvm: no process to try {path} in: {error}; extra option trial=off skips it"
        ) from error
    try:
        process.send(str(path))
        # What Python can report, the load or the run in this process reports too.
        process.receive(TIMEOUT_S)
    except TimeoutError:
        return f"no end after {TIMEOUT_S} s"
    except child.ChildEndedError as error:
        return error.how
    finally:
        process.kill()
    return _OK


def _main() -> None:
    """Load a library and run it once on zeros; say when that is over, however it went."""
    from edgeinfer.backends.base import Artifact, LoadOptions
    from edgeinfer.backends.checks import array_type
    from edgeinfer.backends.tvm import TvmBackend
    from edgeinfer.backends.tvm_library import read

    connection, _ = child.connect()
    path = Path(child.read(connection))
    try:
        about = read(path)
        artifact = Artifact("tvm", path, about.inputs, about.outputs)
        options = LoadOptions("gpu" if about.device == "gpu" else "cpu", extra={"trial": "off"})
        executable = TvmBackend().load(artifact, options)
        feeds = {
            s.name: np.zeros(
                [d if isinstance(d, int) else 1 for d in s.shape or ()], array_type(s.dtype)
            )
            for s in executable.inputs
        }
        executable.run(feeds)
    except Exception as error:
        child.write(connection, str(error))
    else:
        child.write(connection, "")


if __name__ == "__main__":
    _main()
