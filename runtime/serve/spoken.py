"""What a language model says to a recording that a pipeline wrote down, whole or as it comes."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from edgeinfer.results import Reply, Result, as_json
from edgeinfer.runtime.pipelines.spoken import said
from edgeinfer.runtime.serve import asked as reader
from edgeinfer.runtime.serve.http import Receive, RequestError, Send, answer_json
from edgeinfer.runtime.serve.hub import Hub
from edgeinfer.runtime.serve.seeing import read_asked
from edgeinfer.runtime.serve.served import Served
from edgeinfer.runtime.serve.streams import Turn, begin, deliver, sse, write

_OTHERS = ("model", "n", "logprobs", "top_logprobs", "stream_options")
"""Fields of a chat completion that a reply has no place for."""

_DONE = b"data: [DONE]\n\n"

Found = list[Result]
Runs = Callable[[Receive, Callable[[], Found]], Awaitable[Found]]


class Spoken:
    """One request for a pipeline with a language model behind it.

    Args:
        hub: the models.
        model: that is asked.
        chat: Fields of a chat completion, whose conversation goes on with what is said; None where
            none were sent.

    Raises:
        RequestError: a field is not supported; 503, the language model is not ready.
    """

    def __init__(self, hub: Hub, model: Served, chat: dict[str, Any] | None) -> None:
        self._hub, self._model, self._chat = hub, model, chat or {}
        if wrong := sorted(self._chat.keys() & set(_OTHERS)):
            raise RequestError(400, f"chat: not supported: {', '.join(wrong)}")
        if not isinstance(self._chat.get("messages", []), list):
            raise RequestError(400, "chat: messages: expected a list")
        answerer = model.answerer
        if answerer is None or not answerer.is_ready or answerer.text is None:
            name = model.name if answerer is None else answerer.name
            raise RequestError(503, f"model {name!r} is not ready", 1.0)
        self._answerer, self._llm = answerer, answerer.text

    async def answer(
        self, runs: Runs, hear: Callable[[], Found], receive: Receive, send: Send
    ) -> None:
        """Write the recording down, let the language model reply, and send both.

        Args:
            runs: runs ``hear`` in a thread.
            hear: writes the recording down.
            receive: ASGI's receive function.
            send: likewise.

        Raises:
            RequestError: the chat's terms are wrong, which is found before the recording is heard.
            DisconnectedError: the client left.
        """
        hub, model = self._hub, self._model
        with hub.counted(model), hub.place(model):
            if self._chat:
                await self._asked("", receive)
            form = _Form(model.name, found := await runs(receive, hear))
            if text := said(found):
                asked = await self._asked(text, receive)
                is_other = self._answerer is not model
                with hub.place(self._answerer) if is_other else contextlib.nullcontext():
                    await deliver(self._llm, asked, form, receive, send, hub.options.limits.wait_s)
            elif self._chat.get("stream"):
                # Nobody is answered who said nothing.
                await begin(send)
                await write(send, form.first() + _DONE, more=False)
            else:
                await answer_json(send, form.base)

    async def _asked(self, text: str, receive: Receive) -> reader.Asked:
        messages = [*self._chat.get("messages", []), {"role": "user", "content": text}]
        data, most = {**self._chat, "messages": messages}, self._hub.options.limits.elements
        id = f"spoken-{secrets.token_hex(8)}"
        read = partial(reader.chats, self._llm, data, id, most=most)
        return (await read_asked(self._hub, self._llm, receive, read))[0]


class _Form:
    """How the answer looks: results, of which the last is the reply, whole or in pieces."""

    def __init__(self, model: str, found: Sequence[Result]) -> None:
        self.base: dict[str, Any] = {"model": model, "results": [as_json(each) for each in found]}

    def whole(self, turn: Turn) -> Mapping[str, Any]:
        usage = {"prompt_tokens": turn.usage.prompt_tokens}
        usage["completion_tokens"] = turn.usage.completion_tokens
        reply = as_json(Reply(turn.text, turn.finish))
        if turn.calls:
            reply["calls"] = [asdict(call) for call in turn.calls]
        return {**self.base, "results": [*self.base["results"], reply], "usage": usage}

    def first(self) -> bytes:
        return sse(self.base)

    def part(self, part: str | Turn) -> bytes:
        if isinstance(part, Turn):
            return sse(self.whole(part)) + _DONE
        return sse({"delta": part}) if part else b""

    def failed(self, error: RequestError) -> bytes:
        return sse({"error": {"message": error.text, "code": error.status}})
