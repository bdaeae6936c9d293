"""Models of other servers: another one of ours, asked through this one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.errors import UsageError
from edgeinfer.runtime.serve import inflight, upstream
from edgeinfer.runtime.serve.options import (
    RequestLimits,
    Upstream,
    read_fallback,
    read_upstream,
    read_upstreams,
)
from tests.runtime.serve.conftest import KEY, Server, Start, held, starter
from tests.runtime.serve.test_openai import CHAT, MESSAGES
from tests.runtime.serve.test_v2 import URL, body

THEIRS = "a-key-of-the-other-server"
VARIABLE = "EDGEINFER_UPSTREAM_KEY_BIG"


def asked(**changes: Any) -> dict[str, Any]:
    given = {"model": "big", "messages": MESSAGES, "max_tokens": 6, "temperature": 0}
    return {**given, **changes}


def words(stream: str) -> list[dict[str, Any]]:
    lines = [line[6:] for line in stream.splitlines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


def answered(server: Server) -> float:
    """Return how many requests for the other server's model have been answered."""
    told = server.client.get("/metrics").text
    found = re.search(r'requests_total{model="big",status="200"} (\S+)', told)
    return float(found[1]) if found else 0.0


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    with starter(tmp_path_factory.mktemp("served")) as (start, _):
        other = start()
        yield start(upstreams=(f"big={other.url}#tiny",)), other


def test_an_answer_is_the_other_servers(pair: tuple[Server, Server]) -> None:
    server, other = pair
    before = answered(server)
    through = server.client.post(CHAT, json=asked()).json()
    direct = other.client.post(CHAT, json=asked(model="tiny")).json()
    assert through["choices"] == direct["choices"]
    assert through["usage"] == direct["usage"]
    for path, more in (
        ("/v1/completions", {"prompt": "the cat"}),
        ("/v1/responses", {"input": "the cat"}),
        ("/v1/messages", {"messages": MESSAGES, "max_tokens": 4}),
    ):
        found = server.client.post(path, json={"model": "big", **more})
        assert found.status_code == 200, found.text
    # Counted once the answer has been sent.
    while answered(server) < before + 4:
        time.sleep(0.01)
    assert answered(server) == before + 4


def test_a_stream_comes_as_it_is_made(pair: tuple[Server, Server]) -> None:
    server, other = pair
    found = server.client.post(CHAT, json=asked(stream=True))
    assert found.headers["content-type"].startswith("text/event-stream")
    text = "".join(p["choices"][0]["delta"].get("content", "") for p in words(found.text))
    whole = other.client.post(CHAT, json=asked(model="tiny")).json()
    assert text == whole["choices"][0]["message"]["content"]
    assert found.text.endswith("data: [DONE]\n\n")


def test_the_real_client(pair: tuple[Server, Server]) -> None:
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"{pair[0].url}/v1", api_key="none")
    assert {m.id for m in client.models.list()} == {"double", "tiny", "big"}
    whole = client.chat.completions.create(**asked())
    stream = client.chat.completions.create(**asked(), stream=True)
    text = "".join(part.choices[0].delta.content or "" for part in stream if part.choices)
    assert text == whole.choices[0].message.content


def test_refusals_are_the_other_servers(pair: tuple[Server, Server]) -> None:
    for stream in (False, True):
        found = pair[0].client.post(CHAT, json=asked(nonsense=1, stream=stream))
        assert found.status_code == 400
        assert found.json()["error"]["message"] == "not supported: nonsense"


