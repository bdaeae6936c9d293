"""What ``edgeinfer bench`` measures of a language model."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from edgeinfer.cli.output import milliseconds, table
from edgeinfer.errors import NotAvailableError, OutOfPagesError
from edgeinfer.installed import without_converter
from edgeinfer.records import dataclass
from edgeinfer.types import Progress

if TYPE_CHECKING:
    from edgeinfer.bundle.archive import Bundle
    from edgeinfer.bundle.manifest import Variant
    from edgeinfer.cli.table import Table
    from edgeinfer.runtime.llm.executor import Executor

WIDTHS = (1, 2, 4, 8, 16)
PROMPTS = (64, 512)
CONTEXT = 64
"""Tokens that sequences hold already when their steps are timed."""

SECONDS = 1.0
"""For each row, at most."""

LEAST = 5
MOST = 100


@dataclass(frozen=True, slots=True)
class StepRow:
    """A kind of step.

    Attributes:
        what: ``generate`` one token of each sequence, or ``read`` a prompt.
        sequences: in the step.
        tokens: in the step.
        median_ms: Median time in milliseconds of the step.
        p95_ms: likewise.
        runs: Runs of them.
        tokens_per_second: at the median.
        read_share: bytes of weights that it read, over what this machine reads in the same time;
            None where that is unknown.
    """

    what: str
    sequences: int
    tokens: int
    median_ms: float
    p95_ms: float
    runs: int
    tokens_per_second: float
    read_share: float | None


def bench(
    bundle: Bundle, threads: int | None, progress: Progress | None
) -> tuple[dict[str, Any], Iterator[str | Table]]:
    """Time the executor's steps and the engine's first tokens.

    Returns:
        Data for programs, and lines and a table for people.
    """
    from edgeinfer.runtime.llm.bundle import CacheSizes, read

    sizes = CacheSizes(context=0, sequences=max(WIDTHS), threads=threads or 0)
    model = read(bundle, sizes)
    weights = _weights(next(v for v in bundle.manifest.variants if v.id == model.variant))
    gb_s, why = _reading(model.device, threads)
    executor = model.open_executor()
    try:
        rows = []
        for what, sequences, tokens in _kinds(executor):
            if progress is not None:
                progress(f"{what} {sequences} x {tokens}", None)
            times = _steps(executor, sequences, tokens)
            rows.append(_row(what, sequences, tokens, times, weights, gb_s))
    finally:
        executor.close()
    first = _first_tokens(bundle, sizes)
    data = {
        "variant": model.variant,
        "device": model.device,
        "instead": model.instead,
        "weights_bytes": weights,
        "read_gb_s": gb_s,
        "rows": rows,
        "first_token": first,
    }
    where = f"{model.variant} on the {model.device}"
    about = [f"{where}: {model.instead}" if model.instead else where, *([why] if why else [])]
    return data, _view(rows, first, about)


def _kinds(executor: Executor) -> Iterator[tuple[str, int, int]]:
    room = executor.pages * executor.page
    for width in WIDTHS:
        if width <= executor.max_sequences and width * 2 * CONTEXT <= room:
            yield "generate", width, 1
    for length in PROMPTS:
        if length <= min(executor.max_tokens, executor.context, room):
            yield "read", 1, length


def _steps(executor: Executor, sequences: int, tokens: int) -> list[float]:
    from edgeinfer.runtime.llm.executor import StepBatch

    start = CONTEXT if tokens == 1 else 0
    pages = -(-(start + tokens) // executor.page)
    if sequences * pages > executor.pages:
        raise OutOfPagesError(f"{sequences} x {pages} pages, and the cache has {executor.pages}")
    table = np.arange(sequences * pages, dtype=np.int32).reshape(sequences, pages)
    rng = np.random.default_rng(0)
    count = sequences * tokens
    owner = np.repeat(np.arange(sequences, dtype=np.int32), tokens)
    positions = np.tile(np.arange(start, start + tokens, dtype=np.int32), sequences)
    rows = np.arange(tokens - 1, count, tokens, dtype=np.int32)
    if start:
        # What is looked back on has been computed, or its numbers may be anything.
        for sequence in range(sequences):
            _read(executor, table, sequence, start, rng)
    times: list[float] = []
    while len(times) < LEAST or (sum(times) < SECONDS and len(times) < MOST):
        ids = rng.integers(0, executor.vocab, count).astype(np.int32)
        begun = time.perf_counter()
        executor.step(StepBatch(ids, positions, owner, table, rows))
        times.append(time.perf_counter() - begun)
    return times[1:]


def _read(executor: Executor, table: Any, sequence: int, count: int, rng: Any) -> None:
    from edgeinfer.runtime.llm.executor import StepBatch

    ids = rng.integers(0, executor.vocab, count).astype(np.int32)
    owner = np.full(count, sequence, np.int32)
    positions = np.arange(count, dtype=np.int32)
    for first in range(0, count, executor.max_tokens):
        part = slice(first, first + executor.max_tokens)
        none = np.empty(0, np.int32)
        executor.step(StepBatch(ids[part], positions[part], owner[part], table, none))


def _row(
    what: str, sequences: int, tokens: int, times: list[float], weights: int, gb_s: float | None
) -> StepRow:
    median = statistics.median(times)
    p95 = sorted(times)[min(len(times) - 1, int(0.95 * len(times)))]
    share = None if gb_s is None or tokens > 1 else weights / median / (gb_s * 1e9)
    speed = sequences * tokens / median
    return StepRow(what, sequences, tokens, median * 1e3, p95 * 1e3, len(times), speed, share)


def _weights(variant: Variant) -> int:
    """Return the bytes of the packed weights, all of which a step reads but for looked-up rows."""
    return sum(f.size_bytes for f in variant.files if f.path.endswith("/weights.bin"))


def _reading(device: str, threads: int | None) -> tuple[float | None, str]:
    if device != "cpu":
        return None, "share of reading: unknown: it is measured for CPUs alone"
    try:
        from edgeinfer.cli.roofline import measure

        return measure(threads or 1).gb_s, ""
    except NotAvailableError as e:
        return None, f"share of reading: unknown: {e}"
    except ModuleNotFoundError as e:
        if not (why := without_converter(e)):
            raise
        return None, f"share of reading: unknown: {why}"


def _first_tokens(bundle: Bundle, sizes: Any) -> dict[str, float]:
    """Return seconds to the first token of a prompt that is new, and of one that is known."""
    from edgeinfer.runtime.llm.bundle import read
    from edgeinfer.runtime.llm.engine import Engine
    from edgeinfer.runtime.llm.params import SamplingParams
    from edgeinfer.runtime.llm.sequence import SequenceRequest

    model = read(bundle, sizes)
    engine = Engine(model.open_executor, model.tokenizer.vocabulary, model.generation.eos)
    length = min(max(PROMPTS), model.config.context // 2)
    prompt = np.random.default_rng(1).integers(0, model.config.vocab, length).tolist()
    found = {"tokens": float(length)}
    try:
        for name in ("new", "known"):
            engine.submit(SequenceRequest(name, prompt, SamplingParams(max_tokens=1)))
            while not engine.is_idle:
                for event in engine.step():
                    if event.usage is not None:
                        found[f"{name}_s"] = event.usage.first_token_s or 0.0
    finally:
        engine.close()
    return found


def _view(rows: list[StepRow], first: dict[str, float], about: list[str]) -> Iterator[str | Table]:
    columns = ("step", ">sequences", ">tokens", ">median", ">p95", ">tokens/s", ">of reading")
    yield table(
        columns,
        [
            (
                row.what,
                row.sequences,
                row.tokens,
                milliseconds(row.median_ms),
                milliseconds(row.p95_ms),
                f"{row.tokens_per_second:.3g}",
                "-" if row.read_share is None else f"{row.read_share:.0%}",
            )
            for row in rows
        ],
    )
    yield (
        f"first token of {first['tokens']:.0f} tokens: {milliseconds(first['new_s'] * 1e3)}; "
        f"of a prompt that is known: {milliseconds(first['known_s'] * 1e3)}"
    )
    yield from about
