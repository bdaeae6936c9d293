"""What an engine did: counts, times and the energy where the kernel tells it."""

from __future__ import annotations

import time

from edgeinfer.machine.energy import Energy
from edgeinfer.records import dataclass
from edgeinfer.runtime.llm.params import Usage
from edgeinfer.runtime.telemetry import Percentiles, SizeHistogram, TimeHistogram


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot of an engine.

    Attributes:
        seconds: since the engine was opened.
        busy_s: Seconds of work, in steps of the executor.
        engine_s: Seconds in the engine, of them, in the engine's own code between these.
        steps: Steps of the executor.
        requests: taken.
        finished: that ended, by reason.
        running: sequences that have pages.
        waiting: sequences that wait for them.
        oldest_wait_s: Seconds since the oldest of these came; 0.0 where none waits.
        asleep: weights and cache are not in memory.
        prompt_tokens: Prompt tokens of all prompts.
        cached_tokens: Cached tokens of them, taken from the prefix cache.
        disk_tokens: Disk tokens of these, read from disk.
        computed_tokens: Computed tokens of prompts, computed; those of preempted sequences count
            again.
        generated_tokens: given to callers.
        drafted_tokens: guessed and verified.
        accepted_tokens: Accepted tokens of them, those that came true.
        preemptions: how often a sequence gave its pages away.
        pages: Pages of the cache.
        pages_used: held by sequences.
        pages_kept: held for those to come.
        pages_evicted: given away although they held something known.
        unused_slots: positions of used pages that hold nothing.
        disk_pages: that the disk has.
        disk_error: why nothing is written to the disk any more; empty where all is well.
        tokens_per_second: generated, over the time in steps.
        first_token_ms: from arrival to the first token.
        inter_token_ms: between the tokens of a sequence.
        queue_ms: from arrival to the first step.
        step_ms: Milliseconds of a step of the executor.
        joules: that the processor took while the engine worked, everything on it included; None
            where the kernel does not tell.
        joules_per_token: Joules per token of them, for each generated token.
    """

    seconds: float
    busy_s: float
    engine_s: float
    steps: int
    requests: int
    finished: dict[str, int]
    running: int
    waiting: int
    oldest_wait_s: float
    asleep: bool
    prompt_tokens: int
    cached_tokens: int
    disk_tokens: int
    computed_tokens: int
    generated_tokens: int
    drafted_tokens: int
    accepted_tokens: int
    preemptions: int
    pages: int
    pages_used: int
    pages_kept: int
    pages_evicted: int
    unused_slots: int
    disk_pages: int
    disk_error: str
    tokens_per_second: float
    first_token_ms: Percentiles | None
    inter_token_ms: Percentiles | None
    queue_ms: Percentiles | None
    step_ms: Percentiles | None
    joules: float | None
    joules_per_token: float | None


class Counters:
    """What the engine's thread counts; read from any thread."""

    def __init__(self, energy: Energy | None = None) -> None:
        self.since = time.perf_counter()
        self.steps = self.requests = 0
        self.busy_s = self.engine_s = 0.0
        self.finished: dict[str, int] = {}
        self.prompt_tokens = self.cached_tokens = self.disk_tokens = 0
        self.computed_tokens = self.generated_tokens = 0
        self.drafted_tokens = self.accepted_tokens = 0
        self.first_token, self.inter_token = TimeHistogram(), TimeHistogram()
        self.queue, self.step = TimeHistogram(), TimeHistogram()
        self.reading, self.writing = TimeHistogram(), TimeHistogram()
        self.prompts, self.answers = SizeHistogram(), SizeHistogram()
        self.energy = Energy() if energy is None else energy

    def ended(self, reason: str, usage: Usage) -> None:
        """Count a text that has ended."""
        self.finished[reason] = self.finished.get(reason, 0) + 1
        self.prompts.add(usage.prompt_tokens)
        self.answers.add(usage.completion_tokens)
        if usage.first_token_s is not None:
            self.reading.add(int((usage.first_token_s - usage.queue_s) * 1e9))
            self.writing.add(int((usage.total_s - usage.first_token_s) * 1e9))

    def times(self) -> dict[str, TimeHistogram]:
        """Return the times of all requests."""
        return {
            "first_token": self.first_token,
            "inter_token": self.inter_token,
            "queue": self.queue,
            "reading": self.reading,
            "writing": self.writing,
        }

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens over the time in steps and between them."""
        spent = self.busy_s + self.engine_s
        return self.generated_tokens / spent if spent else 0.0
