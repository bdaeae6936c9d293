"""Who runs next: one set of threads for the runs of many models.

Jobs are taken by priority, then by deadline, then in the order they came. A job takes as many of
the threads as its engine was loaded with; one that is next but finds too few free waits for them,
and later ones wait behind it, so that wide jobs are not starved by narrow ones.
"""

from __future__ import annotations

import heapq
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

from edgeinfer.errors import ClosedError, DeadlineError
from edgeinfer.types import Array, Feeds

Outputs = dict[str, Array]


class Lane(Protocol):
    """What the scheduler needs to know of a model.

    Attributes:
        name: for messages.
        width: threads that a run keeps busy.
        limit: runs at once.
    """

    name: str
    width: int
    limit: int

    def execute(self, calls: list[Call]) -> None:
        """Run the calls, as one batch where there are several, and settle their futures."""
        ...


@dataclass(slots=True)
class Call:
    """One run that somebody waits for.

    Attributes:
        feeds: checked inputs.
        future: of the outputs.
        deadline: on the monotonic clock; a run that cannot be started before is not started.
        queued: when it came.
    """

    feeds: Feeds
    future: Future[Outputs]
    deadline: float
    queued: float


@dataclass(slots=True, order=True)
class Job:
    """Calls that run together; one call, but where a model gathers batches.

    Attributes:
        urgency: priority, negated, and the earliest deadline.
        number: order in which jobs came.
        lane: the model.
        calls: gathered so far.
        due: when the job is run though it could still grow.
        size: calls that it may hold.
    """

    urgency: tuple[float, float]
    number: int
    lane: Lane = field(compare=False)
    calls: list[Call] = field(compare=False)
    due: float = field(compare=False, default=0.0)
    size: int = field(compare=False, default=1)

    @property
    def is_ready(self) -> bool:
        """Whether waiting for more calls is over."""
        return len(self.calls) >= self.size or time.monotonic() >= self.due


class Scheduler:
    """Runs jobs on at most ``threads`` threads.

    Args:
        threads: worker threads; each is worth one thread of an engine.
    """

    def __init__(self, threads: int) -> None:
        self._free = self.threads = threads
        self._changed = threading.Condition()
        self._jobs: list[Job] = []
        self._parked: dict[Lane, list[Job]] = {}
        self._growing: list[Job] = []
        self._open: dict[Lane, Job] = {}
        self._running: dict[Lane, int] = {}
        self._workers: list[threading.Thread] = []
        self._idle = 0
        self._count = 0
        self._is_closed = False

    def submit(
        self,
        lane: Lane,
        call: Call,
        *,
        priority: float = 0.0,
        size: int = 1,
        wait_s: float = 0.0,
        fits: Callable[[Call], bool] | None = None,
    ) -> None:
        """Queue a call.

        Args:
            lane: the model.
            call: what to run.
            priority: higher ones run first.
            size: most calls of a batch; 1 gathers none.
            wait_s: longest wait for a batch to fill.
            fits: whether the call may join a batch that holds the given one.

        Raises:
            ClosedError: the scheduler was closed.
        """
        with self._changed:
            if self._is_closed:
                raise ClosedError("runtime: used after close()")
            if size == 1 or fits is None or not self._joined(lane, call, fits):
                self._count += 1
                urgency = (-priority, call.deadline)
                job = Job(urgency, self._count, lane, [call], call.queued + wait_s, size)
                if size > 1:
                    self._open[lane] = job
                if job.is_ready:
                    heapq.heappush(self._jobs, job)
                else:
                    self._growing.append(job)
            queued = len(self._jobs) + len(self._growing)
            if queued > self._idle and len(self._workers) < self.threads:
                self._start()
            self._changed.notify()

    def close(self, wait: bool) -> None:
        """Fail what is queued, and end the threads after the runs under way."""
        with self._changed:
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

    def _joined(self, lane: Lane, call: Call, fits: Callable[[Call], bool]) -> bool:
        """Add a call to the batch of its model that was not taken yet, if there is room."""
        job = self._open.get(lane)
        if job is None or len(job.calls) >= job.size or not fits(job.calls[0]):
            return False
        job.calls.append(call)
        return True

    def _start(self) -> None:
        name = f"edgeinfer-{len(self._workers)}"
        worker = threading.Thread(target=self._work, name=name, daemon=True)
        self._workers.append(worker)
        worker.start()

    def _work(self) -> None:
        job = None
        while True:
            with self._changed:
                if job is not None:
                    self._finished(job)
                job = self._next()
            if job is None:
                return
            _run(job)

    def _next(self) -> Job | None:
        """Wait for a job that may run now; None at the end."""
        while not self._is_closed:
            pause = self._ripen()
            job = self._runnable()
            if job is not None:
                if self._open.get(job.lane) is job:
                    del self._open[job.lane]
                self._free -= min(job.lane.width, self.threads)
                self._running[job.lane] = self._running.get(job.lane, 0) + 1
                return job
            self._idle += 1
            self._changed.wait(pause)
            self._idle -= 1
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

    def _runnable(self) -> Job | None:
        while self._jobs:
            job = self._jobs[0]
            if self._running.get(job.lane, 0) >= job.lane.limit:
                heapq.heappush(self._parked.setdefault(job.lane, []), heapq.heappop(self._jobs))
            elif min(job.lane.width, self.threads) > self._free:
                return None
            else:
                return heapq.heappop(self._jobs)
        return None

    def _finished(self, job: Job) -> None:
        lane = job.lane
        self._free += min(lane.width, self.threads)
        self._running[lane] -= 1
        if not self._running[lane]:
            del self._running[lane]
        if parked := self._parked.get(lane):
            heapq.heappush(self._jobs, heapq.heappop(parked))
            if not parked:
                del self._parked[lane]
        if self._idle and self._jobs:
            self._changed.notify()


def _run(job: Job) -> None:
    now = time.monotonic()
    alive = []
    for call in job.calls:
        if not call.future.set_running_or_notify_cancel():
            continue
        if now > call.deadline:
            late = now - call.deadline
            error = DeadlineError(
                f"model {job.lane.name!r}: not started, because its deadline passed "
                f"{late * 1e3:.3g} ms ago; it waited {(now - call.queued) * 1e3:.3g} ms"
            )
            call.future.set_exception(error)
        else:
            alive.append(call)
    if alive:
        job.lane.execute(alive)


def deadline_of(seconds: float | None) -> float:
    """Return the moment on the monotonic clock; infinity for none."""
    return math.inf if seconds is None else time.monotonic() + seconds
