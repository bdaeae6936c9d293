"""A session that runs at once on what is likely best, while the race goes on in the background."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from types import MappingProxyType
from typing import Any
from weakref import WeakSet

from edgeinfer import forks, log
from edgeinfer.backends.base import Bound, Executable
from edgeinfer.errors import BackendError, ClosedError, EdgeInferError
from edgeinfer.records import dataclass
from edgeinfer.runtime.chosen import Changing, Choice
from edgeinfer.runtime.lifetime import Lifetime
from edgeinfer.runtime.select import Candidate, Plan
from edgeinfer.types import Array, Feeds, TensorSpec

_LAST_S = 30.0
"""Seconds that the end of the process waits for engines that are being opened."""

_settling: WeakSet[SettlingExecutable] = WeakSet()


@dataclass(slots=True)
class _Held:
    """What runs now, and its life: freed when the last of its runs leaves."""

    executable: Executable
    life: Lifetime


class SettlingExecutable(Changing):
    """An executable that gives way to the winner of a race that goes on meanwhile.

    Runs never wait: those under way end on the engine that they began with, which is freed then;
    later ones begin on the winner, and buffers are bound to it by the next call.

    Args:
        first: what runs until then, and its candidate.
        plan: the ranking that put it first.
    """

    def __init__(self, first: tuple[Candidate, Executable], plan: Plan) -> None:
        self.candidate, executable = first
        self.plan: Plan = plan
        self._held = self._hold(executable)
        self.inputs: tuple[TensorSpec, ...] = executable.inputs
        self.outputs: tuple[TensorSpec, ...] = executable.outputs
        self.notes: tuple[str, ...] = ()
        self._lock = forks.lock()
        self._thread: threading.Thread | None = None
        self._is_closed = self._is_over = False
        self._last: Callable[[], None] | None = None
        forks.watch(self)

    def __getattr__(self, name: str) -> Any:
        # What one backend has beyond the protocol: memory of its process, where operators run.
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._held.executable, name)

    def forked(self) -> None:
        """Stay with what runs: the race goes on in the parent only."""
        self._thread = None

    @property
    def is_settled(self) -> bool:
        """Whether the race is over."""
        return self._thread is None

    def settle(
        self, choose: Callable[[Callable[[], bool]], Choice], refused: Callable[[Choice], str]
    ) -> None:
        """Begin the race.

        Args:
            choose: races, and returns the winner, loaded; given what says that it may stop.
            refused: says why a winner cannot take over in this session; empty if it can.
        """
        run = threading.Thread(
            target=self._settled, args=(choose, refused), name="edgeinfer-race", daemon=True
        )
        self._thread = run
        _settling.add(self)
        run.start()

    def stop(self) -> None:
        """End the race at its next step; what runs goes on."""
        self._is_over = True

    def wait(self, seconds: float | None = None) -> None:
        """Wait until the race is over."""
        if (thread := self._thread) is not None:
            thread.join(seconds)

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """Run once.

        Raises:
            RunError: as the engine.
            ClosedError: after ``close``.
        """
        outputs: dict[str, Array] = self.within(lambda held: held.executable.run(feeds))
        return outputs

    def within(self, call: Callable[[_Held], Any]) -> Any:
        """Call with what runs now, which is not freed meanwhile.

        Raises:
            ClosedError: after ``close``.
        """
        while True:
            held = self._held
            life = held.life
            try:
                life.running.append(None)
                if not life.closed:
                    return call(held)
            finally:
                life.running.pop()
                if life.closed:
                    life.release()
            if self._is_closed:
                raise ClosedError("session: used after close()")

    def bind(self, inputs: Feeds, outputs: Feeds) -> Bound:
        """Fix buffers; they are bound again where the winner takes over.

        Raises:
            RunError: a buffer does not fit.
            ClosedError: after ``close``.
        """
        return _SettlingBound(self, inputs, outputs)

    def close(self) -> None:
        """Free the engine; a race that goes on ends at its next step."""
        with self._lock:
            self._is_closed = self._is_over = True
            self._held.life.close()

    def after(self, last: Callable[[], None]) -> None:
        """Call once nothing needs the bundle any more: now, or when the race has ended."""
        with self._lock:
            if self._thread is not None:
                self._last = last
                return
        last()

    def _hold(self, executable: Executable) -> _Held:
        return _Held(executable, Lifetime(lambda: _free(executable)))

    def _settled(
        self, choose: Callable[[Callable[[], bool]], Choice], refused: Callable[[Choice], str]
    ) -> None:
        """Race, and hand over; whatever goes wrong leaves what runs as it is."""
        try:
            choice = choose(lambda: self._is_over)
            self._take(choice, refused(choice))
        except EdgeInferError as error:
            if not self._is_over:
                self._tell(f"{self.candidate.pair} goes on, the race failed: {error}")
        finally:
            with self._lock:
                self._thread = None
                _settling.discard(self)
                last, self._last = self._last, None
            if last is not None:
                last()

    def _take(self, choice: Choice, refused: str) -> None:
        with self._lock:
            takes = not refused and not self._is_over
            if takes:
                old, self._held = self._held, self._hold(choice.executable)
                if self.candidate.pair != choice.candidate.pair:
                    log.info("%s takes over from %s", choice.candidate.pair, self.candidate.pair)
                self.candidate, self.plan = choice.candidate, choice.plan
        if takes:
            old.life.close()
            return
        _free(choice.executable)
        if refused:
            self._tell(f"{choice.candidate.pair} is the fastest from the next load on: {refused}")

    def _tell(self, note: str) -> None:
        self.notes = (*self.notes, note)
        log.warning("%s", note)


class _SettlingBound:
    """Buffers bound to whatever runs now; one thread at a time."""

    def __init__(self, owner: SettlingExecutable, inputs: Feeds, outputs: Feeds) -> None:
        self.inputs: Feeds = MappingProxyType(dict(inputs))
        self.outputs: Feeds = MappingProxyType(dict(outputs))
        self._owner = owner
        self._held: _Held | None = None
        self._bound: Bound | None = None
        owner.within(self._bind)

    def _bind(self, held: _Held) -> Bound:
        if self._bound is None or held is not self._held:
            self._bound = held.executable.bind(self.inputs, self.outputs)
            self._held = held
        return self._bound

    def __call__(self) -> None:
        """Run once over the bound buffers."""
        self._owner.within(lambda held: self._bind(held)())


def _free(executable: Executable) -> None:
    try:
        executable.close()
    except BackendError as e:
        log.warning("an engine could not be closed: %s", e)


@atexit.register
def _end() -> None:
    """Let no engine be opened while the interpreter goes away below it."""
    for executable in list(_settling):
        executable.stop()
        executable.wait(_LAST_S)
