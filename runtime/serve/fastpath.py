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
from edgeinfer.records import dataclass
from edgeinfer.runtime.batches import size_of
from edgeinfer.runtime.scheduler import Outputs
from edgeinfer.runtime.serve.exchange import WholeRequest
from edgeinfer.runtime.serve.http import (
    JSON,
    LENGTH,
    Header,
    RequestError,
    Scope,
    header,
    number_of,
    retry_header,
    whole_headers,
)
from edgeinfer.runtime.serve.hub import Hub
from edgeinfer.runtime.serve.inflight import LARGE_BYTES, weigh
from edgeinfer.runtime.serve.keys import Grant, Keys, share_of
from edgeinfer.runtime.serve.lanes import Ran
from edgeinfer.runtime.serve.origins import Origins
from edgeinfer.runtime.serve.refusals import refusal
from edgeinfer.runtime.serve.requestlog import LOG, log_request
from edgeinfer.runtime.serve.served import Served
from edgeinfer.runtime.serve.stacks import Entry, Stack
from edgeinfer.runtime.serve.tensors import InferRequest, read
from edgeinfer.runtime.serve.v2 import result

BEGIN, END = b"/v2/models/", b"/infer"
_ID = b"x-request-id"


class FastPath:
    """Answers what it can.

    Args:
        hub: the models.
        keys: that let requests in.
        origins: pages that may ask.
        id_of: gives a request its id: its own, or one of ours.
    """

    def __init__(
        self, hub: Hub, keys: Keys, origins: Origins, id_of: Callable[[bytes | None], bytes]
    ) -> None:
        self.hub, self._keys, self._origins, self._id_of = hub, keys, origins, id_of

    def take(self, request: WholeRequest) -> bool:
        """Answer a request soon; False leaves it, and nothing has happened."""
        started = time.perf_counter()
        head = request.head
        try:
            facts: _Facts | None = head.facts if head is not None else None
            if head is not None and head.stack and facts is not None:
                entry = facts, request, self._id_of(facts.id), started
                if not request.is_alone and head.stack.take(entry):
                    return True
                if head.stack.is_gone:
                    head.stack = None
            if facts is None:
                facts = self._facts(request)
            if facts is None or not self._is_open(facts.model):
                return False
            asked = self._read(facts, request.body, is_alone=request.is_alone)
            if asked is None or asked.terms.sequence is not None:
                return False
            expected = facts.model.answer_size.of(asked.feeds)
            if expected >= LARGE_BYTES and not self.hub.memory.is_free(
                len(request.body) + expected, 0, facts.share
            ):
                return False
            self._let_in(facts, asked.terms.priority or 0)
        except (EdgeInferError, RequestError, RecursionError):
            return False
        except Exception as error:
            # A fault of ours is none of the parser's, which would call the request invalid.
            LOG.error("a request was left to the slower way", exc_info=error)
            return False
        if head is not None:
            head.facts = facts
            if head.stack is None:
                head.stack = self._stack(facts, request) or False
        id, request.share = self._id_of(facts.id), facts.share
        if not (request.is_alone and self._is_answered(facts, asked, request, id, started)):
            call = _Call(self.hub, facts, asked, request, id, started, expected)
            self._submit(facts, asked, call)
        return True

    def _stack(self, facts: _Facts, request: WholeRequest) -> Stack | None:
        """Return what takes requests of this head and JSON that come together."""
        # Keys of several have shares and turns.
        if facts.size is None or facts.share or not request.keep_alive:
            return None
        text = bytes(request.body[: facts.size])
        plan = facts.model.plans.plan(text)
        if plan is None or not Stack.fits(self.hub, facts.model, plan):
            return None
        if plan.stack is None:
            plan.stack = Stack(self.hub, facts.model, plan, text, self._alone, self._id_of)
        found: Stack = plan.stack
        return found

    def _alone(self, entry: Entry) -> None:
        """Take a request that came with others by itself; its key has paid for it."""
        facts, request, id, started = entry
        model, limit = facts.model, self.hub.options.limits.elements
        request.share = facts.share
        try:
            asked = read(request.body, facts.size, model.inputs, model.outputs, limit)
        except Exception as error:
            status, content, headers = _refused(facts, error)
            facts.ended(status, id, started)
            request.answer(status, (*whole_headers(content, headers), (_ID, id)), content)
            return
        expected = model.answer_size.of(asked.feeds)
        self._submit(facts, asked, _Call(self.hub, facts, asked, request, id, started, expected))

    def _is_answered(
        self, facts: _Facts, asked: InferRequest, request: WholeRequest, id: bytes, started: float
    ) -> bool:
        """Answer the only client at once, where that is soon: nobody could see it wait."""
        lane, status = facts.model.lane, 200
        if lane is None:
            return False
        try:
            found = lane.run_now(asked.feeds)
            if found is None:
                return False
            if size_of(found) >= LARGE_BYTES:
                _Call(self.hub, facts, asked, request, id, started, 0).set_result(found)
                return True
            content, headers = result(facts.model, asked, found)
        except Exception as error:
            status, content, headers = _refused(facts, error)
        facts.ended(status, id, started)
        request.answer(status, (*whole_headers(content, headers), (_ID, id)), content)
        return True

    def _submit(self, facts: _Facts, asked: InferRequest, call: _Call) -> None:
        model, priority, share = facts.model, asked.terms.priority, facts.share
        deadline_s = self.hub.deadline(asked.terms)
        try:
            # A thread may unload it at any time.
            lane, tensors = model.lane, model.tensors
            if lane is not None:
                lane.submit(asked.feeds, priority, deadline_s, call, share)
            elif tensors is not None:
                found = tensors.submit(
                    asked.feeds, priority=priority, deadline_s=deadline_s, owner=share
                )
                call.set_result(found)
            else:
                call.set_exception(model.unloaded())
        except Exception as error:
            call.set_exception(error)

    def _facts(self, request: WholeRequest) -> _Facts | None:
        """Return what a request's head says; None where more is to be considered.

        Raises:
            RequestError: it is not let in.
        """
        url = request.url
        if not (url.startswith(BEGIN) and url.endswith(END)) or self.hub.answers is not None:
            return None
        model = self.hub.models.get(url[len(BEGIN) : -len(END)].decode("latin-1"))
        if model is None or model.fallback is not None:
            return None
        scope: Scope = {"headers": request.headers, "path": url.decode("latin-1")}
        self._origins.check(scope)
        if header(scope, b"origin") is not None or header(scope, b"content-encoding") is not None:
            return None
        grant = self._keys.find(header(scope, b"authorization"), header(scope, b"x-api-key"))
        if grant is not None and grant.models and model.name not in grant.models:
            return None
        size, id = number_of(scope, LENGTH), header(scope, _ID)
        return _Facts(model, size, id, grant, share_of(grant), url.decode("latin-1"))

    def _is_open(self, model: Served) -> bool:
        """Whether a model takes requests now."""
        hub = self.hub
        is_open = model.tensors is not None and model.is_ready and not hub.is_stopping
        return is_open and model.waiting < hub.options.limits.queue

    def _read(
        self, facts: _Facts, body: bytes | memoryview, *, is_alone: bool
    ) -> InferRequest | None:
        limits, model, size = self.hub.options.limits, facts.model, facts.size
        if len(body) > limits.body_bytes:
            return None
        if not self.hub.memory.is_free(len(body), 0, facts.share):
            return None
        text = bytes(body if size is None else body[:size])
        if size is not None and (known := model.plans.read(text, body)) is not None:
            return known
        if len(text) > limits.json_bytes:
            return None
        if len(body) >= LARGE_BYTES:
            # Others would wait until it is read.
            if not is_alone or (size is not None and model.plans.has_texts):
                return None
            if not self.hub.memory.is_free(len(body) + weigh(text), 0, facts.share):
                return None
        made = read(body, size, model.inputs, model.outputs, limits.elements)
        if size is not None:
            model.plans.keep(text, body, made)
        return made

    def _let_in(self, facts: _Facts, ahead: float) -> None:
        """Count a request.

        Raises:
            RequestError: it is not let in, and was not counted.
            QueueFullError: likewise, its key has its share of what waits.
        """
        grant = facts.grant
        if grant is None:
            return
        grant.check_ahead(ahead)
        facts.model.check_place(self.hub.options.limits.queue, facts.share)
        grant.count_request()


