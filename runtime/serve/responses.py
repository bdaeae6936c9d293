"""OpenAI's responses, whole or streamed; nothing is stored.

Source: OpenAI's API reference of responses and their events.
"""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from edgeinfer.runtime.serve.http import (
    Harmless,
    Receive,
    RequestError,
    Scope,
    Send,
    not_known,
    to_json,
)
from edgeinfer.runtime.serve.hub import Hub
from edgeinfer.runtime.serve.inflight import held, weigh
from edgeinfer.runtime.serve.seeing import read_asked
from edgeinfer.runtime.serve.streams import Turn, deliver, sse

if TYPE_CHECKING:
    from edgeinfer.runtime.llm.llm import LLM
    from edgeinfer.runtime.llm.params import SamplingParams, Usage
    from edgeinfer.runtime.serve.asked import Asked

PATH = "/v1/responses"

_SAME = (
    *("model", "temperature", "top_p", "stream", "seed", "top_k", "min_p", "ignore_eos"),
    *("cache_salt", "priority", "adapter"),
)
_READ = frozenset(
    {*_SAME, "input", "instructions", "max_output_tokens", "text", "tools", "tool_choice"}
)
_HARMLESS: Harmless = {
    "store": (None, False),
    "metadata": dict,
    "user": str,
    "safety_identifier": str,
    "prompt_cache_key": str,
    "service_tier": (None, "auto", "default"),
    "parallel_tool_calls": (None, True),
    "truncation": (None, "disabled"),
    "background": (None, False),
    "include": (None, []),
    "reasoning": (None, {}),
    "top_logprobs": (None, 0),
    "previous_response_id": (None,),
    "conversation": (None,),
    "max_tool_calls": (None,),
    "prompt": (None,),
    "stream_options": (None,),
}
"""Fields with the values that ask for nothing; an empty tuple stands for any."""

_TOLD = (
    *("instructions", "max_output_tokens", "metadata", "prompt_cache_key", "safety_identifier"),
    *("text", "tool_choice", "tools"),
)
"""Fields that an answer says again."""


class Responses:
    """Answers ``/v1/responses``.

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
        if path != PATH or method != "POST":
            return False
        data, model, llm = await self._hub.asked(receive)
        shown = {key: data[key] for key in _TOLD if key in data}
        form = _Form(model.name, shown)
        with self._hub.counted(model), self._hub.place(model):
            read = partial(_asked, llm, data, form.id, self._hub.options.limits.elements)
            del data
            (one,) = await read_asked(self._hub, llm, receive, read)
            del read
            form.params = one.request.params
            held().drop_data(weigh(to_json(shown)))
            await deliver(llm, one, form, receive, send, self._hub.options.limits.wait_s)
        return True


def _asked(llm: LLM, data: Mapping[str, Any], id: str, most: int) -> list[Asked]:
    from edgeinfer.runtime.serve import asked as reader

    return reader.chats(llm, as_chat(data), id, most=most)


def as_chat(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request as one for a chat completion, which is the same conversation.

    Raises:
        RequestError: names the field that is wrong or not supported.
    """
    if unknown := not_known(data, _READ, _HARMLESS):
        raise RequestError(400, f"not supported: {', '.join(unknown)}")
    found: dict[str, Any] = {key: data[key] for key in _SAME if key in data}
    given = data.get("input")
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise RequestError(400, "input: expected a text or a list of items")
    messages = [m for i, item in enumerate(given) for m in _said(item, f"input[{i}]")]
    if (instructions := data.get("instructions")) is not None:
        if not isinstance(instructions, str):
            raise RequestError(400, "instructions: expected a text")
        messages.insert(0, {"role": "system", "content": instructions})
    found["messages"] = messages
    if (most := data.get("max_output_tokens")) is not None:
        found["max_tokens"] = most
    if (text := data.get("text")) is not None:
        found |= _text_form(text)
    if tools := data.get("tools"):
        found["tools"] = _tools(tools)
    choice = data.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") == "function":
        choice = {"type": "function", "function": {"name": choice.get("name")}}
    # Without tools these ask for nothing.
    if choice is not None and (tools or choice not in ("auto", "none")):
        found["tool_choice"] = choice
    return found


def _said(item: Any, where: str) -> Iterator[dict[str, Any]]:
    kind = item.get("type", "message") if isinstance(item, dict) else None
    if kind == "message":
        role = item.get("role")
        if role not in ("user", "assistant", "system", "developer"):
            raise RequestError(400, f"{where}: role: expected user, assistant, system or developer")
        content = item.get("content")
        yield {"role": "system" if role == "developer" else role, "content": content}
    elif kind == "function_call":
        call = {"name": item.get("name"), "arguments": item.get("arguments")}
        if not all(isinstance(value, str) for value in call.values()):
            raise RequestError(400, f"{where}: expected a name and arguments")
        calls = [{"id": item.get("call_id"), "type": "function", "function": call}]
        yield {"role": "assistant", "content": None, "tool_calls": calls}
    elif kind == "function_call_output":
        yield {
            "role": "tool",
            "tool_call_id": item.get("call_id"),
            "content": item.get("output"),
        }
    elif kind != "reasoning":
        raise RequestError(400, f"{where}: type {kind!r} is not supported")


