"""Vectors of texts, and odds: what the last block of a decoder makes of them."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import numpy as np

from edgeinfer.errors import ClosedError, InputError
from edgeinfer.runtime.llm.executor import Executor, Floats, StepBatch

Pooling = Literal["last", "mean"]
"""The state of the last token, or the mean of all."""

POOLINGS = ("last", "mean")


class Vectors:
    """Reads texts one after the other; threads wait for each other.

    Args:
        executor: Executor of its own, since it forgets every text.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor: Executor | None = executor
        self._lock = threading.Lock()
        self._most = min(executor.context, executor.pages * executor.page)
        pages = -(-self._most // executor.page)
        self._table = np.arange(pages, dtype=np.int32)[None]

    def of(
        self,
        sequences: Sequence[Sequence[int]],
        pooling: Pooling,
        unit: bool,
        go_on: Callable[[int], None] = lambda tokens: None,
    ) -> Floats:
        """Return a vector of each sequence of tokens.

        Args:
            sequences: Sequences of tokens.
            pooling: which states count.
            unit: vectors have the length 1.
            go_on: Called before each step with the tokens that it reads; what it raises ends the
                work.

        Raises:
            InputError: a sequence is empty, too long, or of tokens that there are not.
            ClosedError: it is closed.
        """
        if pooling not in POOLINGS:
            raise InputError("pooling", f"one of {', '.join(POOLINGS)}", repr(pooling))
        found = []
        with self._lock:
            hidden = self._checked(sequences).hidden
        for tokens in sequences:
            # Others have their turn between two texts.
            with self._lock:
                executor = self._checked([tokens])
                found.append(self._one(executor, tokens, pooling, go_on))
        made = np.array(found, np.float32).reshape(len(found), hidden)
        if unit:
            length = np.sqrt(np.sum(made * made, axis=-1, keepdims=True))
            made /= np.where(length > 0, length, np.float32(1))
        return made

    def odds(
        self,
        sequences: Sequence[Sequence[int]],
        yes: int,
        no: int,
        go_on: Callable[[int], None] = lambda tokens: None,
    ) -> Floats:
        """Return how much likelier one token is than another behind each sequence, 0 to 1.

        Raises:
            InputError: a sequence is empty, too long, or of tokens that there are not.
            ClosedError: it is closed.
        """
        found = np.zeros(len(sequences), np.float32)
        with self._lock:
            self._checked(sequences)
        for at, tokens in enumerate(sequences):
            with self._lock:
                executor = self._checked([tokens])
                for batch in self._batches(executor, tokens, "last"):
                    go_on(len(batch.tokens))
                    logits = executor.step(batch)
                    if len(logits):
                        apart = float(logits[0, no]) - float(logits[0, yes])
                        found[at] = 1 / (1 + math.exp(min(apart, 700.0)))
        return found

    def _checked(self, sequences: Sequence[Sequence[int]]) -> Executor:
        executor = self._executor
        if executor is None:
            raise ClosedError("the language model is closed")
        for tokens in sequences:
            if not 0 < len(tokens) <= self._most:
                raise InputError("text", f"1 to {self._most} tokens", str(len(tokens)))
            if not 0 <= min(tokens) <= max(tokens) < executor.vocab:
                raise InputError("text", f"tokens from 0 to {executor.vocab - 1}", "others")
        return executor

    def _one(
        self,
        executor: Executor,
        tokens: Sequence[int],
        pooling: Pooling,
        go_on: Callable[[int], None],
    ) -> Floats:
        total, count = np.zeros(executor.hidden, np.float32), len(tokens)
        for batch in self._batches(executor, tokens, pooling):
            go_on(len(batch.tokens))
            for state in executor.states(batch):
                # One after the other: the sum does not depend on where the text was cut.
                total += state
        return total / np.float32(count) if pooling == "mean" else total

    def _batches(
        self, executor: Executor, tokens: Sequence[int], pooling: Pooling
    ) -> Iterator[StepBatch]:
        """Yield the steps that read a text; their rows are the tokens that count."""
        count = len(tokens)
        for first in range(0, count, executor.max_tokens):
            ids = np.array(tokens[first : first + executor.max_tokens], np.int32)
            size = len(ids)
            if pooling == "mean":
                rows = np.arange(size, dtype=np.int32)
            else:
                rows = np.array([size - 1] if first + size == count else [], np.int32)
            positions = np.arange(first, first + size, dtype=np.int32)
            yield StepBatch(ids, positions, np.zeros(size, np.int32), self._table, rows)

    def close(self) -> None:
        """Release the executor; may be called twice."""
        with self._lock:
            executor, self._executor = self._executor, None
            if executor is not None:
                executor.close()