@dataclass(frozen=True, slots=True)
class _Facts:
    """What the head of a request says, whatever its body.

    Attributes:
        model: that is asked.
        size: Length of the JSON before raw tensors; None where that is all.
        id: Identifier of the request; None where it has none.
        grant: Key that lets it in; None where none is requested.
        share: whose share it counts for.
        path: that was asked.
    """

    model: Served
    size: int | None
    id: bytes | None
    grant: Grant | None
    share: bytes
    path: str

    def ended(self, status: int, id: bytes, started: float, now: float | None = None) -> None:
        """Count a request that was answered, and log it."""
        seconds = (time.perf_counter() if now is None else now) - started
        self.model.metrics.ended(status, seconds)
        key = "" if self.grant is None else self.grant.name
        log_request("POST", self.path, status, id=id, seconds=seconds, key=key)


def _refused(facts: _Facts, error: Exception) -> tuple[int, bytes, tuple[Header, ...]]:
    known, body = refusal("POST", facts.path, error)
    return known.status, body, (JSON, *retry_header(known))


class _Call:
    """One request under way: gets its outputs from a lane, and answers.

    Args:
        hub: that has the model.
        facts: what its head says.
        asked: what is asked of the model.
        request: Request of the connection.
        id: Identifier of the request.
        started: time of the performance counter.
        expected: Bytes of the answer, as far as they are known.
    """

    __slots__ = (
        *("_answer", "_asked", "_facts", "_hub", "_id", "_is_done", "_request", "_running"),
        *("_size", "_started"),
    )

    def __init__(
        self,
        hub: Hub,
        facts: _Facts,
        asked: InferRequest,
        request: WholeRequest,
        id: bytes,
        started: float,
        expected: int,
    ) -> None:
        self._hub, self._facts, self._asked, self._request = hub, facts, asked, request
        self._id, self._started = id, started
        self._is_done = False
        self._running: asyncio.Future[None] | Future[Outputs] | None = None
        facts.model.enter(facts.share)
        self._answer = expected if expected >= LARGE_BYTES else 0
        self._size = len(request.body) + self._answer
        hub.memory.add(self._size, facts.share)
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
                content, headers = result(self._facts.model, self._asked, found)
            except Exception as error:
                self.set_exception(error)
            else:
                self._end(200, content, headers)
        else:
            self._running = asyncio.ensure_future(self._large(found))

    def set_exception(self, error: Exception, /) -> None:
        """Answer with what went wrong."""
        self._end(*_refused(self._facts, error))

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
        """Write large outputs outside the loop, where there is memory for them."""
        try:
            self._made(size := size_of(outputs))
            work = partial(result, self._facts.model, self._asked, outputs)
            content, headers = await self._hub.read(size, work)
            self._made(len(content))
        except Exception as error:
            self.set_exception(error)
        else:
            self._end(200, content, headers)

    def _made(self, size: int) -> None:
        """Hold an answer that is there, as far as nobody knew of it before.

        Raises:
            RequestError: there is no memory for it.
        """
        if (more := size - self._answer) > 0:
            memory, share = self._hub.memory, self._facts.share
            memory.check(more, self._size, share)
            memory.add(more, share)
            self._size += more
            self._answer = size

    def _left(self) -> None:
        if self._running is not None:
            self._running.cancel()
        self._account(499)

    def _end(self, status: int, content: bytes, headers: Iterable[Header]) -> None:
        if self._is_done:
            return
        self._account(status)
        every = (*whole_headers(content, headers), (_ID, self._id))
        self._request.answer(status, every, content)

    def _account(self, status: int) -> None:
        self._is_done, self._request.left = True, None
        # A thread's future has a call that has this one.
        self._running = None
        facts = self._facts
        facts.model.leave(facts.share)
        self._hub.memory.give(self._size, facts.share)
        facts.ended(status, self._id, self._started)
