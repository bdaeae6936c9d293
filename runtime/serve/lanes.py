"""Requests of a model whose runs are brief, run as one on the event loop where they came together.

Handing a run to another thread and its answer back costs a hundred microseconds and more of
processor time, several times what a small network takes. Such runs go on the loop itself, all that
came within one turn of it as one batch.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Protocol

from edgeinfer.records import dataclass
from edgeinfer.runtime.batches import alike, size_of
from edgeinfer.runtime.fleet import FleetModel
from edgeinfer.runtime.rounds import Rounds
from edgeinfer.runtime.scheduler import Outputs
from edgeinfer.types import Feeds

BRIEF_S = 2.5e-4
"""A run that takes longer keeps the loop, and goes to a thread."""

BATCH_S = 2 * BRIEF_S
"""Longest run of a batch: one by one, its requests would keep the loop for longer."""

HANDED_S = 1e-4
"""What it costs at least to hand a request to a thread and its answer back. Of which no more is
left in a batch, that batch goes on the loop, though one request alone would take longer."""

LONGEST_S = 4 * BRIEF_S
"""Longest run of a batch that takes less than to hand its requests on."""

LATE_S, LATE, REST_S = 2 * LONGEST_S, 8, 10.0
"""So many runs in a row above this, and all go to threads for so long: the model is slower than it
was, or other work of the machine disturbs it. Then one run tells which."""


Ran = Outputs | Future[Outputs]
"""Outputs of a run, or the future of a thread where the engine was not free."""


class LaneAnswer(Protocol):
    """Gets what a request is answered with; a future of asyncio is one."""

    def done(self) -> bool:
        """Whether nobody waits for it any more."""
        ...

    def set_result(self, result: Ran, /) -> None:
        """Take the outputs, or the future of a thread."""
        ...

    def set_exception(self, exception: Exception, /) -> None:
        """Take what went wrong."""
        ...


@dataclass(slots=True)
class _Waiting:
    """One request.

    Attributes:
        feeds: checked.
        priority: higher ones run first.
        deadline_s: for a thread, where it goes to one.
        answer: gets the outputs, or the future of a thread.
        owner: whose it is; empty for nobody's.
        turn: round of its owner's turns.
    """

    feeds: Feeds
    priority: float | None
    deadline_s: float | None
    answer: LaneAnswer
    owner: bytes
    turn: int


class Lane:
    """The requests of one model; used by one event loop.

    Args:
        model: in the runtime.
        seconds: Duration in seconds of a run, by the requests it holds; measured.
        measured: the request that was measured; larger ones go to threads.
    """

    def __init__(
        self,
        model: FleetModel,
        seconds: Mapping[int, float],
        measured: Feeds,
    ) -> None:
        self._model = model
        self._largest = size_of(measured)
        self._late, self._rests_until = 0, -math.inf
        fit = {n: s for n, s in seconds.items() if s <= _most(n)} if 1 in seconds else {}
        gains = min((s / n for n, s in fit.items()), default=math.inf) <= HANDED_S
        is_brief = seconds.get(1, math.inf) <= (BATCH_S if gains else BRIEF_S)
        self._size = model.most_here = max(fit, default=0) if is_brief else 0
        self._waiting: deque[_Waiting] = deque()
        self._is_mixed = False
        self._rounds = Rounds()

    @property
    def is_brief(self) -> bool:
        """Whether runs may go on the loop."""
        return self._size > 0

    @property
    def most(self) -> int:
        """Requests of one run."""
        return self._size

    def takes(self, size: int) -> bool:
        """Whether an input of so many bytes goes on the loop now."""
        return size <= self._largest and not (self._late and self._rests())

    def run_joined(self, feeds: Feeds, calls: int) -> Outputs | None:
        """Run requests that are joined already; None where the engine is not free.

        Args:
            feeds: inputs of all of them behind each other along the first axis; of one, its own.
            calls: Number of requests.

        Raises:
            InputError: an input is not what the model takes.
            EdgeInferError: the engine failed.
        """
        start = time.perf_counter()
        found = self._model.run_joined(feeds, calls)
        if found is not None:
            self._took(time.perf_counter(), start)
        return found

    def run_now(self, feeds: Feeds) -> Outputs | None:
        """Run the request of who is alone; None where it has to wait, or goes to a thread.

        Raises:
            InputError: an input is not what the model takes.
            EdgeInferError: the engine failed.
        """
        if self._waiting or size_of(feeds) > self._largest or (self._late and self._rests()):
            return None
        start = time.perf_counter()
        found = self._model.run_here([feeds])
        if found is None:
            return None
        self._took(time.perf_counter(), start)
        return found[0]

    def submit(
        self,
        feeds: Feeds,
        priority: float | None,
        deadline_s: float | None,
        answer: LaneAnswer,
        owner: bytes = b"",
    ) -> None:
        """Take a request; it is run when this turn of the loop has brought all it will.

        Args:
            feeds: Feeds of the request.
            priority: higher ones run first.
            deadline_s: for a thread.
            answer: gets its outputs, or the future of a thread where the engine was not free.
            owner: whose it is: among equal priorities owners take turns; empty for nobody's.

        Raises:
            InputError: an input is not what the model takes.
        """
        feeds = self._model.check(feeds)
        if size_of(feeds) > self._largest or (self._late and self._rests()):
            answer.set_result(
                self._model.submit(feeds, priority=priority, deadline_s=deadline_s, owner=owner)
            )
            return
        turn = self._rounds.of(owner)
        if owner:
            self._rounds.take(owner, turn)
        self._is_mixed |= bool(priority or (self._waiting and turn < self._waiting[-1].turn))
        self._waiting.append(_Waiting(feeds, priority, deadline_s, answer, owner, turn))
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._run)

    def _rests(self) -> bool:
        return self._late >= LATE and time.perf_counter() < self._rests_until

    def _took(self, now: float, start: float) -> None:
        self._late = self._late + 1 if now - start > LATE_S else 0
        if self._late >= LATE:
            self._rests_until = now + REST_S

    def _run(self) -> None:
        if self._is_mixed:
            self._is_mixed = False
            order = sorted(self._waiting, key=lambda w: (-(w.priority or 0.0), w.turn))
            self._waiting = deque(order)
        end = time.perf_counter() + BRIEF_S
        while batch := self._next():
            self._run_batch(batch)
            left = len(self._waiting)
            if left and (left < self._size or time.perf_counter() > end):
                # Others of the loop come now and then; and who has sent something during the run
                # joins those who are too few for a whole batch.
                asyncio.get_running_loop().call_soon(self._run)
                return

    def _next(self) -> list[_Waiting]:
        """Take the requests that run next; none where none are left."""
        waiting, batch, others = self._waiting, list[_Waiting](), list[_Waiting]()
        turn = 0
        while waiting and len(batch) < self._size:
            each = waiting.popleft()
            if each.answer.done():
                continue
            if not batch or alike(batch[0].feeds, each.feeds):
                turn = max(turn, each.turn)
                batch.append(each)
            else:
                others.append(each)
        if others:
            waiting.extendleft(reversed(others))
        self._rounds.reach(turn)
        return batch

    def _run_batch(self, batch: list[_Waiting]) -> None:
        start = time.perf_counter()
        try:
            outputs = self._model.run_here([each.feeds for each in batch])
            if outputs is None:
                for each in batch:
                    future = self._model.submit(
                        each.feeds,
                        priority=each.priority,
                        deadline_s=each.deadline_s,
                        owner=each.owner,
                    )
                    each.answer.set_result(future)
                return
        # Whatever goes wrong belongs to who waits for it.
        except Exception as error:
            if len(batch) == 1:
                batch[0].answer.set_exception(error)
                return
            # One bad request must not spoil the others.
            for each in batch:
                if not each.answer.done():
                    self._run_batch([each])
            return
        self._took(time.perf_counter(), start)
        for each, found in zip(batch, outputs, strict=True):
            each.answer.set_result(found)


def _most(size: int) -> float:
    """Return the seconds for which a run of so many requests may keep the loop."""
    return max(BATCH_S, min(LONGEST_S, size * HANDED_S))
