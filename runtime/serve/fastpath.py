"""Requests of tensors that come whole, answered without a task.

Most requests are such: what a task, ASGI's messages and their scope cost is more than all the rest
of a small one. Brief runs go on the event loop (``lanes.py``), others to threads, whose answers
come back all of a batch at once. Whatever is not plain, or is wrong, is left to the
way that all other requests take, before anything was counted, and is answered there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial

from edgeinfer.errors import EdgeInferError
from edgeinfer.runtime.scheduler import Outputs
from edgeinfer.runtime.serve.exchange import WholeRequest
from edgeinfer.runtime.serve.http import (
    JSON,
    Header,
    RequestError,
    Scope,
    header,
    number_of,
    retry_header,
    whole_headers,
)
from edgeinfer.runtime.serve.hub import LARGE_BYTES, Hub
from edgeinfer.runtime.serve.inflight import LENGTH, Held
from edgeinfer.runtime.serve.keys import Grant, Keys, share_of
from edgeinfer.runtime.serve.lanes import Ran
from edgeinfer.runtime.serve.origins import Origins
from edgeinfer.runtime.serve.refusals import refusal
from edgeinfer.runtime.serve.requestlog import log_request
from edgeinfer.runtime.serve.served import Served
from edgeinfer.runtime.serve.tensors import InferRequest, read
from edgeinfer.runtime.serve.v2 import result, size_of

BEGIN, END = b"/v2/models/", b"/infer"


class FastPath:
    """Answers what it can.

    Args:
        hub: the models.
        keys: that let requests in.
        origins: pages that may ask.
        id_of: gives a request its id.
    """

    def __init__(
        self, hub: Hub, keys: Keys, origins: Origins, id_of: Callable[[Scope], bytes]
    ) -> None:
        self.hub, self._keys, self._origins, self._id_of = hub, keys, origins, id_of

    def take(self, request: WholeRequest) -> bool:
        """Answer a request soon; False leaves it, and nothing has happened."""
        started = time.perf_counter()
        model = self._model(request.url)
        if model is None or model.tensors is None:
            return False
        scope: Scope = {"headers": request.headers}
        try:
            asked = self._read(model, scope, request.body)
            if asked is None:
                return False
            if asked.terms.sequence is not None:
                return False
            grant = self._granted(model, scope, asked.terms.priority or 0, len(request.body))
        except (EdgeInferError, RequestError, RecursionError):
            return False
        call = _Call(self.hub, model, asked, request, self._id_of(scope), grant, started)
        terms = asked.terms
        priority, deadline_s = terms.priority, self.hub.deadline(terms)
        share = share_of(grant)
        try:
            if model.lane is not None:
                model.lane.submit(asked.feeds, priority, deadline_s, call, share)
            else:
                found = model.tensors.submit(
                    asked.feeds, priority=priority, deadline_s=deadline_s, owner=share
                )
                call.set_result(found)
        except Exception as error:
            call.set_exception(error)
        return True

    def _model(self, url: bytes) -> Served | None:
        """Return the model that is asked, where nothing else is to be considered."""
        hub = self.hub
        if not (url.startswith(BEGIN) and url.endswith(END)) or hub.is_stopping:
            return None
        if hub.answers is not None:
            return None
        model = hub.models.get(url[len(BEGIN) : -len(END)].decode("latin-1"))
        if model is None or not model.is_ready or model.fallback is not None:
            return None
        return model if model.waiting < hub.options.limits.queue else None

    def _read(self, model: Served, scope: Scope, body: bytes | memoryview) -> InferRequest | None:
        limits, memory = self.hub.options.limits, self.hub.memory
        self._origins.check(scope)
        if header(scope, b"origin") is not None or header(scope, b"content-encoding") is not None:
            return None
        if len(body) > limits.body_bytes or not memory.is_free(len(body), 0):
            return None
        size = number_of(scope, LENGTH)
        text = b"" if size is None else bytes(body[:size])
        if size is not None and (known := model.plans.read(text, body)) is not None:
            return known
        if len(body) >= min(LARGE_BYTES, limits.json_bytes):
            return None
        made = read(body, size, model.inputs, model.outputs, limits.elements)
        if size is not None:
            model.plans.keep(text, body, made)
        return made

    def _granted(self, model: Served, scope: Scope, ahead: float, size: int) -> Grant | None:
        """Let a request in, and count it.

        Raises:
            RequestError: it is not let in, and was not counted.
            QueueFullError: likewise, its key has its share of what waits.
        """
        grant = self._keys.find(header(scope, b"authorization"), header(scope, b"x-api-key"))
        if grant is None:
            return None
        if grant.models and model.name not in grant.models:
            raise RequestError(404, model.name)
        grant.check_ahead(ahead)
        share = share_of(grant)
        if not self.hub.memory.is_free(size, 0, share):
            raise RequestError(429, model.name)
        model.check_place(self.hub.options.limits.queue, share)
        grant.count_request()
        return grant


class _Call:
    """One request under way: gets its outputs from a lane, and answers.

    Args:
        hub: that has the model.
        model: that is asked.
        asked: what of it.
        request: Request of the connection.
        id: Identifier of the request.
        grant: Key that let it in.
        started: time of the performance counter.
    """

    __slots__ = (
        *("_asked", "_grant", "_held", "_hub", "_id", "_is_done", "_model", "_request"),
        *("_running", "_share", "_started"),
    )

    def __init__(
        self,
        hub: Hub,
        model: Served,
        asked: InferRequest,
        request: WholeRequest,
        id: bytes,
        grant: Grant | None,
        started: float,
    ) -> None:
        self._hub, self._model, self._asked, self._request = hub, model, asked, request
        self._id, self._grant, self._started = id, grant, started
        self._is_done = False
        self._running: asyncio.Future[None] | Future[Outputs] | None = None
        self._share = request.share = share_of(grant)
        model.enter(self._share)
        self._held = Held(hub.memory, self._share)
        self._held.add(len(request.body))
        request.left = self._left

    def done(self) -> bool:
        """Whether it was answered, or the client left."""
        return self._is_done

    def set_result(self, found: Ran, /) -> None:
        """Answer with outputs, or once a thread has them."""
        if isinstance(found, Future):
            self._running = found
            bell = self._hub.bell()
            found.add_done_callback(lambda done: bell.ring(partial(self._came, done)))
        elif size_of(found) < LARGE_BYTES:
            try:
                content, headers = result(self._model, self._asked, found)
            except Exception as error:
                self.set_exception(error)
            else:
                self._end(200, content, headers)
        else:
            self._running = asyncio.ensure_future(self._large(found))

    def set_exception(self, error: Exception, /) -> None:
        """Answer with what went wrong."""
        known, body = refusal("POST", self._path, error)
        self._end(known.status, body, (JSON, *retry_header(known)))

    def _came(self, done: Future[Outputs]) -> None:
        """Take what a thread gave."""
        if self._is_done or done.cancelled():
            return
        error = done.exception()
        if error is None:
            self.set_result(done.result())
        elif isinstance(error, Exception):
            self.set_exception(error)

    async def _large(self, outputs: Outputs) -> None:
        """Write large outputs beside the loop, once there is memory for them."""
        try:
            size = size_of(outputs)
            await self._held.take(size)
            work = partial(result, self._model, self._asked, outputs)
            content, headers = await self._hub.read(size, work)
        except Exception as error:
            self.set_exception(error)
        else:
            self._end(200, content, headers)

    def _left(self) -> None:
        if self._running is not None:
            self._running.cancel()
        self._account(499)

    def _end(self, status: int, content: bytes, headers: Iterable[Header]) -> None:
        if self._is_done:
            return
        self._account(status)
        every = (*whole_headers(content, headers), (b"x-request-id", self._id))
        self._request.answer(status, every, content)

    def _account(self, status: int) -> None:
        self._is_done, self._request.left = True, None
        self._model.leave(self._share)
        self._held.release()
        seconds = time.perf_counter() - self._started
        self._model.metrics.ended(status, seconds)
        key = "" if self._grant is None else self._grant.name
        log_request("POST", self._path, status, id=self._id, seconds=seconds, key=key)

    @property
    def _path(self) -> str:
        return self._request.url.decode("latin-1")
