"""What the engine of language models costs and gains: ``python -m benchmarks.llm_engine BUNDLE``.

Everything compared runs in turns in one process, and medians of ratios of neighbours are printed,
so that a change of the machine's load hits both sides.

SmolLM2-135M-Instruct (Q4_1 as 4 and 8 bits, code for x86-64-v3), one thread of an AMD EPYC with two
cores and a load of 8 to 14, time of the processor, float16 cache, 29 November 2026:

=================================================== ====================== ====== =======
figure                                              median (quartiles)     n      bar
=================================================== ====================== ====== =======
16 streams over one, tokens a second                1.73 (1.65-1.82)       15     >= 3.3
the engine's own share of the time, 1 stream        0.035 (0.033-0.037)    15     <= 0.01
the same, 16 streams                                0.0124 (0.0122-0.0128) 15     <= 0.01
prompt lookup, a text that copies, tokens equal     1.31 (1.25-1.38)       15     >= 1.5
prompt lookup, a story, tokens equal                1.09 (1.00-1.15)       15     >= 0.97
first token of 1,000, known over new                0.0099 (0.0098-0.0108) 5      <= 0.15
the same after a restart, from disk                 0.030 (0.029-0.031)    5      <= 0.15
p99 between tokens of 4 streams while 2,000 tokens
arrive, over the quiet median                       2.4 (2.4-3.1)          3      <= 3
pages of 32 sequences that share 1,000 tokens       126, one has 64        1
places of a ragged load that hold nothing           at most 2.3 %          1      < 4 %
=================================================== ====================== ====== =======

Streams and lookup are bound by what the executor's wider steps take there: 16 tokens took 7 to 9
times what one takes. Of the engine's share most is Python that finds nothing in the caches after
the weights went through them: 45 µs a step where they are warm, 230 µs behind a step of 6 ms.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from edgeinfer.bundle.archive import Bundle
from edgeinfer.runtime.llm.bundle import BundledModel, CacheSizes, read
from edgeinfer.runtime.llm.engine import Engine
from edgeinfer.runtime.llm.options import EngineOptions
from edgeinfer.runtime.llm.params import SamplingParams
from edgeinfer.runtime.llm.sequence import SequenceRequest

TEXT = (
    "Write the following list again, word for word, and change nothing. The list: a green apple, "
    "two yellow bananas, three red cherries, four brown dates, five purple figs, six white grapes, "
    "seven orange kumquats, eight golden lemons, nine juicy mangos, ten sweet nectarines. Again: a "
    "green apple, two yellow bananas, three red cherries, four brown dates,"
)
POEM = "It was late in the year when the letter came, and nobody in the house expected it."


class Bench:
    """A model, and engines on it."""

    def __init__(self, model: BundledModel, clock: Callable[[], float]) -> None:
        self.model, self.clock = model, clock
        self._number = 0

    def engine(self, **options: object) -> Engine:
        texts = self.model.generation.eos
        made = EngineOptions(**options)  # type: ignore[arg-type]
        vocabulary = self.model.tokenizer.vocabulary
        return Engine(self.model.open_executor, vocabulary, texts, options=made, clock=self.clock)

    def submit(self, engine: Engine, prompt: list[int], tokens: int) -> str:
        self._number += 1
        name = str(self._number)
        params = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)
        engine.submit(SequenceRequest(name, prompt, params))
        return name

    def prompt(self, length: int) -> list[int]:
        rng = random.Random(self._number)
        self._number += 1
        return [rng.randrange(100, self.model.config.vocab) for _ in range(length)]


def run(engine: Engine) -> tuple[list[int], float]:
    """Run to the end; return all tokens and the seconds."""
    tokens: list[int] = []
    begun = time.perf_counter()
    while not engine.is_idle:
        for event in engine.step():
            if event.error is not None:
                raise event.error
            tokens += event.tokens
    return tokens, time.perf_counter() - begun


def told(name: str, values: list[float], bar: str) -> None:
    ordered = sorted(values)
    low, high = ordered[len(ordered) // 4], ordered[3 * len(ordered) // 4]
    middle = statistics.median(values)
    print(f"{name}: {middle:.3g} ({low:.3g}-{high:.3g}), n {len(values)}; bar {bar}", flush=True)


def in_turns(count: int, one: Callable[[], float], other: Callable[[], float]) -> list[float]:
    """Return ratios of one over the other, who goes first changing each time."""
    found = []
    for turn in range(count):
        if turn % 2:
            b, a = other(), one()
        else:
            a, b = one(), other()
        found.append(a / b)
    return found


def streams(bench: Bench, count: int) -> None:
    """Compare 16 sequences at once with one after the other, and look at the engine's own time."""
    engine = bench.engine(lookup=False)

    def several(width: int) -> float:
        for _ in range(width):
            bench.submit(engine, bench.prompt(32), 65)
        while any(s.generated == 0 for s in engine._cache.scheduler.running) or (
            engine._cache.scheduler.waiting
        ):
            engine.step()
        before = engine.stats()
        # Prompts are read in parts, so who came first ends first: what is compared ends with it.
        while len(engine._cache.scheduler.running) == width:
            engine.step()
        after = engine.stats()
        run(engine)
        spent = after.busy_s + after.engine_s - before.busy_s - before.engine_s
        shares[width].append((after.engine_s - before.engine_s) / spent)
        return (after.generated_tokens - before.generated_tokens) / spent

    shares: dict[int, list[float]] = {1: [], 16: []}
    ratios = in_turns(count, partial(several, 16), partial(several, 1))
    told("16 streams over one, tokens a second", ratios, ">= 3.3")
    for width, found in shares.items():
        told(f"the engine's own share of the time, {width} streams", found, "<= 0.01")
    engine.close()


