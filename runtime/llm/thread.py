"""An engine in a thread of its own, for callers of any thread and for asyncio.

Requests, cancellations and questions go to the thread as commands, which it carries out between two
steps; events come back through a mailbox for each request.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol, TypeVar

from edgeinfer import forks
from edgeinfer.errors import ClosedError, DeadlineError
from edgeinfer.pending import Pending
from edgeinfer.runtime.bell import Bell, awaited
from edgeinfer.runtime.llm.engine import Engine
from edgeinfer.runtime.llm.grammar_trial import is_plain
from edgeinfer.runtime.llm.params import Event
from edgeinfer.runtime.llm.sequence import SequenceRequest
from edgeinfer.runtime.llm.stats import EngineStats
from edgeinfer.runtime.pool import Pool

T = TypeVar("T")
Events = AsyncGenerator[Event, None]
SILENCE = Event("", 0)
"""Stands for a long time without an event, where that is requested."""

COMPILING = Pool("edgeinfer-grammar", threads=2, waiting=64)
"""Compiles the plain grammars of callers that may not wait."""

TRYING = Pool("edgeinfer-grammar-trial", threads=2, waiting=64)
"""Compiles others, which takes long for some."""

COMPILING_S = 40.0
"""Seconds that one may wait for it: for a trial, and for as long once more."""

_LEFT = "the engine's thread did not come along into this process: open the model here"
_log = logging.getLogger("edgeinfer")


class Mailbox(Protocol):
    """Takes the events of one request in the engine's thread; must not block."""

    def put(self, event: Event | ClosedError) -> None:
        """Take one event, or what ended the engine."""
        ...


class EngineThread:
    """Runs an engine.

    Args:
        engine: used by this thread alone from now on.
        idle_sleep_s: after so long without a request the engine sleeps; None for never. The next
            request wakes it.
        asleep: called when the engine sleeps, to release what belongs to it.
    """

    def __init__(
        self,
        engine: Engine,
        idle_sleep_s: float | None = None,
        asleep: Callable[[], None] = lambda: None,
    ) -> None:
        self._engine, self._idle_sleep_s, self._asleep = engine, idle_sleep_s, asleep
        self._commands: deque[Callable[[], None]] = deque()
        self._lock = threading.RLock()
        self._wanted = threading.Condition(self._lock)
        self._closing = False
        self._mailboxes: dict[str, tuple[Mailbox, int]] = {}
        self._bell: Bell | None = None
        self._thread = threading.Thread(target=self._work, name="edgeinfer-llm", daemon=True)
        self._thread.start()
        forks.watch(self)

    def forked(self) -> None:
        """Tell who waits that the engine is the parent's, with locks that nobody holds here."""
        self._lock = threading.RLock()
        self._wanted = threading.Condition(self._lock)
        waiting, self._mailboxes = [*self._mailboxes.values()], {}
        for mailbox, _ in waiting:
            mailbox.put(ClosedError(_LEFT))

    # From any thread.

    def call(self, function: Callable[[Engine], T]) -> Future[T]:
        """Let the engine's thread call a function between two steps."""
        future: Future[T] = Pending()

        def command() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(function(self._engine))
            except BaseException as e:
                future.set_exception(e)

        with self._lock:
            if self._closing:
                raise ClosedError("the engine is closed")
            if not self._thread.is_alive():
                raise ClosedError(_LEFT)
            self._commands.append(command)
            self._wanted.notify()
        return future

    def submit(self, request: SequenceRequest, mailbox: Mailbox) -> Future[None]:
        """Hand over a request; the future has the error if it is refused.

        A grammar is compiled in the caller's thread, so that nobody else waits for it.

        Raises:
            InputError: the grammar is malformed.
        """
        self._engine.prepare(request)

        def take(engine: Engine) -> None:
            if engine.is_asleep:
                engine.wake()
            engine.submit(request)
            self._mailboxes[request.id] = mailbox, request.params.n

        return self.call(take)

    def cancel(self, request: str) -> None:
        """End a request before the next step; its last events say so."""
        with contextlib.suppress(ClosedError):
            self.call(lambda engine: engine.cancel(request))

    def stats(self) -> EngineStats:
        """Return a snapshot, at most one step from now; it wakes nothing."""
        return self.call(lambda engine: engine.stats()).result()

    def sleep(self) -> None:
        """Release weights and cache until ``wake`` or the next request."""
        self.call(lambda _: self._sleep()).result()

    def _sleep(self) -> None:
        self._engine.sleep()
        self._asleep()

    def wake(self) -> None:
        """Open the executor again."""
        self.call(lambda engine: engine.wake()).result()

    def open(self, request: SequenceRequest) -> Generator[Event, None, None]:
        """Hand over a request and return its events as they come.

        Ending the iteration early, or closing it, cancels the request.

        Raises:
            InputError: the request is refused; likewise other errors of ``Engine.submit``.
        """
        mailbox = _Waiting()
        try:
            self.submit(request, mailbox).result()
            events = self._waited(request, mailbox)
            # Begun, so that closing it runs its end.
            next(events)
        except BaseException:
            # Also one that Ctrl-C kept from being handed over to the caller.
            self.cancel(request.id)
            raise
        return events

    def _waited(self, request: SequenceRequest, mailbox: _Waiting) -> Generator[Event, None, None]:
        left = request.params.n
        try:
            yield Event(request.id, 0)
            while left:
                event = mailbox.get()
                left -= event.finish is not None
                yield event
        finally:
            if left:
                self.cancel(request.id)

    async def submit_async(self, request: SequenceRequest, pause_s: float | None = None) -> Events:
        """Hand over a request and return the iterator of its events.

        The request is taken or refused before this returns. What the reader does not fetch waits;
        ending the iteration early, or the task, cancels the request.

        Args:
            request: for the engine.
            pause_s: seconds without an event after which ``SILENCE`` is one; None for never.

        Raises:
            InputError: the request is refused; likewise other errors of ``Engine.submit``.
            QueueFullError: too many grammars wait to be compiled.
            DeadlineError: this one was not compiled in good time.
        """
        loop = asyncio.get_running_loop()
        if self._bell is None or self._bell.loop is not loop:
            self._bell = Bell(loop)
        mailbox = _Async(self._bell, pause_s)
        if request.params.grammar is not None:
            grammar = request.params.grammar
            is_quick = is_plain(grammar) or self._engine.knows(grammar)
            pool = COMPILING if is_quick else TRYING
            await _in_time(pool.run(partial(self._engine.prepare, request)))
        try:
            await awaited(self.submit(request, mailbox))
        except asyncio.CancelledError:
            self.cancel(request.id)
            raise
        return self._events(request, mailbox)

    async def _events(self, request: SequenceRequest, mailbox: _Async) -> Events:
        left = request.params.n
        try:
            while left:
                for event in await mailbox.get():
                    left -= event.finish is not None
                    yield event
        finally:
            mailbox.close()
            if left:
                self.cancel(request.id)

    async def stats_async(self) -> EngineStats:
        """Return a snapshot, at most one step from now; it wakes nothing."""
        return await awaited(self.call(lambda engine: engine.stats()))

    def close(self) -> None:
        """End all requests and release the engine; may be called twice."""
        with self._lock:
            self._closing = True
            self._wanted.notify()
        if threading.current_thread() is not self._thread and self._thread.is_alive():
            self._thread.join()

    # In the thread.

    def _work(self) -> None:
        engine = self._engine
        while self._next_commands():
            if not engine.has_work:
                continue
            try:
                events = engine.step()
            # A fault of an executor or of ours must not leave callers waiting.
            except Exception as e:
                _log.exception("a step of the engine failed")
                engine.fail_all(e)
                events = engine.take_events()
            for event in events:
                self._deliver(event)
        for command in self._commands:
            command()
        engine.close()
        closed = ClosedError("the engine was closed while the request ran")
        for mailbox, _ in self._mailboxes.values():
            mailbox.put(closed)

    def _deliver(self, event: Event) -> None:
        mailbox, left = self._mailboxes[event.request]
        mailbox.put(event)
        if event.finish is not None:
            if left == 1:
                del self._mailboxes[event.request]
            else:
                self._mailboxes[event.request] = mailbox, left - 1

    def _next_commands(self) -> bool:
        """Carry out what was requested; wait where there is nothing to do. False at the end."""
        engine = self._engine
        if not self._commands and not self._closing and engine.has_work:
            return True
        with self._lock:
            if not (self._commands or self._closing or engine.has_work):
                patience = None if engine.is_asleep else self._idle_sleep_s
                if not self._wanted.wait(patience):
                    self._commands.append(self._sleep)
            commands, self._commands = self._commands, deque()
            closing = self._closing
        for command in commands:
            command()
        return not closing


