"""Who runs next: one set of threads for the runs of many models.

Jobs are taken by priority, then by deadline, then in the order they came; where calls have owners,
these take turns among equal priorities. A job takes as many of
the threads as its engine was loaded with; one that is next but finds too few free waits for them,
and later ones wait behind it, so that wide jobs are not starved by narrow ones.

Handing a job to another thread costs tens of microseconds, as much as a small model takes. So a
caller who waits does not sleep while there is a place to run: its own thread runs what is next,
until its answer is there. A thread that takes a job calls the next one only where more is queued.
"""

from __future__ import annotations

import heapq
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Protocol, TypeVar

from edgeinfer import forks
from edgeinfer.errors import ClosedError, DeadlineError, RunError
from edgeinfer.machine.cores import on_cores
from edgeinfer.pending import Pending
from edgeinfer.records import dataclass
from edgeinfer.runtime.rounds import Rounds
from edgeinfer.types import Array, Feeds

Outputs = dict[str, Array]
A = TypeVar("A")
T = TypeVar("T")

TICK_S = 5e-4
"""Seconds after which an idle thread looks for brief runs that callers left in the queue. Callers
come and go between two answers; waking a thread each time would cost more than the runs."""


class SchedulerLane(Protocol):
    """What the scheduler needs to know of a model.

    Attributes:
        name: for messages.
        width: threads that a run keeps busy.
        limit: runs at once.
        is_brief: whether a run is known to be over in about a millisecond.
    """

    name: str
    width: int
    limit: int

    @property
    def is_brief(self) -> bool:
        """See above."""
        ...

    def execute(self, calls: list[QueuedRun]) -> None:
        """Run the calls, as one batch where there are several, and settle their futures."""
        ...


class PendingOutputs(Pending[Outputs]):
    """The outputs of a call; who waits for it without a time limit helps to get there.

    Args:
        scheduler: that the call is queued in.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__()
        self._scheduler = scheduler

    def result(self, timeout: float | None = None) -> Outputs:
        """Return the outputs, or raise what went wrong."""
        if self.done():
            return super().result(timeout)
        self._scheduler.wait(self, timeout)
        try:
            return super().result(timeout)
        finally:
            self._scheduler.waited()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return what went wrong, if anything did."""
        if self.done():
            return super().exception(timeout)
        self._scheduler.wait(self, timeout)
        try:
            return super().exception(timeout)
        finally:
            self._scheduler.waited()


class _Mine(threading.local):
    """What a thread holds.

    Attributes:
        lane: whose run it has a place for.
        job: taken out of the queue, and not begun.
        works: whether it is one of the scheduler's own.
        is_away: whether it is one of those, and a callback that it runs waits for an answer.
    """

    lane: SchedulerLane | None = None
    job: RunBatch | None = None
    works = False
    is_away = False


@dataclass(slots=True)
class QueuedRun:
    """One run that somebody waits for.

    Attributes:
        feeds: checked inputs.
        future: Future of the outputs.
        deadline: on the monotonic clock; a run that cannot be started before is not started.
        queued: when it came.
        found_free: whether nothing waited then, and there was a place to run.
    """

    feeds: Feeds
    future: PendingOutputs
    deadline: float
    queued: float
    found_free: bool = False


@dataclass(slots=True, order=True)
class RunBatch:
    """Calls that run together; one call, but where a model gathers batches.

    Attributes:
        urgency: priority, negated, the round of its owner's turns, and the earliest deadline.
        number: order in which jobs came.
        lane: the model.
        calls: gathered so far.
        due: when the job is run though it could still grow.
        size: calls that it may hold.
        is_taken: whether a thread runs it; what else of it is in a queue counts for nothing.
    """

    urgency: tuple[float, int, float]
    number: int
    lane: SchedulerLane = field(compare=False)
    calls: list[QueuedRun] = field(compare=False)
    due: float = field(compare=False, default=0.0)
    size: int = field(compare=False, default=1)
    is_taken: bool = field(compare=False, default=False)

    @property
    def is_ready(self) -> bool:
        """Whether waiting for more calls is over."""
        return len(self.calls) >= self.size or time.monotonic() >= self.due


