"""What stands before the replicas of a cluster: it repeats what one of them lost, once.

A request is read whole and handed to a replica, whose answer comes in parts. Where the replica dies
before the first of them the request goes to another one; behind it the client has seen a beginning,
and is released by the answer's end. Requests that share a beginning go to the same replica, whose
cache knows it.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import orjson

from edgeinfer.errors import QueueFullError
from edgeinfer.runtime.pool import Pool
from edgeinfer.runtime.serve.http import (
    JSON,
    DisconnectedError,
    Message,
    Receive,
    RequestError,
    Scope,
    Send,
    answer,
    check_announced,
    client_left,
    header,
    read_body,
    retry_header,
    status_of,
    to_json,
)
from edgeinfer.runtime.serve.inflight import Held, InFlight, Received, hold, weigh
from edgeinfer.runtime.serve.keys import OPEN, Keys
from edgeinfer.runtime.serve.options import ServeOptions
from edgeinfer.runtime.serve.refusals import error_of

TRIES = 2
"""Replicas that a request may be given to."""

_BEGINNING = 1024
"""Characters of a text by which its replica is chosen."""

_TEXTS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")

Given = dict[str, Any]
Ask = Callable[[Given, bytes, str], Any]
"""Gives a request and its key to a replica; what comes back is iterated, and may be cancelled."""


class ClusterFront:
    """Answers all requests by replicas.

    Args:
        options: Options of the server.
        ask: gives a request to a replica.
        lost: Errors that say that a replica is gone.
    """

    def __init__(
        self, options: ServeOptions, ask: Ask, lost: tuple[type[BaseException], ...]
    ) -> None:
        self._limits, self._ask, self._lost = options.limits, ask, lost
        self._keys = Keys(options.keys)
        self._memory = InFlight(options.limits.memory_bytes)
        self._pool = Pool("edgeinfer-front", 1, options.limits.queue)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or follow the life of the server."""
        if scope["type"] == "lifespan":
            while (message := await receive())["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            await send({"type": message["type"] + ".complete"})
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        else:
            raise RuntimeError(f"{scope['type']} is not served")

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def forward(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        held = hold(self._memory)
        try:
            body, place = b"", ""
            # Who may not ask sends no body that is kept; what probes send is not waited for.
            if scope["path"] not in OPEN:
                self._keys.check(header(scope, b"authorization"), header(scope, b"x-api-key"))
                check_announced(scope, self._limits.body_bytes)
                taken = Received(receive, held, None)
                body = await read_body(taken, self._limits.body_bytes, self._limits.body_s)
                place = await self._place(scope["path"], body, held)
            await self._repeated(scope, body, place, receive, forward, lambda: begun)
        except DisconnectedError:
            return
        except (RequestError, QueueFullError) as error:
            if begun:
                raise
            known = status_of(error)
            whole = to_json(error_of(scope["path"], known))
            await answer(send, known.status, whole, (JSON, *retry_header(known)))
        finally:
            held.release()

    async def _place(self, path: str, body: bytes, held: Held) -> str:
        """Return what decides which replica answers; what is read for it counts meanwhile.

        A replica refuses larger texts.
        """
        if path not in _TEXTS or len(body) > self._limits.json_bytes:
            return ""
        await held.take_data(await self._pool.run(partial(weigh, body)))
        try:
            return await self._pool.run(partial(place_of, path, body))
        finally:
            held.drop_data()

    async def _repeated(
        self,
        scope: Scope,
        body: bytes,
        place: str,
        receive: Receive,
        send: Send,
        begun: Callable[[], bool],
    ) -> None:
        """Give a request to a replica, and to another one where the first is lost.

        Raises:
            RequestError: 503, both were lost.
        """
        names = ("method", "path", "raw_path", "query_string", "http_version", "scheme")
        given = {name: scope[name] for name in names if name in scope}
        given["headers"] = [(bytes(k), bytes(v)) for k, v in scope["headers"]]
        given["client"] = scope.get("client")
        for number in range(TRIES):
            try:
                await self._forwarded(self._ask(given, body, place), receive, send)
            except self._lost as e:
                if begun():
                    raise
                if number == TRIES - 1:
                    raise RequestError(503, "replicas are being replaced", 1.0) from e
            else:
                return

    async def _forwarded(self, parts: Any, receive: Receive, send: Send) -> None:
        """Send what a replica answers; end it where the client leaves."""

        async def pass_on() -> None:
            async for part in parts:
                for message in part:
                    await send(message)

        passing = asyncio.ensure_future(pass_on())
        leaving = asyncio.ensure_future(client_left(receive))
        try:
            await asyncio.wait((passing, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not passing.done():
                parts.cancel()
                raise DisconnectedError
            await passing
        finally:
            leaving.cancel()
            passing.cancel()


class Behind:
    """A whole server that is asked by way of messages.

    Args:
        app: the server.
    """

    def __init__(self, app: Callable[[Scope, Receive, Send], Any]) -> None:
        self._app = app

    async def answer(self, given: Given, body: bytes) -> AsyncIterator[list[Message]]:
        """Yield ASGI's messages of an answer.

        Its head comes with the first part of its body: a whole answer is there or is not.
        """
        left, sent = asyncio.Event(), asyncio.Queue[Message | None](8)
        parts = [body]

        async def receive() -> Message:
            if parts:
                return {"type": "http.request", "body": parts.pop(), "more_body": False}
            await left.wait()
            return {"type": "http.disconnect"}

        async def run() -> None:
            try:
                await self._app({"type": "http", **given}, receive, sent.put)
            finally:
                await sent.put(None)

        running, held = asyncio.ensure_future(run()), list[Message]()
        try:
            while (message := await sent.get()) is not None:
                held.append(message)
                if message["type"] != "http.response.start":
                    yield held
                    held = []
            await running
        finally:
            left.set()
            running.cancel()


def place_of(path: str, body: bytes) -> str:
    """Return what decides which replica answers a request for a text; empty for any.

    Of a conversation it is how it begins, up to the first thing that its user says: what follows is
    longer each time.
    """
    if path not in _TEXTS:
        return ""
    try:
        data = orjson.loads(body)
    except ValueError:
        return ""
    if not isinstance(data, dict):
        return ""
    said: list[object] = [data.get("model"), data.get("system"), data.get("instructions")]
    turns = data.get("messages") or data.get("input") or data.get("prompt")
    for turn in turns if isinstance(turns, list) else [turns]:
        said.append(turn)
        if not isinstance(turn, dict) or turn.get("role") == "user":
            break
    beginning = to_json(said)[: 4 * _BEGINNING]
    return hashlib.blake2b(beginning, digest_size=16).hexdigest()
