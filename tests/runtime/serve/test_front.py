"""What stands before replicas: lost requests are asked again, once, and texts keep their place."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from edgeinfer.runtime.serve import front as front_module
from edgeinfer.runtime.serve import inflight
from edgeinfer.runtime.serve.front import Behind, ClusterFront, place_of
from edgeinfer.runtime.serve.http import Message
from edgeinfer.runtime.serve.options import RequestLimits, ServeOptions
from tests.runtime.serve.conftest import KEY

START: Message = {"type": "http.response.start", "status": 200, "headers": []}
BODY: Message = {"type": "http.response.body", "body": b"good", "more_body": False}


class LostError(Exception):
    """A replica is gone."""


class Answer:
    """What a replica answers: parts of messages, or an error in their midst."""

    def __init__(self, *parts: list[Message] | Exception, waits: bool = False) -> None:
        self._parts, self._waits, self.is_cancelled = parts, waits, False

    async def __aiter__(self) -> AsyncIterator[list[Message]]:
        for part in self._parts:
            if isinstance(part, Exception):
                raise part
            yield part
        if self._waits:
            await asyncio.Event().wait()

    def cancel(self) -> None:
        self.is_cancelled = True


class Asked:
    """Gives out answers in order, and keeps what was asked."""

    def __init__(self, *answers: Answer) -> None:
        self._answers, self.given = list(answers), list[tuple[dict[str, Any], bytes, str]]()

    def __call__(self, given: dict[str, Any], body: bytes, place: str) -> Answer:
        self.given.append((given, body, place))
        return self._answers.pop(0)


def scope(path: str = "/v2/models/net/infer", **headers: str) -> dict[str, Any]:
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http", "method": "POST", "path": path, "headers": pairs}


def run(
    asked: Asked, given: dict[str, Any], body: bytes = b"{}", leaves: bool = False, **options: Any
) -> list[Message]:
    sent: list[Message] = []

    async def go() -> None:
        parts: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            if parts:
                return parts.pop()
            if leaves:
                return {"type": "http.disconnect"}
            await asyncio.Event().wait()
            raise AssertionError

        async def send(message: Message) -> None:
            sent.append(message)

        await ClusterFront(ServeOptions(**options), asked, (LostError,))(given, receive, send)

    asyncio.run(go())
    return sent


def test_an_answer_goes_through() -> None:
    asked = Asked(Answer([START, BODY]))
    assert run(asked, scope(accept="x"), b"abc") == [START, BODY]
    ((given, body, place),) = asked.given
    assert (given["path"], given["headers"], body) == (
        "/v2/models/net/infer",
        [(b"accept", b"x")],
        b"abc",
    )
    assert place == ""


def test_what_a_replica_lost_is_asked_again_once() -> None:
    asked = Asked(Answer(LostError()), Answer([START, BODY]))
    assert run(asked, scope()) == [START, BODY]
    assert asked.given[0] == asked.given[1]
    twice = Asked(Answer(LostError()), Answer(LostError()), Answer([START, BODY]))
    start, body = run(twice, scope())
    assert start["status"] == 503
    assert (b"retry-after", b"1") in start["headers"]
    assert "being replaced" in json.loads(body["body"])["error"]
    assert len(twice.given) == 2


def test_what_has_begun_is_not_begun_again() -> None:
    asked = Asked(Answer([START, BODY], LostError()), Answer([START, BODY]))
    with pytest.raises(LostError):
        run(asked, scope())
    assert len(asked.given) == 1


def test_an_error_of_the_server_is_no_loss() -> None:
    asked = Asked(Answer(ValueError("a bug")), Answer([START, BODY]))
    with pytest.raises(ValueError, match="a bug"):
        run(asked, scope())
    assert len(asked.given) == 1


def test_who_leaves_ends_the_request() -> None:
    answer = Answer([START], waits=True)
    run(Asked(answer), scope(), leaves=True)
    assert answer.is_cancelled


def test_who_may_not_ask_reaches_no_replica() -> None:
    asked = Asked(Answer([START, BODY]))
    start, body = run(asked, scope("/v1/chat/completions"), keys=(KEY,))
    assert start["status"] == 401
    assert json.loads(body["body"])["error"]["type"] == "authentication_error"
    large = run(
        asked, scope(x_api_key=KEY), b"12345", keys=(KEY,), limits=RequestLimits(body_bytes=4)
    )
    assert large[0]["status"] == 413
    assert asked.given == []
    assert run(asked, scope(x_api_key=KEY), keys=(KEY,)) == [START, BODY]


def test_what_a_probe_sends_is_not_read() -> None:
    """It needs no key, and took all of the memory, or waited for a body that did not come."""
    asked = Asked(Answer([START, BODY]))

    async def go() -> list[Message]:
        sent = list[Message]()

        async def receive() -> Message:
            await asyncio.Event().wait()
            raise AssertionError

        async def send(message: Message) -> None:
            sent.append(message)

        front = ClusterFront(ServeOptions(keys=(KEY,)), asked, (LostError,))
        given = scope("/v2/health/live", content_length=str(1 << 40))
        await asyncio.wait_for(front(given, receive, send), 10)
        return sent

    assert asyncio.run(go()) == [START, BODY]
    assert [body for _, body, _ in asked.given] == [b""]


def test_what_is_nested_too_deeply_to_be_written_again_is_refused() -> None:
    deep = b'{"messages": ' + b"[" * 300 + b"]" * 300 + b"}"
    asked = Asked()
    start, body = run(asked, scope("/v1/chat/completions"), deep)
    assert (start["status"], asked.given) == (400, [])
    assert "nested too deeply" in json.loads(body["body"])["error"]["message"]


def said(*turns: tuple[str, str], **more: Any) -> bytes:
    messages = [{"role": role, "content": text} for role, text in turns]
    return json.dumps({"model": "chat", "messages": messages, **more}).encode()


def test_bodies_of_all_requests_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands before the replicas kept every body, whatever came together."""
    monkeypatch.setattr(inflight, "WAIT_S", 0.05)
    limits = RequestLimits(memory_bytes=100)

    async def go() -> list[int]:
        front = ClusterFront(
            ServeOptions(limits=limits), Asked(*[Answer([START, BODY])] * 3), (LostError,)
        )
        codes: list[int] = []
        asked = asyncio.Event()

        async def ask(waits: bool) -> None:
            parts: list[Message] = [{"type": "http.request", "body": b"x" * 80, "more_body": waits}]

            async def receive() -> Message:
                if parts:
                    return parts.pop()
                asked.set()
                await asyncio.Event().wait()
                raise AssertionError

            async def send(message: Message) -> None:
                codes.append(message.get("status", 0))

            await front(scope(), receive, send)

        first = asyncio.ensure_future(ask(True))
        await asked.wait()
        await ask(False)
        first.cancel()
        await asyncio.wait([first])
        await ask(False)
        assert front._memory.used == 0
        return [code for code in codes if code]

    assert asyncio.run(go()) == [503, 200]


