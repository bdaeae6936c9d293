"""The server as an ASGI application: routes, keys, counters, errors."""

from __future__ import annotations

import asyncio
import itertools
import re
import secrets
import time
from functools import cached_property, partial
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote

from edgeinfer.printable import as_line
from edgeinfer.runtime.bell import awaited
from edgeinfer.runtime.pool import Pool
from edgeinfer.runtime.serve.announce import Announcement
from edgeinfer.runtime.serve.exchange import KEY, Exchange
from edgeinfer.runtime.serve.facts import check_version
from edgeinfer.runtime.serve.fastpath import FastPath
from edgeinfer.runtime.serve.http import (
    JSON,
    DisconnectedError,
    Header,
    Message,
    Receive,
    RequestError,
    Scope,
    Send,
    answer,
    answer_json,
    check_announced,
    header,
    retry_header,
)
from edgeinfer.runtime.serve.hub import Hub
from edgeinfer.runtime.serve.inflight import LARGE_BYTES, Held, Received, hold
from edgeinfer.runtime.serve.keys import GRANT, OPEN, Keys
from edgeinfer.runtime.serve.metrics import CONTENT_TYPE
from edgeinfer.runtime.serve.origins import Origins
from edgeinfer.runtime.serve.page import ASK_FOR_KEY, answer_page, is_page
from edgeinfer.runtime.serve.refusals import refusal
from edgeinfer.runtime.serve.requestlog import MAX_PATH, log_request
from edgeinfer.runtime.serve.served import Served
from edgeinfer.runtime.serve.tidying import tidy
from edgeinfer.runtime.serve.traces import Traces
from edgeinfer.runtime.serve.v2 import V2

if TYPE_CHECKING:
    from edgeinfer.runtime.serve.rpc import Rpc
    from edgeinfer.runtime.serve.upstream import Upstreams

_ID = re.compile(rb"[!-~]{1,128}")
_GENERATE = ("/generate", "/generate_stream")


class Route(Protocol):
    """Some addresses of one kind."""

    async def route(
        self, path: str, method: str, scope: Scope, receive: Receive, send: Send
    ) -> bool:
        """Answer a request; False where it is none of these."""
        ...


