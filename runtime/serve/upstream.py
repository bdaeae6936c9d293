"""Models of other servers that speak OpenAI's API: for what outgrows the board.

A request goes on as it came, but for the model's name and the key, and the answer comes back as it
is made. What the other server does not support, it refuses itself.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from edgeinfer.errors import NotAvailableError
from edgeinfer.installed import install
from edgeinfer.runtime.serve.http import (
    Header,
    Receive,
    RequestError,
    Scope,
    Send,
    answer,
    from_json,
    header,
    read_body,
    to_json,
)
from edgeinfer.runtime.serve.keys import GRANT, Grant
from edgeinfer.runtime.serve.options import Upstream
from edgeinfer.runtime.serve.streams import begin, watched, write

if TYPE_CHECKING:
    import httpx

    from edgeinfer.runtime.serve.hub import Hub
    from edgeinfer.runtime.serve.served import Served

PATHS = frozenset(
    f"/v1/{name}"
    for name in ("chat/completions", "completions", "embeddings", "messages", "rerank", "responses")
)
"""Addresses whose requests name a model, and go on where it is another server's."""

CONNECT_S = 5.0
"""Seconds in which another server must take a connection."""

DOWN_S = 5.0
"""Seconds for which one that took none is not asked again."""

_ASKED = ("/v1/chat/completions", "/v1/completions")
"""Whose streams tell what was used only where that is asked for."""

_USED = {
    "read": ("prompt_tokens", "input_tokens"),
    "written": ("completion_tokens", "output_tokens"),
}
"""What answers call the tokens that were used."""

_SENT = (b"anthropic-version", b"traceparent", b"x-request-id")
"""Headers that go on; keys never do."""


class _GoneError(RequestError):
    """A server that does not answer."""


