"""Generations on compiled code are the same, bit for bit, in any schedule of the engine."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.backends.llm.backend import open_executor
from edgeinfer.backends.llm.sizes import ExecutorSizes
from edgeinfer.runtime.llm.drafting import Drafter
from edgeinfer.runtime.llm.engine import Engine
from edgeinfer.runtime.llm.options import EngineOptions, StepLimits
from edgeinfer.runtime.llm.sequence import SequenceRequest
from edgeinfer.runtime.llm.vocabulary import Vocabulary
from tests.runtime.llm.toy import Clock, Results, finish, generate, request

VOCABULARY = Vocabulary(tuple(chr(33 + i).encode() for i in range(120)), frozenset(), 0)
BEGINNING = list(range(5, 45))
ALONE = EngineOptions(lookup=False, calibrate=False)


def engine(
    folder: Path, cache: str, options: EngineOptions, *, drafted: bool = False, **sizes: Any
) -> Engine:
    room = {"max_tokens": 64, "max_sequences": 8, "pages": 48, "threads": 1} | sizes
    clock = Clock()

    def make() -> Any:
        return open_executor(folder, ExecutorSizes(cache=cache, **room))

    drafter = Drafter(make(), 120, lambda: clock.now) if drafted else None
    return Engine(make, VOCABULARY, (), options=options, drafter=drafter, clock=clock)


def asked(seed: int, count: int = 12) -> list[SequenceRequest]:
    rng = random.Random(seed)
    requests = []
    for number in range(count):
        prompt = BEGINNING[: rng.choice((0, 0, 17, 40))]
        prompt = [*prompt, *(rng.randrange(120) for _ in range(rng.randint(1, 9)))]
        params: dict[str, Any] = {"temperature": rng.choice((0.0, 0.8)), "seed": number}
        params["n"] = rng.choice((1, 1, 2))
        more: dict[str, Any] = {"max_tokens": rng.randint(5, 40), "logprobs": 1}
        requests.append(request(str(number), prompt, **params, **more))
    return requests


def same(found: Results, expected: Results) -> None:
    for key in expected.tokens:
        assert found.tokens[key] == expected.tokens[key]
        # Of all logits, compared to the last bit.
        assert found.logprobs[key] == expected.logprobs[key]


@pytest.mark.parametrize("cache", ["float16", "uint8", "uint4"])
@pytest.mark.parametrize("threads", [1, 2])
def test_schedule_makes_no_difference(folder: Path, cache: str, threads: int) -> None:
    requests = asked(threads)
    limits = StepLimits(slowdown=20.0, chunk=11)
    options = EngineOptions(calibrate=False, limits=limits)
    crowded = engine(folder, cache, options, pages=12, threads=threads)
    found = generate(crowded, *requests)
    stats = crowded.stats()
    crowded.close()
    assert stats.preemptions
    assert stats.cached_tokens
    assert stats.drafted_tokens
    alone = engine(folder, cache, ALONE)
    for one in requests:
        alone._cache.blocks.forget()
        same(found, generate(alone, one))
    alone.close()


def test_draft_model_changes_nothing(folder: Path) -> None:
    requests = asked(3, 5)
    drafted = engine(folder, "float16", EngineOptions(), drafted=True)
    found = generate(drafted, *requests)
    stats = drafted.stats()
    drafted.close()
    # The same model guesses, with the same random numbers: to the last bit it is right.
    assert stats.accepted_tokens == stats.drafted_tokens > 20
    alone = engine(folder, "float16", ALONE)
    for one in requests:
        same(found, generate(alone, one))
    alone.close()


@pytest.mark.parametrize("cache", ["float16", "uint8", "uint4"])
def test_pages_on_disk_are_as_good_as_computed(folder: Path, cache: str, tmp_path: Path) -> None:
    (one,) = [request("a", BEGINNING, max_tokens=20, temperature=0.8, seed=1, logprobs=2)]
    kept = EngineOptions(lookup=False, calibrate=False, disk=tmp_path)
    first = engine(folder, cache, kept)
    expected = generate(first, one)
    first.close()
    second = engine(folder, cache, kept)
    found = generate(second, one)
    assert second.stats().disk_tokens == 32
    same(found, expected)
    second.close()


def test_sleep_in_the_middle(folder: Path) -> None:
    one = request("a", BEGINNING, max_tokens=30, temperature=0.8, seed=1, logprobs=1)
    sleeper = engine(folder, "float16", ALONE)
    results = Results()
    sleeper.submit(one)
    for _ in range(12):
        results.add(sleeper.step())
    sleeper.sleep()
    sleeper.wake()
    found = finish(sleeper, results)
    assert sleeper.stats().disk_tokens == 48
    sleeper.close()
    alone = engine(folder, "float16", ALONE)
    same(found, generate(alone, one))
    alone.close()