def _text_form(given: Any) -> dict[str, Any]:
    if not isinstance(given, dict) or given.keys() - {"format", "verbosity"}:
        raise RequestError(400, "text: expected an object with format")
    if given.get("verbosity") not in (None, "medium"):
        raise RequestError(400, "text: verbosity is not supported")
    form = given.get("format")
    if isinstance(form, dict) and form.get("type") == "json_schema":
        inner = {key: value for key, value in form.items() if key != "type"}
        form = {"type": "json_schema", "json_schema": inner}
    return {} if form is None else {"response_format": form}


def _tools(given: Any) -> list[dict[str, Any]]:
    if not isinstance(given, list):
        raise RequestError(400, "tools: expected a list")
    found = []
    for number, tool in enumerate(given):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if kind != "function":
            raise RequestError(400, f"tools[{number}]: type {kind!r} is not supported")
        inner = {key: value for key, value in tool.items() if key not in ("type", "strict")}
        found.append({"type": "function", "function": inner})
    return found


class _Form:
    """How the answer to one request looks."""

    def __init__(self, model: str, data: Mapping[str, Any]) -> None:
        self.id = f"resp_{secrets.token_hex(12)}"
        self._model, self._data = model, data
        self._created = int(time.time())
        self._numbers = itertools.count()
        self._item = f"msg_{secrets.token_hex(12)}"
        self._texts: list[str] = []
        self.params: SamplingParams | None = None

    def response(self, turn: Turn | None = None, error: RequestError | None = None) -> Any:
        """Return the whole answer, or how it stands."""
        data = self._data
        status = "in_progress"
        if turn is not None:
            status = "incomplete" if turn.finish == "length" else "completed"
        elif error is not None:
            status = "failed"
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        problem = None if error is None else {"code": "server_error", "message": error.text}
        params = self.params
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created,
            "completed_at": int(time.time()) if status == "completed" else None,
            "background": False,
            "frequency_penalty": 0.0 if params is None else params.frequency_penalty,
            "presence_penalty": 0.0 if params is None else params.presence_penalty,
            "max_tool_calls": None,
            "prompt_cache_key": data.get("prompt_cache_key"),
            "reasoning": None,
            "safety_identifier": data.get("safety_identifier"),
            "service_tier": "default",
            "top_logprobs": 0,
            "status": status,
            "error": problem,
            "incomplete_details": cut,
            "instructions": data.get("instructions"),
            "max_output_tokens": data.get("max_output_tokens"),
            "metadata": data.get("metadata") or {},
            "model": self._model,
            "output": [] if turn is None else [*self._items(turn)],
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "store": False,
            "temperature": None if params is None else params.temperature,
            "text": data.get("text") or {"format": {"type": "text"}},
            "tool_choice": data.get("tool_choice") or "auto",
            "tools": [{"strict": None, **tool} for tool in data.get("tools") or []],
            "top_p": None if params is None else params.top_p,
            "truncation": "disabled",
            "usage": None if turn is None else _usage(turn.usage),
        }

    def whole(self, turn: Turn) -> Any:
        return self.response(turn)

    def first(self) -> bytes:
        return self._event("created", response=self.response()) + self._event(
            "in_progress", response=self.response()
        )

    def part(self, part: str | Turn) -> bytes:
        """Return the events for a text that came, or for the end."""
        if isinstance(part, Turn):
            return b"".join(self._end(part))
        if not part:
            return b""
        found = b"" if self._texts else self._opened()
        self._texts.append(part)
        return found + self._of_text("output_text.delta", delta=part, logprobs=[])

    def failed(self, error: RequestError) -> bytes:
        return self._event("failed", response=self.response(error=error))

    def _opened(self) -> bytes:
        item = {**self._message("", "in_progress"), "content": []}
        return self._event("output_item.added", output_index=0, item=item) + self._of_text(
            "content_part.added", part=_part("")
        )

    def _end(self, turn: Turn) -> Iterator[bytes]:
        if not turn.calls:
            if not self._texts:
                yield self._opened()
                if turn.text:
                    yield self._of_text("output_text.delta", delta=turn.text, logprobs=[])
            yield self._of_text("output_text.done", text=turn.text, logprobs=[])
            yield self._of_text("content_part.done", part=_part(turn.text))
        whole = self.response(turn)
        for index, item in enumerate(whole["output"]):
            if item["type"] == "function_call":
                at = {"output_index": index, "item_id": item["id"]}
                empty = {**item, "arguments": "", "status": "in_progress"}
                yield self._event("output_item.added", output_index=index, item=empty)
                text = item["arguments"]
                yield self._event("function_call_arguments.delta", **at, delta=text)
                yield self._event(
                    "function_call_arguments.done", **at, arguments=text, name=item["name"]
                )
            yield self._event("output_item.done", output_index=index, item=item)
        yield self._event(whole["status"], response=whole)

    def _items(self, turn: Turn) -> Iterator[dict[str, Any]]:
        if not turn.calls:
            yield self._message(turn.text, "incomplete" if turn.finish == "length" else "completed")
        for call in turn.calls:
            yield {
                "id": f"fc_{secrets.token_hex(12)}",
                "type": "function_call",
                "status": "completed",
                "call_id": f"call_{secrets.token_hex(12)}",
                "name": call.name,
                "arguments": call.arguments,
            }

    def _message(self, text: str, status: str) -> dict[str, Any]:
        return {
            "id": self._item,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": [_part(text)],
        }

    def _of_text(self, kind: str, **data: Any) -> bytes:
        return self._event(kind, item_id=self._item, output_index=0, content_index=0, **data)

    def _event(self, kind: str, **data: Any) -> bytes:
        name = f"response.{kind}"
        return sse({"type": name, "sequence_number": next(self._numbers), **data}, name)


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": []}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
