"""Images in requests for texts."""

from __future__ import annotations

import base64
import io
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from edgeinfer.runtime.llm.images import ImageReader
from edgeinfer.runtime.llm.llm import LLM
from edgeinfer.runtime.serve import seeing as seeing_requests
from edgeinfer.runtime.serve.meaning import Asking
from edgeinfer.runtime.serve.options import RequestLimits
from edgeinfer.types import Array
from tests.runtime.llm.seeing import ROWS, ColourTower, coloured, seeing
from tests.runtime.serve.conftest import KEY, Server, Start, held_as, starter

BLACK, WHITE = 0, 255
USAGE = {"max_tokens": 4, "temperature": 0}


def encoded(level: int) -> str:
    image = pytest.importorskip("PIL.Image")
    out = io.BytesIO()
    image.fromarray(coloured(level)).save(out, "PNG")
    return base64.b64encode(out.getvalue()).decode()


def address(level: int) -> str:
    return f"data:image/png;base64,{encoded(level)}"


@pytest.fixture(scope="module")
def sees(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with starter(tmp_path_factory.mktemp("sees")) as (start, _), pytest.MonkeyPatch.context() as p:
        p.setattr(LLM, "_open", held_as(seeing))
        yield start(limits=RequestLimits(elements=1000))


def chat(server: Server, part: dict[str, Any]) -> Any:
    content = [part, {"type": "text", "text": "what?"}]
    messages = [{"role": "user", "content": content}]
    body = {"model": "tiny", "messages": messages, **USAGE}
    return server.client.post("/v1/chat/completions", json=body)


def shown(level: int, **more: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": address(level), **more}}


def test_all_apis_show_the_same_image(sees: Server) -> None:
    one = chat(sees, shown(BLACK, detail="auto")).json()
    text = one["choices"][0]["message"]["content"]
    assert one["usage"]["prompt_tokens"] > ROWS
    other = chat(sees, shown(WHITE)).json()["choices"][0]["message"]["content"]
    assert text != other

    source = {"type": "base64", "media_type": "image/png", "data": encoded(BLACK)}
    blocks = [{"type": "image", "source": source}, {"type": "text", "text": "what?"}]
    body = {"model": "tiny", "messages": [{"role": "user", "content": blocks}], **USAGE}
    said = sees.client.post("/v1/messages", json=body).json()
    assert said["content"][0]["text"] == text
    count = sees.client.post("/v1/messages/count_tokens", json=body | {"stream": None}).json()
    assert count["input_tokens"] == one["usage"]["prompt_tokens"]

    parts = [
        {"type": "input_image", "image_url": address(BLACK)},
        {"type": "input_text", "text": "what?"},
    ]
    given = {"input": [{"role": "user", "content": parts}], "max_output_tokens": 4}
    body = {"model": "tiny", **given, "temperature": 0}
    answer = sees.client.post("/v1/responses", json=body).json()
    assert answer["output"][0]["content"][0]["text"] == text

    # A text alone is what it was, and nothing is held when all is answered.
    plain = chat(sees, {"type": "text", "text": "so "}).json()
    assert plain["usage"]["prompt_tokens"] < ROWS


@pytest.mark.parametrize(
    ("part", "status", "message"),
    [
        ({"type": "image_url", "image_url": {"url": "https://a/b.png"}}, 400, "no address is fetc"),
        ({"type": "image_url", "image_url": "file:///etc/passwd"}, 400, "no address is fetched"),
        ({"type": "image", "path": "/etc/passwd"}, 400, "type 'image' is not supported"),
        ({"type": "image", "image": "/etc/passwd"}, 400, "type 'image' is not supported"),
        ({"type": "input_image", "file_id": "x"}, 400, "no address is fetched"),
        ({"type": "image_url", "image_url": "data:image/png;base64,AAAA"}, 400, "an image that"),
        (shown(BLACK, detail="huge"), 400, "detail: expected auto, low or high"),
        ({"type": "input_audio"}, 400, "this model reads text and images"),
    ],
)
def test_what_is_no_image_here_is_refused(
    part: dict[str, Any], status: int, message: str, sees: Server
) -> None:
    found = chat(sees, part)
    assert found.status_code == status
    assert message in found.json()["error"]["message"]


def test_no_request_names_a_file_even_where_nobody_looks_at_its_parts(
    sees: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(base64.b64decode(encoded(BLACK)))
    monkeypatch.setattr("edgeinfer.runtime.serve.asked._message", lambda given, *_: given)
    for name in ("image", "path"):
        found = chat(sees, {"type": "image", name: str(path)})
        assert found.status_code == 400
        assert "messages[0].content[0]" in found.json()["error"]["message"]


def test_images_have_limits(sees: Server) -> None:
    image = pytest.importorskip("PIL.Image")
    out = io.BytesIO()
    image.new("RGB", (40, 40)).save(out, "PNG")
    url = "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()
    found = chat(sees, {"type": "image_url", "image_url": url})
    assert found.status_code == 413
    assert "an image with 4800 values; at most 1000" in found.json()["error"]["message"]
    body = {"model": "tiny", **USAGE}
    body["messages"] = [{"role": "user", "content": [shown(BLACK)] * 40}]
    found = sees.client.post("/v1/chat/completions", json=body)
    assert found.status_code == 400
    assert "less than 512 tokens" in found.json()["error"]["message"]
    source = {"type": "url", "url": "https://a/b.png"}
    blocks = [{"type": "image", "source": source}]
    body["messages"] = [{"role": "user", "content": blocks}]
    found = sees.client.post("/v1/messages", json=body)
    assert found.status_code == 400
    assert "nothing is fetched" in found.json()["error"]["message"]


def test_a_model_of_text_alone_says_so(start: Start) -> None:
    server = start()
    found = chat(server, shown(BLACK))
    assert found.status_code == 400
    message = "messages[0].content[0]: type 'image_url' is not supported; this model reads text"
    assert found.json()["error"]["message"] == message


def test_who_leaves_has_no_further_images_read(
    sees: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Asking] = []
    held, done = threading.Event(), threading.Event()
    runs, read = [], ImageReader.read

    class Recorded(Asking):
        def __init__(self) -> None:
            super().__init__()
            asked.append(self)

    def waits(tower: ColourTower, tile: Array) -> Array:
        runs.append(tile)
        assert held.wait(30)
        return np.zeros((1, ROWS, 24), np.float32)

    def ends(*given: Any) -> Any:
        try:
            return read(*given)
        finally:
            done.set()

    monkeypatch.setattr(seeing_requests, "Asking", Recorded)
    monkeypatch.setattr(ColourTower, "__call__", waits)
    monkeypatch.setattr(ImageReader, "read", ends)
    content = [shown(level) for level in range(100, 106)]
    body = {"model": "tiny", "messages": [{"role": "user", "content": content}], **USAGE}
    with pytest.raises(httpx.ReadTimeout), httpx.Client(base_url=sees.url, timeout=1) as client:
        client.post("/v1/chat/completions", json=body)
    assert asked[0].left.wait(30)
    held.set()
    assert done.wait(30)
    assert len(runs) == 1


def test_images_are_their_keys_alone(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another key was answered as soon as if it had sent the image; who has no tokens, was read."""
    one, other = KEY, "another-key-of-somebody"
    monkeypatch.setattr(LLM, "_open", held_as(seeing))
    keys = (f"{one} name=one", f"{other} name=other tokens=10/h")
    server = start(limits=RequestLimits(elements=1000), keys=keys)

    def ask(key: str, level: int) -> tuple[int, int]:
        content = [shown(level), {"type": "text", "text": "what?"}]
        body = {"model": "tiny", "messages": [{"role": "user", "content": content}], **USAGE}
        before = ColourTower.runs
        found = server.client.post("/v1/chat/completions", json=body, headers={"x-api-key": key})
        return found.status_code, ColourTower.runs - before

    def count(key: str, level: int) -> tuple[int, int]:
        source = {"type": "base64", "media_type": "image/png", "data": encoded(level)}
        content = [{"type": "image", "source": source}]
        body = {"model": "tiny", "messages": [{"role": "user", "content": content}]}
        before = ColourTower.runs
        path = "/v1/messages/count_tokens"
        found = server.client.post(path, json=body, headers={"x-api-key": key})
        return found.status_code, ColourTower.runs - before

    assert ask(one, BLACK) == (200, 1)
    assert ask(one, BLACK) == (200, 0)
    # What is counted was looked at, and costs what it is.
    assert count(other, BLACK) == (200, 1)
    assert ask(other, WHITE) == (429, 0)
    assert count(other, WHITE) == (429, 0)