def test_what_a_replica_refuses_is_not_read_for_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 megabytes of brackets were gigabytes of lists, on the loop that answers everybody."""
    read: list[int] = []

    def place(path: str, body: bytes) -> str:
        read.append(len(body))
        return "there"

    monkeypatch.setattr(front_module, "place_of", place)
    small = RequestLimits(json_bytes=20)
    for body, found in ((b"{}", "there"), (b"[" * 40, "")):
        asked = Asked(Answer([START, BODY]))
        assert run(asked, scope("/v1/completions"), body, limits=small) == [START, BODY]
        assert asked.given[0][2] == found
    assert read == [2]


def test_a_conversation_keeps_its_place() -> None:
    path = "/v1/chat/completions"
    first = said(("system", "Be brief."), ("user", "Hello"))
    place = place_of(path, first)
    later = said(
        ("system", "Be brief."), ("user", "Hello"), ("assistant", "Hi"), ("user", "More"), top_p=1
    )
    assert place_of(path, later) == place != ""
    assert place_of(path, said(("system", "Be brief."), ("user", "Bye"))) != place
    assert place_of("/v1/completions", b'{"prompt": "a"}') != ""
    for other in (b"{", b"[]", b"\xff"):
        assert place_of(path, other) == ""
    assert place_of("/v2/models/net/infer", first) == ""


def test_a_server_behind_answers_by_messages() -> None:
    left: list[bool] = []

    async def app(given: Any, receive: Any, send: Any) -> None:
        body = (await receive())["body"]
        await send({**START, "headers": given["headers"]})
        await send({**BODY, "body": body * 2, "more_body": True})
        try:
            await receive()
        except asyncio.CancelledError:
            left.append(True)
            raise

    async def go() -> list[Message]:
        answer = Behind(app).answer({"headers": [(b"a", b"b")]}, b"ab")
        async for part in answer:
            # The head never comes without what it announces.
            assert len(part) == 2
            break
        await answer.aclose()  # type: ignore[attr-defined]
        await asyncio.sleep(0)
        return part

    start, body = asyncio.run(go())
    assert start["headers"] == [(b"a", b"b")]
    assert body["body"] == b"abab"
    assert left == [True]


def test_a_fault_behind_is_told() -> None:
    async def app(given: Any, receive: Any, send: Any) -> None:
        raise ValueError("a bug")

    async def go() -> None:
        async for _ in Behind(app).answer({}, b""):
            pass

    with pytest.raises(ValueError, match="a bug"):
        asyncio.run(go())
