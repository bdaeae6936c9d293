"""Going on after an engine crashed: the same one again, or the next that the ranking allows."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

from edgeinfer import forks, log
from edgeinfer.backends.base import Bound, Executable, Hosted, able
from edgeinfer.backends.operators import Placement
from edgeinfer.errors import BackendError, ClosedError, CrashedError
from edgeinfer.runtime.chosen import Changing
from edgeinfer.runtime.operators import placement_of
from edgeinfer.runtime.select import Candidate
from edgeinfer.types import Array, Feeds, TensorSpec

CRASHES = 2
"""Crashes in a row after which the next candidate takes over; the first is forgiven."""


class SurvivingExecutable(Changing):
    """An isolated executable that gives way to the next candidate when it keeps going down.

    A crash raises, and the engine is started again by the next run. Another crash in a row hands
    over: the next candidate is loaded, checked by the caller's rules, and gives the answer. That is
    logged, and stands in ``notes``, which a session's report shows.

    Args:
        first: what runs now, and its candidate.
        successor: loads and checks the next candidate; None when there is none left.
    """

    def __init__(
        self,
        first: tuple[Candidate, Executable],
        successor: Callable[[], tuple[Candidate, Executable] | None],
    ) -> None:
        self.candidate, self._executable = first
        self.inputs: tuple[TensorSpec, ...] = self._executable.inputs
        self.outputs: tuple[TensorSpec, ...] = self._executable.outputs
        self._successor = successor
        self._lock = forks.lock()
        self._crashes = 0
        self._is_closed = False
        self.generation = 0
        self.notes: tuple[str, ...] = ()

    @property
    def process_mb(self) -> float:
        """What the process of the engine that runs now holds."""
        executable = self._executable
        return executable.process_mb if able(executable, Hosted) else 0.0

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """Run once.

        Raises:
            RunError: as the engine.
            CrashedError: the engine crashed, for the first time or with none left to follow.
            ClosedError: after ``close``.
        """
        current = self._executable
        try:
            results = current.run(feeds)
        except CrashedError as error:
            self.crashed(current, error)
            return self.run(feeds)
        self.forgive()
        return results

    def bind(self, inputs: Feeds, outputs: Feeds) -> Bound:
        """Fix buffers; they are bound again where another engine takes over.

        Raises:
            RunError: a buffer does not fit.
            ClosedError: after ``close``.
        """
        return _SurvivingBound(self, inputs, outputs)

    def bind_current(self, inputs: Feeds, outputs: Feeds) -> tuple[Executable, Bound]:
        """Return what runs now, and the buffers bound to it."""
        current = self._executable
        return current, current.bind(inputs, outputs)

    def forgive(self) -> None:
        """Note a run that went well."""
        self._crashes = 0

    def crashed(self, executable: Executable, error: CrashedError) -> None:
        """Count a crash; return where another executable took over.

        Raises:
            CrashedError: nothing did.
            ClosedError: after ``close``.
        """
        with self._lock:
            if self._is_closed:
                raise ClosedError("session: closed while its engine crashed") from error
            if executable is not self._executable:
                # Another caller saw the same crash and has handed over already.
                return
            self._crashes += 1
            if self._crashes < CRASHES:
                raise error
            found = self._successor()
            if found is None:
                raise error
            old, (self.candidate, self._executable) = self.candidate, found
            self._crashes = 0
            self.generation += 1
        note = f"{self.candidate.pair} took over because {old.pair} kept going down: {error}"
        self.notes = (*self.notes, note)
        log.warning("%s", note)
        try:
            executable.close()
        except BackendError as problem:
            log.warning("%s could not be closed: %s", old.pair, problem)

    def placement(self) -> Placement | None:
        """Say where operators of what runs now run, if it does."""
        return placement_of(self._executable)

    def close(self) -> None:
        """Free the engine; a second call does nothing."""
        with self._lock:
            self._is_closed = True
            self._executable.close()


class _SurvivingBound:
    """Buffers bound to whatever runs now."""

    def __init__(self, owner: SurvivingExecutable, inputs: Feeds, outputs: Feeds) -> None:
        self.inputs: Feeds = MappingProxyType(dict(inputs))
        self.outputs: Feeds = MappingProxyType(dict(outputs))
        self._owner = owner
        self._generation = owner.generation
        self._executable, self._bound = owner.bind_current(inputs, outputs)

    def __call__(self) -> None:
        """Run once over the bound buffers."""
        owner = self._owner
        if self._generation != owner.generation:
            self._generation = owner.generation
            self._executable, self._bound = owner.bind_current(self.inputs, self.outputs)
        try:
            self._bound()
        except CrashedError as error:
            owner.crashed(self._executable, error)
            self()
            return
        owner.forgive()
