"""Anthropic's API, by its real client: the same texts as elsewhere, tools, streams, errors."""

from __future__ import annotations

from typing import Any

import pytest

from tests.runtime.serve.conftest import KEY, SCHEMA, Server, Start, held

URL = "/v1/messages"
ASKED: dict[str, Any] = {
    "model": "tiny",
    "max_tokens": 6,
    "messages": [{"role": "user", "content": "the cat"}],
    "extra_body": {"temperature": 0},
}
SENT = {k: v for k, v in ASKED.items() if k != "extra_body"} | ASKED["extra_body"]
TOOLS = [{"name": "light", "description": "A lamp.", "input_schema": SCHEMA}]


@pytest.fixture(scope="module")
def anthropic() -> Any:
    """Give the package, which takes a second to import."""
    return pytest.importorskip("anthropic")


@pytest.fixture(scope="module")
def client(server: Server, anthropic: Any) -> Any:
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)


def test_it_says_what_openais_api_says(server: Server, client: Any) -> None:
    found = client.messages.create(**ASKED)
    other = server.client.post("/v1/chat/completions", json=SENT).json()
    (block,) = found.content
    assert block.text == other["choices"][0]["message"]["content"]
    assert (found.role, found.stop_reason, found.stop_sequence) == ("assistant", "max_tokens", None)
    usage = found.usage
    assert usage.output_tokens == 6
    prompt = usage.input_tokens + usage.cache_read_input_tokens
    assert prompt == other["usage"]["prompt_tokens"]
    assert (
        client.messages.count_tokens(model="tiny", messages=ASKED["messages"]).input_tokens
        == prompt
    )
    assert [m.id for m in client.models.list()] == ["double", "tiny"]


def test_a_stream_is_the_same_text(client: Any) -> None:
    whole = client.messages.create(**ASKED)
    with client.messages.stream(**ASKED) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert final.stop_reason == "max_tokens"
    assert final.usage.output_tokens == 6
    kinds = [event.type for event in client.messages.create(**ASKED, stream=True)]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}


def test_what_ends_a_text_is_told(client: Any) -> None:
    text = client.messages.create(**ASKED).content[0].text
    stopped = client.messages.create(**ASKED, stop_sequences=[text[2:4]])
    assert stopped.content[0].text == text[:2]
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", text[2:4])


def test_tools_are_called_and_answered(client: Any) -> None:
    pytest.importorskip("llguidance")
    asked = {**ASKED, "max_tokens": 100, "tools": TOOLS, "tool_choice": {"type": "any"}}
    found = client.messages.create(**asked)
    (call,) = found.content
    assert found.stop_reason == "tool_use"
    assert (call.type, call.name) == ("tool_use", "light")
    assert isinstance(call.input["on"], bool)
    assert call.model_dump()["caller"] == {"type": "direct"}
    with client.messages.stream(**asked) as stream:
        (streamed,) = stream.get_final_message().content
    assert (streamed.name, streamed.input) == (call.name, call.input)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "done"}
    messages = [
        *ASKED["messages"],
        {"role": "assistant", "content": [{"type": "text", "text": "so"}, call]},
        {"role": "user", "content": [result, {"type": "text", "text": "and?"}]},
    ]
    answer = client.messages.create(**{**ASKED, "messages": messages}, tools=TOOLS)
    assert answer.usage.output_tokens >= 1


def test_a_system_text_and_blocks_are_read(server: Server) -> None:
    def count(**changes: Any) -> int:
        given = {**SENT, **changes}
        found = server.client.post(f"{URL}/count_tokens", json=given)
        assert found.status_code == 200, found.text
        return int(found.json()["input_tokens"])

    plain = count()
    hint = {"type": "text", "text": "the cat", "cache_control": {"type": "ephemeral"}}
    assert count(messages=[{"role": "user", "content": [hint]}]) == plain
    assert count(system="hello") > plain
    assert count(system=[{"type": "text", "text": "hello"}]) == count(system="hello")
    thought = {"type": "thinking", "thinking": "hm", "signature": "x"}
    said = [thought, {"type": "text", "text": "hello"}]
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": said}]
    bare = [turns[0], {"role": "assistant", "content": "hello"}]
    assert count(messages=turns) == count(messages=bare)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"messages": [{"role": "user", "content": [{"type": []}]}]},
            "messages[0].content[0]: type [] is not supported",
        ),
        ({"tool_choice": {"type": {}}}, "tool_choice: {'type': {}} is not supported"),
    ],
)
def test_kinds_that_are_no_texts(server: Server, changes: dict[str, Any], text: str) -> None:
    """They were looked for in a set, which is a fault."""
    tools = [{"name": "light", "input_schema": {"type": "object"}}]
    found = server.client.post(URL, json={**SENT, "tools": tools, **changes})
    assert (found.status_code, text in found.json()["error"]["message"]) == (400, True)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"max_tokens": None}, "max_tokens: is missing"),
        ({"nonsense": 1}, "not supported: nonsense"),
        ({"metadata": [[]]}, "not supported: metadata"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "not supported: thinking"),
        ({"messages": []}, "messages: expected a list"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "messages[0]: role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            "messages[0].content[0]: source: expected base64 with media_type and data",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "document"}]}]},
            "messages[0].content[0]: type 'document' is not supported; read are text and images",
        ),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0]: expected a custom"),
        ({"tool_choice": {"type": "any"}}, "tool_choice: needs tools"),
        ({"temperature": "hot"}, "temperature: expected a number"),
        ({"stop_sequences": 3}, "stop: expected"),
    ],
)
def test_refusals(client: Any, anthropic: Any, changes: dict[str, Any], text: str) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.post(URL, body={**SENT, **changes}, cast_to=object)
    body = caught.value.body
    assert body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error"
    assert text in body["error"]["message"]


def test_errors_have_the_protocols_kinds(start: Start, anthropic: Any) -> None:
    server = start(keys=(KEY,))
    good = anthropic.Anthropic(base_url=server.url, api_key=KEY, max_retries=0)
    assert good.messages.create(**ASKED).usage.output_tokens == 6
    with pytest.raises(anthropic.NotFoundError, match="not_found_error"):
        good.messages.create(**{**ASKED, "model": "nobody"})
    with pytest.raises(anthropic.BadRequestError, match="is not a language model"):
        good.messages.create(**{**ASKED, "model": "double"})
    bad = anthropic.Anthropic(base_url=server.url, api_key="x" * 20, max_retries=0)
    with pytest.raises(anthropic.AuthenticationError, match="authentication_error"):
        bad.messages.create(**ASKED)


def test_who_leaves_ends_his_request(server: Server) -> None:
    engine = server.hub.models["tiny"].text
    assert engine is not None
    before = engine.stats().finished.get("cancelled", 0)
    given = {**SENT, "max_tokens": 400, "stream": True}
    with held(server) as told:
        with server.client.stream("POST", URL, json=given) as response:
            next(response.iter_lines())
        told()
    assert engine.stats().running == 0
    assert engine.stats().finished.get("cancelled", 0) == before + 1
    assert server.client.post(URL, json=SENT).status_code == 200
