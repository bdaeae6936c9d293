"""What one key may use: its models, so many requests, so many tokens."""

from __future__ import annotations

import contextlib
import hmac
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.errors import UsageError
from edgeinfer.runtime.fleet import FleetModel
from edgeinfer.runtime.serve import keys
from edgeinfer.runtime.serve.http import RequestError
from edgeinfer.runtime.serve.keys import Allowance
from edgeinfer.runtime.serve.options import (
    AccessKey,
    Rate,
    RequestLimits,
    ServeOptions,
    keys_of,
    read_key,
)
from tests.runtime.serve.conftest import KEY, Start
from tests.runtime.serve.test_v2 import URL, body

OTHER = "another-key-of-somebody"
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "the cat"}], "max_tokens": 4}


def test_lines_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    line = f"{KEY} name=phone models=a,b requests=10/s tokens=600/min"
    file.write_text(f"# who\n{line}\n{OTHER}\n")
    first, second = map(read_key, keys_of(file))
    assert first == AccessKey(KEY, "phone", frozenset("ab"), Rate(10, 1.0), Rate(600, 60.0))
    assert second == AccessKey(OTHER)
    # Keys are not for logs.
    assert KEY not in repr(first)


@pytest.mark.parametrize(
    ("terms", "text"),
    [
        ("model=a", "1 unknown terms; known: name, models, requests, tokens, priority"),
        ("another-key-in-the-line", "1 unknown terms"),
        ("models=", "models: expected names"),
        ("priority=-1", "priority=-1: expected a whole number"),
        ("requests=10", "requests=10: expected as in 10/s"),
        ("tokens=0/s", "tokens=0/s: expected as in 10/s"),
        ("tokens=1/day", "expected as in 10/s"),
    ],
)
def test_lines_that_are_wrong(terms: str, text: str) -> None:
    with pytest.raises(UsageError, match=text) as caught:
        ServeOptions(keys=(f"{KEY} {terms}",))
    assert KEY not in str(caught.value)
    assert "another-key" not in str(caught.value)


def test_a_key_for_a_model_that_is_not_there(start: Start) -> None:
    with pytest.raises(UsageError, match="key 'phone': no model nothing"):
        start(keys=(f"{KEY} name=phone models=double,nothing",))


def test_an_allowance_comes_back_steadily() -> None:
    now = 100.0
    allowance = Allowance(Rate(10, 5.0), "requests", lambda: now)
    for _ in range(10):
        allowance.check()
        allowance.use(1)
    with pytest.raises(RequestError, match="10 requests in 5 s") as caught:
        allowance.check()
    assert caught.value.status == 429
    assert caught.value.retry_s == pytest.approx(0.5)
    now += 0.6
    allowance.check()
    # What was spent beyond it must come back first; it never grows beyond all of it.
    allowance.use(21)
    now += 10.0
    with pytest.raises(RequestError):
        allowance.check()
    now += 1000.0
    allowance.check()
    allowance.use(10)
    with pytest.raises(RequestError):
        allowance.check()


def test_other_models_are_not_there(start: Start) -> None:
    server = start(keys=(f"{KEY} models=double", OTHER))
    mine, all_of = {"x-api-key": KEY}, {"x-api-key": OTHER}
    get, post = server.client.get, server.client.post
    assert post(URL, json=body(), headers=mine).status_code == 200
    for path in ("/v1/models/tiny", "/v2/models/tiny", "/v2/models/tiny/stats"):
        assert get(path, headers=mine).status_code == 404
        assert get(path, headers=all_of).status_code == 200
    refused = post("/v1/chat/completions", json=CHAT, headers=mine)
    assert refused.status_code == 404
    assert refused.json()["error"]["message"] == "no model 'tiny'; known: double"
    unload = "/v2/repository/models/tiny/unload"
    assert post(unload, headers=mine).status_code == 404
    for what in ("unload", "load"):
        # Others use it too.
        refused = post(f"/v2/repository/models/double/{what}", headers=mine)
        assert (refused.status_code, "without models=" in refused.text) == (403, True)
    assert post(URL, json=body(), headers=mine).status_code == 200
    # Nothing that lists models names others.
    for path in ("/v1/models", "/v2/models/stats", "/v1/pipelines", "/metrics", "/health/run"):
        assert "tiny" not in get(path, headers=mine).text
    assert "tiny" not in post("/v2/repository/index", headers=mine).text
    for path in ("/v1/models", "/v2/models/stats", "/metrics", "/health/run"):
        assert "tiny" in get(path, headers=all_of).text


