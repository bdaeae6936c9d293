"""OpenAI's API: models, chat completions, completions; and ``/tokenize`` as well."""

from __future__ import annotations

import contextlib
import itertools
import secrets
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Any

from edgeinfer.runtime.llm.thread import SILENCE
from edgeinfer.runtime.serve.facts import known
from edgeinfer.runtime.serve.http import (
    Receive,
    RequestError,
    Scope,
    Send,
    answer_json,
    status_of,
)
from edgeinfer.runtime.serve.hub import Hub
from edgeinfer.runtime.serve.inflight import held
from edgeinfer.runtime.serve.seeing import read_asked
from edgeinfer.runtime.serve.served import Served
from edgeinfer.runtime.serve.streams import PAUSE, begin, sse, submit, watched, write

if TYPE_CHECKING:
    from edgeinfer.runtime.llm.llm import LLM
    from edgeinfer.runtime.llm.params import Event, Logprob, Usage
    from edgeinfer.runtime.serve.asked import Asked

_REASONS = {"stop": "stop", "length": "length", "cancelled": "stop", "error": "stop"}


class OpenAI:
    """Answers below ``/v1``.

    Args:
        hub: the models.
    """

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._start = secrets.token_hex(6)
        self._count = itertools.count()

    async def route(
        self, path: str, method: str, scope: Scope, receive: Receive, send: Send
    ) -> bool:
        """Answer a request; False where the address is not one of these.

        Raises:
            RequestError: the request is wrong.
        """
        if path == "/v1/models" and method == "GET":
            models = [_model(m) for m in self._hub.visible.values()]
            names = [m["id"] for m in models] or [None]
            # Clients of Anthropic's API read where the list ends.
            pages = {"has_more": False, "first_id": names[0], "last_id": names[-1]}
            await answer_json(send, {"object": "list", "data": models, **pages})
        elif path.startswith("/v1/models/") and method == "GET":
            await answer_json(send, _model(known(self._hub, path[11:])))
        elif path in ("/v1/chat/completions", "/v1/completions") and method == "POST":
            await self._generate(path.endswith("chat/completions"), receive, send)
        elif path in ("/tokenize", "/detokenize") and method == "POST":
            await self._tokens(path == "/tokenize", receive, send)
        else:
            return False
        return True

    async def _tokens(self, forth: bool, receive: Receive, send: Send) -> None:
        data, _, llm = await self._hub.asked(receive, named=False)
        if forth:
            text = data.get("prompt", data.get("content"))
            if not isinstance(text, str):
                raise RequestError(400, "prompt: expected a text")
            encode = llm.model.tokenizer.encode
            tokens = await self._hub.words.run(partial(encode, text, most=llm.context))
            await answer_json(send, {"tokens": tokens, "count": len(tokens)})
            return
        given, vocab = data.get("tokens"), llm.model.config.vocab
        if isinstance(given, list) and len(given) > llm.context:
            raise RequestError(400, f"tokens: at most {llm.context}, received {len(given)}")
        known = isinstance(given, list) and all(type(t) is int and 0 <= t < vocab for t in given)
        if not (isinstance(given, list) and known):
            raise RequestError(400, f"tokens: expected a list of numbers below {vocab}")
        decode = partial(llm.model.tokenizer.decode, given, skip_special=False)
        text = await self._hub.words.run(decode)
        await answer_json(send, {"prompt": text, "content": text})

    async def _generate(self, is_chat: bool, receive: Receive, send: Send) -> None:
        from edgeinfer.runtime.serve import asked as reader

        data, model, llm = await self._hub.asked(receive)
        id = f"{'chatcmpl' if is_chat else 'cmpl'}-{self._start}{next(self._count)}"
        most = self._hub.options.limits.elements
        read = partial(reader.chats, most=most) if is_chat else reader.completions
        with self._hub.counted(model), self._hub.place(model):
            several = await read_asked(self._hub, llm, receive, partial(read, llm, data, id))
            del data
            held().drop_data()
            form = _Form(id, model.name, llm, is_chat)
            async with watched(receive):
                if several[0].stream:
                    await self._stream(llm, several[0], form, send)
                else:
                    await self._whole(llm, several, form, send)

    async def _whole(self, llm: LLM, several: list[Asked], form: _Form, send: Send) -> None:
        choices: list[dict[str, Any]] = []
        usages: list[Usage] = []
        for one in several:
            parts: list[list[Event]] = [[] for _ in range(one.request.params.n)]
            async for event in await submit(llm, one.request, self._hub.options.limits.wait_s):
                if event.error is not None:
                    raise event.error
                if event is not SILENCE:
                    parts[event.index].append(event)
            for events in parts:
                choices.append(form.choice(len(choices), events, one))
            usages += [e.usage for e in (events[-1] for events in parts) if e.usage is not None]
        data = form.frame() | {"choices": choices, "usage": _usage(usages)}
        await answer_json(send, data)

    async def _stream(self, llm: LLM, one: Asked, form: _Form, send: Send) -> None:
        # Refusals come before the answer begins, with a status of their own.
        events = await submit(llm, one.request, self._hub.options.limits.wait_s)
        await begin(send)
        usages: list[Usage] = []
        held: dict[int, list[Event]] = {}
        async with contextlib.aclosing(events):
            async for event in events:
                if event is SILENCE:
                    await write(send, PAUSE)
                    continue
                if event.error is not None:
                    await write(send, sse({"error": {"message": status_of(event.error).text}}))
                    break
                if event.usage is not None:
                    usages.append(event.usage)
                if one.tools:
                    # Whether a text is a call is known at its end.
                    held.setdefault(event.index, []).append(event)
                    if event.finish is not None:
                        for delta in form.whole_deltas(event.index, held.pop(event.index), one):
                            await write(send, sse(form.frame(chunk=True) | {"choices": [delta]}))
                elif event.text or event.finish or event.logprobs:
                    choice = form.delta(event, one)
                    await write(send, sse(form.frame(chunk=True) | {"choices": [choice]}))
        if one.usage:
            last = form.frame(chunk=True) | {"choices": [], "usage": _usage(usages)}
            await write(send, sse(last))
        await write(send, b"data: [DONE]\n\n", more=False)


