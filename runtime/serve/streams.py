"""Generations as they come: events of the server's side, pauses, and clients who leave."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakValueDictionary

from edgeinfer.errors import DeadlineError
from edgeinfer.records import dataclass
from edgeinfer.runtime.llm.grammar_trial import is_plain
from edgeinfer.runtime.llm.thread import COMPILING_S, SILENCE, Events
from edgeinfer.runtime.serve.http import (
    SAFE,
    DisconnectedError,
    Receive,
    RequestError,
    Send,
    answer_json,
    client_left,
    status_of,
    to_json,
)
from edgeinfer.runtime.serve.keys import GRANT, Grant, check_ahead, owner

if TYPE_CHECKING:
    from edgeinfer.runtime.llm.llm import LLM
    from edgeinfer.runtime.llm.params import Usage
    from edgeinfer.runtime.llm.sequence import SequenceRequest
    from edgeinfer.runtime.llm.tools import ToolCall
    from edgeinfer.runtime.serve.asked import Asked

KEEP_ALIVE_S = 10.0
"""A stream that says nothing for so long gets a comment, so that no proxy ends it."""

PAUSE = b": keep-alive\n\n"


@dataclass(frozen=True, slots=True)
class Turn:
    """What a model said.

    Attributes:
        text: Its text; empty where it is calls of tools.
        calls: Calls of tools.
        finish: why it ended, as the engine says.
        stop: the text that ended it, where one did.
        usage: what it took.
    """

    text: str
    calls: tuple[ToolCall, ...]
    finish: str
    stop: str | None
    usage: Usage


async def turns(llm: LLM, asked: Asked, wait_s: float | None) -> AsyncIterator[str | Turn | None]:
    """Generate once.

    Refusals are raised before the first value. Where tools may be called nothing is given until
    the end: whether a text is a call is known then.

    Args:
        llm: the model.
        asked: for one generation.
        wait_s: as for ``submit``.

    Yields:
        Texts as they come, None for each long silence, and the whole turn at the end.

    Raises:
        InputError: the request is not what the model takes.
        RunError: the engine failed.
    """
    events = await submit(llm, asked.request, wait_s)
    yield ""
    parts: list[str] = []
    async with contextlib.aclosing(events):
        async for event in events:
            if event is SILENCE:
                yield None
                continue
            if event.error is not None:
                raise event.error
            if event.text:
                parts.append(event.text)
                if not asked.tools:
                    yield event.text
            if event.finish is not None and event.usage is not None:
                text = "".join(parts)
                calls = llm.tools.calls(text) if asked.tools else ()
                stop = event.stop if isinstance(event.stop, str) else None
                yield Turn("" if calls else text, calls, event.finish, stop, event.usage)


async def submit(llm: LLM, request: SequenceRequest, wait_s: float | None) -> Events:
    """Begin to generate; its tokens count for the key of the request as they are read and come.

    Args:
        llm: the model.
        request: for it.
        wait_s: seconds in which the first token must have come; None for no limit.

    Raises:
        RequestError: 429, the key has none left; 403, it may not come so far before others.
        InputError: the request is not what the model takes.
    """
    grant = GRANT.get()
    if grant is not None:
        grant.check_tokens()
    check_ahead(request.priority)
    # That a prompt was read before is reported, and shows in the time: to its own key alone.
    request.salt = owner() + request.salt
    events = await _begun(llm, request)
    if wait_s is not None:
        events = _in_time(events, request.id, wait_s)
    if grant is None:
        return events
    grant.count_tokens(len(request.prompt))
    return _counted(events, grant)


async def _begun(llm: LLM, request: SequenceRequest) -> Events:
    """Begin to generate; of one key's grammars that take long, one is compiled at a time."""
    grammar = request.params.grammar
    if grammar is None or is_plain(grammar):
        return await llm.engine.submit_async(request, KEEP_ALIVE_S)
    turn = _TURNS.setdefault(owner(), asyncio.Lock())
    try:
        await asyncio.wait_for(turn.acquire(), COMPILING_S)
    except asyncio.TimeoutError as error:
        raise DeadlineError(f"grammars before this one took {COMPILING_S:g} s") from error
    try:
        return await llm.engine.submit_async(request, KEEP_ALIVE_S)
    finally:
        turn.release()


