"""An engine of a ``Runtime``: loaded when it is used, unloaded when its memory is needed."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeinfer import forks
from edgeinfer.bundle.archive import Bundle
from edgeinfer.bundle.opening import openings
from edgeinfer.errors import BackendError, BundleError, ClosedError
from edgeinfer.machine.pages import resident_mb
from edgeinfer.runtime.session import Session, load
from edgeinfer.types import Feeds

if TYPE_CHECKING:
    from edgeinfer.runtime.fleet import Runtime
    from edgeinfer.runtime.scheduler import Outputs

_log = logging.getLogger("edgeinfer")


class ResidentSession:
    """A session that comes and goes.

    Attributes:
        path: Path of the bundle.
        digest: Digest of the bundle that was added; no other one is loaded.
        users: models that share it.
        loads: how often it was loaded.
        memory_mb: that it took when it was loaded last, and in runs since.
        used: when it ran last.
        is_pinned: it stays loaded.
        runs: under way. Who acquired it discards its run, in one step that Ctrl-C cannot divide,
            also where acquiring it was interrupted.
    """

    def __init__(self, runtime: Runtime, path: Path, digest: str, options: dict[str, Any]) -> None:
        self.path, self.users, self.loads = path, 0, 0
        self.digest = digest
        self.used, self.memory_mb = 0.0, 0.0
        self.is_pinned = False
        self._largest = 0
        self._loaded_mb = 0.0
        self._is_too_large = False
        self._runtime, self._options = runtime, options
        self._guard = runtime._guard
        self._session: Session | None = None
        self.runs: set[object] = set()
        self._has_ended = False
        forks.watch(self)

    def forked(self) -> None:
        """Have no runs; those of the parent go on there."""
        self.runs = set()

    @property
    def is_loaded(self) -> bool:
        """Whether it is in memory."""
        return self._session is not None

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs on it."""
        return not self.runs

    def pin(self) -> None:
        """Load it now and keep it.

        Raises:
            MemoryBudgetError: it does not fit.
        """
        self.is_pinned = True
        try:
            self.warm()
        except BaseException:
            self.is_pinned = False
            raise

    def warm(self) -> None:
        """Load it; as ``acquire``."""
        run = object()
        try:
            self.acquire(run)
        finally:
            self.runs.discard(run)
            self.released()

    def acquire(self, run: object) -> Session:
        """Return the session, loaded; it stays so until ``run`` is no more among ``runs``.

        Raises:
            ClosedError: its last model was closed meanwhile.
            MemoryBudgetError: it does not fit.
            EdgeInferError: as ``load``.
        """
        if (session := self._enter(run)) is not None:
            return session
        # One at a time, or two would count each other's memory; runs go on meanwhile.
        with self._runtime._loading:
            if (session := self._enter(run)) is not None:
                return session
            session = self._load()
            with self._guard:
                if not self._has_ended:
                    self._session = session
                    self.runs.add(run)
                    return session
            session.close()
            raise self._closed()

    def _closed(self) -> ClosedError:
        return ClosedError(f"{self.path.name}: closed while a call waited")

    def _enter(self, run: object) -> Session | None:
        with self._guard:
            if self._has_ended:
                raise self._closed()
            if self._session is not None:
                self.runs.add(run)
            return self._session

    def released(self) -> None:
        """Wake those who wait for memory after a run, and free what is too large."""
        with self._guard:
            self.used = time.monotonic()
            if not self.runs and self._runtime.memory_mb is not None:
                self._runtime._released.notify_all()
            goes = self._is_too_large and not self.runs and not self.is_pinned
        if goes:
            _log.warning(
                "%s: unloaded, because its runs take %.0f MB and memory_mb is %.0f",
                *(self.path.name, self.memory_mb, self._runtime.memory_mb),
            )
            self.unload_idle()

    def run(self, session: Session, feeds: Feeds) -> Outputs:
        """Run once, acquired; what a run of larger inputs than ever takes counts from then on."""
        if self._runtime.memory_mb is None:
            return session.run(feeds)
        size = sum(getattr(array, "nbytes", 0) for array in feeds.values())
        if size <= self._largest:
            return session.run(feeds)
        before = resident_mb() + session._process_mb
        outputs = session.run(feeds)
        given = sum(array.nbytes for array in outputs.values()) / 2**20
        grown = max(0.0, resident_mb() + session._process_mb - before - given)
        if not session._pooled:
            self.memory_mb += grown
        if self._runtime._fits(grown if session._pooled else 0.0):
            self._largest = size
        elif not session._pooled:
            self._is_too_large = True
        return outputs

    def unload_idle(self) -> bool:
        """Free it if it neither runs nor is pinned; return whether that was so."""
        with self._guard:
            if self._session is None or self.runs or self.is_pinned:
                return False
        self.unloaded()
        return True

    def unloaded(self) -> BackendError | None:
        """Free it as ``unload`` does; an error is logged, so that others' work goes on."""
        try:
            self.unload()
        except BackendError as error:
            _log.warning("%s could not be closed: %s", self.path.name, error)
            return error
        return None

    def end(self) -> None:
        """Load it no more, for calls that come late either: nobody would free it again."""
        with self._guard:
            self._has_ended = True

    def unload(self) -> None:
        """Free it after what runs; the next use loads it again."""
        with self._guard:
            session, self._session = self._session, None
        if session is not None:
            session.close()

    def _load(self) -> Session:
        least = self._least_mb()
        self._runtime._make_room(self, max(self._loaded_mb, least))
        before = resident_mb()
        session = load(self.path, **self._options)
        try:
            self._expect(session._bundle)
            self.loads += 1
            self._largest, self._is_too_large = 0, False
            grown = max(resident_mb() - before, 0.0) + session._process_mb
            self.memory_mb = self._loaded_mb = max(grown, least)
            self._runtime._make_room(self, self.memory_mb)
        except BaseException:
            session.close()
            raise
        return session

    def _least_mb(self) -> float:
        """Return the size of the smallest variant, which an engine needs at least."""
        with Bundle.open(self.path, verify=False, **openings(self._options)) as bundle:
            self._expect(bundle)
            return min((v.size_bytes for v in bundle.manifest.variants), default=0) / 2**20

    def _expect(self, bundle: Bundle) -> None:
        """Refuse a bundle that took the place of the one whose inputs and meaning are in use."""
        if bundle.digest != self.digest:
            raise BundleError(
                f"{self.path}: another bundle than the one that was added; remove the model, and "
                "add it again"
            )
