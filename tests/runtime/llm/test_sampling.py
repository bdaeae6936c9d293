"""The choice of tokens, against its definition written out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgeinfer.errors import InputError, RunError
from edgeinfer.runtime.llm.params import SamplingParams
from edgeinfer.runtime.llm.sampling import Sampler, logprobs, uniform

VOCAB = 50


def sampler(prompt: tuple[int, ...] = (), eos: tuple[int, ...] = (), **params: Any) -> Sampler:
    return Sampler(SamplingParams(**params), params.get("seed", 0), 0, eos, prompt)


def row(seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(VOCAB).astype(np.float32) * 3


def expected(logits: Any, *, temperature: float, top_k: int, top_p: float, min_p: float) -> Any:
    """Return the probabilities of all tokens, by sorting all of them."""
    order = sorted(range(len(logits)), key=lambda t: (-logits[t], t))
    if top_k:
        order = order[:top_k]
    weights = {t: np.exp((float(logits[t]) - float(logits[order[0]])) / temperature) for t in order}
    total = sum(weights.values())
    kept, mass = [], 0.0
    for token in order:
        kept.append(token)
        mass += weights[token] / total
        if mass >= top_p:
            break
    kept = [t for t in kept if weights[t] >= min_p]
    found = np.zeros(len(logits))
    for token in kept:
        found[token] = weights[token]
    return found / found.sum()


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "min_p"),
    [
        (1.0, 0, 1.0, 0.0),
        (0.5, 7, 1.0, 0.0),
        (2.0, 0, 0.9, 0.0),
        (2.0, 0, 1.0, 0.1),
        (1.0, 1, 0.9, 0.1),
        (2.0, 7, 0.3, 0.0),
        (0.5, 7, 0.9, 0.1),
    ],
)
def test_frequencies_are_the_probabilities(
    temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    asked: dict[str, Any] = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
    }
    logits = row()
    wanted = expected(logits, **asked)
    count = 2000
    chooser = sampler((), (), **asked)
    found = np.bincount([chooser.choose(logits, i, None) for i in range(count)], minlength=VOCAB)
    assert (found[wanted == 0] == 0).all()
    # Six standard deviations, of a fixed seed.
    assert (abs(found / count - wanted) < 6 * np.sqrt(wanted / count) + 2 / count).all()


@pytest.mark.sample(9)
@pytest.mark.parametrize("vocab", [640, 1000, 5003])
@pytest.mark.parametrize("levels", [3, 20, 0])
@pytest.mark.parametrize(("top_k", "top_p"), [(7, 1.0), (100, 0.9), (0, 0.7), (0, 1.0)])
def test_choices_of_large_vocabularies_are_those_of_the_definition(
    vocab: int, levels: int, top_k: int, top_p: float
) -> None:
    """With few levels there are ties everywhere, also between groups that are looked at apart."""
    rng = np.random.default_rng(vocab + levels)
    asked: dict[str, Any] = {"temperature": 1.5, "top_k": top_k, "top_p": top_p, "min_p": 0.0}
    chooser = sampler((), (), **asked)
    checked = 0
    for index in range(20):
        logits = rng.standard_normal(vocab).astype(np.float32) * 3
        logits = np.round(logits * levels / 9) if levels else logits
        ends = expected(logits, **asked).cumsum()
        share = uniform(0, 0, index)
        token = chooser.choose(logits, index, None)
        assert chooser.choose(logits, index, None, int(logits.argmax())) == token
        # Next to an end the last bit of a sum decides.
        if np.abs(ends - share).min() > 1e-6:
            checked += 1
            assert token == np.searchsorted(ends, share, side="right")
    assert checked > 15


def test_ties_at_the_edge_of_top_k_go_to_lower_ids() -> None:
    logits = np.zeros(VOCAB, np.float32)
    logits[[3, 40]] = 1
    chooser = sampler(top_k=4)
    assert {chooser.choose(logits, i, None) for i in range(300)} == {0, 1, 3, 40}


def test_greedy_takes_the_first_of_equals() -> None:
    logits = np.zeros(VOCAB, np.float32)
    logits[[7, 9]] = 2
    assert sampler(temperature=0).choose(logits, 0, None) == 7
    assert sampler(temperature=0, logit_bias={3: 0.0}).choose(logits, 0, None) == 7


def test_random_numbers_depend_on_seed_branch_and_index_alone() -> None:
    numbers = {uniform(s, b, i) for s in range(9) for b in range(9) for i in range(9)}
    assert len(numbers) == 729
    assert uniform(1, 2, 3) == uniform(1, 2, 3)
    assert all(0 <= n < 1 for n in numbers)
    spread = [uniform(5, 0, i) for i in range(10_000)]
    assert abs(np.mean(spread) - 0.5) < 0.01
    assert abs(np.var(spread) - 1 / 12) < 0.002
    assert abs(np.corrcoef(spread[1:], spread[:-1])[0, 1]) < 0.03


def test_tiny_temperature_is_greedy() -> None:
    logits = row()
    assert sampler(temperature=1e-9).choose(logits, 0, None) == int(logits.argmax())


@pytest.mark.parametrize("temperature", [1e-320, 1e-40, 1e38, 1e308])
@pytest.mark.parametrize("more", [{}, {"top_p": 1e-300}, {"top_p": 0.5, "min_p": 1.0}])
def test_temperature_at_the_ends_of_what_numbers_hold(temperature: float, more: Any) -> None:
    logits = row()
    best = int(logits.argmax())
    chooser = sampler(temperature=temperature, logit_bias={3: -np.inf}, **more)
    found = {chooser.choose(logits, i, None) for i in range(400)}
    if temperature < 1 or more:
        # With equal weights a share of one half goes to any; the smallest one to the first.
        assert found == {best} if temperature < 1 else 3 not in found
    else:
        assert len(found) > VOCAB // 2
        assert 3 not in found


def test_logits_that_a_change_makes_infinite_are_an_error() -> None:
    logits = row()
    logits[4] = 3e38
    chooser = sampler((4,), repetition_penalty=0.01, top_p=0.5)
    with pytest.raises(RunError, match="gave the logit inf"):
        chooser.choose(logits, 0, None)


def test_penalties_by_their_definition() -> None:
    logits = np.array([2.0, -1.0, 1.5, 0.5, 1.9], np.float32)

    def left(chooser: Sampler) -> list[float]:
        return [float(x) for x in chooser._changed(logits, 9, None)]

    chooser = sampler((1, 2), repetition_penalty=2.0)
    assert left(chooser) == pytest.approx([2, -2, 0.75, 0.5, 1.9])
    chooser.observe(0)
    assert left(chooser) == pytest.approx([1, -2, 0.75, 0.5, 1.9])
    chooser = sampler((1, 2), presence_penalty=0.5, frequency_penalty=0.25)
    for token in (0, 0, 3):
        chooser.observe(token)
    assert left(chooser) == pytest.approx([2 - 0.5 - 0.5, -1, 1.5, 0.5 - 0.5 - 0.25, 1.9])
    assert logits[0] == 2


def test_bias_forbids_and_prefers() -> None:
    logits = row()
    best = int(logits.argmax())
    assert sampler(temperature=0, logit_bias={best: -np.inf}).choose(logits, 0, None) != best
    assert sampler(temperature=0, logit_bias={4: 100.0}).choose(logits, 0, None) == 4


def test_no_end_before_min_tokens() -> None:
    logits = row()
    best = int(logits.argmax())
    chooser = sampler(eos=(best,), temperature=0, min_tokens=3)
    assert [chooser.choose(logits, i, None) == best for i in range(5)] == [False] * 3 + [True] * 2
    chooser = sampler(temperature=0, min_tokens=1, stop_tokens=(best,))
    assert chooser.choose(logits, 0, None) != best


def test_grammar_allows_only_its_tokens() -> None:
    allowed = np.zeros(VOCAB, np.bool_)
    allowed[[5, 6]] = True
    for temperature in (0.0, 1.0):
        chooser = sampler(temperature=temperature)
        assert {chooser.choose(row(), i, allowed) for i in range(100)} <= {5, 6}
    with pytest.raises(InputError, match="all are forbidden"):
        sampler(temperature=0).choose(row(), 0, np.zeros(VOCAB, np.bool_))


def test_logprobs_are_those_of_the_model() -> None:
    logits = row()
    whole = logits.astype(np.float64) - np.log(np.exp(logits.astype(np.float64)).sum())
    found = logprobs(logits, 7, 3)
    assert found.logprob == pytest.approx(whole[7])
    assert [t for t, _ in found.top] == list(np.argsort(-logits)[:3])
    assert [v for _, v in found.top] == pytest.approx(sorted(whole)[-3:][::-1])
    assert logprobs(logits, 7, 0).top == ()
    assert len(logprobs(logits, 7, 1000).top) == VOCAB


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"temperature": -1}, "'temperature': expected at least 0, received -1"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0}, "'top_p': expected above 0, at most 1, received 0"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"n": 0}, "'n': expected at least 1"),
        ({"stop": ("",)}, "stop"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"repetition_penalty": 1e-320}, "'repetition_penalty': expected 0.01 to 100"),
        ({"repetition_penalty": 1e300}, "repetition_penalty"),
        ({"presence_penalty": float("inf")}, "presence_penalty"),
        ({"presence_penalty": -1e300}, "'presence_penalty': expected -2 to 2"),
        ({"frequency_penalty": float("nan")}, "frequency_penalty"),
        ({"frequency_penalty": -1e308}, "'frequency_penalty': expected -2 to 2"),
        ({"logit_bias": {1: 1.7e308}}, "'logit_bias': expected numbers from -100 to 100"),
        ({"logit_bias": {1: float("nan")}}, "logit_bias"),
        ({"logit_bias": {1: float("inf")}}, "logit_bias"),
        ({"logprobs": -1}, "logprobs"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(params: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        SamplingParams(**params)


def test_parameters_that_the_model_has_not_are_refused() -> None:
    with pytest.raises(InputError, match=r"'logit_bias': expected tokens from 0 to 49.*\[50\]"):
        SamplingParams(logit_bias={50: 1.0}).fits(VOCAB)
    with pytest.raises(InputError, match="stop_tokens"):
        SamplingParams(stop_tokens=(-1,)).fits(VOCAB)
    with pytest.raises(InputError, match="logprobs"):
        SamplingParams(logprobs=51).fits(VOCAB)


def test_one_stop_text_may_be_given_alone() -> None:
    params: Any = {"stop": "ab"}
    assert SamplingParams(**params).stop == ("ab",)