@pytest.mark.parametrize(
    ("path", "prompt"),
    [
        ("/v1/completions", {"prompt": "one prompt that is long enough for pages: " * 4}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a long one " * 20}]}),
    ],
)
def test_what_one_key_sent_is_not_told_to_others(
    start: Start, path: str, prompt: dict[str, Any]
) -> None:
    server = start(keys=(KEY, OTHER))

    def cached(key: str, **more: Any) -> int:
        asked = {"model": "tiny", "max_tokens": 1, **prompt, **more}
        found = server.client.post(path, json=asked, headers={"x-api-key": key})
        return int(found.json()["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert [cached(KEY), cached(KEY) > 0] == [0, True]
    assert [cached(OTHER), cached(OTHER) > 0] == [0, True]
    # Clients behind one key are kept apart likewise.
    assert [cached(KEY, cache_salt="a"), cached(KEY, cache_salt="b")] == [0, 0]
    assert cached(KEY, cache_salt="a") > 0
    for wrong in ("", "x" * 129, 1, ["a"]):
        asked = {"model": "tiny", **prompt, "cache_salt": wrong}
        refused = server.client.post(path, json=asked, headers={"x-api-key": KEY})
        assert (refused.status_code, "cache_salt" in refused.text) == (400, True)


def test_requests_have_a_rate(start: Start) -> None:
    server = start(keys=(f"{KEY} requests=3/h", OTHER))
    mine, other = {"x-api-key": KEY}, {"x-api-key": OTHER}
    post = server.client.post
    assert [post(URL, json=body(), headers=mine).status_code for _ in range(5)] == [
        *(200, 200, 200),
        *(429, 429),
    ]
    found = post(URL, json=body(), headers=mine)
    assert 1100 < int(found.headers["retry-after"]) <= 1200
    assert "3 requests in 3600 s" in found.json()["error"]
    assert post(URL, json=body(), headers=other).status_code == 200
    # Who has no key uses nobody's.
    assert post(URL, json=body()).status_code == 401


def test_no_key_goes_before_others_unless_it_may(start: Start) -> None:
    """One key's requests could always run first."""
    server = start(keys=(f"{KEY} priority=5", OTHER))

    def sent(key: str, path: str, given: dict[str, Any]) -> int:
        return server.client.post(path, json=given, headers={"x-api-key": key}).status_code

    for ahead, first, second in ((0, 200, 200), (-9, 200, 200), (5, 200, 403), (6, 403, 403)):
        for key, status in ((KEY, first), (OTHER, second)):
            assert sent(key, URL, body(parameters={"priority": ahead})) == status
            # Of texts lower values come first.
            text = {"model": "tiny", "prompt": "a", "max_tokens": 1, "priority": -ahead}
            assert sent(key, "/v1/completions", text) == status


def test_the_only_key_comes_before_nobody_else(start: Start) -> None:
    server = start(keys=(KEY,))
    far = body(parameters={"priority": 1000})
    assert server.client.post(URL, json=far, headers={"x-api-key": KEY}).status_code == 200


def test_tokens_have_a_rate_on_every_api(start: Start) -> None:
    server = start(keys=(f"{KEY} tokens=40/h", f"{OTHER} name=other"))
    mine = {"x-api-key": KEY, "anthropic-version": "2023-06-01"}
    post = server.client.post
    used = 0
    while used < 40:
        found = post("/v1/chat/completions", json=CHAT, headers=mine)
        assert found.status_code == 200
        used += found.json()["usage"]["total_tokens"]
    more: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {**CHAT, "stream": True},
        "/v1/completions": {"model": "tiny", "prompt": "the cat"},
        "/v1/responses": {"model": "tiny", "input": "the cat"},
        "/v1/messages": CHAT,
        "/v2/models/tiny/generate": {"text_input": "the cat"},
        "/v2/models/tiny/generate_stream": {"text_input": "the cat"},
    }
    for path, data in more.items():
        found = post(path, json=data, headers=mine)
        assert found.status_code == 429, path
        assert "40 tokens in 3600 s" in found.text
        assert int(found.headers["retry-after"]) >= 1
        assert post(path, json=data, headers={"x-api-key": OTHER}).status_code == 200, path
    # Other requests cost no tokens.
    assert post(URL, json=body(), headers=mine).status_code == 200


def test_who_leaves_early_has_used_what_came(start: Start) -> None:
    server = start(keys=(f"{KEY} tokens=30/h",))
    mine = {"x-api-key": KEY}
    given = {"model": "tiny", "prompt": "the cat", "max_tokens": 200, "stream": True}
    given["ignore_eos"] = True
    with server.client.stream("POST", "/v1/completions", json=given, headers=mine) as stream:
        for number, _ in enumerate(stream.iter_lines()):
            if number > 150:
                break
    assert server.client.post("/v1/completions", json=given, headers=mine).status_code == 429


def test_one_key_of_several_has_half_of_a_queue(start: Start) -> None:
    """Its small requests took all places; nobody else's was taken."""
    server = start(keys=(KEY, OTHER), limits=RequestLimits(queue=4))
    model, given = server.hub.models["double"], keys.Keys([KEY, OTHER]).find(None, KEY.encode())
    share = keys.share_of(given)
    for _ in range(2):
        model.enter(share)
    post = server.client.post
    for asked in (body(), body(parameters={"priority": 0})):
        refused = post(URL, json=asked, headers={"x-api-key": KEY})
        assert refused.status_code == 429
        assert "2 requests of this key wait already" in refused.text
        assert post(URL, json=asked, headers={"x-api-key": OTHER}).status_code == 200
    for _ in range(2):
        model.leave(share)
    assert post(URL, json=body(), headers={"x-api-key": KEY}).status_code == 200
    assert (model.waiting, model.waiting_of) == (0, {})


def test_a_run_has_the_key_that_asked_for_it(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys take turns by it; with one key there is nobody to take turns with."""
    owners: list[bytes] = []
    submit = FleetModel.submit

    def noted(self: FleetModel, *args: Any, **how: Any) -> Any:
        owners.append(how.get("owner", b""))
        return submit(self, *args, **how)

    for given in ((KEY, OTHER), (KEY,)):
        server = start(keys=given)
        known = keys.Keys(given)
        # Threads run all of it.
        server.hub.models["double"].lane = None
        monkeypatch.setattr(FleetModel, "submit", noted)
        for key in given:
            # One is answered soon, the other goes the way of all others.
            for headers in ({}, {"content-encoding": "identity"}):
                owners.clear()
                sent = {"x-api-key": key, **headers}
                assert server.client.post(URL, json=body(), headers=sent).status_code == 200
                assert owners == [keys.share_of(known.find(None, key.encode()))]
                assert bool(owners[0]) == (len(given) > 1)


def test_every_key_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []

    def compare(a: bytes, b: bytes) -> bool:
        compared.append(b)
        return a == b

    monkeypatch.setattr(hmac, "compare_digest", compare)
    made = keys.Keys([KEY, OTHER, "a-third-key-of-mine"])
    for given in (KEY, OTHER, "something-else-altogether"):
        compared.clear()
        with contextlib.suppress(RequestError):
            made.check(None, given.encode())
        assert len(compared) == 3


def test_the_log_names_the_key(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    server = start(keys=(f"{KEY} name=phone", OTHER))
    with caplog.at_level(logging.INFO, "edgeinfer.serve"):
        for key in (KEY, OTHER):
            server.client.post(URL, json=body(), headers={"x-api-key": key})
    names = [getattr(r, "key", None) for r in caplog.records if URL in r.getMessage()]
    assert names == ["phone", None]
    assert KEY not in caplog.text


def test_grpc_counts_too(start: Start) -> None:
    client = pytest.importorskip("tritonclient.grpc", reason="pip install 'tritonclient[grpc]'")
    from tests.runtime.serve.test_rpc import connected, inputs

    server = start(keys=(f"{KEY} requests=4/h models=double",), grpc_port=0)
    key = {"x-api-key": KEY}
    answers: list[Any] = []
    done = threading.Event()

    def take(result: Any, error: Any) -> None:
        answers.append(error)
        if len(answers) == 5:
            done.set()

    with connected(server) as triton:
        with pytest.raises(client.InferenceServerException, match="no model 'tiny'"):
            triton.get_model_metadata("tiny", headers=key)
        triton.start_stream(take, headers=key)
        for _ in range(5):
            triton.async_stream_infer("double", inputs())
        assert done.wait(60)
        triton.stop_stream()
        # One was asked before, and the stream is one.
        assert [error is None for error in answers] == [True, True, False, False, False]
        assert "4 requests in 3600 s" in str(answers[-1])
        with pytest.raises(client.InferenceServerException, match="RESOURCE_EXHAUSTED"):
            triton.infer("double", inputs(), headers=key)
