"""Anthropic's API: messages, whole or streamed, and the count of their tokens.

Source: Anthropic's API reference of messages, streaming and errors.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from edgeinfer.runtime.serve.http import (
    Harmless,
    Receive,
    RequestError,
    Scope,
    Send,
    answer_json,
    not_known,
)
from edgeinfer.runtime.serve.hub import Hub
from edgeinfer.runtime.serve.inflight import held
from edgeinfer.runtime.serve.keys import GRANT
from edgeinfer.runtime.serve.refusals import MESSAGES, error_body
from edgeinfer.runtime.serve.seeing import read_asked
from edgeinfer.runtime.serve.streams import Turn, deliver, sse

if TYPE_CHECKING:
    from edgeinfer.runtime.llm.llm import LLM
    from edgeinfer.runtime.llm.params import Usage
    from edgeinfer.runtime.serve.asked import Asked


_SAME = ("model", "temperature", "top_p", "top_k", "stream", "max_tokens", "cache_salt")
_READ = frozenset({*_SAME, "messages", "system", "stop_sequences", "tools", "tool_choice"})
_HARMLESS: Harmless = {
    "metadata": dict,
    "cache_control": dict,
    "service_tier": (None, "auto", "standard_only"),
    "thinking": (None, {"type": "disabled"}),
    "container": (None,),
    "output_config": (None, {}),
    "stop_sequences": (None,),
}
"""Fields with the values that ask for nothing; an empty tuple stands for any."""

_REASONS = {"stop": "end_turn", "length": "max_tokens"}
_NONE = dict.fromkeys(
    ("cache_creation", "inference_geo", "output_tokens_details", "server_tool_use", "service_tier")
)
"""Parts of a usage that are reported though they are empty."""

_PASSED = ("thinking", "redacted_thinking")
"""Blocks that the model's own templates leave out of a conversation. What JSON holds is compared
with words in a row: a list cannot be looked for in a set."""


class Anthropic:
    """Answers ``/v1/messages``.

    Args:
        hub: the models.
    """

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    async def route(
        self, path: str, method: str, scope: Scope, receive: Receive, send: Send
    ) -> bool:
        """Answer a request; False where the address is not one of these.

        Raises:
            RequestError: the request is wrong.
        """
        if path == MESSAGES and method == "POST":
            await self._messages(receive, send)
        elif path == f"{MESSAGES}/count_tokens" and method == "POST":
            await self._count(receive, send)
        else:
            return False
        return True

    async def _count(self, receive: Receive, send: Send) -> None:
        data, _, llm = await self._hub.asked(receive)
        given = {**data, "max_tokens": 1}
        (one,) = await read_asked(self._hub, llm, receive, self._reading(llm, given, "count"))
        if one.request.embeddings is not None and (grant := GRANT.get()) is not None:
            # Its images were looked at.
            grant.count_tokens(len(one.request.prompt))
        await answer_json(send, {"input_tokens": len(one.request.prompt)})

    def _reading(self, llm: LLM, data: Mapping[str, Any], id: str) -> Callable[[], list[Asked]]:
        return partial(_read, llm, data, id, self._hub.options.limits.elements)

    async def _messages(self, receive: Receive, send: Send) -> None:
        data, model, llm = await self._hub.asked(receive)
        id = f"msg_{secrets.token_hex(12)}"
        with self._hub.counted(model), self._hub.place(model):
            (one,) = await read_asked(self._hub, llm, receive, self._reading(llm, data, id))
            del data
            held().drop_data()
            form = _Form(id, model.name, len(one.request.prompt))
            await deliver(llm, one, form, receive, send, self._hub.options.limits.wait_s)


def _read(llm: LLM, data: Mapping[str, Any], id: str, most: int) -> list[Asked]:
    from edgeinfer.runtime.serve import asked as reader

    return reader.chats(llm, as_chat(data), id, most=most)


def as_chat(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request as one for a chat completion, which is the same conversation.

    Raises:
        RequestError: names the field that is wrong or not supported.
    """
    if unknown := not_known(data, _READ, _HARMLESS):
        raise RequestError(400, f"not supported: {', '.join(unknown)}")
    if data.get("max_tokens") is None:
        raise RequestError(400, "max_tokens: is missing")
    found: dict[str, Any] = {key: data[key] for key in _SAME if key in data}
    given = data.get("messages")
    if not isinstance(given, list) or not given:
        raise RequestError(400, "messages: expected a list with at least one message")
    messages = [m for i, each in enumerate(given) for m in _said(each, f"messages[{i}]")]
    system = data.get("system")
    if system is not None:
        messages.insert(0, {"role": "system", "content": _text(system, "system")})
    found["messages"] = messages
    stops = data.get("stop_sequences")
    if stops is not None:
        found["stop"] = stops
    tools = data.get("tools")
    if tools:
        found["tools"] = _tools(tools)
    choice = data.get("tool_choice")
    if choice is not None:
        found["tool_choice"] = _choice(choice)
    return found