def test_what_cannot_go_on_as_it_came_is_refused(pair: tuple[Server, Server]) -> None:
    """It was a fault with a stack trace, or another number."""
    deep, post = b"[" * 300 + b"]" * 300, pair[0].client.post
    for more, text in (
        (deep, "nested too deeply"),
        (b"123456789012345678901", "more than 64 bits: 123456789012345678901"),
        (b"[-9223372036854775809]", "more than 64 bits"),
        (b"1" * 300, "more than 64 bits"),
    ):
        found = post(CHAT, content=b'{"model": "big", "seed": %s}' % more)
        assert (found.status_code, text in found.text) == (400, True), found.text
    for good in (b"18446744073709551615", b"0.12345678901234567890123", b'"123456789012345678901"'):
        sent = json.dumps(asked()).encode()[:-1] + b', "user": %s}' % good
        assert "64 bits" not in post(CHAT, content=sent).text


def test_models_of_this_server_answer_themselves(pair: tuple[Server, Server]) -> None:
    server, other = pair
    before = dict(other.hub.models["tiny"].metrics.statuses)
    assert server.client.post(CHAT, json=asked(model="tiny")).status_code == 200
    assert server.client.post(CHAT, json=asked(model="none")).status_code == 404
    assert server.client.post(CHAT, content=b"[").status_code == 400
    assert server.client.post(CHAT, json=[]).status_code == 400
    assert other.hub.models["tiny"].metrics.statuses == before
    # What is not for texts is not asked elsewhere.
    refused = server.client.post("/v2/models/big/infer", json=body())
    assert refused.status_code == 400
    assert "is not a model of tensors" in refused.json()["error"]


def test_requests_to_others_have_the_limits_of_json(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inflight, "WAIT_S", 0.01)
    limits = RequestLimits(json_bytes=30_000, memory_bytes=200_000)
    server = start(upstreams=("far=http://127.0.0.1:9",), limits=limits)
    text = '{"model":"far","user":[' + "[]," * 9000 + "[]]}"
    server.hub.memory.used += 1
    found = server.client.post("/v1/completions", content=text)
    assert (found.status_code, "all the memory" in found.text) == (503, True)
    assert server.hub.memory.used == 1
    server.hub.memory.used = 0
    found = server.client.post("/v1/completions", content=text + " " * 3000)
    assert (found.status_code, "larger than 30000 bytes" in found.text) == (413, True)


def test_who_leaves_ends_the_request_there(pair: tuple[Server, Server]) -> None:
    server, other = pair
    engine = other.hub.models["tiny"].text
    assert engine is not None
    before = engine.stats().finished.get("cancelled", 0)
    given = asked(stream=True, max_tokens=400, ignore_eos=True)
    with held(other) as told:
        with server.client.stream("POST", CHAT, json=given) as response:
            next(response.iter_lines())
        told()
    assert engine.stats().finished.get("cancelled", 0) == before + 1
    big, end = server.hub.models["big"], time.monotonic() + 60
    while big.waiting and time.monotonic() < end:
        time.sleep(0.01)
    assert big.waiting == 0


