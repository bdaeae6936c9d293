"""An executor whose logits follow from the tokens that it finds in its pages, and little else.

It is fast enough for thousands of steps, and stricter than a model: any wrong page, position, owner
or adapter changes all logits.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from edgeinfer.errors import RunError
from edgeinfer.runtime.llm.engine import Engine
from edgeinfer.runtime.llm.executor import Bytes, Floats, Ints, StepBatch
from edgeinfer.runtime.llm.options import EngineOptions
from edgeinfer.runtime.llm.params import Event, SamplingParams
from edgeinfer.runtime.llm.sequence import SequenceRequest
from edgeinfer.runtime.llm.vocabulary import Vocabulary

VOCAB = 40
EOS = 39
LETTERS = "abcdefghijklmnopqrstuvwxyz .,ABCDEFGHIJK"
VOCABULARY = Vocabulary(tuple(c.encode() for c in LETTERS[:VOCAB]), frozenset({EOS}), 0)
_ROWS = np.random.default_rng(0).standard_normal((997, VOCAB)).astype(np.float32) * 3


class ToyExecutor:
    """Looks back on the last ``memory`` tokens; with few of them texts repeat themselves."""

    layers = 1
    hidden = 3

    def __init__(
        self,
        *,
        pages: int = 64,
        page: int = 4,
        context: int = 128,
        max_tokens: int = 48,
        max_sequences: int = 8,
        memory: int = 1000,
        window: int = 0,
        adapters: tuple[str, ...] = (),
        looks: bool = True,
    ) -> None:
        self.vocab, self.context, self.page, self.pages = VOCAB, context, page, pages
        self.max_tokens = self.max_rows = max_tokens
        self.max_sequences, self.window, self.adapters = max_sequences, window, adapters
        self.memory = min(memory, window or memory)
        self.fingerprint = f"toy {memory} {window} {page}"
        # It tells the likeliest tokens, as some executors do.
        self.looks = looks
        self.best: Ints | None = None
        # Of each position: its number and what was fed there.
        self.cache: npt.NDArray[np.int64] = np.full((pages, page, 2), -1, np.int64)
        self.page_bytes = self.cache[0].nbytes
        self.steps = self.tokens = 0
        self.fails = False
        self.closed = False
        # A step after ``held_after`` others waits until ``released`` is set.
        self.held_after: int | None = None
        self.released = threading.Event()

    def states(self, batch: StepBatch) -> Floats:
        raise NotImplementedError

    def step(self, batch: StepBatch) -> Floats:
        assert not self.closed
        if self.fails:
            raise RunError("told to fail")
        if self.held_after is not None and self.steps >= self.held_after:
            assert self.released.wait(30), "nobody released the executor"
        self._check(batch)
        self.steps += 1
        self.tokens += len(batch.tokens)
        given: dict[int, Any] = {}
        if batch.embedded is not None and batch.embeddings is not None:
            given = dict(zip(batch.embedded.tolist(), batch.embeddings, strict=True))
        wanted = set(batch.rows.tolist())
        rows = []
        for index, token in enumerate(batch.tokens.tolist()):
            position, table = int(batch.positions[index]), batch.table[batch.owner[index]]
            adapter = -1 if batch.adapter is None else int(batch.adapter[index])
            page = table[position // self.page]
            assert page >= 0
            fed = zlib.crc32(given[index].tobytes()) if index in given else token
            self.cache[page, position % self.page] = position, fed * 16 + adapter + 1
            if index in wanted:
                rows.append(self._row(position, table))
        logits = np.array(rows, np.float32).reshape(len(rows), self.vocab)
        self.best = logits.argmax(-1).astype(np.int32) if self.looks else None
        return logits

    def _row(self, position: int, table: Any) -> Floats:
        first = max(0, position + 1 - self.memory)
        pages = table[first // self.page : position // self.page + 1]
        assert (pages >= 0).all()
        start = first - first // self.page * self.page
        seen = self.cache[pages].reshape(-1, 2)[start : start + position + 1 - first]
        assert (seen[:, 0] == np.arange(first, position + 1)).all(), "a page of somebody else"
        row: Floats = _ROWS[zlib.crc32(seen[:, 1].tobytes()) % len(_ROWS)]
        return row

    def _check(self, batch: StepBatch) -> None:
        """Check what the contract asks of the engine."""
        count = len(batch.tokens)
        assert 0 < count <= self.max_tokens
        assert len(batch.rows) <= self.max_rows
        assert (np.diff(batch.rows) > 0).all()
        for array in (batch.tokens, batch.positions, batch.owner, batch.table, batch.rows):
            assert array.dtype == np.int32
        assert len(batch.positions) == len(batch.owner) == count
        written = {
            (int(batch.table[o, p // self.page]), int(p % self.page))
            for o, p in zip(batch.owner, batch.positions, strict=True)
        }
        assert len(written) == count, "two tokens are written to one place"

    def copy_page(self, source: int, target: int) -> None:
        self.cache[target] = self.cache[source]

    def read_page(self, page: int, into: Bytes) -> None:
        into[:] = self.cache[page].reshape(-1).view(np.uint8)

    def write_page(self, page: int, data: Bytes) -> None:
        self.cache[page] = data.view(np.int64).reshape(self.page, 2)

    def close(self) -> None:
        self.closed = True


class Clock:
    """Time that passes by a millisecond whenever it is requested."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1e-3
        return self.now


def toy_engine(options: EngineOptions | None = None, **sizes: Any) -> tuple[Engine, ToyExecutor]:
    executor = ToyExecutor(**sizes)
    options = options or EngineOptions(lookup=False, calibrate=False)
    return Engine(lambda: executor, VOCABULARY, (EOS,), options=options, clock=Clock()), executor


def request(id: str, prompt: Iterable[int], adapter: str = "", **params: Any) -> SequenceRequest:
    return SequenceRequest(id, list(prompt), SamplingParams(**params), adapter=adapter)


class Results:
    """What came of generations, by request and index."""

    def __init__(self) -> None:
        self.tokens: dict[tuple[str, int], list[int]] = {}
        self.text: dict[tuple[str, int], str] = {}
        self.last: dict[tuple[str, int], Event] = {}
        self.logprobs: dict[tuple[str, int], list[Any]] = {}

    def add(self, events: Iterable[Event]) -> None:
        for event in events:
            key = (event.request, event.index)
            assert key not in self.last, "an event after the last one"
            self.tokens.setdefault(key, []).extend(event.tokens)
            self.logprobs.setdefault(key, []).extend(event.logprobs)
            self.text[key] = self.text.get(key, "") + event.text
            if event.finish is not None:
                self.last[key] = event


def finish(engine: Engine, results: Results | None = None, most: int = 20_000) -> Results:
    results = results or Results()
    for _ in range(most):
        if engine.is_idle:
            return results
        results.add(engine.step())
    raise AssertionError("the engine does not come to an end")


def generate(engine: Engine, *requests: SequenceRequest) -> Results:
    for one in requests:
        engine.submit(one)
    return finish(engine)