class _Form:
    """How answers of one request look."""

    def __init__(self, id: str, model: str, llm: LLM, is_chat: bool) -> None:
        self._id, self._model, self._llm, self._is_chat = id, model, llm, is_chat
        self._created = int(time.time())
        self._begun: set[int] = set()

    def frame(self, chunk: bool = False) -> dict[str, Any]:
        kind = "chat.completion" if self._is_chat else "text_completion"
        if chunk and self._is_chat:
            kind += ".chunk"
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}

    def choice(self, index: int, events: list[Event], one: Asked) -> dict[str, Any]:
        """Return a whole choice."""
        text = one.echo + "".join(event.text for event in events)
        finish = _REASONS[events[-1].finish or "stop"]
        logprobs = self._logprobs([p for e in events for p in e.logprobs], one)
        if not self._is_chat:
            return {"index": index, "text": text, "finish_reason": finish, "logprobs": logprobs}
        calls = self._calls(text) if one.tools else []
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        message["annotations"] = []
        if calls:
            message |= {"content": None, "tool_calls": calls}
            finish = "tool_calls"
        return {"index": index, "message": message, "finish_reason": finish, "logprobs": logprobs}

    def delta(self, event: Event, one: Asked) -> dict[str, Any]:
        """Return a piece of a choice."""
        finish = None if event.finish is None else _REASONS[event.finish]
        logprobs = self._logprobs(list(event.logprobs), one)
        first = event.index not in self._begun
        self._begun.add(event.index)
        text = (one.echo if first else "") + event.text
        if not self._is_chat:
            return {
                "index": event.index,
                "text": text,
                "finish_reason": finish,
                "logprobs": logprobs,
            }
        delta: dict[str, Any] = {"role": "assistant"} if first else {}
        if event.text or first:
            delta["content"] = text
        return {"index": event.index, "delta": delta, "finish_reason": finish, "logprobs": logprobs}

    def whole_deltas(self, index: int, events: list[Event], one: Asked) -> Iterator[dict[str, Any]]:
        """Return a choice that may be a call, as pieces."""
        choice = self.choice(index, events, one)
        message, finish = choice["message"], choice["finish_reason"]
        delta = {"role": "assistant", "content": message["content"]}
        if calls := message.get("tool_calls"):
            delta["tool_calls"] = [{"index": i, **call} for i, call in enumerate(calls)]
        yield {
            "index": index,
            "delta": delta,
            "finish_reason": None,
            "logprobs": choice["logprobs"],
        }
        yield {"index": index, "delta": {}, "finish_reason": finish, "logprobs": None}

    def _calls(self, text: str) -> list[dict[str, Any]]:
        return [
            {
                "id": f"call_{secrets.token_hex(8)}",
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in self._llm.tools.calls(text)
        ]

    def _logprobs(self, found: list[Logprob], one: Asked) -> dict[str, Any] | None:
        if not one.logprobs:
            return None
        if self._is_chat:
            return {
                "content": [self._of(p.token, p.logprob, p.top) for p in found],
                "refusal": None,
            }
        return {
            "tokens": [self._text(p.token) for p in found],
            "token_logprobs": [p.logprob for p in found],
            "top_logprobs": [{self._text(t): v for t, v in p.top} for p in found],
            "text_offset": [],
        }

    def _of(self, token: int, logprob: float, top: tuple[tuple[int, float], ...]) -> dict[str, Any]:
        text = self._text(token)
        found: dict[str, Any] = {"token": text, "logprob": logprob, "bytes": list(text.encode())}
        found["top_logprobs"] = [
            {"token": self._text(t), "logprob": v, "bytes": list(self._text(t).encode())}
            for t, v in top
        ]
        return found

    def _text(self, token: int) -> str:
        return self._llm.model.tokenizer.decode([token], skip_special=False)


def _model(model: Served) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "edgeinfer",
        "type": "model",
        "display_name": model.name,
        "created_at": datetime.fromtimestamp(model.created, timezone.utc).isoformat(),
        "kind": model.kind,
        "ready": model.is_ready,
    }


def _usage(usages: list[Usage]) -> dict[str, Any]:
    """Sum up; the prompt of several generations was read once."""
    prompt = usages[0].prompt_tokens if usages else 0
    done = sum(u.completion_tokens for u in usages)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": done,
        "total_tokens": prompt + done,
        "prompt_tokens_details": {"cached_tokens": usages[0].cached_tokens if usages else 0},
    }