_TURNS: WeakValueDictionary[bytes, asyncio.Lock] = WeakValueDictionary()
"""By key: nobody's grammars keep the processes that try them from others for good."""


async def _in_time(events: Events, id: str, wait_s: float) -> Events:
    """Give events, or one error where the first does not come in time: the request is cancelled."""
    from edgeinfer.runtime.llm.params import Event

    loop = asyncio.get_running_loop()
    end, first = loop.time() + wait_s, SILENCE
    async with contextlib.aclosing(events):
        try:
            while first is SILENCE:
                first = await asyncio.wait_for(anext(events), max(0.0, end - loop.time()))
                yield first
        except StopAsyncIteration:
            return
        except asyncio.TimeoutError:
            error = DeadlineError(f"the first token did not come within {wait_s:g} s")
            yield Event(id, 0, finish="error", error=error)
            return
        async for event in events:
            yield event


async def _counted(events: Events, grant: Grant) -> Events:
    async with contextlib.aclosing(events):
        async for event in events:
            grant.count_tokens(len(event.tokens))
            yield event


class StreamFormat(Protocol):
    """How a protocol writes the answer to one request."""

    def whole(self, turn: Turn) -> Mapping[str, Any]:
        """Return the answer to a request that asks for no stream."""
        ...

    def first(self) -> bytes:
        """Return the events that begin a stream."""
        ...

    def part(self, part: str | Turn) -> bytes:
        """Return the events for a text that came, or for the end."""
        ...

    def failed(self, error: RequestError) -> bytes:
        """Return the event for an error after the stream began."""
        ...


async def deliver(
    llm: LLM, asked: Asked, form: StreamFormat, receive: Receive, send: Send, wait_s: float | None
) -> None:
    """Generate once and answer in a protocol's form, whole or as a stream.

    An error before the stream begins is raised, for an answer with a status of its own.

    Raises:
        DisconnectedError: the client left.
        InputError: the request is not what the model takes.
        RunError: the engine failed.
    """
    async with watched(receive):
        if not asked.stream:
            await answer_json(send, form.whole(await whole(llm, asked, wait_s)))
            return
        started = False
        try:
            async for part in turns(llm, asked, wait_s):
                if not started:
                    await begin(send)
                    await write(send, form.first())
                    started = True
                await write(send, PAUSE if part is None else form.part(part))
        except Exception as error:
            if not started:
                raise
            await write(send, form.failed(status_of(error)))
        await write(send, b"", more=False)


async def whole(llm: LLM, asked: Asked, wait_s: float | None) -> Turn:
    """Generate once, as ``turns``, and return the end."""
    async for part in turns(llm, asked, wait_s):
        if isinstance(part, Turn):
            return part
    raise DisconnectedError


def sse(data: Mapping[str, Any], event: str = "") -> bytes:
    """Return an event, named where the protocol names them."""
    head = f"event: {event}\n".encode() if event else b""
    return head + b"data: " + to_json(data) + b"\n\n"


async def begin(send: Send) -> None:
    """Send the head of a stream."""
    headers = [(b"content-type", b"text/event-stream; charset=utf-8"), *SAFE]
    await send({"type": "http.response.start", "status": 200, "headers": headers})


async def write(send: Send, part: bytes, *, more: bool = True) -> None:
    """Send a part of a stream, or its end."""
    await send({"type": "http.response.body", "body": part, "more_body": more})


@contextlib.asynccontextmanager
async def watched(receive: Receive) -> AsyncIterator[None]:
    """Cancel the block when the client leaves.

    Raises:
        DisconnectedError: it left.
    """
    block = asyncio.current_task()
    has_left = False

    async def watch() -> None:
        nonlocal has_left
        await client_left(receive)
        has_left = True
        if block is not None:
            block.cancel()

    watching = asyncio.ensure_future(watch())
    try:
        yield
    except asyncio.CancelledError as e:
        if has_left:
            raise DisconnectedError from e
        raise
    finally:
        watching.cancel()
