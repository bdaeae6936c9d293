"""OpenAI's API: what clients send is answered or refused by name, never ignored."""

from __future__ import annotations

import json
from typing import Any

import pytest

from edgeinfer.runtime.llm.engine import Engine
from edgeinfer.runtime.llm.sequence import SequenceRequest
from edgeinfer.runtime.serve import streams
from tests.runtime.serve.conftest import Server, held

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "the cat"}]


def chat(**changes: Any) -> dict[str, Any]:
    whole = {"model": "tiny", "messages": MESSAGES, "max_tokens": 6, "temperature": 0}
    return {**whole, "ignore_eos": True, **changes}


def events(text: str) -> list[Any]:
    lines = [line[6:] for line in text.split("\n\n") if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_a_conversation(server: Server) -> None:
    found = server.client.post(CHAT, json=chat()).json()
    assert (found["object"], found["model"]) == ("chat.completion", "tiny")
    (choice,) = found["choices"]
    assert choice["message"]["role"] == "assistant"
    assert choice["finish_reason"] == "length"
    usage = found["usage"]
    assert usage["completion_tokens"] == 6
    assert usage["total_tokens"] == usage["prompt_tokens"] + 6


def test_a_stream_is_the_same_text(server: Server) -> None:
    whole = server.client.post(CHAT, json=chat()).json()["choices"][0]["message"]["content"]
    given = chat(stream=True, stream_options={"include_usage": True})
    response = server.client.post(CHAT, json=given)
    assert response.headers["content-type"].startswith("text/event-stream")
    *parts, last = events(response.text)
    assert last["usage"]["completion_tokens"] == 6
    deltas = [part["choices"][0] for part in parts]
    assert deltas[0]["delta"]["role"] == "assistant"
    assert "".join(d["delta"].get("content") or "" for d in deltas) == whole
    assert deltas[-1]["finish_reason"] == "length"


def test_completions(server: Server) -> None:
    given = {"model": "tiny", "prompt": ["the cat", "hello"], "max_tokens": 4, "temperature": 0}
    found = server.client.post(TEXT, json=given).json()
    assert [c["index"] for c in found["choices"]] == [0, 1]
    echoed = server.client.post(TEXT, json={**given, "prompt": "the cat", "echo": True}).json()
    assert echoed["choices"][0]["text"] == "the cat" + found["choices"][0]["text"]
    tokens = server.client.post("/tokenize", json={"prompt": "the cat"}).json()["tokens"]
    same = server.client.post(TEXT, json={**given, "prompt": tokens}).json()
    assert same["choices"][0]["text"] == found["choices"][0]["text"]
    assert (
        server.client.post("/detokenize", json={"tokens": tokens[1:]}).json()["prompt"] == "the cat"
    )


def test_several_choices_and_probabilities(server: Server) -> None:
    given = chat(n=3, temperature=1.5, seed=1, logprobs=True, top_logprobs=2)
    found = server.client.post(CHAT, json=given).json()
    assert [c["index"] for c in found["choices"]] == [0, 1, 2]
    for choice in found["choices"]:
        content = choice["logprobs"]["content"]
        assert len(content) == 6
        assert all(len(c["top_logprobs"]) == 2 and c["logprob"] <= 0 for c in content)
    again = server.client.post(CHAT, json=given).json()
    texts = [[c["message"]["content"] for c in f["choices"]] for f in (found, again)]
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"nonsense": 1}, "not supported: nonsense"),
        ({"user": [[]]}, "not supported: user=a list"),
        ({"safety_identifier": {"a": 1}}, "not supported: safety_identifier=an object"),
        ({"store": True}, "not supported: store=true"),
        ({"model": None}, "model: expected a name"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"store": True}, "store=true"),
        ({"temperature": "hot"}, "temperature: expected a number"),
        ({"temperature": -1}, "temperature"),
        ({"top_logprobs": 2}, "needs logprobs"),
        ({"stop": 3}, "stop"),
        ({"messages": []}, "messages"),
        ({"messages": [{"content": "a"}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "image_url"),
        ({"response_format": {"type": "xml"}}, "'xml' is not supported"),
        ({"response_format": {"type": "json_schema"}}, "expected a schema"),
        ({"tool_choice": "required"}, "needs tools"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"logit_bias": {"999999": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "-100 to 100"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs: expected at most 20"),
        ({"logprobs": True, "top_logprobs": 20, "n": 128, "max_tokens": 400}, "at most 524288"),
        ({"n": 129}, "n: expected at most 128"),
        ({"adapter": 1}, "adapter: expected a name"),
        ({"adapter": "x"}, "one of the bundle's (none)"),
    ],
)
def test_what_is_not_supported_is_named(server: Server, changes: Any, text: str) -> None:
    found = server.client.post(CHAT, json=chat(**changes))
    assert found.status_code == 400
    assert text in found.json()["error"]["message"]


def test_probabilities_of_completions_have_a_bound(server: Server) -> None:
    given = {"model": "tiny", "prompt": ["a"] * 128, "max_tokens": 400}
    for logprobs, text in ((21, "logprobs: expected at most 20"), (20, "at most 524288")):
        found = server.client.post("/v1/completions", json={**given, "logprobs": logprobs})
        assert found.status_code == 400
        assert text in found.json()["error"]["message"]


def test_fault_in_sampling_ends_nobody_else(server: Server) -> None:
    """Numbers that made NaN of a row ended the engine's step, and with it everybody's texts."""
    given = {"model": "tiny", "prompt": "a", "max_tokens": 5}
    bad: tuple[dict[str, Any], ...] = (
        {"logit_bias": {"5": 1.7e308}, "top_p": 0.9},
        {"presence_penalty": -1e300, "min_p": 0.5},
        {"repetition_penalty": 1e-320, "top_p": 0.5},
        {"logit_bias": {str(i): "-inf" for i in range(420)}},
    )
    long = {**given, "max_tokens": 300, "ignore_eos": True}
    with server.client.stream("POST", "/v1/completions", json={**long, "stream": True}) as other:
        parts = other.iter_lines()
        next(parts)
        for more in bad:
            found = server.client.post("/v1/completions", json={**given, **more})
            assert found.status_code == 400, found.text
        found = server.client.post("/v1/completions", json={**given, "temperature": 1e-320})
        assert found.status_code == 200
        lines = [*parts]
    assert not any('"error"' in line for line in lines)
    assert lines[-2] == "data: [DONE]"


def test_models(server: Server) -> None:
    found = server.client.get("/v1/models").json()["data"]
    assert {m["id"]: m["kind"] for m in found} == {"double": "tensors", "tiny": "text"}
    assert server.client.get("/v1/models/nobody").status_code == 404
    assert server.client.post(CHAT, json=chat(model="nobody")).status_code == 404
    assert server.client.post(CHAT, json=chat(model="double")).status_code == 400


def test_json_is_json(server: Server) -> None:
    pytest.importorskip("llguidance")
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    kind = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    given = chat(response_format=kind, ignore_eos=False, max_tokens=60)
    found = server.client.post(CHAT, json=given).json()["choices"][0]
    if found["finish_reason"] == "stop":
        assert isinstance(json.loads(found["message"]["content"])["a"], bool)


def test_arguments_of_calls_are_one_json_text(server: Server) -> None:
    pytest.importorskip("llguidance")
    schema = {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"]}
    closed = {**schema, "additionalProperties": False}
    tool = {"type": "function", "function": {"name": "light", "parameters": closed}}
    given = chat(tools=[tool], tool_choice="required", max_tokens=100, ignore_eos=False)
    (choice,) = server.client.post(CHAT, json=given).json()["choices"]
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    assert isinstance(json.loads(call["function"]["arguments"])["on"], bool)


def test_who_leaves_ends_his_request(server: Server) -> None:
    engine = server.hub.models["tiny"].text
    assert engine is not None
    before = engine.stats().finished.get("cancelled", 0)
    given = chat(stream=True, max_tokens=400)
    with held(server) as told:
        with server.client.stream("POST", CHAT, json=given) as response:
            next(response.iter_lines())
        told()
    assert engine.stats().running == 0
    assert engine.stats().finished.get("cancelled") == before + 1
    assert server.client.post(CHAT, json=chat()).status_code == 200


@pytest.mark.parametrize("path", [CHAT, "/v2/models/tiny/generate_stream"])
def test_long_silence_has_comments(
    server: Server, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(streams, "KEEP_ALIVE_S", 0.01)
    given = chat(stream=True) if path == CHAT else {"text_input": "the cat"}
    with held(server, 0), server.client.stream("POST", path, json=given) as response:
        assert next(line for line in response.iter_lines() if line) == ": keep-alive"


def test_the_real_client(server: Server) -> None:
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    options: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "max_tokens": 6}
    whole = client.chat.completions.create(**options, temperature=0)
    stream = client.chat.completions.create(**options, temperature=0, stream=True)
    text = "".join(part.choices[0].delta.content or "" for part in stream if part.choices)
    assert text == whole.choices[0].message.content
    with pytest.raises(openai.BadRequestError, match="not supported: nonsense"):
        client.chat.completions.create(**options, extra_body={"nonsense": 1})
    assert {m.id for m in client.models.list()} == {"double", "tiny"}


@pytest.mark.parametrize("path", [CHAT, TEXT, "/v1/responses"])
def test_an_adapter_reaches_the_engine(
    server: Server, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    found: list[str] = []
    submit = Engine.submit

    def told(engine: Engine, request: SequenceRequest) -> None:
        found.append(request.adapter)
        request.adapter = ""
        submit(engine, request)

    monkeypatch.setattr(Engine, "submit", told)
    texts: dict[str, dict[str, Any]] = {CHAT: {"messages": MESSAGES}, TEXT: {"prompt": "a"}}
    given = {"model": "tiny", "adapter": "fr", **texts.get(path, {"input": "a"})}
    assert server.client.post(path, json=given).status_code == 200
    assert found == ["fr"]


def test_a_priority_reaches_the_engine(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[int] = []
    submit = Engine.submit

    def told(engine: Engine, request: SequenceRequest) -> None:
        found.append(request.priority)
        submit(engine, request)

    monkeypatch.setattr(Engine, "submit", told)
    for path, given in ((CHAT, chat()), (TEXT, {"model": "tiny", "prompt": "a", "max_tokens": 1})):
        assert server.client.post(path, json={**given, "priority": -5}).status_code == 200
    assert server.client.post(CHAT, json=chat()).status_code == 200
    # Lower ones come first there, higher ones in the engine.
    assert found == [5, 5, 0]
    for wrong in (1.5, "high", True, 1 << 40):
        refused = server.client.post(CHAT, json=chat(priority=wrong))
        assert (refused.status_code, "priority" in refused.text) == (400, True)
