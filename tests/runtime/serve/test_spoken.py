"""Speech, its transcript and a reply of a language model as one served model."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from edgeinfer.errors import UsageError
from edgeinfer.heads import Classify
from edgeinfer.runtime.llm.llm import LLM
from edgeinfer.runtime.serve.options import RequestLimits
from tests.runtime.conftest import Fakes
from tests.runtime.llm.test_llm import model as tiny_model
from tests.runtime.pipelines.conftest import write_graph
from tests.runtime.pipelines.test_audio import RATE
from tests.runtime.pipelines.test_image import COLOURS, SIZED, readers
from tests.runtime.pipelines.test_spoken import TEXTS, recording, spoken
from tests.runtime.serve.conftest import KEY, Server, Starter, held_as, text_bundle
from tests.runtime.serve.test_keys import OTHER

soundfile = pytest.importorskip("soundfile")
pytest.importorskip("tokenizers")
SAID = " ".join(TEXTS)
LIMITED = {"max_tokens": 8, "temperature": 0, "ignore_eos": True}


def wav(signal: Any) -> bytes:
    out = io.BytesIO()
    soundfile.write(out, signal, RATE, format="WAV", subtype="FLOAT")
    return out.getvalue()


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], Path]:
    folder = tmp_path_factory.mktemp("parts")
    return spoken(partial(write_graph, folder)), text_bundle(folder / "tiny.edge")


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Starter]:
    made = Starter(tmp_path_factory.mktemp("served"), Fakes())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LLM, "_open", held_as(tiny_model))
        yield made
        made.close()


@pytest.fixture(scope="module")
def server(start: Starter, parts: tuple[list[Path], Path]) -> Server:
    """``own`` has a language model of its own; ``shared`` that of ``tiny``; ``heard`` none."""
    paths, chat = parts
    other = chat.with_name("other.edge")
    other.write_bytes(chat.read_bytes())
    first = ",".join(map(str, paths))
    return start(
        f"tiny={chat}",
        only=True,
        pipelines=(f"own={first},{other}", f"shared={first},{chat}", f"heard={first}"),
    )


def post(
    server: Server, name: str, chat: dict[str, Any] | None = None, signal: Any = None, key: str = ""
) -> httpx.Response:
    form = {} if chat is None else {"chat": json.dumps(chat)}
    file = {"file": ("talk.wav", wav(recording() if signal is None else signal))}
    headers = {"x-api-key": key} if key else {}
    return server.client.post(f"/v1/pipelines/{name}", data=form, files=file, headers=headers)


def reply_of(server: Server, **more: Any) -> Any:
    """What the language model says to the same when it is asked by itself."""
    messages = [*more.pop("messages", []), {"role": "user", "content": SAID}]
    data = {"model": "tiny", "messages": messages, **LIMITED, **more}
    return server.client.post("/v1/chat/completions", json=data).json()


@pytest.mark.parametrize("name", ["own", "shared"])
def test_a_recording_is_answered(server: Server, name: str) -> None:
    before = [{"role": "system", "content": "Be brief."}]
    found = post(server, name, {**LIMITED, "messages": before}).json()
    assert [each["kind"] for each in found["results"]] == ["speech", "text"] * 2 + ["reply"]
    assert [each["text"] for each in found["results"] if each["kind"] == "text"] == TEXTS
    expected = reply_of(server, messages=before)
    reply = {"text": expected["choices"][0]["message"]["content"], "finish": "length"}
    assert found["results"][-1] == {"kind": "reply", **reply}
    assert found["usage"] == {k: expected["usage"][k] for k in found["usage"]}
    as_it_is = server.client.post(f"/v1/pipelines/{name}", content=wav(recording())).json()
    assert as_it_is["results"][-1]["kind"] == "reply"
    described = server.client.get(f"/v1/pipelines/{name}").json()
    assert (described["takes"], described["gives"]) == ("a recording", "reply")


def test_a_reply_comes_as_it_is_made(server: Server) -> None:
    found = post(server, "own", {**LIMITED, "stream": True})
    assert found.headers["content-type"].startswith("text/event-stream")
    *events, done = [line[6:] for line in found.text.splitlines() if line.startswith("data: ")]
    first, *deltas, last = map(json.loads, events)
    assert done == "[DONE]"
    assert [each["kind"] for each in first["results"]] == ["speech", "text"] * 2
    reply = last["results"][-1]
    assert reply["text"] == "".join(each["delta"] for each in deltas)
    assert reply["text"] == reply_of(server)["choices"][0]["message"]["content"]
    nothing = post(server, "own", {"stream": True}, np.zeros(300)).text
    assert nothing == 'data: {"model":"own","results":[]}\n\ndata: [DONE]\n\n'


def test_who_says_nothing_is_not_answered(server: Server) -> None:
    assert post(server, "own", signal=np.zeros(300)).json() == {"model": "own", "results": []}


def test_an_answer_may_have_a_form(server: Server) -> None:
    schema = {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"]}
    form = {"type": "json_schema", "json_schema": {"name": "light", "schema": schema}}
    found = post(server, "own", {"max_tokens": 64, "temperature": 0, "response_format": form})
    reply = found.json()["results"][-1]
    assert reply["text"].lstrip().startswith("{")


@pytest.mark.parametrize(
    ("name", "chat", "text"),
    [
        ("own", {"n": 2}, "chat: not supported: n"),
        ("own", {"model": "tiny", "logprobs": True}, "chat: not supported: logprobs, model"),
        ("own", {"nonsense": 1}, "nonsense"),
        ("own", {"messages": "x"}, "chat: messages: expected a list"),
        ("own", {"messages": [{"role": 1}]}, "messages[0]"),
        ("own", {"temperature": "hot"}, "temperature"),
        ("heard", {}, "chat: model 'heard' has no language model behind it"),
    ],
)
def test_wrong_terms_are_refused_before_anything_is_heard(
    server: Server, monkeypatch: pytest.MonkeyPatch, name: str, chat: dict[str, Any], text: str
) -> None:
    pipeline: Any = server.hub.models[name].pipeline

    def hears(*_: Any) -> Any:
        raise AssertionError("it was heard")

    monkeypatch.setattr(pipeline, "listen", hears)
    found = post(server, name, chat)
    assert found.status_code == 400
    assert text in found.json()["error"]["message"]


def test_a_form_that_is_no_object(server: Server) -> None:
    file = {"file": ("talk.wav", wav(recording()))}
    for chat in ("[]", "{"):
        found = server.client.post("/v1/pipelines/own", data={"chat": chat}, files=file)
        assert (found.status_code, "chat" in found.text or "JSON" in found.text) == (400, True)


def test_it_is_no_language_model_to_others(server: Server) -> None:
    asked = {"model": "own", "messages": [{"role": "user", "content": "a"}]}
    assert server.client.post("/v1/chat/completions", json=asked).status_code == 400
    found = server.client.post("/v1/embeddings", json={"model": "own", "input": "a"})
    assert (found.status_code, "gives no vectors" in found.text) == (400, True)
    found = server.client.post(
        "/v1/rerank", json={"model": "own", "query": "a", "documents": ["b"], "scoring": "judge"}
    )
    assert (found.status_code, "is no language model" in found.text) == (400, True)
    names = {m["name"] for m in server.client.get("/v1/pipelines").json()["data"]}
    assert names == {"own", "shared", "heard"}


def test_a_transcript_needs_no_reply(server: Server) -> None:
    file = {"file": ("talk.wav", wav(recording()))}
    for name in ("own", "heard"):
        found = server.client.post("/v1/audio/transcriptions", data={"model": name}, files=file)
        assert found.json() == {"text": SAID}
    kinds = [each["kind"] for each in post(server, "heard").json()["results"]]
    assert kinds == ["speech", "text"] * 2


def test_replies_run_together(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of a pipeline and of chats are in one batch of the engine."""
    from concurrent.futures import ThreadPoolExecutor

    llm = server.hub.models["tiny"].text
    assert llm is not None
    assert server.hub.models["shared"].text is None
    executor: Any = llm.engine.call(lambda engine: engine._cache.executor).result()
    step, batches = executor.step, list[int]()

    def counted(batch: Any) -> Any:
        batches.append(len(batch.sequences) if hasattr(batch, "sequences") else len(batch.rows))
        return step(batch)

    monkeypatch.setattr(executor, "step", counted)
    with ThreadPoolExecutor(4) as pool:
        long = {**LIMITED, "max_tokens": 200}
        spoken_ = [pool.submit(post, server, "shared", long) for _ in range(2)]
        asked = [pool.submit(reply_of, server, max_tokens=200) for _ in range(2)]
        texts = {f.result().json()["results"][-1]["text"] for f in spoken_}
        texts |= {f.result()["choices"][0]["message"]["content"] for f in asked}
    assert len(texts) == 1
    assert max(batches) > 1


