"""Models of other servers that speak OpenAI's API: for what outgrows the board.

A request goes on as it came, but for the model's name and the key, and the answer comes back as it
is made. What the other server does not support, it refuses itself.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from edgeinfer.errors import NotAvailableError
from edgeinfer.installed import install
from edgeinfer.runtime.serve.charged import WRITTEN, Charged
from edgeinfer.runtime.serve.http import (
    JSON,
    Header,
    Receive,
    RequestError,
    Scope,
    Send,
    answer,
    header,
    read_body,
    to_json,
)
from edgeinfer.runtime.serve.inflight import held
from edgeinfer.runtime.serve.keys import GRANT, check_ahead, sharer
from edgeinfer.runtime.serve.options import Upstream
from edgeinfer.runtime.serve.streams import begin, watched, write

if TYPE_CHECKING:
    import httpx

    from edgeinfer.runtime.serve.hub import Hub
    from edgeinfer.runtime.serve.served import Served

_LATER = re.compile(r"[0-9]{1,9}|[A-Z][a-z]{2}, [0-9A-Za-z :]{1,40}", re.A)
"""Seconds, or a date."""

_LONG = re.compile(rb"[0-9]{19}")
"""As many digits may be more than 64 bits."""

PATHS = frozenset(
    f"/v1/{name}"
    for name in ("chat/completions", "completions", "embeddings", "messages", "rerank", "responses")
)
"""Addresses whose requests name a model, and go on where it is another server's."""

CONNECT_S = 5.0
"""Seconds in which another server must take a connection."""

DOWN_S = 5.0
"""Seconds for which one that took none is not asked again."""

_ID = b"x-request-id"
_SENT = (b"anthropic-version", b"traceparent", _ID)
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
        # Places are counted for each model: who has one waits for no connection of another's.
        limits = httpx.Limits(max_keepalive_connections=hub.options.limits.queue)
        self._client = httpx.AsyncClient(
            timeout=timeout, limits=limits, follow_redirects=False, trust_env=False
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    @staticmethod
    def takes(path: str, method: str) -> bool:
        """Whether requests of an address name a model."""
        return path in PATHS and method == "POST"

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
        body = await read_body(receive, limits.json_bytes, limits.body_s)
        data = await self._hub.parsed(body)
        name = data.get("model")
        while True:
            model = self._hub.get(name) if isinstance(name, str) else None
            if model is None or model.upstream is None:
                del data
                held().drop_data()
                return _again(body, receive)
            if _LONG.search(body):
                await self._hub.read(len(body), partial(_check_numbers, body))
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
        if isinstance(priority := data.get("priority"), int | float):
            # Lower ones are first there.
            check_ahead(-priority)
        charged = Charged(grant, path, data)
        whose, sent = sharer(), {**charged.data, "model": there.model}
        if whose and path in WRITTEN:
            sent["cache_salt"] = _apart(whose, sent.get("cache_salt"))
        content, head = to_json(sent), _head(scope, there, whose)
        await held().take(len(content))
        url = there.url + path.removeprefix("/v1")
        request = self._client.build_request("POST", url, content=content, headers=head)
        with charged.sent(len(content)):
            try:
                response = await self._client.send(request, stream=True)
            except (self._httpx.ConnectError, self._httpx.ConnectTimeout) as e:
                model.down_until = time.monotonic() + DOWN_S
                raise _GoneError(503, str(e)) from e
            except self._httpx.TransportError as e:
                # What was sent may be why, and says nothing of other requests.
                raise self._broke_off(model) from e
            try:
                await self._passed(model.name, response, charged, send)
            except self._httpx.TransportError as e:
                raise self._broke_off(model) from e
            finally:
                await response.aclose()

    @staticmethod
    def _broke_off(model: Served) -> RequestError:
        return RequestError(502, f"the server of model {model.name!r} broke off")

    async def _passed(
        self, name: str, response: httpx.Response, charged: Charged, send: Send
    ) -> None:
        status, head = response.status_code, response.headers
        kind = head.get("content-type", "application/json").partition(";")[0].strip().lower()
        text = f"the server of model {name!r} answered with status {status}"
        if status in (401, 403):
            # Its key is wrong, not the client's.
            raise RequestError(502, "the other server does not take the key it was given")
        if head.get("content-encoding", "identity").strip().lower() != "identity":
            # What it unpacks to has no bound, and nobody requested it.
            raise RequestError(502, f"{text}, compressed")
        if status == 200 and kind == "text/event-stream" and charged.is_stream:
            await begin(send)
            async for part in charged.events(response.aiter_raw(), self._hub.read):
                await write(send, part)
            await write(send, b"", more=False)
            return
        is_json = kind.startswith("application/") and kind.endswith(("/json", "+json"))
        is_error = 400 <= status < 600
        if status != 200 and not is_error:
            raise RequestError(502, text)
        if not is_json:
            raise RequestError(status if is_error else 502, f"{text} and no JSON")
        body = await self._whole(response, text)
        await charged.whole(status, body, self._hub.read)
        headers: list[Header] = [JSON]
        if _LATER.fullmatch(later := head.get("retry-after", "")):
            headers.append((b"retry-after", later.encode()))
        await answer(send, status, body, headers)

    async def _whole(self, response: httpx.Response, text: str) -> bytes:
        limit, parts, size = self._hub.options.limits.body_bytes, [], 0
        async for part in response.aiter_raw():
            size += len(part)
            if size > limit:
                raise RequestError(502, f"{text} and more than {limit} bytes")
            parts.append(part)
        return b"".join(parts)


def _check_numbers(body: bytes) -> None:
    """Refuse whole numbers that would go on as others, with fewer digits.

    Raises:
        RequestError: 400, one takes more than 64 bits.
    """

    def whole(text: str) -> int:
        if len(text) > 20 or not -(2**63) <= (number := int(text)) < 2**64:
            raise RequestError(400, f"a whole number has more than 64 bits: {text[:24]}")
        return number

    json.loads(body, parse_int=whole)


def _apart(whose: bytes, given: Any) -> str:
    """Return what stands there for what one key gives, where others may give the same."""
    return hashlib.blake2b(to_json(given), key=whose, digest_size=16).hexdigest()


def _head(scope: Scope, there: Upstream, whose: bytes) -> dict[str, str]:
    """Return the headers of what is sent on.

    Args:
        scope: Scope of the request.
        there: Server that it is sent to.
        whose: Key of several that sends it; empty for nobody's.

    Raises:
        RequestError: 400, one of the client's cannot be sent.
    """
    found = {"content-type": "application/json", "accept-encoding": "identity"}
    if there.key:
        found |= {"authorization": f"Bearer {there.key}", "x-api-key": there.key}
    for name in _SENT:
        if (value := header(scope, name)) is not None:
            text = value.decode("latin-1")
            if not (text.isascii() and text.isprintable()):
                raise RequestError(400, f"{name.decode()}: expected plain ASCII")
            if whose and name == _ID:
                # Two requests of one id are one there.
                text = f"{_apart(whose, None)[:8]}-{text}"
            found[name.decode()] = text
    return found


def _again(body: bytes, receive: Receive) -> Receive:
    """Return what gives a body that was read once more, and then what comes."""
    first = [{"type": "http.request", "body": body, "more_body": False}]

    async def received() -> Any:
        return first.pop() if first else await receive()

    return received
