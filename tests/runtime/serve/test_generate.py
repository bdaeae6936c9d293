"""Triton's generate extension: plain JSON for tensors and for texts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.runtime.serve.conftest import Server

TENSORS, TEXT = "/v2/models/double/generate", "/v2/models/tiny/generate"
GIVEN = {"x": [[1, 2, 3]], "k": [7]}
ASKED = {"text_input": "the cat", "max_tokens": 6, "temperature": 0, "ignore_eos": True}


def events(text: str) -> list[Any]:
    return [json.loads(part[6:]) for part in text.split("\n\n") if part]


def test_tensors(server: Server) -> None:
    want = {"model_name": "double", "model_version": "1", "double": [2, 4, 6], "k'": 7}
    assert server.client.post(TENSORS, json=GIVEN).json() == want
    with_id = server.client.post(TENSORS, json={**GIVEN, "id": "a"}).json()
    assert with_id == {**want, "id": "a"}
    streamed = server.client.post(f"{TENSORS}_stream", json=GIVEN)
    assert events(streamed.text) == [want]
    assert server.client.post("/v2/models/double/versions/1/generate", json=GIVEN).json() == want


def test_texts(server: Server) -> None:
    completion = {"model": "tiny", "prompt": "the cat", "max_tokens": 6, "temperature": 0}
    other = server.client.post("/v1/completions", json={**completion, "ignore_eos": True}).json()
    text = other["choices"][0]["text"]
    found = server.client.post(TEXT, json=ASKED).json()
    assert found == {"model_name": "tiny", "model_version": "1", "text_output": text}
    streamed = events(server.client.post(f"{TEXT}_stream", json={**ASKED, "stream": True}).text)
    assert "".join(e["text_output"] for e in streamed) == text
    sampling = {k: v for k, v in ASKED.items() if k != "text_input"}
    for inner in (sampling, json.dumps(sampling)):
        asked = {"text_input": "the cat", "sampling_parameters": inner}
        assert server.client.post(TEXT, json=asked).json() == found
    whole = server.client.post(TEXT, json={**ASKED, "exclude_input_in_output": False}).json()
    assert whole["text_output"] == "the cat" + text


@pytest.mark.parametrize(
    ("url", "given", "status", "text"),
    [
        (TENSORS, {**GIVEN, "z": 1}, 400, "no input z; this model takes x, k"),
        (TENSORS, {"x": [[1, 2, 3]]}, 400, "k"),
        (TENSORS, {**GIVEN, "x": [[1, 2], [3]]}, 400, "input 'x'"),
        (TENSORS, {**GIVEN, "x": "red"}, 400, "expected numbers for FP32"),
        (TENSORS, {**GIVEN, "x": [[1, 2]]}, 400, "x"),
        (TENSORS, {**GIVEN, "parameters": {"magic": 1}}, 400, "magic: not supported"),
        (TEXT, {}, 400, "text_input: expected a text"),
        (TEXT, {**ASKED, "nonsense": 1}, 400, "not supported: nonsense"),
        (TEXT, {**ASKED, "stream": True}, 400, "/generate_stream streams"),
        (TEXT, {**ASKED, "sampling_parameters": "{"}, 400, "it is not JSON"),
        ("/v2/models/nobody/generate", {}, 404, "no model 'nobody'"),
        ("/v2/models/double/versions/9/generate", {}, 404, "there is version 1 only"),
    ],
)
def test_refusals(server: Server, url: str, given: Any, status: int, text: str) -> None:
    found = server.client.post(url, json=given)
    assert found.status_code == status
    assert text in found.json()["error"]
    assert server.client.get(url).status_code in (404, 405)
