"""Run a file nobody has run before in a process of its own, once for the same bytes and engine.

For engines that some files take down. How the trial ended is remembered by the file's SHA-256, so
the next load of the same bytes costs a hash.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from edgeinfer.backends.base import Executable
from edgeinfer.backends.checks import array_type
from edgeinfer.backends.process import isolation
from edgeinfer.backends.process.confine import confine
from edgeinfer.bounded import sha256_of
from edgeinfer.bundle.cache import readable_folder, writable_folder
from edgeinfer.bundle.passing import is_passing
from edgeinfer.errors import LoadError, NotAvailableError

_OK = "ok"


class Trials:
    """What is known of one engine's files.

    Args:
        engine: for messages, and in the name of the cache's folder.
        module: run as the process; it reads one request and answers when that is over.
    """

    def __init__(self, engine: str, module: str) -> None:
        self._engine, self._module = engine, module
        self._folder = f"{engine}-trials"
        self.remembered: dict[str, str] = {}

    def check(self, path: str, how: str, request: Any, digest: str = "") -> None:
        """Try a file unless these bytes were tried before, in the same way by the same engine.

        Where ``isolation.needs_trial`` says so.

        Args:
            path: Path of the file.
            how: the engine's version, and what of the request decides how the file is run.
            request: sent to the process.
            digest: SHA-256 of the file, where it is known; else it is hashed.

        Raises:
            LoadError: the trial ended the process, or no process could be started.
        """
        if not isolation.needs_trial():
            return
        if not digest:
            found = os.stat(path)
            digest = _sha256(path, found.st_ino, found.st_size, found.st_mtime_ns)
        key = hashlib.sha256(f"{digest}-{how}".encode()).hexdigest()
        verdict = self.remembered.get(key) or self._recall(key)
        if verdict is None:
            verdict = self.attempt(path, request)
            if is_passing(verdict):
                raise LoadError(f"{self._engine}: {path} could not be tried: {verdict}")
            self._keep(key, verdict)
        self.remembered[key] = verdict
        if verdict != _OK:
            hint = "remembered; `edgeinfer cache clear` forgets it"
            raise LoadError(f"{self._engine}: {path} ends the process: {verdict}; {hint}")

    def attempt(self, path: str, request: Any) -> str:
        """Start the process and say how it ended."""
        # Files that were tried before need no process, nor what starts one.
        from edgeinfer.backends.process import child

        try:
            process = child.Child(self._module, keep_errors=True)
        except NotAvailableError as error:
            raise LoadError(
                f"{self._engine}: no process to try {path} in: {error}; extra option trial=off "
                "skips it"
            ) from error
        try:
            process.send(request)
            # What Python can report, the load or the run in this process reports too.
            process.wait_for_answer(isolation.TIMEOUT_S)
        except TimeoutError:
            return f"no end after {isolation.TIMEOUT_S} s"
        except child.ChildEndedError as error:
            return error.how
        finally:
            process.kill()
        return _OK

    def _recall(self, key: str) -> str | None:
        try:
            folder = readable_folder(self._folder)
            return (folder / key).read_text(encoding="utf-8") or None if folder else None
        except OSError:
            return None

    def _keep(self, key: str, verdict: str) -> None:
        import tempfile

        # A cache that cannot be written costs a trial at each start, nothing else.
        with contextlib.suppress(OSError):
            folder = writable_folder(self._folder)
            with tempfile.NamedTemporaryFile(
                "w", dir=folder, delete=False, encoding="utf-8"
            ) as file:
                file.write(verdict)
            os.replace(file.name, folder / key)


def answer(attempt: Callable[[Any], None], *, confined: bool = True) -> None:
    """In the process: make the attempt that is requested; say when it is over, however it went.

    Args:
        attempt: is given the request.
        confined: keep it from files, network and others; not for what compiles.
    """
    import tempfile

    from edgeinfer.backends.process import child

    connection, _ = child.connect()
    request = child.read(connection)
    if confined:
        # A second layer: what is tried may be anything. Where the kernel has none, there is none.
        confine([Path(tempfile.gettempdir())])
    try:
        attempt(request)
    except Exception as error:
        child.answer(connection, str(error))
    else:
        child.answer(connection, "")


def limit_memory(more: int) -> None:
    """Let this process take so many bytes beyond what it holds."""
    import resource

    # Where nobody tells how much there is, there is no limit.
    with contextlib.suppress(OSError, ValueError):
        with open("/proc/self/statm") as file:
            held = int(file.read().split()[0]) * resource.getpagesize()
        most = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (held + more, most))


def run_on_zeros(executable: Executable) -> None:
    """Run once; open sizes are 1."""
    feeds = {
        spec.name: np.zeros(
            [d if isinstance(d, int) else 1 for d in spec.shape or ()], array_type(spec.dtype)
        )
        for spec in executable.inputs
    }
    executable.run(feeds)


@lru_cache(maxsize=64)
def _sha256(path: str, *_: int) -> str:
    """Hash a file; the further arguments tell versions of it apart."""
    with open(path, "rb") as file:
        return sha256_of(file).hex()