def test_the_key_is_the_environments(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    other = start(keys=(THEIRS,))
    given = f"big={other.url}#tiny"
    # A client's key stays here.
    without = start(upstreams=(given,), keys=(THEIRS,))
    found = without.client.post(CHAT, json=asked(), headers={"x-api-key": THEIRS})
    assert found.status_code == 502
    assert "does not take the key" in found.json()["error"]["message"]
    monkeypatch.setenv(VARIABLE, THEIRS)
    server = start(upstreams=(given,), keys=(KEY,))
    assert server.client.post(CHAT, json=asked()).status_code == 401
    assert server.client.post(CHAT, json=asked(), headers={"x-api-key": KEY}).status_code == 200


def test_one_key_is_not_told_what_another_asked(start: Start) -> None:
    """Tokens that the other server had read for a key told the next one that it guessed them."""
    other = start()
    server = start(upstreams=(f"big={other.url}#tiny",), keys=(KEY, THEIRS))
    said = "the cat sat on the mat and the dog sat on the log " * 4
    seen = []
    for key in (KEY, KEY, THEIRS):
        for path, more in (
            (CHAT, {"messages": [{"role": "user", "content": said}]}),
            ("/v1/completions", {"prompt": said}),
            ("/v1/messages", {"messages": [{"role": "user", "content": said}]}),
            ("/v1/responses", {"input": said}),
        ):
            most = {"max_output_tokens" if "responses" in path else "max_tokens": 1}
            found = server.client.post(
                path, json={"model": "big", **more, **most}, headers={"x-api-key": key}
            )
            assert found.status_code == 200, found.text
            names = "cached_tokens|cache_read_input_tokens"
            seen.append(re.findall(rf'"(?:{names})":(\d+)', found.text))
    first, again, theirs = seen[:4], seen[4:8], seen[8:]
    assert first[0] == theirs[0] == ["0"]
    assert int(again[0][0]) > 0
    assert theirs == first


def test_requests_of_two_keys_have_ids_of_their_own() -> None:
    scope = {"headers": [(b"x-request-id", b"same")]}
    there = Upstream("http://other/v1", "big")
    ids = [upstream._head(scope, there, whose)["x-request-id"] for whose in (b"", b"a", b"b")]
    assert ids[0] == "same"
    assert len(set(ids)) == 3
    assert all(each.endswith("-same") for each in ids[1:])


@pytest.mark.parametrize("more", [{}, {"stream_options": {"include_usage": True}}])
def test_tokens_count_for_the_key(start: Start, more: dict[str, Any]) -> None:
    other = start()
    server = start(upstreams=(f"big={other.url}#tiny",), keys=(f"{KEY} tokens=60/h",))
    direct = other.client.post(CHAT, json=asked(model="tiny")).json()
    cost = direct["usage"]["total_tokens"]
    mine = {"x-api-key": KEY}
    # One may begin while a token is left.
    for number in range(59 // cost + 1):
        given = asked(stream=True, **more) if number else asked()
        found = server.client.post(CHAT, json=given, headers=mine)
        assert found.status_code == 200
        if number:
            # It is told to who requested it alone.
            assert (words(found.text)[-1]["choices"] == []) == bool(more)
            assert ("total_tokens" in found.text) == bool(more)
    assert server.client.post(CHAT, json=asked(), headers=mine).status_code == 429


@contextlib.contextmanager
def other_server(answer: Callable[[bytes], bytes]) -> Iterator[str]:
    """Serve bytes for the head of each request, whatever it is, and close; yields the address."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def work() -> None:
            with contextlib.suppress(OSError):
                while True:
                    line, _ = listening.accept()
                    with line, line.makefile("rb") as file:
                        head = b"".join(iter(file.readline, b"\r\n"))
                        if said := answer(head):
                            found = re.search(rb"(?i)content-length: (\d+)", head)
                            assert found
                            file.read(int(found[1]))
                            line.sendall(said)

        threading.Thread(target=work, daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)


def whole(status: str, *heads: str) -> bytes:
    lines = "\r\n".join((f"HTTP/1.1 {status}", "content-type: application/json", *heads))
    return f"{lines}\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{{}}".encode()


def test_what_one_request_broke_is_not_down_for_others(start: Start) -> None:
    def answer(head: bytes) -> bytes:
        return b"" if b"x-request-id: bad" in head else whole("200 OK")

    with other_server(answer) as address:
        server = start(upstreams=(f"big={address}#tiny",))
        found = server.client.post(CHAT, json=asked(), headers={"x-request-id": "bad"})
        assert (found.status_code, "broke off" in found.text) == (502, True)
        assert not server.hub.models["big"].is_down
        assert server.client.post(CHAT, json=asked()).status_code == 200


def test_who_waits_for_one_server_keeps_no_connection_from_another(start: Start) -> None:
    """All servers together had as many as one model has places."""
    asked_for, go_on = threading.Event(), threading.Event()

    def slow(head: bytes) -> bytes:
        asked_for.set()
        assert go_on.wait(30)
        return whole("200 OK")

    with other_server(slow) as first, other_server(lambda _: whole("200 OK")) as second:
        addresses = (f"big={first}#tiny", f"small={second}#tiny")
        server = start(upstreams=addresses, limits=RequestLimits(queue=1))
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(server.client.post, CHAT, json=asked())
            try:
                assert asked_for.wait(30)
                found = server.client.post(CHAT, json=asked(model="small"), timeout=20)
            finally:
                go_on.set()
            assert (found.status_code, waiting.result().status_code) == (200, 200)


@pytest.mark.parametrize(
    ("status", "given", "later"),
    [
        ("999 X", 502, None),
        ("600 X", 502, None),
        ("205 Reset", 502, None),
        ("302 Found", 502, None),
        ("529 X", 529, "3"),
        ("429 X", 429, "Wed, 21 Oct 2026 07:28:00 GMT"),
        ("429 X", 429, "9" * 60000),
        ("429 X", 429, "1; x"),
    ],
)
def test_an_answer_has_a_form(start: Start, status: str, given: int, later: str | None) -> None:
    heads = [] if later is None else [f"retry-after: {later}"]
    with other_server(lambda _: whole(status, *heads)) as address:
        server = start(upstreams=(f"big={address}#tiny",))
        found = server.client.post(CHAT, json=asked())
    assert found.status_code == given
    is_good = later is not None and len(later) < 40 and ";" not in later
    assert found.headers.get("retry-after") == (later if is_good else None)


def nobody() -> str:
    """Return an address where nobody listens."""
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{made.getsockname()[1]}"


def test_a_server_that_is_gone(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start(upstreams=(f"big={nobody()}#tiny",))
    for _ in range(2):
        found = server.client.post(CHAT, json=asked())
        assert found.status_code == 503
        assert found.headers["retry-after"] == "1"
        assert "server of model 'big' does not answer" in found.json()["error"]["message"]
    assert server.client.get("/v2/health/ready").status_code == 200
    monkeypatch.setattr(upstream, "DOWN_S", 600.0)
    with_other = start(upstreams=(f"big={nobody()}#tiny",), fallbacks=("big=tiny",))
    big = with_other.hub.models["big"]
    for stream in (False, True):
        # It is asked, and what answers in its place has the request at once.
        big.down_until = 0.0
        found = with_other.client.post(CHAT, json=asked(stream=stream))
        assert found.status_code == 200
        assert big.is_down
    found = with_other.client.post(CHAT, json=asked())
    assert big.metrics.statuses == {503: 2}
    # It says who answered.
    assert found.json()["model"] == "tiny"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("http://other", "expected NAME=URL"),
        ("big=other:80", "expected NAME=URL"),
        ("big=ftp://other", "expected NAME=URL"),
        ("../x=http://other", "expected NAME=URL"),
        ("big=http://[x]", "does not appear to be an IPv4 or IPv6 address"),
        ("big=http://[::1", "Invalid IPv6 URL"),
        ("big=http://other:99999999", "Port out of range"),
        ("big=https://other:abc", "Port could not be cast"),
        ("big=https://key@other", "a key belongs into EDGEINFER_UPSTREAM_KEY_BIG"),
        ("big=https://other?key=1", "a key belongs into"),
    ],
)
def test_addresses_that_are_wrong(given: str, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        read_upstream(given)


def test_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    want = Upstream("http://other:8000/v1", "big")
    for address in ("http://other:8000", "http://other:8000/", "http://other:8000/v1"):
        assert read_upstream(f"big={address}") == ("big", want)
    monkeypatch.setenv("EDGEINFER_UPSTREAM_KEY_BIG_1", THEIRS)
    assert read_upstream("big.1=https://a/api#org/model") == (
        *("big.1", Upstream("https://a/api/v1", "org/model", THEIRS)),
    )
    assert THEIRS not in repr(read_upstream("big.1=https://a"))
    with pytest.raises(UsageError, match="its key would go over plain HTTP to a"):
        read_upstream("big.1=http://a")


def test_a_key_goes_to_one_address(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    two = ("a-b=http://127.0.0.1:1#good", "a.b=http://127.0.0.1:2#evil")
    assert [name for name, _ in read_upstreams(two)] == ["a-b", "a.b"]
    monkeypatch.setenv("EDGEINFER_UPSTREAM_KEY_A_B", THEIRS)
    for given in (two, two[::-1]):
        with pytest.raises(UsageError, match="both have their key in EDGEINFER_UPSTREAM_KEY_A_B"):
            read_upstreams(given)
        with pytest.raises(UsageError, match=r"would go to http://127.0.0.1:[12]/v1 and"):
            start(upstreams=given)
    # Two models of one server have one key.
    assert len(read_upstreams((two[0], "a_b=http://127.0.0.1:1/v1#more"))) == 2
    for key in ("a\nb", "clé", "a\x7f"):
        monkeypatch.setenv("EDGEINFER_UPSTREAM_KEY_A_B", key)
        with pytest.raises(UsageError, match="is not plain ASCII"):
            read_upstream(two[0])


def test_fallbacks_are_checked(start: Start) -> None:
    assert read_fallback("a=b") == ("a", "b", None)
    assert read_fallback("a=b:3") == ("a", "b", 3)
    for given, text in (
        ("a", "expected NAME=OTHER"),
        ("a=b:0", "expected NAME=OTHER"),
        ("double=none", "no model none"),
        ("double=tiny", "'tiny' does not take what 'double' takes"),
        ("tiny=tiny", "'tiny' does not take"),
    ):
        with pytest.raises(UsageError, match=text):
            start(fallbacks=(given,))


@pytest.mark.usefixtures("on_threads")
def test_a_fallback_answers_while_a_model_is_busy(start: Start, fakes: Any, tmp_path: Path) -> None:
    import threading
    from concurrent.futures import ThreadPoolExecutor

    from tests.runtime.conftest import write_bundle

    fakes.add("quick")
    small = write_bundle(tmp_path / "small.edge", "quick")
    server = start(str(small), fallbacks=("double=small:1",), batch=1)
    gate = fakes["fake"].gate = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        busy = pool.submit(server.client.post, URL, json=body())
        while server.hub.models["double"].waiting < 1:
            pass
        found = server.client.post(URL, json=body()).json()
        assert found["model_name"] == "small"
        assert found["outputs"][0]["data"] == [2, 4, 6, 8, 10, 12]
        gate.set()
        assert busy.result().json()["model_name"] == "double"
    assert server.client.post(URL, json=body()).json()["model_name"] == "double"
    # While it is not there, too.
    server.client.post("/v2/repository/models/double/unload")
    assert server.client.post(URL, json=body()).json()["model_name"] == "small"
    assert (
        'edgeinfer_fallback_requests_total{model="double"} 2.0'
        in server.client.get("/metrics").text
    )
    # What is asked of the model itself is its own.
    assert server.client.get("/v1/models/double").json()["ready"] is False


def test_a_first_token_that_does_not_come_in_time(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start(limits=RequestLimits(wait_s=0.01))
    llm = server.hub.models["tiny"].text
    assert llm is not None
    ended: list[str] = []

    async def never(request: Any, pause_s: float | None = None) -> Any:
        async def events() -> Any:
            try:
                await asyncio.Event().wait()
                yield None
            finally:
                ended.append(request.id)

        return events()

    given = asked(model="tiny")
    monkeypatch.setattr(llm.engine, "submit_async", never)
    found = server.client.post(CHAT, json=given)
    assert found.status_code == 504
    assert "the first token did not come within 0.01 s" in found.json()["error"]["message"]
    stream = server.client.post(CHAT, json={**given, "stream": True})
    assert "the first token did not come within" in stream.text
    responses = {"model": "tiny", "input": "the cat"}
    assert server.client.post("/v1/responses", json=responses).status_code == 504
    assert len(set(ended)) == 3