class Scheduler:
    """Runs jobs on at most ``threads`` threads, its own and those of callers who wait.

    Ctrl-C may end what the main thread does after any call of a function. So a place is taken and
    given back by assignments alone, one after the other, and may be given back twice.

    Args:
        threads: that run at once; each is worth one thread of an engine.
        cpus: where its own threads run; empty where all cores are alike.
    """

    def __init__(self, threads: int, cpus: Sequence[int] = ()) -> None:
        self._cpus = cpus
        self.threads = threads
        self._is_closed = False
        self._begin()
        forks.watch(self)

    def forked(self) -> None:
        """Begin with no threads and nothing queued; answers of the parent know it themselves."""
        self._begin()

    def _begin(self) -> None:
        self._free = self.threads
        # A lock of C is entered in a sixth of the time of a condition, which is Python.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._mine = _Mine()
        self._jobs: list[RunBatch] = []
        self._parked: dict[SchedulerLane, list[RunBatch]] = {}
        self._growing: list[RunBatch] = []
        self._open: dict[SchedulerLane, RunBatch] = {}
        self._running: dict[SchedulerLane, int] = {}
        self._workers: list[threading.Thread] = []
        self._idle = self._away = 0
        self._is_called = self._is_watched = False
        self._count = 0
        self._rounds = Rounds()

    def submit(
        self,
        lane: SchedulerLane,
        call: QueuedRun,
        *,
        priority: float = 0.0,
        size: int = 1,
        wait_s: float = 0.0,
        fits: Callable[[QueuedRun], bool] | None = None,
        waits: bool = False,
        owner: bytes = b"",
    ) -> None:
        """Queue a call.

        Args:
            lane: the model.
            call: what to run.
            priority: higher ones run first.
            size: most calls of a batch; 1 gathers none.
            wait_s: longest wait for a batch to fill.
            fits: whether the call may join a batch that holds the given one.
            waits: whether the caller asks for the result at once, and so runs it where it can.
            owner: whose it is; empty for nobody's.

        Raises:
            ClosedError: the scheduler was closed.
        """
        with self._lock:
            if self._is_closed:
                raise ClosedError("runtime: used after close()")
            turn = self._rounds.of(owner)
            if size == 1 or fits is None or not self._joined(lane, call, fits, turn):
                self._count += 1
                call.found_free = not self._jobs and self._free >= min(lane.width, self.threads)
                self._rounds.take(owner, turn)
                urgency = (-priority, turn, call.deadline)
                job = RunBatch(urgency, self._count, lane, [call], call.queued + wait_s, size)
                if size > 1:
                    self._open[lane] = job
                if job.is_ready:
                    heapq.heappush(self._jobs, job)
                else:
                    self._growing.append(job)
            if not waits:
                self._call_worker()

    def oldest(self, lane: SchedulerLane) -> float | None:
        """Return when the oldest call came that waits for a run of a model; None for none."""
        with self._lock:
            jobs = [*self._jobs, *self._growing, *self._parked.get(lane, ())]
            waiting = (
                c for job in jobs if job.lane is lane and not job.is_taken for c in job.calls
            )
            return min((call.queued for call in waiting if not call.future.done()), default=None)

    def here(self, lane: SchedulerLane, function: Callable[[A], T], argument: A) -> T | None:
        """Call a function on this thread, if a place is free and nothing waits for it; else None.

        Raises:
            ClosedError: the scheduler was closed.
        """
        try:
            return function(argument) if self._entered(lane) else None
        finally:
            try:
                self._give_back()
            except BaseException:
                # Ctrl-C came before the place was given back, or after it.
                self._give_back()
                raise

    def _entered(self, lane: SchedulerLane) -> bool:
        """Take a place for a run on the caller's thread."""
        mine = self._mine
        if mine.lane is not None:
            self._give_back()
        with self._lock:
            if self._is_closed:
                raise ClosedError("runtime: used after close()")
            running, width = self._running.get(lane, 0), min(lane.width, self.threads)
            if self._jobs or self._growing or self._free < width or running >= lane.limit:
                return False
            mine.lane = lane
            self._free -= width
            self._running[lane] = running + 1
            return True

    def _give_back(self) -> None:
        """Give back the place that this thread has, and what it has taken and not begun."""
        if self._mine.lane is not None:
            with self._lock:
                self._finished()
                waits = self._growing or self._jobs
                if waits and not (self._is_watched and self._jobs and self._jobs[0].lane.is_brief):
                    self._call_worker()

    def wait(self, answer: PendingOutputs, timeout: float | None) -> None:
        """Run what is next on this thread until the answer is there or another must get it.

        Runs of others are taken only where they are brief, so that none keeps a caller whose own
        answer is there. With a time limit none is taken.
        """
        # What a callback waits for may need the place of the run that called it.
        self._give_back()
        if timeout is not None:
            self._step_away()
            return
        try:
            while not answer.done():
                with self._lock:
                    self._finished()
                    job = None if self._is_closed else self._taken(answer)
                    self._call_worker()
                if job is None:
                    self._step_away()
                    return
                self._run(job)
        finally:
            try:
                self._give_back()
            except BaseException:
                self._give_back()
                raise

    def waited(self) -> None:
        """End what ``wait`` began."""
        if self._mine.is_away:
            self._mine.is_away = False
            with self._lock:
                self._away -= 1

    def _step_away(self) -> None:
        """Let another thread take the place of a worker that sleeps in a callback."""
        if self._mine.works and not self._mine.is_away:
            self._mine.is_away = True
            with self._lock:
                self._away += 1
                self._call_worker()

    def close(self, wait: bool) -> None:
        """Fail what is queued, and end the threads after the runs under way."""
        with self._lock:
            self._is_closed = True
            left = [*self._jobs, *self._growing]
            left += [job for parked in self._parked.values() for job in parked]
            self._jobs, self._growing, self._parked = [], [], {}
            self._changed.notify_all()
        for job in left:
            for call in job.calls:
                call.future.cancel()
        if wait:
            for worker in self._workers:
                if worker is not threading.current_thread():
                    worker.join()

    def _joined(
        self,
        lane: SchedulerLane,
        call: QueuedRun,
        fits: Callable[[QueuedRun], bool],
        turn: int,
    ) -> bool:
        """Add a call to the batch of its model that was not taken yet, if there is room.

        One whose turn comes before the batch's does not wait for it.
        """
        job = self._open.get(lane)
        if job is None or len(job.calls) >= job.size or job.urgency[1] > turn:
            return False
        if not fits(job.calls[0]):
            return False
        job.calls.append(call)
        return True

    def _call_worker(self) -> None:
        """Have one more thread look, if there may be something for it; it calls the next one."""
        if self._is_called or not (self._growing or (self._jobs and self._free)):
            return
        # Only who was called for certain says so, or none would be called again.
        if self._idle:
            self._changed.notify()
            self._is_called = True
        elif len(self._workers) - self._away < self.threads:
            name = f"edgeinfer-{len(self._workers)}"
            worker = threading.Thread(target=self._work, name=name, daemon=True)
            worker.start()
            self._workers.append(worker)
            self._is_called = True

    def _work(self) -> None:
        with on_cores(self._cpus):
            self._work_here()

    def _work_here(self) -> None:
        mine = self._mine
        mine.works = True
        with self._lock:
            self._is_called = False
        while True:
            with self._lock:
                self._finished()
                job = self._next()
            if job is None:
                return
            self._run(job)
            # A thread that rests holds nothing: inputs and outputs may be large.
            del job

    def _next(self) -> RunBatch | None:
        """Wait for a job that may run now; None at the end."""
        while not self._is_closed:
            pause = self._ripen()
            job = self._taken()
            if job is not None:
                self._call_worker()
                return job
            watches = bool(self._jobs) and not self._is_watched and self._jobs[0].lane.is_brief
            if watches:
                self._is_watched = True
                pause = TICK_S if pause is None else min(pause, TICK_S)
            self._idle += 1
            self._changed.wait(pause)
            self._idle -= 1
            if watches:
                self._is_watched = False
            self._is_called = False
        return None

    def _ripen(self) -> float | None:
        """Move batches that wait no longer to the queue; return seconds until the next is due."""
        ripe = [job for job in self._growing if job.is_ready]
        for job in ripe:
            self._growing.remove(job)
            heapq.heappush(self._jobs, job)
        if not self._growing:
            return None
        return max(0.0, min(job.due for job in self._growing) - time.monotonic())

    def _taken(self, answer: PendingOutputs | None = None) -> RunBatch | None:
        """Take the job that is next, if it may run now, and be it on the thread of a caller."""
        while self._jobs:
            job = self._jobs[0]
            lane = job.lane
            running, width = self._running.get(lane, 0), min(lane.width, self.threads)
            if job.is_taken:
                heapq.heappop(self._jobs)
                continue
            if running >= lane.limit:
                heapq.heappush(self._parked.setdefault(lane, []), job)
                heapq.heappop(self._jobs)
                continue
            if width > self._free or not (self._mine.works or _suits(job, answer)):
                return None
            mine = self._mine
            self._rounds.reach(job.urgency[1])
            mine.lane, mine.job, job.is_taken = lane, job, True
            self._free -= width
            self._running[lane] = running + 1
            heapq.heappop(self._jobs)
            if self._open.get(lane) is job:
                del self._open[lane]
            return job
        return None

    def _run(self, job: RunBatch) -> None:
        alive = []
        try:
            self._mine.job = None
            for call in job.calls:
                if call.future.set_running_or_notify_cancel():
                    late = time.monotonic() - call.deadline
                    if late > 0:
                        call.future.set_exception(_late(job, call, late))
                    else:
                        alive.append(call)
            if alive:
                job.lane.execute(alive)
        except BaseException:
            # Ctrl-C on the thread of a caller: others may wait for it too.
            for call in job.calls:
                if not call.future.done():
                    call.future.set_exception(RunError(f"model {job.lane.name!r}: interrupted"))
            raise

    def _finished(self) -> None:
        """Give back what this thread has, with the lock held."""
        mine = self._mine
        lane, job = mine.lane, mine.job
        if lane is None:
            return
        if job is not None:
            # Ctrl-C came between taking it and beginning; others may wait for it too.
            job.is_taken = False
            heapq.heappush(self._jobs, job)
            mine.job = None
        if parked := self._parked.get(lane):
            heapq.heappush(self._jobs, parked[0])
            heapq.heappop(parked)
        width, running = min(lane.width, self.threads), self._running
        mine.lane = None
        self._free += width
        running[lane] -= 1
        if not running[lane]:
            del running[lane]
            if not parked:
                self._parked.pop(lane, None)


def _suits(job: RunBatch, answer: PendingOutputs | None) -> bool:
    """Whether a caller who waits for an answer may run a job meanwhile."""
    return job.lane.is_brief or any(call.future is answer for call in job.calls)


def _late(job: RunBatch, call: QueuedRun, late: float) -> DeadlineError:
    waited = time.monotonic() - call.queued
    return DeadlineError(
        f"model {job.lane.name!r}: not started, because its deadline passed {late * 1e3:.3g} ms "
        f"ago; it waited {waited * 1e3:.3g} ms"
    )


def deadline_of(seconds: float | None) -> float:
    """Return the moment on the monotonic clock; infinity for none."""
    return math.inf if seconds is None else time.monotonic() + seconds
