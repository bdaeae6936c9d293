"""Requests that differ in their numbers alone, answered by one pass over all that came together.

To make arrays of each, join them, cut the outputs and write each answer's head takes more than the
run of a small network. Requests with one JSON text, over connections whose heads are known, differ
in their bytes alone: these are joined as they came, run, and their answers cut out of the outputs'
bytes behind one head. What is not as plain goes the way of all others, one by one.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from edgeinfer.errors import RunError
from edgeinfer.runtime.batches import MOST_JOINED_BYTES
from edgeinfer.runtime.serve.exchange import WholeRequest
from edgeinfer.runtime.serve.http import LENGTH, SAFE
from edgeinfer.runtime.serve.hub import Hub
from edgeinfer.runtime.serve.inflight import LARGE_BYTES
from edgeinfer.runtime.serve.lanes import BRIEF_S
from edgeinfer.runtime.serve.plans import RequestPlan
from edgeinfer.runtime.serve.served import Served
from edgeinfer.runtime.serve.v2 import BINARY
from edgeinfer.types import Array

Entry = tuple[Any, WholeRequest, bytes, float]
"""Facts of the head, the request, its id, and when it came."""

Body = bytes | memoryview

Default = list[tuple[bytes, bytes]]
"""Headers that every answer has now: another list each second."""


class Stack:
    """Requests of one JSON text that came together.

    Args:
        hub: that has the model.
        model: that is asked.
        plan: reads them.
        text: the JSON.
        other: takes a request the way of all others.
        id_of: gives a request its id: its own, or one of ours.
    """

    __slots__ = (
        *("_begin", "_hub", "_id_of", "_lane", "_like", "_model", "_names", "_other", "_plan"),
        *("_plans", "_size", "_text", "_waiting"),
    )

    def __init__(
        self,
        hub: Hub,
        model: Served,
        plan: RequestPlan,
        text: bytes,
        other: Callable[[Entry], None],
        id_of: Callable[[bytes | None], bytes],
    ) -> None:
        self._hub, self._model, self._plan, self._text = hub, model, plan, text
        self._other, self._id_of = other, id_of
        self._lane, self._plans = model.lane, model.plans
        self._size = plan.length - len(text)
        wanted = plan.request.outputs
        self._names = [s.name for s in model.outputs if not wanted or s.name in wanted]
        self._waiting: list[Entry] = []
        # What the latest answers began with, and what they were like.
        self._like: tuple[object, list[tuple[int, ...]]] | None = None
        self._begin = b"", b""

    @staticmethod
    def fits(hub: Hub, model: Served, plan: RequestPlan) -> bool:
        """Whether requests of a plan are plain enough."""
        lane, terms, asked = model.lane, plan.request.terms, plan.request
        if lane is None or lane.most < 2 or hub.options.limits.wait_s is not None:
            return False
        if terms.priority or terms.deadline_s is not None or not model.answer_size.is_known:
            return False
        if plan.length * lane.most > MOST_JOINED_BYTES:
            return False
        names = asked.outputs or [spec.name for spec in model.outputs]
        texts = {spec.name for spec in model.outputs if spec.dtype == "string"}
        if not asked.binary.issuperset(names) or texts.intersection(names):
            return False
        if not all(shape and shape[0] == plan.parts[0][3][0] for _, _, _, shape in plan.parts):
            return False
        feeds = {name: np.broadcast_to(np.zeros(1, d), s) for name, d, _, s in plan.parts}
        return 0 < model.answer_size.of(feeds) < LARGE_BYTES

    @property
    def is_gone(self) -> bool:
        """Whether the model was loaded anew, or unloaded."""
        return self._lane is not self._model.lane or self._plans is not self._model.plans

    def take(self, entry: Entry) -> bool:
        """Take a request; False leaves it, and nothing has happened.

        Raises:
            RequestError: 429, the key has used up its requests.
        """
        facts, request, *_ = entry
        if not self._takes(request.body):
            return False
        if facts.grant is not None:
            facts.grant.count_request()
        self._model.enter(b"")
        self._hub.memory.add(len(request.body), b"")
        self._waiting.append(entry)
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._run)
        return True

    def answer(self, facts: Any, body: Body, default: Default) -> bytes | None:
        """Return the answer to who is alone, head and all; None leaves it, and nothing happened.

        Args:
            facts: Facts of the head.
            body: Body of the request.
            default: Headers that every answer has now.
        """
        started, grant = time.perf_counter(), facts.grant
        if self._waiting or (grant is not None and grant.is_counted) or not self._takes(body):
            return None
        try:
            made = self._made([body], default)
        # It is tried again by the way of all others, which tells what is wrong.
        except Exception:
            made = None
        if made is None:
            return None
        (head, text, data), id = made, self._id_of(facts.id)
        facts.ended(200, id, started)
        return b"".join((head, id, b"\r\n\r\n", text, *data))

    def _takes(self, body: Body) -> bool:
        """Whether a body is one of these, and may be run now."""
        hub, model, lane, text = self._hub, self._model, self._lane, self._text
        if lane is None or lane is not model.lane or self._plans is not model.plans:
            return False
        if len(body) != self._plan.length or body[: len(text)] != text:
            return False
        is_open = model.is_ready and not hub.is_stopping and lane.takes(self._size)
        if not is_open or model.waiting >= hub.options.limits.queue:
            return False
        return hub.memory.is_free(len(body), 0)

    def _run(self) -> None:
        lane, waiting = self._lane, self._waiting
        most = 1 if lane is None else lane.most
        end = time.perf_counter() + BRIEF_S
        while waiting:
            batch = waiting[:most]
            del waiting[:most]
            self._run_batch(batch)
            left = len(waiting)
            if left and (left < most or time.perf_counter() > end):
                # As requests of a lane.
                asyncio.get_running_loop().call_soon(self._run)
                return

    def _run_batch(self, batch: list[Entry]) -> None:
        here: list[Entry] = []
        self._hub.memory.give(len(batch) * self._plan.length, b"")
        for entry in batch:
            facts, request, id, started = entry
            self._model.leave(b"")
            if request.disconnected:
                facts.ended(499, id, started)
            else:
                here.append(entry)
        if not here:
            return
        try:
            bodies = [request.body for _, request, _, _ in here]
            made = self._made(bodies, here[0][1].default_headers)
        # Whatever is wrong with one of them, each is tried by itself, and tells it.
        except Exception:
            made = None
        if made is None:
            for entry in here:
                self._other(entry)
            return
        head, text, data = made
        now, count = time.perf_counter(), len(here)
        sizes = [len(raw) // count for raw in data]
        for number, (facts, request, id, started) in enumerate(here):
            parts = [r[number * n : number * n + n] for r, n in zip(data, sizes, strict=True)]
            facts.ended(200, id, started, now)
            request.send(b"".join((head, id, b"\r\n\r\n", text, *parts)))

    def _made(
        self, bodies: list[Body], default: Default
    ) -> tuple[bytes, bytes, list[bytes]] | None:
        """Run requests; return what their answers begin with, and the bytes of each output.

        Args:
            bodies: Body of each.
            default: Headers that every answer has now.

        Returns:
            Head up to the id, JSON, and outputs of all requests; None where the engine is not free.

        Raises:
            Exception: something is wrong with one of them, or all.
        """
        plan, lane, count, names = self._plan, self._lane, len(bodies), self._names
        rows, feeds = plan.parts[0][3][0], dict[str, Array]()
        for name, dtype, start, shape in plan.parts:
            if count == 1:
                feeds[name] = np.ndarray(shape, dtype, bodies[0], start)
                continue
            end = start + dtype.itemsize * math.prod(shape)
            raw = b"".join([body[start:end] for body in bodies])
            feeds[name] = np.frombuffer(raw, dtype).reshape(count * rows, *shape[1:])
        found = None if lane is None else lane.run_joined(feeds, count)
        if found is None:
            return None
        if count > 1 and any(len(found[name]) != count * rows for name in names):
            raise RunError(f"model {self._model.name!r}: expected {count * rows} rows of each")
        first = found if count == 1 else {name: found[name][:rows] for name in found}
        head, text = self._begun(first, default)
        return head, text, [found[name].tobytes() for name in names]

    def _begun(self, first: Mapping[str, Array], default: Default) -> tuple[bytes, bytes]:
        """Return the head up to the id and the JSON of answers; they are written once a second.

        Args:
            first: Outputs of one request.
            default: Headers that every answer has now.
        """
        shapes, like = [first[name].shape for name in self._names], self._like
        if like is None or like[0] is not default or like[1] != shapes:
            model, request = self._model, self._plan.request
            content, size = self._plans.write(model.name, request, first, model.outputs)
            own = ((LENGTH, b"%d" % (size or 0)), (b"content-length", b"%d" % len(content)))
            lines = [b"%s: %s\r\n" % each for each in (*default, BINARY, *own, *SAFE)]
            self._begin = b"".join((STATUS_LINE[200], *lines, b"x-request-id: ")), content[:size]
            self._like = default, shapes
        return self._begin