class Upstreams:
    """Sends requests on.

    Args:
        hub: the models.

    Raises:
        NotAvailableError: httpx is not installed.
    """

    def __init__(self, hub: Hub) -> None:
        try:
            import httpx
        except ImportError as e:
            raise NotAvailableError(f"--upstream needs httpx; {install('upstream')}") from e
        self._hub, self._httpx = hub, httpx
        # No limit to how long an answer takes: prompts may be long. The client that leaves ends it.
        timeout = httpx.Timeout(None, connect=CONNECT_S)
        limits = httpx.Limits(max_connections=hub.options.limits.queue)
        self._client = httpx.AsyncClient(
            timeout=timeout, limits=limits, follow_redirects=False, trust_env=False
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def forward(
        self, path: str, scope: Scope, receive: Receive, send: Send
    ) -> Receive | None:
        """Send a request on where it names another server's model.

        Returns:
            What receives the request again, where its model is one of this server; else None.

        Raises:
            RequestError: there is no such model, or its server does not answer.
        """
        limits = self._hub.options.limits
        body = await read_body(receive, limits.body_bytes, limits.body_s)
        data = from_json(body)
        name = data.get("model") if isinstance(data, dict) else None
        while True:
            model = self._hub.get(name) if isinstance(name, str) else None
            if model is None or model.upstream is None:
                return _again(body, receive)
            try:
                with self._hub.counted(model), self._hub.place(model):
                    async with watched(receive):
                        await self._sent(model, model.upstream, path, data, scope, send)
            except _GoneError as error:
                # No answer has begun: who answers in its place may have the request.
                if model.other is None:
                    raise model.unreachable() from error
            else:
                return None

    async def _sent(
        self, model: Served, there: Upstream, path: str, data: Any, scope: Scope, send: Send
    ) -> None:
        grant = GRANT.get()
        if grant is not None:
            grant.check_tokens()
        counting = _Counting(grant, path, data)
        data = {**counting.data, "model": there.model}
        headers = {"content-type": "application/json", "accept-encoding": "identity"}
        if there.key:
            headers |= {"authorization": f"Bearer {there.key}", "x-api-key": there.key}
        for name in _SENT:
            if (value := header(scope, name)) is not None:
                headers[name.decode()] = value.decode("latin-1")
        request = self._client.build_request(
            "POST", there.url + path.removeprefix("/v1"), content=to_json(data), headers=headers
        )
        try:
            response = await self._client.send(request, stream=True)
        except self._httpx.TransportError as e:
            model.down_until = time.monotonic() + DOWN_S
            raise _GoneError(503, str(e)) from e
        try:
            await self._passed(response, counting, send)
        except self._httpx.TransportError as e:
            raise RequestError(502, f"the server of model {model.name!r} broke off") from e
        finally:
            await response.aclose()

    async def _passed(self, response: httpx.Response, counting: _Counting, send: Send) -> None:
        kind = response.headers.get("content-type", "application/json")
        if response.status_code == 200 and kind.startswith("text/event-stream"):
            await begin(send)
            async for part in counting.events(response.aiter_raw()):
                await write(send, part)
            await write(send, b"", more=False)
            return
        body = await response.aread()
        if response.status_code in (401, 403):
            # Its key is wrong, not the client's.
            raise RequestError(502, "the other server does not take the key it was given")
        counting.whole(body)
        headers: list[Header] = [(b"content-type", kind.encode("latin-1"))]
        if (later := response.headers.get("retry-after")) is not None:
            headers.append((b"retry-after", later.encode("latin-1")))
        await answer(send, response.status_code, body, headers)


class _Counting:
    """Counts the tokens of an answer for the key that asked, by what the other server says.

    Args:
        grant: of the request; None counts nothing.
        path: that was asked.
        data: of the request.

    Attributes:
        data: to be sent, with the wish to be told what was used.
    """

    def __init__(self, grant: Grant | None, path: str, data: dict[str, Any]) -> None:
        self._grant, self.data, self._is_hidden = grant, data, False
        self._told = dict.fromkeys(_USED, 0)
        options = data.get("stream_options") or {}
        if grant is None or path not in _ASKED or data.get("stream") is not True:
            return
        if isinstance(options, dict) and options.get("include_usage") is not True:
            self._is_hidden = True
            self.data = {**data, "stream_options": {**options, "include_usage": True}}

    def whole(self, body: bytes) -> None:
        """Count the answer that is no stream."""
        if self._grant is not None:
            with contextlib.suppress(ValueError):
                self._use(json.loads(body))

    async def events(self, parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Give a stream as it comes, without what only the count asked for."""
        if self._grant is None:
            async for part in parts:
                yield part
            return
        held = b""
        async for part in parts:
            held += part
            *events, held = held.split(b"\n\n")
            for event in events:
                if not self._is_ours(event):
                    yield event + b"\n\n"
        if held:
            yield held

    def _is_ours(self, event: bytes) -> bool:
        """Count what an event tells; whether nobody else asked for it."""
        _, found, text = event.rpartition(b"data: ")
        if not found or b'"usage"' not in text:
            return False
        with contextlib.suppress(ValueError):
            data = json.loads(text)
            self._use(data)
            return self._is_hidden and data.get("choices") == []
        return False

    def _use(self, data: Any) -> None:
        inner = data.get("response", data.get("message", data)) if isinstance(data, dict) else {}
        usage = inner.get("usage") if isinstance(inner, dict) else None
        if not isinstance(usage, dict) or self._grant is None:
            return
        for side, names in _USED.items():
            told = max((n for name in names if type(n := usage.get(name)) is int), default=0)
            # Streams tell a side once, or again and again as it grows.
            if told > self._told[side]:
                self._grant.count_tokens(told - self._told[side])
                self._told[side] = told


def _again(body: bytes, receive: Receive) -> Receive:
    """Return what gives a body that was read once more, and then what comes."""
    first = [{"type": "http.request", "body": body, "more_body": False}]

    async def received() -> Any:
        return first.pop() if first else await receive()

    return received