def test_its_language_model_comes_and_goes(server: Server) -> None:
    post_ = server.client.post
    assert post_("/v2/repository/models/tiny/unload").status_code == 200
    found = post(server, "shared")
    assert (found.status_code, "'tiny' is not ready" in found.text) == (503, True)
    assert post(server, "own").status_code == 200
    assert post_("/v2/repository/models/tiny/load").status_code == 200
    assert post(server, "shared").status_code == 200
    assert post_("/v2/repository/models/own/unload").status_code == 200
    assert server.hub.models["own"].text is None
    assert post(server, "own").status_code == 503
    assert post_("/v2/repository/models/own/load").status_code == 200
    assert post(server, "own").status_code == 200
    assert server.client.get("/health/run").json() == dict.fromkeys(server.hub.models, "good")


def test_tokens_count_for_the_key(start: Starter, parts: tuple[list[Path], Path]) -> None:
    paths, chat = parts
    keys = (f"{KEY} tokens=40/h models=own", OTHER)
    whole = ",".join(map(str, (*paths, chat)))
    server = start(only=True, pipelines=(f"own={whole}",), keys=keys)
    codes = [post(server, "own", LIMITED, key=KEY).status_code for _ in range(4)]
    assert codes[0] == 200
    assert codes[-1] == 429
    assert post(server, "own", LIMITED, key=OTHER).status_code == 200


