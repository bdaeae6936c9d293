"""Calls of tools in what a model wrote, which may be anything."""

import time

import pytest

from edgeinfer.runtime.llm.tools import FORMATS, ToolFormat

BY_NAME = {form.name: form for _, form in FORMATS}
CALL = '{"name": "f", "arguments": {"a": 1}}'


@pytest.mark.parametrize(
    ("name", "text", "count"),
    [
        (
            "hermes",
            f"so <tool_call>\n{CALL}\n</tool_call> and <tool_call>\n{CALL}\n</tool_call>",
            2,
        ),
        ("hermes", f"<tool_call>\n{CALL}", 0),
        ("hermes", f"<tool_call>\nno\n</tool_call><tool_call>\n{CALL}\n</tool_call>", 1),
        ("mistral", f"[TOOL_CALLS][{CALL},{CALL}]", 2),
        ("mistral", f"[TOOL_CALLS] [{CALL}]", 1),
        ("hermes", f"<tool_call>{CALL}</tool_call>", 1),
        ("llama3", '{"name": "f", "parameters": {"a": 1}}', 1),
        ("llama3", '<|python_tag|>{"name": "f", "parameters": {"a": 1}}', 1),
        ("llama3", 'so <|python_tag|>{"name": "f", "parameters": {"a": 1}}', 0),
        ("json", CALL, 1),
        ("json", f"so {CALL}", 0),
        ("json", "[" * 3000, 0),
    ],
)
def test_whole_calls_are_found(name: str, text: str, count: int) -> None:
    found = BY_NAME[name].calls(text)
    assert [(call.name, call.arguments) for call in found] == [("f", '{"a": 1}')] * count


@pytest.mark.parametrize("depth", [990, 20_000])
def test_calls_nested_deeply_are_whole_or_none(depth: int) -> None:
    """How deep Python reads and writes JSON is another with each of its versions."""
    arguments = '{"a": ' * depth + "1" + "}" * depth
    found = BY_NAME["json"].calls('{"name": "f", "arguments": ' + arguments + "}")
    assert [call.arguments for call in found] in ([], [arguments])


@pytest.mark.parametrize("form", [BY_NAME["hermes"], ToolFormat("own", "<a>", "</a>")])
def test_beginnings_without_an_end_take_no_time(form: ToolFormat) -> None:
    """Each was followed to the end of the text."""
    begun = time.process_time()
    assert form.calls(form.begin * 100_000) == ()
    assert time.process_time() - begun < 1
