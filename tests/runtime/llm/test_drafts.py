from __future__ import annotations

import random
from typing import Any

import pytest

from edgeinfer.errors import LoadError
from edgeinfer.runtime.llm.cost import StepCost
from edgeinfer.runtime.llm.drafting import Drafter
from edgeinfer.runtime.llm.drafts import Acceptance, Lookup, worthwhile
from edgeinfer.runtime.llm.engine import Engine
from edgeinfer.runtime.llm.options import EngineOptions
from tests.runtime.llm.conftest import VOCABULARY as TINY_PIECES
from tests.runtime.llm.conftest import tiny_executor
from tests.runtime.llm.toy import (
    EOS,
    VOCABULARY,
    Clock,
    Results,
    ToyExecutor,
    generate,
    request,
    toy_engine,
)


def test_lookup_copies_what_followed() -> None:
    assert Lookup().guess([1, 2, 3, 4, 9, 9, 2, 3], 2) == [4, 9]
    assert Lookup().guess([1, 2, 3], 4) == []


def test_lookup_takes_the_longest_match_and_the_latest() -> None:
    tokens = [7, 1, 2, 5, 8, 1, 2, 6, 0, 7, 1, 2]
    assert Lookup().guess(tokens, 1) == [5]
    assert Lookup().guess([1, 2, 5, 1, 2, 6, 1, 2], 1) == [6]


def test_lookup_goes_on_with_a_repetition() -> None:
    assert Lookup().guess([1, 2, 1, 2, 1, 2], 5) == [1, 2, 1, 2, 1]


def test_lookup_that_grows_is_the_lookup_of_the_whole() -> None:
    rng = random.Random(0)
    tokens = [rng.randrange(4) for _ in range(300)]
    growing = Lookup()
    end = 1
    while end < 300:
        assert growing.guess(tokens[:end], 6) == Lookup().guess(tokens[:end], 6)
        end += rng.randint(1, 9)


def _cost(steps: dict[int, float]) -> StepCost:
    cost = StepCost()
    for tokens, seconds in (*steps.items(), *steps.items()):
        cost.measured(tokens, 0, seconds)
    return cost


def test_as_many_guesses_as_pay() -> None:
    # The second token is nearly free, the third is not (what CPUs have).
    cost = _cost({1: 1.0, 2: 1.07, 3: 1.63, 4: 1.64, 5: 2.17, 6: 2.2, 7: 2.2, 8: 2.22, 9: 4.0})
    assert worthwhile([0.1], [8], 1, 0, cost, 99) == [1]
    assert worthwhile([0.03], [8], 1, 0, cost, 99) == [0]
    assert worthwhile([0.75], [8], 1, 0, cost, 99) == [3]
    assert worthwhile([0.97], [8], 1, 0, cost, 99) == [7]
    assert worthwhile([0.97], [2], 1, 0, cost, 99) == [1]
    assert worthwhile([0.97], [8], 1, 0, cost, 3) == [3]
    assert worthwhile([0.97], [8], 1, 0, cost, 0) == [0]


def test_the_likeliest_guesses_of_all_sequences_come_first() -> None:
    cost = _cost({n: 1.0 + 0.2 * n for n in range(1, 20)})
    assert worthwhile([0.9, 0.05, 0.5], [2, 6, 6], 3, 0, cost, 99) == [2, 0, 1]
    assert worthwhile([0.9, 0.05, 0.5], [6, 6, 6], 3, 0, cost, 99) == [6, 0, 0]


def test_sizes_that_were_never_measured_are_tried_where_they_may_pay() -> None:
    cost = _cost({1: 1.0})
    assert worthwhile([0.6], [8], 1, 0, cost, 99) == [1]
    assert worthwhile([0.2], [8], 1, 0, cost, 99) == [0]


def test_acceptance_follows_what_happened() -> None:
    seen = Acceptance()
    for _ in range(50):
        seen.seen(0, 1)
    assert seen.rate < 0.01
    for _ in range(50):
        seen.seen(3, 3)
    assert seen.rate > 0.99


