"""Guesses by a second, smaller model with the same vocabulary.

The guess is what the request's own sampler would choose from the small model's logits, with the
same random number that the large model's choice will use. So at any temperature the two agree as
often as their probabilities let them, and a guess that is right is the very token chosen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from edgeinfer.errors import LoadError, OutOfPagesError, RunError
from edgeinfer.runtime.llm.blocks import PageAllocator
from edgeinfer.runtime.llm.cost import StepCost
from edgeinfer.runtime.llm.executor import Executor, Floats, StepBatch
from edgeinfer.runtime.llm.sequence import Sequence as Generation

_PROBE = 32
"""Rounds without guesses after which one is tried again, as only trying tells how good they are."""


class _State:
    """What the small model has read of one sequence.

    Attributes:
        fed: tokens whose keys and values are in its cache.
        pages: that hold them.
        slot: row of its table.
        idle: rounds since it guessed last.
    """

    def __init__(self, slot: int) -> None:
        self.fed: list[int] = []
        self.pages: list[int] = []
        self.slot = slot
        self.idle = 0

    def agree(self, tokens: Sequence[int]) -> None:
        """Forget what was fed and did not come true, and the last token, whose row is needed."""
        fed = self.fed
        del fed[len(tokens) - 1 :]
        if fed != tokens[: len(fed)]:
            pairs = enumerate(zip(fed, tokens, strict=False))
            del fed[next(place for place, (mine, real) in pairs if mine != real) :]


class Drafter:
    """Guesses for all sequences of an engine, in common steps.

    Args:
        executor: Executor of the small model; closed with the engine.
        vocab: Vocab of the large one.
        clock: seconds, for tests.

    Raises:
        LoadError: the vocabularies differ.
    """

    def __init__(
        self,
        executor: Executor,
        vocab: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if executor.vocab != vocab:
            raise LoadError(
                f"the draft model has {executor.vocab} tokens, and the model {vocab}; they must "
                "have one vocabulary"
            )
        self._executor, self._clock = executor, clock
        self._blocks = PageAllocator(executor.pages)
        self._cost = StepCost()
        self._states: dict[Generation, _State] = {}
        self._slots = list(range(executor.max_sequences - 1, -1, -1))
        width = -(-executor.context // executor.page)
        self._table = np.full((executor.max_sequences, width), -1, np.int32)

    def propose(self, sequences: Sequence[Generation], count: int, cost: StepCost) -> None:
        """Fill in at most ``count`` guesses for each sequence, as many as should pay."""
        wanted = self._wanted(sequences, count, cost)
        ready = []
        for sequence in sequences:
            sequence.proposed = []
            most = min(wanted, sequence.limit - len(sequence.tokens) - 1)
            if most > 0 and (state := self._state(sequence)) is not None:
                state.agree(sequence.tokens)
                ready.append((sequence, state, most))
        ready = self._caught_up(ready)
        ready = ready[: min(self._executor.max_tokens, self._executor.max_rows)]
        while ready:
            rows = self._step([(state, self._next(s, state)) for s, state, _ in ready])
            going = []
            for (sequence, state, most), row in zip(ready, rows, strict=True):
                index = sequence.generated + len(sequence.proposed)
                try:
                    guess = sequence.sampler.choose(row, index, None)
                except RunError:
                    # Nothing that this model says is a result.
                    continue
                sequence.proposed.append(guess)
                if len(sequence.proposed) < most:
                    going.append((sequence, state, most))
            ready = going

    def _wanted(self, sequences: Sequence[Generation], count: int, cost: StepCost) -> int:
        """Return how many guesses give the most tokens a second, by their mean acceptance."""
        if not sequences:
            return 0
        rate = sum(s.acceptance.rate for s in sequences) / len(sequences)
        width = len(sequences)
        own = self._cost.seconds(width) or 0.3 * cost.seconds(width)
        best, best_speed = 0, 1 / max(cost.seconds(width), 1e-12)
        expected = 1.0
        for guesses in range(1, count + 1):
            expected += rate**guesses
            taken = cost.seconds(width * (guesses + 1)) + guesses * own
            if expected / max(taken, 1e-12) > best_speed:
                best, best_speed = guesses, expected / max(taken, 1e-12)
        if best:
            return best
        idle = [state for s in sequences if (state := self._states.get(s)) is not None]
        for state in idle:
            state.idle += 1
        if len(idle) < width or any(state.idle >= _PROBE for state in idle):
            for state in idle:
                state.idle = 0
            return 1
        return 0

    def _state(self, sequence: Generation) -> _State | None:
        state = self._states.get(sequence)
        if state is None and self._slots:
            state = self._states[sequence] = _State(self._slots.pop())
        return state

    def _caught_up(
        self, wanted: list[tuple[Generation, _State, int]]
    ) -> list[tuple[Generation, _State, int]]:
        """Feed what sequences have and this model has not, but for the last token.

        A step's worth in all: whoever comes with a long prompt waits for its guesses, and nobody
        else for it.

        Returns:
            Those of which everything is fed.
        """
        room, ready = self._executor.max_tokens, []
        for sequence, state, most in wanted:
            tokens = sequence.tokens
            if not self._has_pages(sequence, state, len(tokens) + most):
                continue
            if chunk := tokens[len(state.fed) : len(tokens) - 1][:room]:
                self._feed(state, chunk)
                room -= len(chunk)
            if len(state.fed) == len(tokens) - 1:
                ready.append((sequence, state, most))
        return ready

    def _has_pages(self, sequence: Generation, state: _State, count: int) -> bool:
        """Take pages for so many tokens of a sequence; False where that cannot be."""
        executor = self._executor
        if count > executor.context:
            return False
        try:
            while len(state.pages) * executor.page < count:
                page = self._blocks.take()
                self._table[state.slot, len(state.pages)] = page
                state.pages.append(page)
        except OutOfPagesError:
            # Its pages are all given to others; it goes without guesses.
            self.forget(sequence)
            return False
        return True

    def _feed(self, state: _State, chunk: list[int]) -> None:
        start, size = len(state.fed), len(chunk)
        self._executor.step(
            StepBatch(
                np.array(chunk, np.int32),
                np.arange(start, start + size, dtype=np.int32),
                np.full(size, state.slot, np.int32),
                self._table,
                np.empty(0, np.int32),
            )
        )
        state.fed += chunk

    @staticmethod
    def _next(sequence: Generation, state: _State) -> int:
        if sequence.proposed:
            return sequence.proposed[-1]
        return sequence.tokens[len(state.fed)]

    def _step(self, fed: list[tuple[_State, int]]) -> Floats:
        started = self._clock()
        count = len(fed)
        positions = np.array([len(state.fed) for state, _ in fed], np.int32)
        rows = self._executor.step(
            StepBatch(
                np.array([token for _, token in fed], np.int32),
                positions,
                np.array([state.slot for state, _ in fed], np.int32),
                self._table,
                np.arange(count, dtype=np.int32),
            )
        )
        for state, token in fed:
            state.fed.append(token)
        self._cost.measured(count, int(positions.sum()) + count, self._clock() - started)
        return rows

    def forget(self, sequence: Generation) -> None:
        """Free what a sequence held here."""
        state = self._states.pop(sequence, None)
        if state is None:
            return
        for page in state.pages:
            self._blocks.release(page)
        self._table[state.slot] = -1
        self._slots.append(state.slot)

    @property
    def pages_used(self) -> int:
        """Pages of the small model's cache that sequences hold."""
        return self._blocks.count - self._blocks.available

    def close(self) -> None:
        """Release the small model."""
        self._executor.close()
