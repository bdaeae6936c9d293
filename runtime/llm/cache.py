"""The executor with everything that refers to its pages; what sleeps and wakes as one."""

from __future__ import annotations

import time
from collections.abc import Callable
from hashlib import blake2b

import numpy as np

from edgeinfer.bundle.scratch import Scratch
from edgeinfer.errors import ClosedError, OutputError
from edgeinfer.runtime.llm.blocks import PageAllocator
from edgeinfer.runtime.llm.cost import StepCost
from edgeinfer.runtime.llm.disk import PageStore
from edgeinfer.runtime.llm.executor import Executor, Ints, StepBatch
from edgeinfer.runtime.llm.options import EngineOptions
from edgeinfer.runtime.llm.prefix import Prefixes
from edgeinfer.runtime.llm.scheduler import Propose, SequenceScheduler
from edgeinfer.runtime.llm.sequence import StepPart
from edgeinfer.runtime.llm.stats import Counters, EngineStats

_CALIBRATED = (1, 2, 4, 3, 8, 16, 5, 6, 32, 64, 12, 128, 256, 512)
"""Tokens of the steps measured first, each twice: the first one also makes things ready."""

_KEPT_PER_STEP = 1


class PagedCache:
    """An executor, its pages and who holds them.

    Args:
        open_executor: makes an executor.
        options: Options of the engine.
        propose: fills in guesses.

    Attributes:
        cost: Cost of steps; outlives a sleep.
        scheduler: likewise what waits in it.
    """

    def __init__(
        self, open_executor: Callable[[], Executor], options: EngineOptions, propose: Propose
    ) -> None:
        self._open_executor, self._options, self._propose = open_executor, options, propose
        self.cost = StepCost()
        self._folder: Scratch | None = None
        self._executor: Executor | None = None
        self._evicted = self._preempted = 0
        self._open()

    def _open(self) -> None:
        executor = self._open_executor()
        try:
            self._store = self._open_store(executor)
        except BaseException:
            executor.close()
            raise
        self._executor = executor
        self._ints = np.empty((3, executor.max_tokens), np.int32)
        # A number is written to them several times as fast as to an array.
        self._places = [memoryview(row.data) for row in self._ints]
        self._rows = np.arange(executor.max_tokens, dtype=np.int32)
        self._usual: dict[int, StepBatch] = {}
        self.blocks = PageAllocator(executor.pages)
        self.prefixes = Prefixes(self.blocks, executor, self._store)
        self.scheduler = SequenceScheduler(
            executor, self.blocks, self.prefixes, self.cost, self._options.limits, self._propose
        )

    def _open_store(self, executor: Executor) -> PageStore | None:
        folder, most = self._options.disk, self._options.disk_mb * 1_000_000
        if folder is None and self._folder is not None:
            folder = self._folder.path
            most = 2 * executor.pages * executor.page_bytes
        if folder is None:
            return None
        name = blake2b(executor.fingerprint.encode(), digest_size=16).hexdigest()
        try:
            return PageStore(folder, name, executor.page_bytes, most)
        except OSError as e:
            raise OutputError(f"{folder}: cannot keep pages here: {e.strerror or e}") from e

    @property
    def executor(self) -> Executor:
        """The executor.

        Raises:
            ClosedError: it sleeps.
        """
        if self._executor is None:
            raise ClosedError("the engine sleeps: wake() it first")
        return self._executor

    @property
    def is_asleep(self) -> bool:
        """Whether there is no executor now."""
        return self._executor is None

    def calibrate(self, seconds: float, clock: Callable[[], float]) -> None:
        """Measure steps of several sizes, the small ones first, as far as the time allows."""
        executor = self.executor
        begun = clock()
        most = min(executor.max_tokens, executor.context, executor.pages * executor.page)
        pages: list[int] = []
        try:
            for count in sorted(_CALIBRATED * 2, key=_CALIBRATED.index):
                spent = clock() - begun
                if count > most or spent + self.cost.seconds(count) > seconds:
                    continue
                while len(pages) * executor.page < count:
                    pages.append(self.blocks.take())
                positions = np.arange(count, dtype=np.int32)
                zeros = np.zeros(count, np.int32)
                table = np.array([pages], np.int32)
                rows = np.array([count - 1], np.int32)
                started = clock()
                executor.step(StepBatch(zeros, positions, zeros, table, rows))
                self.cost.measured(count, count * (count + 1) // 2, clock() - started)
        finally:
            for page in pages:
                self.blocks.release(page)

    def batch(self, parts: list[StepPart]) -> StepBatch:
        """Return the arrays of a step."""
        usual = self._decoding(parts)
        if usual is not None:
            return usual
        tokens: list[int] = []
        positions: list[int] = []
        owner: list[int] = []
        rows: list[int] = []
        adapters: list[int] = []
        embedded: list[StepPart] = []
        for part in parts:
            sequence, start, size = part.sequence, part.start, part.size
            if size == 1:
                tokens.append(sequence.tokens[start])
                positions.append(start)
                owner.append(sequence.slot)
            else:
                tokens += sequence.tokens[start : start + part.count]
                tokens += part.guesses
                positions += range(start, start + size)
                owner += [sequence.slot] * size
            if part.wants:
                rows += range(len(tokens) - 1 - len(part.guesses), len(tokens))
            if sequence.adapter >= 0 or adapters:
                adapters += [-1] * (len(tokens) - size - len(adapters))
                adapters += [sequence.adapter] * size
            if sequence.request.embeddings is not None:
                embedded.append(part)
        as_ints = _as_ints
        batch = StepBatch(
            as_ints(tokens),
            as_ints(positions),
            as_ints(owner),
            self.scheduler.table,
            as_ints(rows),
            as_ints(adapters) if adapters else None,
        )
        return _with_embeddings(batch, parts) if embedded else batch

    def _decoding(self, parts: list[StepPart]) -> StepBatch | None:
        """Return the arrays of a step with the next token of each sequence, which are kept.

        None where it is another step.
        """
        tokens, positions, owner = self._places
        for at, part in enumerate(parts):
            sequence, start = part.sequence, part.start
            if part.count != 1 or part.guesses or not part.wants or not sequence.is_plain:
                return None
            tokens[at] = sequence.tokens[start]
            positions[at] = start
            owner[at] = sequence.slot
        count = len(parts)
        if count not in self._usual:
            whole = self._ints[:, :count]
            table, rows = self.scheduler.table, self._rows[:count]
            self._usual[count] = StepBatch(whole[0], whole[1], whole[2], table, rows)
        return self._usual[count]

    def keep_some(self) -> None:
        """Hand pages that proved useful to the disk, a few at a time."""
        if self._store is not None:
            self.prefixes.persist_reused(_KEPT_PER_STEP)

    def sleep(self) -> None:
        """Take all pages back, keep the full ones on disk and release the executor."""
        if self._executor is None:
            return
        scheduler = self.scheduler
        for sequence in scheduler.running[::-1]:
            scheduler.settle(sequence)
            scheduler.preempt(sequence)
        if self._store is None:
            self._folder = Scratch()
            self._store = self._open_store(self._executor)
            self.prefixes.use(self._store)
        self._release()

    def _release(self) -> None:
        self.prefixes.persist_all()
        if self._store is not None:
            self._store.close()
        self._evicted += self.blocks.evicted
        self._preempted += self.scheduler.preempted
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.close()

    def wake(self) -> None:
        """Open the executor again; what waits stays in its order."""
        if self._executor is not None:
            return
        waiting = self.scheduler.waiting
        self._open()
        self.scheduler.waiting = waiting

    def close(self) -> None:
        """Release everything; keep the cache on disk if there is one to keep it."""
        if self._executor is not None:
            if self._options.disk is None:
                self.prefixes.use(None)
            self._release()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def stats(self, counters: Counters) -> EngineStats:
        """Return a snapshot of everything."""
        asleep = self._executor is None
        blocks, scheduler, store = self.blocks, self.scheduler, self._store
        joules = counters.energy.joules
        generated, now = counters.generated_tokens, time.perf_counter()
        return EngineStats(
            seconds=now - counters.since,
            busy_s=counters.busy_s,
            engine_s=counters.engine_s,
            steps=counters.steps,
            requests=counters.requests,
            finished=dict(counters.finished),
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            oldest_wait_s=max((now - s.arrived for s in list(scheduler.waiting)), default=0.0),
            asleep=asleep,
            prompt_tokens=counters.prompt_tokens,
            cached_tokens=counters.cached_tokens,
            disk_tokens=self.prefixes.read * self.scheduler.page,
            computed_tokens=counters.computed_tokens,
            generated_tokens=generated,
            drafted_tokens=counters.drafted_tokens,
            accepted_tokens=counters.accepted_tokens,
            preemptions=self._preempted + (0 if asleep else scheduler.preempted),
            pages=blocks.count,
            pages_used=blocks.count - blocks.available,
            pages_kept=0 if asleep else blocks.kept,
            pages_evicted=self._evicted + (0 if asleep else blocks.evicted),
            unused_slots=scheduler.waste()[0],
            disk_pages=0 if store is None else len(store),
            disk_error="" if store is None else store.error,
            tokens_per_second=counters.tokens_per_second,
            first_token_ms=counters.first_token.percentiles(),
            inter_token_ms=counters.inter_token.percentiles(),
            queue_ms=counters.queue.percentiles(),
            step_ms=counters.step.percentiles(),
            joules=joules,
            joules_per_token=joules / generated if joules is not None and generated else None,
        )


def _as_ints(values: list[int]) -> Ints:
    return np.array(values, np.int32)


def _with_embeddings(batch: StepBatch, parts: list[StepPart]) -> StepBatch:
    """Add the embeddings that callers gave for tokens of this step."""
    positions: list[int] = []
    given = []
    at = 0
    for part in parts:
        request = part.sequence.request
        if request.embeddings is not None:
            first, last = np.searchsorted(request.embedded, (part.start, part.start + part.count))
            positions += [at + p - part.start for p in request.embedded[first:last]]
            given.append(request.embeddings[first:last])
        at += part.size
    if not positions:
        return batch
    return StepBatch(
        *(batch.tokens, batch.positions, batch.owner, batch.table, batch.rows, batch.adapter),
        embedded=_as_ints(positions),
        embeddings=np.ascontiguousarray(np.concatenate(given), np.float32),
    )