async def _in_time(compiling: Coroutine[Any, Any, None]) -> None:
    """Wait for a grammar; what has not begun by the end of the time, or of the task, never does."""
    task = asyncio.ensure_future(compiling)
    try:
        done, _ = await asyncio.wait((task,), timeout=COMPILING_S)
        if not done:
            raise DeadlineError(f"the grammar was not compiled within {COMPILING_S:g} s")
        task.result()
    finally:
        task.cancel()


class _Waiting:
    """A mailbox for a thread that waits."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Event | ClosedError] = queue.SimpleQueue()

    def put(self, event: Event | ClosedError) -> None:
        self._queue.put(event)

    def get(self) -> Event:
        event = self._queue.get()
        if isinstance(event, ClosedError):
            raise event
        return event


class _Async:
    """A mailbox for a task.

    Args:
        bell: Bell of the task's loop.
        pause_s: seconds after which silence is reported; None for never.
    """

    def __init__(self, bell: Bell, pause_s: float | None) -> None:
        self._bell, self._pause_s = bell, pause_s
        self._lock = forks.lock()
        self._events: list[Event | ClosedError] = []
        self._there = asyncio.Event()
        self._since = bell.loop.time()
        # One timer for many events: to make and end one for each costs more than the event.
        self._pause: asyncio.TimerHandle | None = None
        if pause_s is not None:
            self._pause = bell.loop.call_later(pause_s, self._look)

    def put(self, event: Event | ClosedError) -> None:
        with self._lock:
            self._events.append(event)
            if len(self._events) > 1:
                return
        self._bell.ring(self._there.set)

    async def get(self) -> list[Event]:
        await self._there.wait()
        self._there.clear()
        self._since = self._bell.loop.time()
        with self._lock:
            events, self._events = self._events, []
        found: list[Event] = []
        for event in events:
            if isinstance(event, ClosedError):
                raise event
            found.append(event)
        return found or [SILENCE]

    def close(self) -> None:
        """Tell of no silence any more."""
        if self._pause is not None:
            self._pause.cancel()

    def _look(self) -> None:
        """Tell of the silence where it has lasted."""
        pause_s = self._pause_s or 0.0
        left = self._since + pause_s - self._bell.loop.time()
        if left <= 0:
            self._there.set()
            left = pause_s
        self._pause = self._bell.loop.call_later(left, self._look)