def _said(given: Any, where: str) -> Iterator[dict[str, Any]]:
    """Give a message as those of a chat completion: results of tools are messages of their own."""
    role = given.get("role") if isinstance(given, dict) else None
    if role not in ("user", "assistant", "system"):
        raise RequestError(400, f"{where}: role: expected user, assistant or system")
    content = given.get("content")
    if isinstance(content, str):
        yield {"role": role, "content": content}
        return
    if not isinstance(content, list):
        raise RequestError(400, f"{where}: content: expected a text or a list of blocks")
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    for number, block in enumerate(content):
        place = f"{where}.content[{number}]"
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "text" and isinstance(block.get("text"), str):
            parts.append({"type": "text", "text": block["text"]})
        elif kind == "image" and role == "user":
            parts.append(_image(block, place))
        elif kind == "tool_use" and role == "assistant":
            calls.append(_call(block, place))
        elif kind == "tool_result" and role == "user":
            inner = block.get("content")
            result = "" if inner is None else _text(inner, place)
            yield {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": result}
        elif kind not in _PASSED:
            raise RequestError(
                400, f"{place}: type {kind!r} is not supported; read are text and images"
            )
    if calls:
        yield {"role": role, "content": parts, "tool_calls": calls}
    elif parts:
        yield {"role": role, "content": parts}


def _image(block: Mapping[str, Any], where: str) -> dict[str, Any]:
    source = block.get("source")
    source = source if isinstance(source, dict) else {}
    kind, media, data = (source.get(key) for key in ("type", "media_type", "data"))
    if kind != "base64" or not isinstance(media, str) or not isinstance(data, str):
        raise RequestError(
            400, f"{where}: source: expected base64 with media_type and data (nothing is fetched)"
        )
    return {"type": "image_url", "image_url": {"url": f"data:{media};base64,{data}"}}


def _call(block: Mapping[str, Any], where: str) -> dict[str, Any]:
    name, given = block.get("name"), block.get("input")
    if not isinstance(name, str) or not isinstance(given, dict):
        raise RequestError(400, f"{where}: expected a name and an input")
    return {
        "id": block.get("id"),
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(given, ensure_ascii=False)},
    }


def _text(given: Any, where: str) -> str:
    if isinstance(given, str):
        return given
    if not isinstance(given, list):
        raise RequestError(400, f"{where}: expected a text or a list of blocks")
    texts = []
    for block in given:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind != "text" or not isinstance(block.get("text"), str):
            raise RequestError(400, f"{where}: type {kind!r} is not supported; only text is")
        texts.append(block["text"])
    return "".join(texts)


