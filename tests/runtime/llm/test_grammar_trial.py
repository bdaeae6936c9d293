"""What compiles grammars may end the process, or have no end: strangers' are tried in another."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest

from edgeinfer.backends.process import child, isolation
from edgeinfer.errors import InputError
from edgeinfer.runtime.llm import grammar as grammar_module
from edgeinfer.runtime.llm import grammar_trial
from edgeinfer.runtime.llm.engine import Engine
from edgeinfer.runtime.llm.grammar import Grammars
from edgeinfer.runtime.llm.grammar_trial import is_plain
from edgeinfer.runtime.llm.params import Grammar, SamplingParams
from edgeinfer.runtime.llm.sequence import SequenceRequest
from edgeinfer.runtime.llm.thread import EngineThread
from edgeinfer.runtime.llm.tokenizer import TextTokenizer
from edgeinfer.runtime.llm.tools import Tool, ToolFormat
from tests.runtime.llm.test_grammar import Wide
from tests.runtime.llm.texts import byte_level

pytest.importorskip("llguidance")
VOCAB = 420
INTEGER = {"type": "integer"}


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(isolation.IN_PROCESS, raising=False)


def grammars() -> Grammars:
    return Grammars(byte_level(), VOCAB, (0, 2))


def tokenizer() -> TextTokenizer:
    return TextTokenizer(byte_level(), VOCAB, None)


def overlapping(count: int) -> Grammar:
    patterns = {f"^(a|b)*{i}$": INTEGER for i in range(count)}
    schema = {"type": "object", "patternProperties": patterns, "additionalProperties": False}
    return Grammar("json_schema", json.dumps(schema))


def deep() -> Grammar:
    rules = "".join(f'r{i}: "x{i}" r{(i + 1) % 5000} | "a"\n' for i in range(5000))
    return Grammar("lark", "start: " + " | ".join(f"r{i}" for i in range(5000)) + f"\n{rules}")


@pytest.mark.skipif(not isolation.SUPPORTED, reason="needs a process of its own")
def test_a_grammar_that_ends_the_process_is_refused() -> None:
    """5,000 rules in a chain: a request ended the server."""
    with pytest.raises(InputError, match="one that ended it by SIG"):
        grammars().matcher(deep())


@pytest.mark.skipif(not isolation.SUPPORTED, reason="needs a process of its own")
def test_a_grammar_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """300 patterns take 79 s, and double that for 20 % more."""
    monkeypatch.setattr(grammar_trial, "LONGEST_S", 2.0)
    with pytest.raises(InputError, match="one that took more than 2 s"):
        grammars().matcher(overlapping(1000))


def test_what_was_refused_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def fails(request: Any) -> None:
        asked.append(request.grammar.text)
        raise InputError("grammar", grammar_trial.WITHIN, "one that took more than 15 s")

    monkeypatch.setattr(grammar_module, "check", fails)
    mine = grammars()
    for _ in range(3):
        with pytest.raises(InputError, match="one that took more than 15 s"):
            mine.matcher(deep())
        assert mine.knows(deep())
    assert len(asked) == 1
    assert not mine.knows(overlapping(1))


def test_what_is_tried_and_good_is_compiled() -> None:
    matcher = grammars().matcher(overlapping(3))
    assert matcher.allowed().any()
    with pytest.raises(InputError, match="a valid lark"):
        grammars().matcher(Grammar("lark", "start: ("))


PLAIN = (
    Grammar("json"),
    Grammar("regex", "ab?c"),
    Grammar("choice", '["yes", "no"]'),
    Grammar("json_schema", "true"),
    Grammar(
        "json_schema",
        json.dumps(
            {
                "type": "object",
                "properties": {
                    "at": {"type": "string", "format": "date"},
                    "n": {"anyOf": [INTEGER, {"type": "null"}]},
                    "all": {"type": "array", "items": {"enum": ["a", 1]}},
                },
                "required": ["at"],
                "additionalProperties": False,
            }
        ),
    ),
)


def _within(inner: Any, levels: int) -> Any:
    for _ in range(levels):
        inner = {"type": "array", "items": inner}
    return inner


OTHERS = (
    deep(),
    overlapping(1),
    Grammar("regex", "a" * 257),
    Grammar("lark", 'start: "a"'),
    Grammar("gbnf", 'root ::= "a"'),
    Grammar("choice", json.dumps(["x"] * 10_001)),
    *(
        Grammar("json_schema", json.dumps(schema))
        for schema in (
            {"type": "string", "pattern": "a"},
            {"allOf": [INTEGER, INTEGER]},
            {"$ref": "#/$defs/a", "$defs": {"a": INTEGER}},
            {"type": "string", "format": "email", "maxLength": 9},
            {"properties": {f"p{i}": INTEGER for i in range(301)}},
            {"description": "x" * (1 << 14)},
            _within(INTEGER, 21),
            {"items": {"not": INTEGER}},
            {"anyOf": {"a": INTEGER}},
        )
    ),
)


@pytest.mark.parametrize("grammar", PLAIN, ids=lambda g: f"{g.kind}-{g.text[:20]}")
def test_a_plain_grammar_needs_no_process(
    grammar: Grammar, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert is_plain(grammar)
    monkeypatch.setattr(child, "Child", None)
    assert grammars().matcher(grammar).allowed().any()


@pytest.mark.parametrize("grammar", OTHERS, ids=lambda g: f"{g.kind}-{g.text[:20]}")
def test_all_others_are_tried(grammar: Grammar) -> None:
    assert not is_plain(grammar)


def test_tools_are_judged_by_their_schemas() -> None:
    form = ToolFormat("hermes", "<tool_call>", "</tool_call>")
    plain = Tool("f", "", {"type": "object", "properties": {"a": INTEGER}})
    made = form.grammar([plain], "required")
    assert made is not None
    assert made.kind == "lark"
    assert is_plain(made)
    chain = Tool("f", "", {"type": "object", "patternProperties": {"a": INTEGER}})
    made = form.grammar([chain], "required")
    assert made is not None
    assert not is_plain(made)


def test_plain_grammars_do_not_wait_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two schemas kept both threads, and everybody else's request had no answer."""
    go_on, prepared = threading.Event(), list[str]()

    def prepare(self: Engine, request: SequenceRequest) -> None:
        if request.id != "plain":
            assert go_on.wait(30)
        prepared.append(request.id)

    monkeypatch.setattr(Engine, "prepare", prepare)
    thread = EngineThread(Engine(Wide, tokenizer().vocabulary, (0,), grammars=grammars))

    async def ask(name: str, grammar: Grammar) -> None:
        params = SamplingParams(grammar=grammar, max_tokens=1)
        await thread.submit_async(SequenceRequest(name, [5], params))

    async def main() -> None:
        others = [asyncio.ensure_future(ask(name, overlapping(1))) for name in ("a", "b", "c")]
        await asyncio.wait_for(ask("plain", Grammar("json")), 20)
        assert prepared[0] == "plain"
        go_on.set()
        await asyncio.gather(*others)

    try:
        asyncio.run(main())
    finally:
        go_on.set()
        thread.close()


def test_names_of_tools_stand_in_the_schema_alone() -> None:
    """They are anybody's, too."""
    form = ToolFormat("hermes", "<tool_call>", "</tool_call>")
    made = form.grammar([Tool('f" "x', "", {"type": "object"})], "required")
    assert made is not None
    assert made.text == f'start: "<tool_call>" %json {made.schema} "</tool_call>"'
