"""A generation is the same, bit for bit, whatever else runs and however steps are cut."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from edgeinfer.runtime.llm.engine import Engine
from edgeinfer.runtime.llm.executor import Floats, StepBatch
from edgeinfer.runtime.llm.options import EngineOptions, StepLimits
from edgeinfer.runtime.llm.sequence import SequenceRequest
from tests.runtime.llm.toy import (
    EOS,
    VOCAB,
    VOCABULARY,
    Clock,
    Results,
    ToyExecutor,
    finish,
    generate,
    request,
    toy_engine,
)

WORDS = [list(range(i, i + 9)) for i in range(0, 30, 3)]


def random_request(
    rng: random.Random, name: str, adapters: tuple[str, ...] = ()
) -> SequenceRequest:
    """Return a request; beginnings are shared with others now and then."""
    prompt = [t for _ in range(rng.randint(0, 6)) for t in rng.choice(WORDS[:4])]
    prompt += [rng.randrange(VOCAB - 1) for _ in range(rng.randint(1, 6))]
    sampled = rng.random() < 0.6
    params: dict[str, Any] = {
        "max_tokens": rng.randint(1, 40),
        "temperature": rng.choice((0.3, 1.0, 1.5)) if sampled else 0.0,
        "seed": rng.randrange(1 << 40),
        "n": rng.choice((1, 1, 1, 2, 3)),
        "top_k": rng.choice((0, 0, 5)),
        "top_p": rng.choice((1.0, 0.8)),
        "presence_penalty": rng.choice((0.0, 0.0, 0.7)),
        "repetition_penalty": rng.choice((1.0, 1.0, 1.2)),
        "ignore_eos": rng.random() < 0.5,
        "stop": rng.choice(((), ("ab",), ("c.", "xyz"))),
        "logprobs": rng.choice((None, None, 2)),
        "min_tokens": rng.choice((0, 0, 5)),
    }
    made = request(name, prompt, adapter=rng.choice(("", *adapters)), **params)
    made.priority = rng.choice((0, 0, 0, 1, -1))
    if rng.random() < 0.25 and len(prompt) > 6:
        # Of two pictures, so that some requests share what is behind one.
        first, rows = rng.randrange(2), rng.randint(1, 4)
        made.embedded = tuple(range(2, 2 + rows))
        made.embeddings = np.full((rows, ToyExecutor.hidden), first, np.float32)
    return made


def alone(one: SequenceRequest, **sizes: Any) -> Results:
    engine, _ = toy_engine(**{**sizes, "pages": 64, "max_sequences": 8})
    return generate(engine, one)


def same(found: Results, expected: Results, name: str) -> None:
    for key in expected.tokens:
        if key[0] == name:
            assert found.tokens[key] == expected.tokens[key]
            assert found.text[key] == expected.text[key]
            assert found.logprobs[key] == expected.logprobs[key]
            assert found.last[key].finish == expected.last[key].finish
            assert found.last[key].stop == expected.last[key].stop


@pytest.mark.sample(5)
@pytest.mark.parametrize("seed", range(16))
def test_schedule_makes_no_difference(seed: int) -> None:
    rng = random.Random(seed)
    sizes: dict[str, Any] = {
        "memory": rng.choice((2, 3, 1000, 1000)),
        "window": rng.choice((0, 7, 10)),
        "adapters": rng.choice(((), ("x", "y"))),
        "max_tokens": rng.choice((5, 17, 48)),
    }
    pages, sequences = rng.choice((33, 40, 64)), rng.choice((1, 3, 8))
    limits = StepLimits(slowdown=rng.choice((1.0, 2.5, 100.0)), chunk=rng.choice((3, 16, 512)))
    options = EngineOptions(lookup=rng.random() < 0.7, calibrate=False, limits=limits)
    engine, _ = toy_engine(options, pages=pages, max_sequences=sequences, **sizes)
    requests = [random_request(rng, str(i), sizes["adapters"]) for i in range(25)]
    results = Results()
    waiting = list(requests)
    cancelled = set()
    while waiting or not engine.is_idle:
        if waiting and rng.random() < 0.3:
            engine.submit(waiting.pop())
        if rng.random() < 0.02:
            name = str(rng.randrange(25))
            cancelled.add(name)
            engine.cancel(name)
        results.add(engine.step())
        assert engine._cache.blocks.problems() == []
    assert engine.stats().pages_used == 0
    for one in requests:
        if one.id not in cancelled:
            same(results, alone(one, **sizes), one.id)


def test_everything_that_schedules_differ_by_happens() -> None:
    """The schedules above hold prefixes, preemption, forks, speculation, evictions."""
    rng = random.Random(1)
    options = EngineOptions(calibrate=False, limits=StepLimits(slowdown=100.0))
    engine, _ = toy_engine(options, pages=33, memory=2)
    repeating = [request(f"r{i}", [i, i], max_tokens=90, temperature=0) for i in range(4)]
    results = generate(engine, *[random_request(rng, str(i)) for i in range(40)], *repeating)
    stats = engine.stats()
    assert stats.preemptions > 3
    assert stats.cached_tokens > 100
    assert stats.accepted_tokens > 20
    assert stats.drafted_tokens > stats.accepted_tokens
    assert stats.pages_evicted > 10
    assert len(results.last) > 50


@pytest.mark.slow
def test_blocks_stay_constant_over_ten_thousand_steps() -> None:
    _stay_constant(10_000)


def test_blocks_stay_constant() -> None:
    _stay_constant(1_500)


def _stay_constant(steps: int) -> None:
    rng = random.Random(7)
    options = EngineOptions(calibrate=False, limits=StepLimits(slowdown=10.0))
    engine, _ = toy_engine(options, pages=40, memory=3, adapters=("x",))
    results = Results()
    for number in range(steps):
        if len(engine._requests) < 12 and rng.random() < 0.5:
            engine.submit(random_request(rng, str(number), ("x",)))
        if engine._requests and rng.random() < 0.05:
            engine.cancel(rng.choice(list(engine._requests)))
        results.add(engine.step())
        blocks = engine._cache.blocks
        assert blocks.problems() == []
        held = {p for s in engine._cache.scheduler.running for p in s.pages if p >= 0}
        assert len(held) == blocks.count - blocks.available
    finish(engine, results)
    assert engine.stats().pages_used == 0
    assert engine._cache.blocks.available == 40
    assert (engine._cache.scheduler.table == -1).all()
    reasons = {event.finish for event in results.last.values()}
    assert reasons == {"stop", "length", "cancelled"}


def test_cancelled_request_frees_its_pages_before_the_next_step() -> None:
    engine, executor = toy_engine()
    for name in "ab":
        engine.submit(request(name, range(20), max_tokens=50, ignore_eos=True, n=3))
    for _ in range(4):
        engine.step()
    used = engine.stats().pages_used
    steps = executor.steps
    engine.cancel("a")
    events = engine.step()
    assert executor.steps == steps + 1
    assert [e.index for e in events if e.request == "a" and e.finish == "cancelled"] == [0, 1, 2]
    assert engine.stats().pages_used < used
    finish(engine)
    assert engine.stats().pages_used == 0


def test_cancelled_while_it_waits() -> None:
    engine, _ = toy_engine(max_sequences=1)
    engine.submit(request("a", [1], max_tokens=5, ignore_eos=True))
    engine.submit(request("b", [2], max_tokens=5, ignore_eos=True))
    results = Results()
    results.add(engine.step())
    engine.cancel("b")
    finish(engine, results)
    assert results.last["b", 0].finish == "cancelled"
    assert results.tokens["b", 0] == []
    assert len(results.tokens["a", 0]) == 5


def test_one_of_many_has_the_same_bits_in_a_real_model(tiny: Any) -> None:
    """The toy reads tokens; here keys and values are computed, kept, copied and read again."""
    rng = random.Random(3)
    requests = []
    for i in range(10):
        prompt = [*range(5, 30)] * rng.randint(0, 1) + [rng.randrange(60) for _ in range(5)]
        params: dict[str, Any] = {
            "temperature": rng.choice((0.0, 1.0)),
            "seed": i,
            "n": rng.choice((1, 2)),
        }
        requests.append(
            request(str(i), prompt, max_tokens=40, logprobs=1, ignore_eos=True, **params)
        )
    options = EngineOptions(calibrate=False, limits=StepLimits(slowdown=20.0, chunk=7))
    engine: Engine = tiny(options, pages=12)
    results = generate(engine, *requests)
    assert engine.stats().preemptions
    for one in requests:
        expected = generate(tiny(EngineOptions(lookup=False, calibrate=False), pages=16), one)
        # Logarithms of probabilities are compared to the last bit.
        same(results, expected, one.id)


def test_many_share_the_memory_of_one_beginning() -> None:
    engine, executor = toy_engine(
        EngineOptions(calibrate=False, lookup=False), pages=400, context=1100, max_sequences=32,
        max_tokens=256,
    )  # fmt: skip
    beginning = [i % 37 for i in range(1000)]
    for i in range(32):
        engine.submit(request(str(i), [*beginning, i, i], max_tokens=9, ignore_eos=True))
    most = 0
    while not engine.is_idle:
        engine.step()
        most = max(most, engine.stats().pages_used)
    # 250 pages of 4 tokens, and at most 3 for what each has of its own.
    assert most <= 250 + 32 * 3
    assert executor.tokens <= 1000 + 32 * (2 + 9)


def test_ragged_load_wastes_little() -> None:
    rng = random.Random(0)
    engine, _ = toy_engine(pages=1000, page=16, context=2048, max_sequences=16, max_tokens=512)
    for i in range(16):
        prompt = [rng.randrange(VOCAB - 1) for _ in range(rng.randint(50, 900))]
        engine.submit(request(str(i), prompt, max_tokens=60, ignore_eos=True))
    shares = []
    while not engine.is_idle:
        engine.step()
        unused, slots = engine._cache.scheduler.waste()
        if len(engine._cache.scheduler.running) == 16:
            shares.append(unused / slots)
    assert len(shares) > 20
    assert max(shares) < 0.04


def test_end_of_sequence_is_not_text() -> None:
    engine, _ = toy_engine()
    results = generate(engine, request("a", [1], temperature=2.0, seed=3))
    assert results.last["a", 0].finish == "stop"
    assert results.last["a", 0].stop == EOS
    assert results.tokens["a", 0][-1] == EOS
    assert len(results.text["a", 0]) == len(results.tokens["a", 0]) - 1


def test_pages_that_no_window_reaches_are_given_back() -> None:
    engine, _ = toy_engine(window=10, context=400, pages=200)
    asked: dict[str, Any] = {"max_tokens": 300, "ignore_eos": True, "seed": 1}
    engine.submit(request("a", range(30), **asked))
    results = Results()
    most = 0
    while not engine.is_idle:
        results.add(engine.step())
        if results.tokens:
            most = max(most, engine.stats().pages_used)
    # Ten positions lie in at most four pages of four, and one more is begun.
    assert most <= 5
    plain, _ = toy_engine(memory=10, context=400, pages=200)
    expected = generate(plain, request("a", range(30), **asked))
    assert results.tokens == expected.tokens


@pytest.mark.parametrize("running", [False, True])
def test_steps_that_read_fit_the_time_that_they_may_take(running: bool) -> None:
    """A token takes a millisecond here, however many there are."""
    clock = Clock()
    executor = ToyExecutor(pages=400, page=16, context=4096, max_tokens=512)
    step = executor.step

    def stepping(batch: StepBatch) -> Floats:
        clock.now += 1e-3 * len(batch.tokens)
        return step(batch)

    executor.step = stepping  # type: ignore[method-assign]
    engine = Engine(
        lambda: executor, VOCABULARY, (), options=EngineOptions(lookup=False), clock=clock
    )
    if running:
        for i in range(4):
            engine.submit(request(f"r{i}", [i], max_tokens=900))
    for _ in range(20):
        engine.step()
    engine.submit(request("long", [i % 37 for i in range(2000)], max_tokens=1))
    spent = []
    while "long" in engine._requests:
        before = engine._counters.busy_s
        engine.step()
        spent.append(engine._counters.busy_s - before)
    if running:
        # Four tokens take 5 ms with what the clock itself counts, and twice that is allowed.
        assert max(spent) < 3 * 5e-3
    else:
        assert max(spent) < 0.3
        assert len(spent) < 12