class App:
    """Answers all requests.

    Args:
        hub: the models.
        loads: load them when the server starts.
        replica: its name where it is one of several; each answer tells it.
    """

    def __init__(self, hub: Hub, *, loads: bool = True, replica: str = "") -> None:
        self.hub, self._loads, self._replica = hub, loads, replica.encode()
        self._v2 = V2(hub)
        self._keys, self._traces = Keys(hub.options.keys), Traces()
        self._origins = Origins(hub.options)
        self._upstreams: Upstreams | None = None
        if hub.options.upstreams:
            from edgeinfer.runtime.serve.upstream import Upstreams

            self._upstreams = Upstreams(hub)
        if any(m.kind != "tensors" or m.has_meaning for m in hub.models.values()):
            # Now, and not when the first request waits for it.
            self._others  # noqa: B018
        self._start, self._count = secrets.token_hex(4).encode(), itertools.count()
        # A span of its own is more than the fast path does.
        fast = FastPath(hub, self._keys, self._origins, self._id)
        self.fast = None if self._traces.is_on else fast
        self._announcement = Announcement(hub.options) if hub.options.mdns else None
        self.rpc: Rpc | None = None
        if hub.options.grpc_port is not None:
            from edgeinfer.runtime.serve.rpc import Rpc

            self.rpc = Rpc(hub, self._keys)

    @cached_property
    def _others(self) -> tuple[Route, ...]:
        """Addresses of texts and tasks; a server of tensors alone does without their modules."""
        from edgeinfer.runtime.serve.anthropic import Anthropic
        from edgeinfer.runtime.serve.openai import OpenAI
        from edgeinfer.runtime.serve.responses import Responses
        from edgeinfer.runtime.serve.tasks import Tasks

        return OpenAI(self.hub), Responses(self.hub), Anthropic(self.hub), Tasks(self.hub)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or follow the life of the server."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        else:
            raise RuntimeError(f"{scope['type']} is not served")

    async def _live(self, receive: Receive, send: Send) -> None:
        loading: asyncio.Future[None] | None = None
        tidying = asyncio.ensure_future(tidy(self.hub))
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                if self.rpc is not None:
                    await self.rpc.start()
                if self._announcement is not None:
                    self._announcement.begin()
                # Probes are answered while models load.
                if self._loads:
                    load_all = partial(self.hub.loader.load_all, self.hub.models.values())
                    loading = awaited(Pool("edgeinfer-start", 1, 1).submit(load_all))
                await send({"type": "lifespan.startup.complete"})
            else:
                tidying.cancel()
                if self._announcement is not None:
                    await self._announcement.stop()
                if self.rpc is not None:
                    await self.rpc.stop()
                if self._upstreams is not None:
                    await self._upstreams.close()
                if loading is not None:
                    await asyncio.wait((loading,))
                await Pool("edgeinfer-close", 1, 1).run(self.hub.close)
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        id, held = self._id(header(scope, b"x-request-id")), hold(self.hub.memory)
        if self.hub.regions is not None:
            _note_caller(scope)
        # A cycle has its scope: who stayed in it would hold both until the collector comes.
        exchange: Exchange | None = scope.pop(KEY, None)
        receive = Received(receive, held, exchange)
        # Where there are several, who is before them adds the request's id.
        own = (b"x-edgeinfer-replica", self._replica) if self._replica else (b"x-request-id", id)
        sent = _Sent(send, (own, *self._origins.headers(scope)), exchange, held)
        try:
            if self._traces.is_on:
                model = await self._traced(scope, receive, sent, id)
            else:
                model = await self._answered(scope, receive, sent)
        finally:
            held.release()
        seconds = time.perf_counter() - started
        if model is not None:
            model.metrics.ended(sent.status, seconds)
        key = "" if (grant := GRANT.get()) is None else grant.name
        log_request(scope["method"], scope["path"], sent.status, id=id, seconds=seconds, key=key)

    async def _traced(
        self, scope: Scope, receive: Receive, sent: _Sent, id: bytes
    ) -> Served | None:
        method, path = scope["method"], as_line(scope["path"][:MAX_PATH])
        parent = header(scope, b"traceparent")
        above = None if parent is None else parent.decode("latin-1")
        with self._traces.span(f"{method} {path[:80]}", above, id.decode()) as note:
            model = await self._answered(scope, receive, sent)
            note("http.request.method", method)
            note("url.path", path)
            note("http.response.status_code", sent.status)
        return model

    async def _answered(self, scope: Scope, receive: Receive, sent: _Sent) -> Served | None:
        """Answer; return the model whose run is to be counted."""
        model: Served | None = None
        path = scope["path"] = scope["path"].rstrip("/") or "/"
        try:
            _check_length(path)
            if scope["method"] == "OPTIONS" and self.hub.options.cors:
                await answer(sent, 204, b"", ())
                return None
            if path not in OPEN:
                self._origins.check(scope)
                self._keys.check(header(scope, b"authorization"), header(scope, b"x-api-key"))
                check_announced(scope, self.hub.options.limits.body_bytes)
            if path.startswith("/v2/models/") and path.endswith("/infer"):
                model = self._model(scope, path.removesuffix("/infer"), "tensors")
                await self._v2.infer(model, scope, receive, sent)
            else:
                await self._route(path, scope, receive, sent)
        except (DisconnectedError, asyncio.CancelledError) as left:
            sent.status = 499
            if isinstance(left, asyncio.CancelledError):
                raise
        except Exception as error:
            await self._fail(sent, scope, error)
        return model

    def _id(self, given: bytes | None) -> bytes:
        """Return the client's id of a request, or one of ours."""
        if given is not None and _ID.fullmatch(given):
            return given
        return b"%s-%d" % (self._start, next(self._count))

    def _model(self, scope: Scope, path: str, kind: str | None = None) -> Served:
        """Return the model of ``/v2/models/NAME[/versions/1]``."""
        name, _, version = path[11:].partition("/versions/")
        name = unquote(name)
        check_version(name, version)
        if scope["method"] != "POST":
            raise RequestError(405, "this address takes POST")
        return self.hub.get(name) if kind is None else self.hub.of_kind(name, kind)

    async def _route(self, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        # Who asks for the head alone gets that of the whole answer; its body is not sent.
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        if is_page(path) and method == "GET":
            await answer_page(path, send)
        elif path in OPEN:
            live = path == "/v2/health/live"
            if not (live or self.hub.is_ready):
                raise RequestError(503, "models are still loading, or one failed", 1.0)
            await answer_json(send, {"live" if live else "ready": True})
        elif path == "/health/run" and method == "GET":
            await self._try_all(send)
        elif path == "/metrics" and method == "GET":
            if self.hub.options.replicated:
                raise RequestError(404, "each replica counts for itself; Ray's metrics are whole")
            page = await self.hub.facts.run(partial(self.hub.metrics.text, [*self.hub.visible]))
            await answer(send, 200, page, ((b"content-type", CONTENT_TYPE),))
        elif path.startswith("/v2/models/") and path.endswith(_GENERATE):
            from edgeinfer.runtime.serve.generate import generate

            at, _, what = path.rpartition("/")
            model = self._model(scope, at)
            await generate(self.hub, model, what == "generate_stream", receive, send)
        elif path == "/v2" or path.startswith("/v2/"):
            parts = [unquote(part) for part in path[3:].split("/") if part]
            await self._v2.other(parts, method, receive, send)
        else:
            if self._upstreams is not None and self._upstreams.takes(path, method):
                again = await self._upstreams.forward(path, scope, receive, send)
                if again is None:
                    return
                receive = again
            for each in self._others:
                if await each.route(path, method, scope, receive, send):
                    return
            raise RequestError(404, f"nothing is at {path} for {method}")

    async def _try_all(self, send: Send) -> None:
        """Run every model that is ready, once; what fails is status 503."""
        models = [*self.hub.visible.values()]
        found = await self.hub.loader.tried(models)
        bad = any(problem for problem in found.values())
        await answer_json(
            send, {name: problem or "good" for name, problem in found.items()}, 503 if bad else 200
        )

    async def _fail(self, send: _Sent, scope: Scope, error: Exception) -> None:
        known, body = refusal(scope["method"], scope["path"], error)
        if send.status:
            # The answer has begun; its end says that it is not whole.
            send.status = known.status
            raise error
        more = (ASK_FOR_KEY,) if known.status == 401 and is_page(scope["path"]) else ()
        await answer(send, known.status, body, (JSON, *retry_header(known), *more))


def _note_caller(scope: Scope) -> None:
    """Note where a request comes from, for the sake of shared memory."""
    from edgeinfer.runtime.serve.exchange import SOCKET
    from edgeinfer.runtime.serve.regions import CONNECTION, Connection
    from edgeinfer.runtime.serve.unread import plain_host

    host, port = scope.get("client") or ("", 0)
    CONNECTION.set(Connection((plain_host(host), port or 0), scope.get(SOCKET)))


def _check_length(path: str) -> None:
    if len(path) > MAX_PATH:
        raise RequestError(414, "the address is too long")


class _Sent:
    """Sends, and knows what was sent."""

    __slots__ = ("_exchange", "_headers", "_held", "_send", "status")

    def __init__(
        self, send: Send, headers: tuple[Header, ...], exchange: Exchange | None, held: Held
    ) -> None:
        self._send, self._headers, self._exchange, self._held = send, headers, exchange, held
        self.status = 0

    def whole(self, status: int, headers: list[Header], body: bytes) -> bool:
        """Send all of an answer at once; False where that cannot be.

        Raises:
            RequestError: there is no memory for it until it is read.
        """
        if len(body) >= LARGE_BYTES:
            self._held.made(len(body))
        exchange = self._exchange
        if exchange is None or not exchange.answer(status, (*headers, *self._headers), body):
            return False
        self.status = status
        return True

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message["headers"], *self._headers]
        await self._send(message)
