"""The engine: takes requests, runs steps, gives out events. One thread at a time may use it.

``runtime/llm/thread.py`` runs it in a thread of its own for callers of any thread and asyncio.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import field, replace

from edgeinfer.errors import ClosedError, EdgeInferError, InputError, QueueFullError
from edgeinfer.machine.energy import Energy
from edgeinfer.records import dataclass
from edgeinfer.runtime.llm import prefix
from edgeinfer.runtime.llm.cache import PagedCache
from edgeinfer.runtime.llm.drafting import Drafter
from edgeinfer.runtime.llm.drafts import Lookup
from edgeinfer.runtime.llm.executor import Executor, Floats
from edgeinfer.runtime.llm.grammar import Grammars
from edgeinfer.runtime.llm.options import EngineOptions
from edgeinfer.runtime.llm.params import Event, FinishReason, Grammar, Logprob
from edgeinfer.runtime.llm.sampling import Sampler, logprobs
from edgeinfer.runtime.llm.sequence import Sequence as Generation
from edgeinfer.runtime.llm.sequence import SequenceRequest, StepPart, room_for
from edgeinfer.runtime.llm.stats import Counters, EngineStats
from edgeinfer.runtime.llm.text import GrowingText
from edgeinfer.runtime.llm.vocabulary import Vocabulary
from edgeinfer.runtime.telemetry import SizeHistogram, TimeHistogram

_log = logging.getLogger("edgeinfer")
_LEARNING = 64
"""Steps that are all learned from."""

CALIBRATION_S = 0.2
"""Time for measuring steps of several sizes when an engine is opened."""


@dataclass(slots=True)
class _New:
    """What a step gave one generation.

    Attributes:
        tokens: that were chosen.
        text: Text of them.
        logprobs: Log-probabilities of them, where requested.
        finish: why it ends; None while it goes on.
        stop: the text or token that ended it, where one did.
    """

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[Logprob] = field(default_factory=list)
    finish: FinishReason | None = None
    stop: str | int | None = None


class Engine:
    """Runs generations on an executor.

    Args:
        open_executor: makes one; called again to wake up.
        vocabulary: The bytes of each token.
        eos: tokens that end a sequence.
        grammars: makes the compiler of grammars, once one is needed; None refuses them.
        options: see there.
        drafter: guesses by a second model; None for none.
        clock: seconds, for tests.
        energy: counters of the processor; None for those of this machine.

    Raises:
        BackendError: the executor cannot be made.
    """

    def __init__(
        self,
        open_executor: Callable[[], Executor],
        vocabulary: Vocabulary,
        eos: Sequence[int],
        *,
        grammars: Callable[[], Grammars] | None = None,
        options: EngineOptions | None = None,
        drafter: Drafter | None = None,
        clock: Callable[[], float] = time.perf_counter,
        energy: Energy | None = None,
    ) -> None:
        self._vocabulary, self._eos = vocabulary, tuple(eos)
        self._options = options or EngineOptions()
        self._make_grammars = grammars
        self._grammars: Grammars | None = None
        self._making = threading.Lock()
        self._drafter, self._clock = drafter, clock
        self._orders = itertools.count()
        self._requests: dict[str, list[Generation]] = {}
        self._events: list[Event] = []
        self._counters = Counters(energy)
        self._closed = False
        # When the tokens of the last step were there.
        self._before = 0.0
        self._cache = PagedCache(open_executor, self._options, self._propose)
        if self._options.calibrate:
            self._cache.calibrate(CALIBRATION_S, clock)

    # Requests.

    def submit(self, request: SequenceRequest) -> None:
        """Take a request; its events come from ``step``.

        Raises:
            InputError: something in it is not what the model takes; the message says what.
            QueueFullError: as many requests wait as may.
            ClosedError: the engine is closed.
        """
        if self._closed:
            raise ClosedError("the engine is closed")
        if len(self._cache.scheduler.waiting) >= self._options.max_queue:
            raise QueueFullError(
                f"{self._options.max_queue} requests wait already; try again later"
            )
        if request.id in self._requests:
            raise InputError("id", "one that no running request has", repr(request.id))
        room = room_for(request, self._cache.executor)
        params = request.params
        if params.seed is None:
            seed = int.from_bytes(os.urandom(8), "little")
            request.params = params = replace(params, seed=seed)
        order = (-request.priority, next(self._orders), 0)
        limit = len(request.prompt) + min(room, params.max_tokens or room)
        executor = self._cache.executor
        names = executor.adapters
        first = Generation(
            request,
            0,
            order,
            root=prefix.root(executor.fingerprint, request.adapter, request.salt),
            adapter=names.index(request.adapter) if request.adapter else -1,
            limit=limit,
            arrived=self._clock(),
        )
        self.prepare(request)
        if request.embeddings is not None:
            given = request.embeddings, request.embedded
            first.given = prefix.given_pages(*given, executor.page)
        if request.matcher is not None:
            first.matcher = request.matcher.fork()
        self._equip(first)
        self._requests[request.id] = [first]
        self._cache.scheduler.enqueue(first)
        self._counters.requests += 1
        self._counters.prompt_tokens += len(request.prompt)

    def prepare(self, request: SequenceRequest) -> None:
        """Compile a request's grammar, which may take long; any thread may call it before.

        Raises:
            InputError: the grammar is malformed, or there is no tokenizer to compile it for.
            NotAvailableError: what compiles is not installed.
        """
        grammar = request.params.grammar
        if grammar is None or request.matcher is not None:
            return
        if self._make_grammars is None:
            raise InputError("grammar", "none", "one", "this engine has no tokenizer")
        with self._making:
            if self._grammars is None:
                self._grammars = self._make_grammars()
        request.matcher = self._grammars.matcher(grammar)

    def knows(self, grammar: Grammar) -> bool:
        """Whether a grammar takes no time any more; any thread may ask."""
        return self._grammars is not None and self._grammars.knows(grammar)

    def _equip(self, generation: Generation) -> None:
        request, params = generation.request, generation.request.params
        seed = params.seed or 0
        generation.sampler = Sampler(params, seed, generation.index, self._eos, request.prompt)
        no_more = generation.matcher is None and params.logprobs is None
        generation.is_greedy = generation.sampler.plain and no_more
        generation.text = GrowingText(
            self._vocabulary,
            params.stop,
            include_stop=params.include_stop,
            skip_special=params.skip_special,
        )

    def cancel(self, request: str) -> None:
        """End a request and free its pages now; its last events come with the next step's.

        One that is unknown, or has ended, is ignored.
        """
        for generation in self._requests.get(request, ())[:]:
            self._end(generation, "cancelled")

    # Steps.

    @property
    def is_idle(self) -> bool:
        """Whether no request is left and no event waits."""
        return not self._requests and not self._events

    @property
    def has_work(self) -> bool:
        """Whether ``step`` would do anything: while it sleeps, requests wait."""
        runs = bool(self._requests) and not self.is_asleep
        return runs or bool(self._events)

    def step(self) -> list[Event]:
        """Run one step of the executor and return what is new, by sequence.

        Raises:
            ClosedError: the engine is closed.
        """
        if self._closed:
            raise ClosedError("the engine is closed")
        started = self._clock()
        spent = 0.0
        parts = self._plan(started)
        energy = self._counters.energy
        if parts:
            energy.begin(started)
            spent = self._run(parts)
            self._cache.keep_some()
        now = self._clock()
        energy.end(now, idle=not self._requests)
        self._counters.engine_s += now - started - spent
        return self.take_events()

    def _plan(self, now: float) -> list[StepPart]:
        if not self._requests or self.is_asleep:
            return []
        return self._cache.scheduler.plan(now)

    def _run(self, parts: list[StepPart]) -> float:
        """Compute a step and choose tokens; return the executor's seconds."""
        cache = self._cache
        batch = cache.batch(parts)
        started = self._clock()
        try:
            logits = cache.executor.step(batch)
        except EdgeInferError as e:
            # What was to be written to the cache is lost; nobody else's pages are touched.
            for part in parts:
                self._end(part.sequence, "error", error=e)
            return self._clock() - started
        now = self._clock()
        spent = now - started
        counters = self._counters
        counters.steps += 1
        counters.busy_s += spent
        counters.step.add(int(spent * 1e9))
        tokens = len(batch.tokens)
        # What is known well is looked at now and then only.
        if counters.steps < _LEARNING or counters.steps % 16 == 0 or not cache.cost.knows(tokens):
            cache.cost.measured(tokens, sum(part.reach for part in parts), spent)
        known, row, steady = cache.executor.best, 0, 0
        best = None if known is None else known.tolist()
        for part in parts:
            sequence = part.sequence
            sequence.computed = part.start + part.count
            if not sequence.generated:
                counters.computed_tokens += part.count
            if not part.wants:
                cache.scheduler.settle(sequence)
                continue
            if sequence.index == 0 and not sequence.forked:
                self._fork(sequence, logits[row], now)
            is_usual = sequence.is_greedy and not (part.guesses or sequence.proposed)
            if is_usual and best is not None and best[row] >= 0:
                steady += self._follow(sequence, best[row], now)
                row += 1
                continue
            end = row + 1 + len(part.guesses)
            likeliest = None if best is None else best[row:end]
            self._accept(sequence, logits[row:end], part.guesses, now, likeliest)
            row = end
        if steady:
            counters.generated_tokens += steady
            counters.inter_token.add(int((now - self._before) * 1e9), steady)
        self._before = now
        return spent

    def _follow(self, sequence: Generation, token: int, now: float) -> bool:
        """Append the likeliest token, as most steps do for most sequences.

        Returns:
            Whether it has to be counted still, with the time since the step before.
        """
        try:
            text, finish, stop = self._append(sequence, token)
        except Exception as e:
            self._fail(sequence, e)
            return False
        if finish is not None:
            self._end(sequence, finish, text, [token], stop=stop, now=now)
            return False
        scheduler = self._cache.scheduler
        if sequence.computed // scheduler.page > sequence.kept:
            scheduler.settle(sequence)
        self._events.append(Event(sequence.request.id, sequence.index, text, (token,)))
        if sequence.last_token != self._before or sequence.first_token is None:
            self._time(sequence, 1, now)
            return False
        sequence.last_token = now
        return True

    def _fail(self, sequence: Generation, error: Exception) -> None:
        """End a sequence whose next token could not be chosen; nobody else ends by it."""
        if not isinstance(error, EdgeInferError):
            _log.exception("the choice of a token failed")
        self._end(sequence, "error", error=error)

    def _fork(self, parent: Generation, row: Floats, now: float) -> None:
        """Begin the other generations of a request, from the logits of its last token."""
        parent.forked = True
        request = parent.request
        if request.params.n == 1:
            return
        self._cache.scheduler.settle(parent)
        children = []
        for index in range(1, request.params.n):
            child = Generation(
                request,
                index,
                (*parent.order[:2], index),
                root=parent.root,
                adapter=parent.adapter,
                limit=parent.limit,
                arrived=parent.arrived,
            )
            child.forked, child.given = True, parent.given
            if parent.matcher is not None:
                child.matcher = parent.matcher.fork()
            self._equip(child)
            children.append(child)
        self._requests[request.id].extend(children)
        for child in children:
            self._cache.scheduler.fork(parent, child)
            self._accept(child, row[None], [], now)

    def _accept(
        self,
        sequence: Generation,
        rows: Floats,
        guesses: list[int],
        now: float,
        best: list[int] | None = None,
    ) -> None:
        """Append the tokens that the rows give, up to the first guess that is wrong.

        Args:
            sequence: that grows.
            rows: logits, one row more than there are guesses.
            guesses: tokens that were computed already.
            now: the time.
            best: tokens with the largest logits, where they are known.
        """
        new = _New()
        try:
            self._take(sequence, rows, guesses, new, best)
        except Exception as e:
            self._give(sequence, new.text, new.tokens, new.logprobs, now)
            self._fail(sequence, e)
            return
        if new.finish is not None:
            self._end(
                *(sequence, new.finish, new.text, new.tokens, new.logprobs), stop=new.stop, now=now
            )
            return
        self._cache.scheduler.settle(sequence)
        self._give(sequence, new.text, new.tokens, new.logprobs, now)

    def _take(
        self,
        sequence: Generation,
        rows: Floats,
        guesses: list[int],
        new: _New,
        best: list[int] | None,
    ) -> None:
        """Choose tokens and append them; what is chosen stands in ``new`` even if it then fails."""
        wanted = sequence.request.params.logprobs
        is_known = sequence.sampler.plain and sequence.matcher is None
        for place in range(len(guesses) + 1):
            token = -1 if best is None else best[place]
            if token < 0 or not is_known:
                token = self._choose(sequence, rows[place], token)
            if wanted is not None:
                new.logprobs.append(logprobs(rows[place], token, wanted))
            new.tokens.append(token)
            more, new.finish, new.stop = self._append(sequence, token)
            new.text += more
            if new.finish is not None or place == len(guesses) or guesses[place] != token:
                break
            sequence.computed += 1
        if sequence.proposed or guesses:
            self._judge(sequence, new.tokens, len(guesses))

    def _choose(self, sequence: Generation, row: Floats, likeliest: int) -> int:
        matcher, sampler = sequence.matcher, sequence.sampler
        if matcher is None:
            if sampler.plain:
                return sampler.choose(row, 0, None)
            token = sampler.choose(row, sequence.generated, None, likeliest)
            sampler.observe(token)
            return token
        token = sampler.choose(row, sequence.generated, matcher.allowed(), likeliest)
        sampler.observe(token)
        matcher.take(token)
        return token

    def _append(
        self, sequence: Generation, token: int
    ) -> tuple[str, FinishReason | None, str | int | None]:
        """Append a token; return the text that is new, and whether and by what it ends."""
        params = sequence.request.params
        sequence.tokens.append(token)
        if (token in self._eos and not params.ignore_eos) or token in params.stop_tokens:
            return "", "stop", token
        text = sequence.text.add(token)
        if sequence.text.stopped:
            return text, "stop", sequence.text.stopped
        if sequence.matcher is not None and sequence.matcher.is_complete:
            return text, "stop", None
        if len(sequence.tokens) >= sequence.limit:
            return text, "length", None
        return text, None, None

    def _judge(self, sequence: Generation, chosen: list[int], verified: int) -> None:
        """Learn how good guesses are, also from those that were not verified."""
        proposed = sequence.proposed
        if proposed:
            right = 0
            while right < min(len(chosen), len(proposed)) and chosen[right] == proposed[right]:
                right += 1
            judged = min(max(verified, 1), right + 1)
            sequence.acceptance.seen(min(right, judged), judged)
            sequence.proposed = []
        if verified:
            accepted = len(chosen) - 1
            sequence.drafted += verified
            sequence.accepted += accepted
            self._counters.drafted_tokens += verified
            self._counters.accepted_tokens += accepted

    def _give(
        self,
        sequence: Generation,
        text: str,
        tokens: list[int],
        logprobs: list[Logprob],
        now: float,
    ) -> None:
        if not tokens:
            return
        self._time(sequence, len(tokens), now)
        self._events.append(
            Event(sequence.request.id, sequence.index, text, tuple(tokens), tuple(logprobs))
        )

    def _time(self, sequence: Generation, count: int, now: float) -> None:
        counters = self._counters
        counters.generated_tokens += count
        if sequence.first_token is None:
            sequence.first_token = now
            counters.first_token.add(int((now - sequence.arrived) * 1e9))
            counters.queue.add(int(((sequence.admitted or now) - sequence.arrived) * 1e9))
            if sequence.index == 0:
                counters.cached_tokens += sequence.cached
            count -= 1
        if count:
            each = int((now - sequence.last_token) * 1e9 / count)
            for _ in range(count):
                counters.inter_token.add(each)
        sequence.last_token = now

    def _end(
        self,
        sequence: Generation,
        finish: FinishReason,
        text: str = "",
        tokens: list[int] | None = None,
        logprobs: list[Logprob] | None = None,
        *,
        stop: str | int | None = None,
        error: Exception | None = None,
        now: float | None = None,
    ) -> None:
        now = self._clock() if now is None else now
        if tokens:
            self._time(sequence, len(tokens), now)
        if finish != "error":
            if not sequence.text.stopped:
                text += sequence.text.end()
            if sequence.slot >= 0:
                self._cache.scheduler.settle(sequence)
        self._cache.scheduler.remove(sequence)
        if self._drafter is not None:
            self._drafter.forget(sequence)
        request = sequence.request.id
        self._requests[request].remove(sequence)
        if not self._requests[request]:
            del self._requests[request]
        usage = sequence.usage(now)
        self._counters.ended(finish, usage)
        self._events.append(
            Event(
                request,
                sequence.index,
                text,
                tuple(tokens or ()),
                tuple(logprobs or ()),
                finish=finish,
                usage=usage,
                error=error,
                stop=stop,
            )
        )

    def _propose(self, sequences: list[Generation], count: int) -> bool:
        """Fill in guesses: what a grammar forces, what a draft model says, what was said before."""
        if not self._options.lookup and self._drafter is None and not self._grammars:
            return False
        free = []
        for sequence in sequences:
            if sequence.matcher is not None:
                # What is wrong with it shows when a token is chosen.
                with contextlib.suppress(Exception):
                    sequence.proposed = sequence.matcher.forced()[:count]
                continue
            if self._drafter is None and self._options.lookup:
                if sequence.lookup is None:
                    sequence.lookup = Lookup()
                sequence.proposed = sequence.lookup.guess(sequence.tokens, count)
            free.append(sequence)
        if self._drafter is not None:
            self._drafter.propose(free, count, self._cache.cost)
        return any(sequence.proposed for sequence in sequences)

    def fail_all(self, error: Exception) -> None:
        """End everything with an error, after a fault that no request is to blame for."""
        for generations in list(self._requests.values()):
            for generation in generations[:]:
                self._end(generation, "error", error=error)

    def take_events(self) -> list[Event]:
        """Return the events that wait."""
        events, self._events = self._events, []
        return events

    # Rest.

    @property
    def is_asleep(self) -> bool:
        """Whether weights and cache are out of memory."""
        return self._cache.is_asleep

    def sleep(self) -> None:
        """Put full pages on disk and release the executor; running requests go on after waking."""
        self._cache.sleep()

    def wake(self) -> None:
        """Open the executor again; what was running is computed anew as far as it was not kept.

        Raises:
            BackendError: the executor cannot be made.
        """
        self._cache.wake()

    def stats(self) -> EngineStats:
        """Return a snapshot; it wakes nothing."""
        return self._cache.stats(self._counters)

    def histograms(self) -> dict[str, TimeHistogram]:
        """Return the times of all requests; the engine's thread goes on adding to them."""
        return self._counters.times()

    def sizes(self) -> dict[str, SizeHistogram]:
        """Return the tokens of all texts that have ended, likewise."""
        return {"prompts": self._counters.prompts, "answers": self._counters.answers}

    def close(self) -> None:
        """End all requests without events, keep the cache on disk if asked to, release memory."""
        if self._closed:
            return
        self._closed = True
        for generations in list(self._requests.values()):
            for generation in generations[:]:
                self._end(generation, "cancelled")
        self._events.clear()
        self._cache.close()
        if self._drafter is not None:
            self._drafter.close()
