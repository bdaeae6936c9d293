"""OpenAI's responses, by its real client: the same texts as elsewhere, tools, streams, errors."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.runtime.serve.conftest import SCHEMA, Server

URL = "/v1/responses"
ASKED: dict[str, Any] = {
    "model": "tiny",
    "input": "the cat",
    "max_output_tokens": 6,
    "temperature": 0,
}
TOOLS = [{"type": "function", "name": "light", "description": "A lamp.", "parameters": SCHEMA}]


@pytest.fixture(scope="module")
def client(server: Server) -> Any:
    openai = pytest.importorskip("openai")
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def test_it_says_what_a_chat_says(client: Any) -> None:
    found = client.responses.create(**ASKED)
    chat = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "the cat"}],
        max_tokens=6,
        temperature=0,
    )
    assert found.output_text == chat.choices[0].message.content
    assert (found.status, found.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert found.usage.output_tokens == 6
    assert found.usage.input_tokens == chat.usage.prompt_tokens


def test_a_stream_is_the_same_text(client: Any) -> None:
    whole = client.responses.create(**ASKED)
    events = list(client.responses.create(**ASKED, stream=True))
    assert [e.sequence_number for e in events] == list(range(len(events)))
    kinds = [e.type.removeprefix("response.") for e in events]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert kinds[-4:] == [
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "incomplete",
    ]
    deltas = [e.delta for e in events if e.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text == events[-1].response.output_text


def test_tools_are_called_and_answered(client: Any) -> None:
    pytest.importorskip("llguidance")
    asked = {**ASKED, "max_output_tokens": 100, "tools": TOOLS, "tool_choice": "required"}
    found = client.responses.create(**asked)
    (call,) = found.output
    assert (call.type, call.name) == ("function_call", "light")
    assert isinstance(json.loads(call.arguments)["on"], bool)
    events = list(client.responses.create(**asked, stream=True))
    done = [e for e in events if e.type == "response.function_call_arguments.done"]
    assert [e.arguments for e in done] == [call.arguments]
    named = {"type": "function", "name": "light"}
    again = client.responses.create(**{**asked, "tool_choice": named})
    assert again.output[0].arguments == call.arguments
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "the cat"}]},
        call.model_dump(exclude_none=True),
        {"type": "function_call_output", "call_id": call.call_id, "output": "done"},
    ]
    assert client.responses.create(**{**ASKED, "input": items}).usage.output_tokens >= 1


def test_instructions_are_a_system_text(client: Any) -> None:
    plain = client.responses.create(**ASKED).usage.input_tokens
    told = client.responses.create(**ASKED, instructions="hello").usage.input_tokens
    items = [{"role": "developer", "content": "hello"}, {"role": "user", "content": "the cat"}]
    same = client.responses.create(**{**ASKED, "input": items}).usage.input_tokens
    assert plain < told == same


def test_a_form_is_kept(client: Any) -> None:
    pytest.importorskip("llguidance")
    form = {"format": {"type": "json_schema", "name": "s", "schema": SCHEMA}}
    found = client.responses.create(**{**ASKED, "max_output_tokens": 60}, text=form)
    assert found.status == "completed"
    assert isinstance(json.loads(found.output_text)["on"], bool)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"store": True}, "not supported: store"),
        ({"previous_response_id": "resp_1"}, "not supported: previous_response_id"),
        ({"reasoning": {"effort": "high"}}, "not supported: reasoning"),
        ({"nonsense": 1}, "not supported: nonsense"),
        ({"metadata": [[]]}, "not supported: metadata"),
        ({"prompt_cache_key": ["a"]}, "not supported: prompt_cache_key"),
        ({"input": []}, "input: expected a text or a list of items"),
        ({"input": [{"type": "item_reference", "id": "a"}]}, "type 'item_reference'"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "type 'input_image' is not supported; this model reads text",
        ),
        ({"tools": [{"type": "web_search"}]}, "tools[0]: type 'web_search' is not supported"),
        ({"text": {"format": {"type": "xml"}}}, "type 'xml' is not supported"),
        ({"max_output_tokens": 0}, "max_tokens"),
    ],
)
def test_refusals(server: Server, changes: dict[str, Any], text: str) -> None:
    found = server.client.post(URL, json={**ASKED, **changes})
    assert found.status_code == 400
    assert text in found.json()["error"]["message"]