def lookup(bench: Bench, count: int) -> None:
    """Compare guessing by copying with not guessing, where a text repeats and where it does not."""
    engines = [bench.engine(lookup=True), bench.engine(lookup=False)]
    for name, text, bar in (("copying", TEXT, ">= 1.5"), ("story", POEM, ">= 0.97")):
        prompt = bench.model.tokenizer.encode(text)
        tokens: dict[int, list[int]] = {}
        speeds = [partial(_speed, bench, engine, prompt, tokens) for engine in engines]
        for speed in speeds:
            speed()
        ratios = in_turns(count, speeds[0], speeds[1])
        same = len({tuple(found) for found in tokens.values()}) == 1
        told(f"prompt lookup, {name}, tokens equal: {same}", ratios, bar)
    for engine in engines:
        engine.close()


def _speed(bench: Bench, engine: Engine, prompt: list[int], seen: dict[int, list[int]]) -> float:
    bench.submit(engine, prompt, 96)
    before = engine.stats()
    seen[id(engine)], _ = run(engine)
    after = engine.stats()
    return 1 / (after.busy_s + after.engine_s - before.busy_s - before.engine_s)


def arrival(bench: Bench, count: int, length: int) -> None:
    """Look at the time between tokens of four streams while a long prompt arrives."""
    engine = bench.engine(lookup=False)
    ratios, same = [], []
    for _ in range(count):
        for _ in range(4):
            bench.submit(engine, bench.prompt(32), 400)
        for _ in range(12):
            engine.step()
        quiet = [_timed(engine, bench.clock) for _ in range(60)]
        name = bench.submit(engine, bench.prompt(length), 1)
        busy = []
        # Steps after the streams have ended keep nobody waiting.
        while name in engine._requests and len(engine._requests) > 1:
            busy.append(_timed(engine, bench.clock))
        ratios.append(_p99(busy) / statistics.median(quiet))
        same.append(_p99(quiet) / statistics.median(quiet))
        for request in list(engine._requests):
            engine.cancel(request)
        run(engine)
    told(f"p99 between tokens while {length} tokens arrive, over the quiet median", ratios, "<= 3")
    told("p99 of the quiet ones over their median", same, "none")
    engine.close()


def _p99(values: list[float]) -> float:
    return sorted(values)[int(0.99 * len(values))]


def _timed(engine: Engine, clock: Callable[[], float]) -> float:
    begun = clock()
    engine.step()
    return clock() - begun


def first_token(bench: Bench, count: int, length: int) -> None:
    """Compare the first token of a prompt that is new, known, and known from before a restart."""
    with tempfile.TemporaryDirectory() as folder:
        warm, again = [], []
        for _ in range(count):
            prompt = bench.prompt(length)
            engine = bench.engine(lookup=False, disk=Path(folder))
            bench.submit(engine, prompt, 1)
            cold = run(engine)[1]
            bench.submit(engine, prompt, 1)
            warm.append(run(engine)[1] / cold)
            engine.close()
            engine = bench.engine(lookup=False, disk=Path(folder))
            bench.submit(engine, prompt, 1)
            again.append(run(engine)[1] / cold)
            if not engine.stats().disk_tokens:
                raise RuntimeError("nothing came from the disk")
            engine.close()
        told(f"first token of {length}, known over new", warm, "<= 0.15")
        told(f"first token of {length}, after a restart over new", again, "<= 0.15")


def pages(bench: Bench) -> None:
    """Count pages of 32 sequences that begin alike, and unused places of a ragged load."""
    engine = bench.engine(lookup=False)
    beginning = bench.prompt(1000)
    for _ in range(32):
        bench.submit(engine, beginning + bench.prompt(5), 8)
    most = 0
    while not engine.is_idle:
        engine.step()
        most = max(most, engine.stats().pages_used)
    print(f"pages of 32 sequences that share 1,000 tokens: {most}; one has {-(-1013 // 16)}")
    rng = random.Random(0)
    for _ in range(16):
        bench.submit(engine, bench.prompt(rng.randint(50, 900)), 60)
    shares: list[float] = []
    while not engine.is_idle:
        engine.step()
        unused, places = engine._cache.scheduler.waste()
        if len(engine._cache.scheduler.running) > 8:
            shares.append(unused / places)
    print(f"places of a ragged load that hold nothing: at most {max(shares):.2%}; bar < 4 %")
    engine.close()


def parts(bench: Bench, arguments: argparse.Namespace) -> Iterator[tuple[str, Callable[[], None]]]:
    count = arguments.rounds
    yield "streams", lambda: streams(bench, count)
    yield "lookup", lambda: lookup(bench, count)
    yield "arrival", lambda: arrival(bench, max(1, count // 3), 2000)
    yield "first", lambda: first_token(bench, max(1, count // 3), 1000)
    yield "pages", lambda: pages(bench)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", nargs="*", help="streams, lookup, arrival, first, pages")
    arguments = parser.parse_args()
    sizes = CacheSizes(3072, 32, 1200, threads=arguments.threads)
    with Bundle.open(arguments.bundle, verify=False) as bundle:
        # Of one thread the processor's time counts, which others on the machine hardly change.
        clock = time.process_time if arguments.threads == 1 else time.perf_counter
        bench = Bench(read(bundle, sizes), clock)
        for name, part in parts(bench, arguments):
            if not arguments.only or name in arguments.only:
                part()


if __name__ == "__main__":
    main()