def test_what_cannot_be_put_together(start: Starter, parts: tuple[list[Path], Path]) -> None:
    paths, chat = parts
    server = start(only=True, pipelines=(f"odd={paths[1]},{paths[2]},{chat}",))
    assert "before a language model expected" in server.hub.models["odd"].state
    assert "/" not in server.hub.models["odd"].state


def test_a_fallback_does_the_same(
    start: Starter, parts: tuple[list[Path], Path], tmp_path: Path
) -> None:
    """Pipelines had one role, whatever they took and gave; so had models of one shape."""
    paths, chat = parts
    make, heard = partial(write_graph, tmp_path), ",".join(map(str, paths))
    image: dict[str, Any] = {"preprocessing": {"image": SIZED}, "head": Classify(top=1)}
    models = [
        make(name, COLOURS, labels=labels, **image)
        for name, labels in (("a", ("red", "green")), ("b", ("red", "green")), ("c", ("no", "yes")))
    ]
    lines = ",".join(map(str, readers(make)))
    served: dict[str, Any] = {"only": True, "pipelines": (f"heard={heard}", f"own={heard},{chat}")}
    served["pipelines"] += (f"speech={paths[1]},{paths[2]}", f"ocr={lines}")
    for other in ("heard=own", "heard=ocr", "ocr=speech", "a=c"):
        with pytest.raises(UsageError, match="does not take what"):
            start(*map(str, models), **served, fallbacks=(other,))
    found = start(*map(str, models), **served, fallbacks=("heard=speech", "a=b"))
    assert found.hub.models["heard"].fallback is found.hub.models["speech"]


def test_the_first_limit_holds_for_recordings(
    start: Starter, parts: tuple[list[Path], Path]
) -> None:
    paths, chat = parts
    limits = RequestLimits(elements=100)
    whole = ",".join(map(str, (*paths, chat)))
    server = start(only=True, pipelines=(f"own={whole}",), limits=limits)
    assert post(server, "own").status_code == 413