def _tools(given: Any) -> list[dict[str, Any]]:
    if not isinstance(given, list):
        raise RequestError(400, "tools: expected a list")
    found = []
    for number, tool in enumerate(given):
        kind = tool.get("type", "custom") if isinstance(tool, dict) else None
        if kind != "custom" or not isinstance(tool.get("input_schema"), dict):
            raise RequestError(400, f"tools[{number}]: expected a custom tool with an input_schema")
        inner = {"name": tool.get("name"), "parameters": tool["input_schema"]}
        inner["description"] = tool.get("description", "")
        found.append({"type": "function", "function": inner})
    return found


def _choice(given: Any) -> Any:
    kind = given.get("type") if isinstance(given, dict) else None
    if kind == "tool":
        return {"type": "function", "function": {"name": given.get("name")}}
    known = {"auto": "auto", "any": "required", "none": "none"}
    if not isinstance(kind, str) or kind not in known:
        raise RequestError(400, f"tool_choice: {given!r} is not supported")
    return known[kind]


def _message(id: str, model: str, turn: Turn) -> dict[str, Any]:
    return {
        "id": id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [*_blocks(turn)],
        "stop_reason": _reason(turn),
        "stop_sequence": turn.stop,
        "stop_details": None,
        "container": None,
        "usage": _usage(turn.usage),
    }


def _blocks(turn: Turn) -> Iterator[dict[str, Any]]:
    if turn.text or not turn.calls:
        yield {"type": "text", "text": turn.text, "citations": None}
    for call in turn.calls:
        yield {
            "type": "tool_use",
            "id": f"toolu_{secrets.token_hex(12)}",
            "name": call.name,
            "input": json.loads(call.arguments),
            "caller": {"type": "direct"},
        }


def _reason(turn: Turn) -> str:
    if turn.calls:
        return "tool_use"
    return "stop_sequence" if turn.stop is not None else _REASONS.get(turn.finish, "end_turn")


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.completion_tokens,
        **_NONE,
    }


class _Form:
    """How one message looks, whole or as events."""

    def __init__(self, id: str, model: str, tokens: int) -> None:
        self._id, self._model, self._tokens = id, model, tokens
        self._is_open = False

    def whole(self, turn: Turn) -> dict[str, Any]:
        return _message(self._id, self._model, turn)

    def failed(self, error: RequestError) -> bytes:
        return sse(error_body(error), "error")

    def first(self) -> bytes:
        message: dict[str, Any] = {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "stop_details": None,
            "container": None,
            "usage": {"input_tokens": self._tokens, "output_tokens": 0, **_NONE},
        }
        return _event("message_start", message=message)

    def part(self, part: str | Turn) -> bytes:
        """Return the events for a text that came, or for the end."""
        if isinstance(part, Turn):
            return b"".join(self._end(part))
        if not part:
            return b""
        return self._opened() + _event(
            "content_block_delta", index=0, delta={"type": "text_delta", "text": part}
        )

    def _opened(self) -> bytes:
        if self._is_open:
            return b""
        self._is_open = True
        block = {"type": "text", "text": "", "citations": None}
        return _event("content_block_start", index=0, content_block=block)

    def _end(self, turn: Turn) -> Iterator[bytes]:
        if self._is_open:
            yield _event("content_block_stop", index=0)
        else:
            for index, block in enumerate(_blocks(turn)):
                empty, delta = _taken_apart(block)
                yield _event("content_block_start", index=index, content_block=empty)
                yield _event("content_block_delta", index=index, delta=delta)
                yield _event("content_block_stop", index=index)
        delta = {"stop_reason": _reason(turn), "stop_sequence": turn.stop}
        yield _event("message_delta", delta=delta, usage=_usage(turn.usage))
        yield _event("message_stop")


def _taken_apart(block: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return how a block begins, and what then comes."""
    if block["type"] == "text":
        return {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
    text = json.dumps(block["input"], ensure_ascii=False)
    return {**block, "input": {}}, {"type": "input_json_delta", "partial_json": text}


def _event(kind: str, **data: Any) -> bytes:
    return sse({"type": kind, **data}, kind)
