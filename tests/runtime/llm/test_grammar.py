"""Texts of a given form, however a model would rather go on."""

from __future__ import annotations

import asyncio
import functools
import json
import random
import re
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgeinfer.errors import DeadlineError, InputError, NotAvailableError
from edgeinfer.runtime.llm import thread as thread_module
from edgeinfer.runtime.llm.engine import Engine
from edgeinfer.runtime.llm.grammar import Grammars
from edgeinfer.runtime.llm.options import EngineOptions
from edgeinfer.runtime.llm.params import Grammar, SamplingParams
from edgeinfer.runtime.llm.sequence import SequenceRequest
from edgeinfer.runtime.llm.thread import EngineThread
from edgeinfer.runtime.llm.tokenizer import TextTokenizer
from tests.runtime.llm.texts import byte_level
from tests.runtime.llm.toy import Clock, ToyExecutor, generate

pytest.importorskip("llguidance")
VOCAB = 420


@functools.cache
def grammars() -> Grammars:
    return Grammars(byte_level(), VOCAB, (0, 2))


def test_an_older_library_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several ends it said that a list is no integer."""
    import llguidance

    def older(tokenizer: str, *, n_vocab: int, eos_token: int | None) -> None:
        raise TypeError("argument 'eos_token': 'list' object cannot be interpreted as an integer")

    monkeypatch.setattr(llguidance, "LLTokenizer", older)
    with pytest.raises(NotAvailableError, match=r"llguidance 1\.7 or newer, and .* pip install"):
        Grammars(byte_level(), VOCAB, (0, 2))


def written(grammar: Grammar, seed: int, most: int = 400) -> tuple[str, bool]:
    """Write a text at random by what is allowed; say whether it came to an end."""
    tokenizer = TextTokenizer(byte_level(), VOCAB, None)
    rng = random.Random(seed)
    matcher = grammars().matcher(grammar)
    tokens: list[int] = []
    while len(tokens) < most and not matcher.is_complete:
        allowed = matcher.allowed()
        choices = [int(t) for t in allowed.nonzero()[0]]
        ends = [t for t in choices if t in (0, 2)]
        if ends and rng.random() < 0.5:
            return tokenizer.decode(tokens), True
        token = rng.choice([t for t in choices if t not in (0, 2)] or ends)
        matcher.take(token)
        tokens.append(token)
    return tokenizer.decode(tokens), matcher.is_complete


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("seed", range(8))
def test_text_obeys_its_schema(seed: int) -> None:
    text, ended = written(Grammar("json_schema", json.dumps(SCHEMA)), seed)
    assert ended
    data = json.loads(text)
    assert set(data) <= set(SCHEMA["properties"])  # type: ignore[call-overload]
    assert len(data["name"]) <= 5
    assert 0 <= data["age"] <= 150
    assert set(data.get("tags", [])) <= {"a", "b"}
    assert len(data.get("tags", [])) <= 3


@pytest.mark.parametrize("seed", range(3))
def test_list_of_no_items_is_empty(seed: int) -> None:
    text, ended = written(Grammar("json_schema", '{"type": "array", "maxItems": 0}'), seed)
    assert ended
    assert json.loads(text) == []


@pytest.mark.parametrize("kind", ["lark", "gbnf"])
def test_braces_next_to_each_other(kind: Any) -> None:
    text = 'start: "{" "}"' if kind == "lark" else 'root ::= "{" "}"'
    assert written(Grammar(kind, text), 0) == ("{}", True)


@pytest.mark.parametrize("seed", range(5))
def test_expression_is_for_the_whole_text(seed: int) -> None:
    text, ended = written(Grammar("regex", r"[a-f]{2,4}-[0-9]+x"), seed)
    assert ended
    assert re.fullmatch(r"[a-f]{2,4}-[0-9]+x", text)


@pytest.mark.parametrize("seed", range(5))
def test_choice_is_one_of_its_texts(seed: int) -> None:
    text, ended = written(Grammar("choice", '["yes", "no", "not sure"]'), seed)
    assert ended
    assert text in ("yes", "no", "not sure")


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        (Grammar("json_schema", "{"), "expected a valid json_schema, received Expecting"),
        (Grammar("json_schema", '{"type": "nonsense"}'), "Invalid type: nonsense"),
        (Grammar("json_schema", "[]"), "a schema is an object"),
        (
            Grammar("json_schema", '{"type": "array", "minItems": 3, "maxItems": 0}'),
            r"Unsatisfiable schema: minItems \(3\) is greater than maxItems \(0\)",
        ),
        (Grammar("regex", "[ab"), "unclosed character class"),
        (Grammar("regex", "(?=a)b"), "valid regex"),
        (Grammar("lark", 'start: "{" "}'), "lexer error"),
        (Grammar("lark", "start: missing"), "missing"),
        (Grammar("lark", ""), "valid lark"),
        (Grammar("gbnf", 'root ::= "a" ['), "Unexpected end of input"),
        (Grammar("choice", '"yes"'), "a JSON list of texts"),
        (Grammar("choice", "[]"), "a JSON list of texts"),
    ],
)
def test_malformed_grammar_is_refused_in_one_line(grammar: Grammar, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        grammars().matcher(grammar)
    assert "\n" not in str(caught.value)


def test_keyword_that_would_not_be_enforced_is_refused() -> None:
    schema = '{"type": "object", "dependentSchemas": {"a": {"required": ["b"]}}}'
    with pytest.raises(InputError, match="dependentSchemas"):
        grammars().matcher(Grammar("json_schema", schema))


@pytest.mark.parametrize(
    ("schema", "factor"),
    [
        ({"multipleOf": 99999989}, 99999989),
        ({"multipleOf": -9999991}, -9999991),
        ({"multipleOf": 2**30}, 2**30),
        ({"multipleOf": 99999.5}, 99999.5),
        ({"allOf": [{"multipleOf": p} for p in (97, 101, 103)]}, 103),
        ({"anyOf": [{"multipleOf": p} for p in (1987, 1993, 1997)]}, 1993),
    ],
)
@pytest.mark.parametrize("kind", ["json_schema", "lark"])
def test_remainders_without_end_are_refused_before_any_is_looked_at(
    schema: Any, factor: float, kind: Any
) -> None:
    text = json.dumps({"type": "integer", **schema})
    text = text if kind == "json_schema" else f"start: %json {text}"
    with pytest.raises(InputError, match=f"multipleOf {factor}: .* may be 10000 at most"):
        grammars().matcher(Grammar(kind, text))


@pytest.mark.parametrize("factors", [(0.01, 0.25), (100_000, 7), (9973,), (1e-06,)])
def test_remainders_that_are_few_are_allowed(factors: tuple[float, ...]) -> None:
    schema = {"anyOf": [{"type": "number", "multipleOf": factor} for factor in factors]}
    text, _ = written(Grammar("json_schema", json.dumps(schema)), 1, most=12)
    assert text


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar("json_schema", json.dumps({"enum": ["x" * 64] * 5000})),
        Grammar("json_schema", json.dumps({"title": "x" * (1 << 18)})),
    ],
)
def test_grammar_that_takes_too_much_work_is_refused_before_it_runs(grammar: Grammar) -> None:
    with pytest.raises(InputError) as caught:
        grammars().matcher(grammar)
    assert len(str(caught.value)) < 300


def test_text_whose_grammar_becomes_too_complex_is_the_callers_fault() -> None:
    matcher = grammars().matcher(Grammar("regex", "ab"))
    matcher._inner.consume_token(3)
    with pytest.raises(InputError, match="within the limits"):
        matcher.allowed()


def test_grammars_that_take_long_keep_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """One lock for all had every request with a grammar wait for the slowest."""
    begun, go_on = threading.Event(), threading.Event()
    mine, compile_ = Grammars(byte_level(), VOCAB, (0,)), Grammars.compiled

    def slow(self: Grammars, grammar: Grammar) -> Any:
        if grammar.text == "slow":
            begun.set()
            assert go_on.wait(30)
        return compile_(self, grammar)

    monkeypatch.setattr(Grammars, "compiled", slow)
    engine = Engine(Wide, _tokenizer().vocabulary, (0,), grammars=lambda: mine, clock=Clock())
    asked = [
        SequenceRequest(text, [5], SamplingParams(grammar=Grammar("regex", text)))
        for text in ("slow", "b")
    ]
    thread = threading.Thread(target=engine.prepare, args=asked[:1])
    thread.start()
    try:
        assert begun.wait(30)
        engine.prepare(asked[1])
        assert asked[1].matcher is not None
    finally:
        go_on.set()
        thread.join()


def test_nobody_waits_for_ever_for_a_grammar(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, taken = threading.Event(), list[str]()

    def endless(self: Engine, request: SequenceRequest) -> None:
        taken.append(request.id)
        assert go_on.wait(30)

    monkeypatch.setattr(Engine, "prepare", endless)
    monkeypatch.setattr(thread_module, "COMPILING_S", 0.2)
    thread = EngineThread(_engine(lookup=False))
    params = SamplingParams(grammar=Grammar("regex", "a"))

    async def ask(name: str) -> None:
        with pytest.raises(DeadlineError, match=r"not compiled within 0\.2 s"):
            await thread.submit_async(SequenceRequest(name, [5], params))

    async def main() -> None:
        await asyncio.gather(*map(ask, "abcd"))

    try:
        asyncio.run(main())
    finally:
        go_on.set()
        thread.close()
    # Two run, and those that waited were taken back.
    assert sorted(taken) == ["a", "b"]


def test_blanks_end() -> None:
    matcher = grammars().matcher(Grammar("json_schema", '{"type": "array"}'))
    tokenizer = TextTokenizer(byte_level(), VOCAB, None)
    for token in tokenizer.encode("["):
        matcher.take(token)
    (blank,) = tokenizer.encode(" ")
    count = 0
    while matcher.allowed()[blank]:
        matcher.take(blank)
        count += 1
        assert count < 100
    assert count


class Wide(ToyExecutor):
    """The toy with as many tokens as the tokenizer has."""

    def __init__(self) -> None:
        super().__init__(pages=200, context=600)
        self.vocab = VOCAB

    def _row(self, position: int, table: Any) -> Any:
        seed = int(abs(super()._row(position, table)[:4]).sum() * 1e6)
        return np.random.default_rng(seed).standard_normal(VOCAB).astype(np.float32)


def _tokenizer() -> TextTokenizer:
    return TextTokenizer(byte_level(), VOCAB, None)


def _engine(lookup: bool) -> Engine:
    tokenizer = _tokenizer()
    options = EngineOptions(lookup=lookup, calibrate=False)
    return Engine(
        Wide, tokenizer.vocabulary, (0,), grammars=grammars, options=options, clock=Clock()
    )


def test_engine_obeys_whatever_it_guesses() -> None:
    schema = json.dumps(SCHEMA)
    results = []
    for lookup in (False, True):
        params = SamplingParams(
            grammar=Grammar("json_schema", schema), seed=3, n=3, max_tokens=300, logit_bias={0: 3.0}
        )
        results.append(generate(_engine(lookup), SequenceRequest("a", [5, 6], params)))
    for index in range(3):
        assert results[0].last["a", index].finish == "stop"
        data = json.loads(results[0].text["a", index])
        assert set(data) <= set(SCHEMA["properties"])  # type: ignore[call-overload]
    assert results[0].tokens == results[1].tokens
    # What the grammar forces is guessed and verified several tokens at once.
    usage = results[1].last["a", 0].usage
    assert usage is not None
    assert usage.accepted_tokens > 0


def test_grammar_is_compiled_outside_of_the_engines_thread() -> None:
    engine = _engine(lookup=False)
    thread = EngineThread(engine)
    params = SamplingParams(grammar=Grammar("regex", "ab?c"), seed=1)
    try:
        with pytest.raises(InputError, match="valid regex"):
            thread.open(SequenceRequest("a", [5], replace(params, grammar=Grammar("regex", "["))))
        asked = SequenceRequest("b", [5], params)
        events = [*thread.open(asked), *thread.open(replace(asked, id="c"))]
    finally:
        thread.close()
    assert asked.matcher is not None
    texts = ["".join(e.text for e in events if e.request == name) for name in "bc"]
    assert texts[0] == texts[1]
    assert re.fullmatch("ab?c", texts[0])


def test_engine_refuses_a_malformed_grammar_at_once() -> None:
    engine = _engine(lookup=False)
    params = SamplingParams(grammar=Grammar("regex", "["))
    with pytest.raises(InputError, match="valid regex"):
        engine.submit(SequenceRequest("a", [5], params))
    assert engine.is_idle