def test_lookup_speeds_up_a_text_that_repeats_and_changes_nothing() -> None:
    sizes: dict[str, Any] = {"memory": 2, "context": 600, "pages": 200}
    asked: dict[str, Any] = {"max_tokens": 500, "temperature": 0, "ignore_eos": True}
    plain, slow = toy_engine(**sizes)
    expected = generate(plain, request("a", [1, 2, 3], **asked))
    options = EngineOptions(lookup=True, calibrate=False)
    engine, fast = toy_engine(options, **sizes)
    found = generate(engine, request("a", [1, 2, 3], **asked))
    assert found.tokens == expected.tokens
    assert fast.steps < slow.steps / 2
    usage = found.last["a", 0].usage
    assert usage is not None
    assert 0 < usage.accepted_tokens <= usage.drafted_tokens
    assert usage.accepted_tokens == 500 - fast.steps


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.5])
@pytest.mark.parametrize("memory", [2, 1000])
def test_draft_model_changes_nothing(temperature: float, memory: int) -> None:
    """A draft that looks back less far is right now and then; one that is the same, always."""
    clock = Clock()
    large = ToyExecutor(memory=2)
    small = ToyExecutor(memory=memory, pages=30, max_tokens=7)
    engine = Engine(
        lambda: large,
        VOCABULARY,
        (EOS,),
        drafter=Drafter(small, large.vocab, lambda: clock.now),
        clock=clock,
    )
    requests = [
        request(
            str(i), range(i, i + 9), max_tokens=40, temperature=temperature, seed=i, n=1 + i % 2
        )
        for i in range(10)
    ]
    found = generate(engine, *requests)
    for one in requests:
        alone, _ = toy_engine(memory=2)
        expected = generate(alone, one)
        for key in expected.tokens:
            assert found.tokens[key] == expected.tokens[key]
    stats = engine.stats()
    assert stats.drafted_tokens
    if memory == 2:
        # The same model with the same random numbers.
        assert stats.accepted_tokens >= 0.8 * stats.drafted_tokens
    assert engine._drafter is not None
    assert engine._drafter.pages_used == 0
    engine.close()
    assert small.closed


def test_a_long_prompt_is_read_for_guesses_a_step_at_a_time() -> None:
    """The draft model read the whole prompt at once, and everybody else waited for it."""
    clock = Clock()
    large, small = ToyExecutor(memory=2), ToyExecutor(memory=2, max_tokens=7)
    drafter = Drafter(small, large.vocab, lambda: clock.now)
    engine = Engine(lambda: large, VOCABULARY, (EOS,), drafter=drafter, clock=clock)
    given: dict[str, Any] = {"max_tokens": 30, "temperature": 0, "ignore_eos": True}
    engine.submit(request("a", range(8), **given))
    engine.submit(request("b", [i % 30 for i in range(80)], **given))
    found, most = Results(), 0
    while not engine.is_idle:
        before, steps = small.tokens, small.steps
        found.add(engine.step())
        # What is read, and a row of each guess.
        most = max(most, small.tokens - before - 2 * (small.steps - steps))
    assert most <= 7
    stats = engine.stats()
    assert stats.accepted_tokens == stats.drafted_tokens > 5
    alone, _ = toy_engine(memory=2)
    expected = generate(alone, request("b", [i % 30 for i in range(80)], **given))
    assert found.tokens["b", 0] == expected.tokens["b", 0]


def test_draft_model_of_another_vocabulary_is_refused() -> None:
    with pytest.raises(LoadError, match="the draft model has 40 tokens, and the model 41"):
        Drafter(ToyExecutor(), 41)


def test_draft_model_that_computes() -> None:
    clock = Clock()
    # A step of the draft model takes no time on this clock.
    drafter = Drafter(tiny_executor(), 64, lambda: clock.now)
    engine = Engine(tiny_executor, TINY_PIECES, (), drafter=drafter, clock=clock)
    asked = request("a", range(20), max_tokens=30, temperature=0, logprobs=0)
    found = generate(engine, asked)
    plain = Engine(tiny_executor, TINY_PIECES, (), options=EngineOptions(lookup=False))
    expected = generate(plain, asked)
    assert found.tokens == expected.tokens
    assert found.logprobs == expected.logprobs
    stats = engine.stats()
    assert stats.accepted_tokens == stats.drafted_tokens > 10
