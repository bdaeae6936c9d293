"""Requests that are odd, and ends that are."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.errors import InputError, OutputError, QueueFullError, RunError
from edgeinfer.runtime.llm.engine import Engine
from edgeinfer.runtime.llm.executor import Floats, StepBatch
from edgeinfer.runtime.llm.options import EngineOptions, StepLimits
from edgeinfer.runtime.llm.params import SamplingParams
from edgeinfer.runtime.llm.sequence import SequenceRequest
from edgeinfer.runtime.llm.vocabulary import Vocabulary
from tests.runtime.llm.toy import (
    EOS,
    VOCABULARY,
    Clock,
    Results,
    ToyExecutor,
    finish,
    generate,
    request,
    toy_engine,
)

QUIET = EngineOptions(lookup=False, calibrate=False)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 8, 127])
def test_prompt_of_any_length_is_read(length: int) -> None:
    engine, _ = toy_engine()
    results = generate(engine, request("a", [1] * length, max_tokens=1))
    assert len(results.tokens["a", 0]) == 1
    assert results.last["a", 0].usage.prompt_tokens == length  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "input 'prompt': expected at least one token, received none"),
        ([1] * 128, "input 'prompt': expected at most 127 tokens, received 128"),
        ([1] * 5000, "input 'prompt': expected at most 127 tokens, received 5000"),
        ([3, 40], "input 'prompt': expected tokens from 0 to 39"),
        ([-1], "input 'prompt': expected tokens from 0 to 39"),
    ],
)
def test_prompt_is_refused(prompt: list[int], message: str) -> None:
    engine, _ = toy_engine()
    with pytest.raises(InputError, match=message):
        engine.submit(request("a", prompt))
    assert engine.is_idle


def test_prompt_longer_than_the_cache_is_refused_before_it_waits() -> None:
    engine, _ = toy_engine(pages=10)
    with pytest.raises(InputError, match="the cache is smaller than the model's context"):
        engine.submit(request("a", [1] * 40))
    results = generate(engine, request("a", [1] * 39, ignore_eos=True))
    assert results.last["a", 0].finish == "length"
    assert len(results.tokens["a", 0]) == 1


@pytest.mark.parametrize("length", [4090, 4095])
@pytest.mark.parametrize("chunk", [512, 4096])
def test_prompts_near_a_long_context_end(length: int, chunk: int) -> None:
    engine, _ = toy_engine(
        EngineOptions(lookup=False, calibrate=False, limits=StepLimits(chunk=chunk)),
        pages=256, page=16, context=4096, max_tokens=chunk,
    )  # fmt: skip
    prompt = [i % 37 for i in range(length)]
    results = generate(engine, request("a", prompt, ignore_eos=True))
    assert len(results.tokens["a", 0]) == 4096 - length
    assert results.last["a", 0].finish == "length"
    for more in (4096, 4102):
        with pytest.raises(InputError, match=f"at most 4095 tokens, received {more}"):
            engine.submit(request("b", [1] * more))


def test_generation_ends_at_the_context() -> None:
    engine, _ = toy_engine()
    results = generate(engine, request("a", [1] * 100, ignore_eos=True))
    assert len(results.tokens["a", 0]) == 28
    assert results.last["a", 0].finish == "length"


def test_each_of_several_ends_of_sequence_ends() -> None:
    found = generate(toy_engine()[0], request("a", [5], max_tokens=30, ignore_eos=True, seed=1))
    tokens = found.tokens["a", 0]
    for end in (tokens[4], tokens[9]):
        engine = Engine(ToyExecutor, VOCABULARY, (EOS, end), options=QUIET, clock=Clock())
        results = generate(engine, request("a", [5], max_tokens=30, seed=1))
        assert results.last["a", 0].finish == "stop"
        assert results.last["a", 0].stop == end
        assert results.tokens["a", 0] == tokens[: tokens.index(end) + 1]


def test_stop_text_over_several_tokens() -> None:
    whole = generate(toy_engine()[0], request("a", [5], max_tokens=60, ignore_eos=True, seed=1))
    text = whole.text["a", 0]
    stop = text[20:24]
    results = generate(
        toy_engine()[0], request("a", [5], max_tokens=60, ignore_eos=True, seed=1, stop=(stop,))
    )
    assert results.text["a", 0] == text[: text.index(stop)]
    assert results.last["a", 0].stop == stop
    assert sum(t != EOS for t in results.tokens["a", 0]) == text.index(stop) + 4


@pytest.mark.parametrize("count", range(1, 10))
def test_character_cut_by_max_tokens_is_left_out(count: int) -> None:
    # Tokens are the bytes of an emoji, and after each only the next one is likely.
    emoji = "🙂".encode()
    vocabulary = Vocabulary(tuple(emoji[i % 4 : i % 4 + 1] for i in range(40)), frozenset(), 0)
    executor = ToyExecutor()

    def after(position: int, table: Any) -> Any:
        row = np.zeros(40, np.float32)
        row[(position + 1) % 4] = 9
        return row

    executor._row = after  # type: ignore[method-assign]
    engine = Engine(lambda: executor, vocabulary, (), options=QUIET, clock=Clock())
    asked = request("a", [0, 1, 2, 3], max_tokens=count, temperature=0)
    results = generate(engine, asked)
    assert len(results.tokens["a", 0]) == count
    assert results.text["a", 0] == "🙂" * (count // 4)


def test_nothing_is_left_to_choose() -> None:
    engine, _ = toy_engine()
    bias = dict.fromkeys(range(40), -np.inf)
    results = generate(engine, request("a", [1], logit_bias=bias), request("b", [1], max_tokens=2))
    assert results.last["a", 0].finish == "error"
    assert "all are forbidden" in str(results.last["a", 0].error)
    assert results.last["b", 0].finish != "error"
    assert engine.stats().pages_used == 0


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("looks", [True, False])
def test_logits_that_are_no_numbers_are_an_error(
    value: float, temperature: float, looks: bool
) -> None:
    engine, executor = toy_engine(looks=looks)
    step = executor.step

    def spoilt(batch: StepBatch) -> Floats:
        logits = np.full_like(step(batch), value)
        executor.best = np.full(len(logits), -1, np.int32) if looks else None
        return logits

    executor.step = spoilt  # type: ignore[method-assign]
    results = generate(engine, request("a", [1], temperature=temperature))
    assert results.last["a", 0].finish == "error"
    assert isinstance(results.last["a", 0].error, RunError)


@pytest.mark.parametrize("place", ["sampler", "text", "matcher"])
def test_fault_in_the_choice_for_one_ends_it_alone(place: str) -> None:
    engine, _ = toy_engine()
    engine.submit(request("a", [1], max_tokens=20, ignore_eos=True, n=2))
    engine.submit(request("b", [2], max_tokens=20, ignore_eos=True))
    results = Results()
    for _ in range(4):
        results.add(engine.step())
    for generation in engine._requests["a"][:1]:
        setattr(generation, place, object())
    finish(engine, results)
    assert results.last["a", 0].finish == "error"
    assert isinstance(results.last["a", 0].error, AttributeError)
    assert [results.last[key].finish for key in (("a", 1), ("b", 0))] == ["length", "length"]
    assert engine.stats().pages_used == 0


def test_failing_step_ends_those_in_it_alone() -> None:
    engine, executor = toy_engine(max_sequences=1)
    engine.submit(request("a", [1, 2, 3], max_tokens=5, ignore_eos=True))
    engine.submit(request("b", [1, 2, 3], max_tokens=5, ignore_eos=True))
    executor.fails = True
    (event,) = engine.step()
    assert (event.request, event.finish) == ("a", "error")
    executor.fails = False
    results = finish(engine)
    assert len(results.tokens["b", 0]) == 5
    assert engine.stats().pages_used == 0


def test_queue_is_full() -> None:
    options = EngineOptions(lookup=False, calibrate=False, max_queue=2)
    engine, _ = toy_engine(options, max_sequences=1)
    engine.submit(request("a", [1], max_tokens=3))
    engine.step()
    for name in "bc":
        engine.submit(request(name, [1], max_tokens=3))
    with pytest.raises(QueueFullError, match="2 requests wait already"):
        engine.submit(request("d", [1]))
    assert {key[0] for key in finish(engine).last} >= {"b", "c"}


def test_id_is_taken_once() -> None:
    engine, _ = toy_engine()
    engine.submit(request("a", [1]))
    with pytest.raises(InputError, match="no running request has"):
        engine.submit(request("a", [2]))


def test_adapters_differ_and_share_no_beginning() -> None:
    engine, executor = toy_engine(adapters=("x", "y"))
    texts: dict[str, str] = {}
    for adapter in ("", "x", "y", "x"):
        before = executor.tokens
        results = generate(engine, request("a", range(20), adapter, max_tokens=9, temperature=0))
        again = adapter in texts
        assert texts.setdefault(adapter, results.text["a", 0]) == results.text["a", 0]
        assert (executor.tokens - before < 20) == again
    assert len(set(texts.values())) == 3
    with pytest.raises(InputError, match=r"one of the bundle's \(x, y\), received 'z'"):
        engine.submit(request("a", [1], "z"))


def test_given_embeddings_count_for_the_prefix() -> None:
    engine, executor = toy_engine()
    rng = np.random.default_rng(0)
    texts = []
    for number in (0, 1, 0):
        given = rng.standard_normal((4, 3)).astype(np.float32) if number else np.ones((4, 3), "f")
        params = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
        one = SequenceRequest("a", [1] * 20, params)
        one.embeddings, one.embedded = given, (6, 7, 8, 9)
        before = executor.tokens
        texts.append(generate(engine, one).text["a", 0])
        # What stands before them is everybody's: pages of four tokens.
        expected = {1: 20, 2: 16, 3: 4}[len(texts)]
        assert executor.tokens - before - 7 == expected
    assert texts[0] == texts[2] != texts[1]
    # Whoever has the same tokens and nothing given shares no page of theirs.
    before = executor.tokens
    generate(engine, request("b", [1] * 20, max_tokens=8, temperature=0, ignore_eos=True))
    assert executor.tokens - before - 7 == 16


@pytest.mark.parametrize(
    ("shape", "places", "change", "message"),
    [
        ((2, 4), (0, 1), 0, r"expected float32\[2, 3\], received float32\[2, 4\]"),
        ((2, 3), (0, 1, 2), 0, r"expected float32\[3, 3\], received float32\[2, 3\]"),
        ((2, 3), (1, 1), 0, "ascending positions below 5"),
        ((2, 3), (4, 5), 0, "ascending positions below 5"),
        ((2, 3), (-1, 2), 0, "ascending positions below 5"),
        ((2, 3), (1, 2), np.nan, "expected finite numbers"),
    ],
)
def test_embeddings_that_do_not_fit_are_refused(
    shape: tuple[int, int], places: tuple[int, ...], change: float, message: str
) -> None:
    engine, _ = toy_engine()
    given = np.ones(shape, np.float32) + np.float32(change)
    one = SequenceRequest("a", [1] * 5, SamplingParams(), embeddings=given, embedded=places)
    with pytest.raises(InputError, match=message):
        engine.submit(one)


def test_sleep_keeps_the_cache_and_what_runs() -> None:
    made: list[ToyExecutor] = []

    def make() -> ToyExecutor:
        made.append(ToyExecutor())
        return made[-1]

    engine = Engine(make, VOCABULARY, (EOS,), options=QUIET, clock=Clock())
    asked = request("a", range(30), max_tokens=20, ignore_eos=True, seed=1)
    expected = generate(toy_engine()[0], request("a", range(30), **_params(asked))).tokens["a", 0]
    engine.submit(asked)
    tokens = [t for _ in range(9) for e in engine.step() for t in e.tokens]
    engine.sleep()
    assert made[0].closed
    assert engine.stats().asleep
    assert engine.step() == []
    engine.wake()
    results = finish(engine)
    assert tokens + results.tokens["a", 0] == expected
    # Nine full pages were kept, so little was computed again.
    assert made[1].tokens < 20
    engine.close()
    assert made[1].closed


def _params(one: SequenceRequest) -> dict[str, Any]:
    names = ("max_tokens", "ignore_eos", "seed")
    return {name: getattr(one.params, name) for name in names}


def test_restart_remembers_what_was_read(tmp_path: Path) -> None:
    options = EngineOptions(lookup=False, calibrate=False, disk=tmp_path)
    prompt = list(range(38))
    engine, first = toy_engine(options)
    expected = generate(engine, request("a", prompt, max_tokens=9, temperature=0)).tokens
    engine.close()
    engine, second = toy_engine(options)
    results = generate(engine, request("a", prompt, max_tokens=9, temperature=0))
    assert results.tokens == expected
    assert second.tokens < first.tokens - 30
    usage = results.last["a", 0].usage
    assert usage is not None
    assert usage.cached_tokens == 36
    assert engine.stats().disk_tokens == 36
    engine.close()


def test_pages_of_another_model_are_not_taken(tmp_path: Path) -> None:
    options = EngineOptions(lookup=False, calibrate=False, disk=tmp_path)
    engine, _ = toy_engine(options)
    generate(engine, request("a", range(30), max_tokens=3))
    engine.close()
    engine, _ = toy_engine(options, memory=7)
    generate(engine, request("a", range(30), max_tokens=3))
    assert engine.stats().disk_tokens == 0
    engine.close()


def test_disk_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    options = EngineOptions(calibrate=False, disk=tmp_path / "file")
    with pytest.raises(OutputError, match="cannot keep pages here"):
        toy_engine(options)


KILLED = """
import sys, itertools
from pathlib import Path
from edgeinfer.runtime.llm.options import EngineOptions
from tests.runtime.llm.toy import generate, request, toy_engine
options = EngineOptions(lookup=False, calibrate=False, disk=Path(sys.argv[1]))
engine, _ = toy_engine(options, page=16, context=4096, pages=4096, max_tokens=512)
print("up", flush=True)
for i in itertools.count():
    prompt = [i // 37 % 37, i % 37] * 300
    generate(engine, request(str(i), prompt, max_tokens=1))
    engine._cache.prefixes.persist_all()
"""


def test_kill_while_pages_are_written_leaves_whole_pages(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    options = EngineOptions(lookup=False, calibrate=False, disk=tmp_path)
    sizes: dict[str, Any] = {"page": 16, "context": 4096, "pages": 4096, "max_tokens": 512}
    for delay in (0.2, 0.05, 0.4):
        command = [sys.executable, "-c", KILLED, str(tmp_path)]
        places = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
        child = subprocess.Popen(
            command, stdout=subprocess.PIPE, cwd=root, env=os.environ | {"PYTHONPATH": places}
        )
        assert child.stdout is not None
        child.stdout.readline()
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("*/*.kv")) and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(delay)
        child.kill()
        child.wait()
        child.stdout.close()
        engine, _ = toy_engine(options, **sizes)
        assert not list(tmp_path.glob("*/*.part*"))
        found = generate(engine, request("a", [0, 0] * 300, max_tokens=5, temperature=0))
        expected = generate(
            toy_engine(**sizes)[0], request("a", [0, 0] * 300, max_tokens=5, temperature=0)
        )
        assert found.tokens == expected.tokens
        store = engine._cache._store
        assert store is not None
        assert engine.stats().disk_tokens > 0
        assert store.damaged == 0
        engine.close()


def test_many_texts_of_one_request_let_others_in() -> None:
    """128 texts of one client had every row of the table until they ended."""
    engine, _ = toy_engine(max_sequences=4, pages=200)
    engine.submit(request("a", [1, 2], n=12, max_tokens=60, ignore_eos=True, seed=7))
    results = Results()
    for _ in range(5):
        results.add(engine.step())
    assert engine.stats().running == 4
    assert engine.stats().waiting == 8
    engine.submit(request("b", [3, 4], max_tokens=3, ignore_eos=True))
    engine.submit(request("c", [5, 6], n=3, max_tokens=3, ignore_eos=True))
    steps = 0
    while not {("b", 0), ("c", 0)} <= results.last.keys():
        results.add(engine.step())
        steps += 1
    assert steps < 15
    finish(engine, results)
    assert sum(event.finish == "length" for event in results.last.values()) == 16
    expected = generate(
        toy_engine(max_sequences=16, pages=400)[0],
        request("a", [1, 2], n=12, max_tokens=60, ignore_eos=True, seed=7),
    )
    assert all(results.tokens[key] == tokens for key, tokens in expected.tokens.items())


def test_who_finds_no_page_takes_those_of_the_request_that_runs_most() -> None:
    engine, _ = toy_engine(max_sequences=6, pages=24)
    engine.submit(request("a", [1, 2], n=5, max_tokens=40, ignore_eos=True))
    engine.step()
    engine.submit(request("b", [3, 4], max_tokens=20, ignore_eos=True))
    results = finish(engine)
    usages = {key: event.usage for key, event in results.last.items()}
    assert usages["b", 0].preemptions == 0  # type: ignore[union-attr]
    assert sum(u.preemptions for u in usages.values() if u is not None) > 0


def test_higher_priority_takes_the_rows_of_lower_ones() -> None:
    engine, _ = toy_engine(QUIET, max_sequences=2, pages=200)
    slow = [request(name, [i], max_tokens=40, ignore_eos=True) for i, name in enumerate("abc")]
    slow[1].priority = -1
    results = Results()
    for one in slow[:2]:
        engine.submit(one)
    results.add(engine.step())
    urgent = request("u", [9], max_tokens=5, ignore_eos=True)
    urgent.priority = 3
    engine.submit(slow[2])
    engine.submit(urgent)
    finish(engine, results)
    preemptions = {key[0]: e.usage.preemptions for key, e in results.last.items() if e.usage}
    ended = [key[0] for key in results.last]
    # The lowest of those that ran gave way, and what waited at 0 went on before it.
    assert ended == ["u", "a", "c", "b"]
    assert preemptions["b"] > 0
    assert preemptions["a"] == preemptions["c"] == preemptions["u"] == 0
    expected = generate(toy_engine(QUIET, max_sequences=8, pages=400)[0], *slow, urgent)
    assert results.tokens == expected.tokens


def test_higher_priority_takes_the_pages_of_lower_ones() -> None:
    engine, _ = toy_engine(QUIET, max_sequences=8, pages=24)
    low = [request(f"low{i}", [i] * 20, max_tokens=60, ignore_eos=True) for i in range(4)]
    results = Results()
    for one in low:
        engine.submit(one)
    for _ in range(4):
        results.add(engine.step())
    urgent = request("u", [9] * 50, max_tokens=3, ignore_eos=True)
    urgent.priority = 1
    engine.submit(urgent)
    steps = 0
    while ("u", 0) not in results.last:
        results.add(engine.step())
        steps += 1
    assert steps < 10
    assert not any(key[0].startswith("low") for key in results.last)
    finish(engine, results)
    assert len(results.last) == 5


def test_equal_priorities_take_nothing_from_each_other() -> None:
    """A client with several texts above is no reason to swap two single ones below."""
    engine, _ = toy_engine(QUIET, max_sequences=3, pages=200)
    high = request("h", [1, 2], n=2, max_tokens=60, ignore_eos=True, seed=7)
    high.priority = 1
    results = Results()
    engine.submit(high)
    engine.submit(request("a", [3], max_tokens=30, ignore_eos=True))
    results.add(engine.step())
    engine.submit(request("b", [4], max_tokens=3, ignore_eos=True))
    finish(engine, results)
    assert sum(e.usage.preemptions for e in results.last.values() if e.usage) == 0


@pytest.mark.parametrize("looks", [True, False])
def test_every_token_but_the_first_has_a_time_between(looks: bool) -> None:
    """However tokens are chosen, and whoever else was in the step."""
    engine, _ = toy_engine(looks=looks)
    kinds: tuple[dict[str, Any], ...] = ({}, {}, {"temperature": 1.0}, {"logprobs": 1})
    for number, more in enumerate(kinds):
        asked: dict[str, Any] = {"temperature": 0, "max_tokens": 9, **more}
        engine.submit(request(str(number), range(5), **asked))
    results = generate(engine)
    tokens = sum(map(len, results.tokens.values()))
    times = engine.histograms()["inter_token"].percentiles()
    assert times is not None
    assert times.count == tokens - 4 == engine.stats().generated_tokens - 4
