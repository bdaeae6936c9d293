"""Small requests with much work in them: refused before it is done, or done next to the others."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

from edgeinfer.errors import InputError, UsageError
from edgeinfer.runtime.llm.tokenizer import TextTokenizer
from edgeinfer.runtime.serve import inflight, tensors
from edgeinfer.runtime.serve.forms import read_form
from edgeinfer.runtime.serve.http import (
    MOST_TEXT,
    RequestError,
    status_of,
    to_json,
    without_folders,
)
from edgeinfer.runtime.serve.options import RequestLimits
from edgeinfer.types import TensorSpec
from tests.runtime.llm.texts import byte_level
from tests.runtime.serve.conftest import Server, Start

SPEC = TensorSpec("x", "float32", ("n", 3))
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "max_tokens": 2}


@pytest.mark.parametrize(
    "path",
    ["/v2/models/double/infer", "/v2/models/tiny/generate", "/v1/completions", "/v1/embeddings"],
)
def test_json_has_a_lower_limit_than_bytes(start: Start, path: str) -> None:
    server = start(limits=RequestLimits(json_bytes=1000))
    found = server.client.post(path, content=b'{"model": "tiny", "x": "' + b"a" * 1000 + b'"}')
    assert found.status_code == 413
    assert "larger than 1000 bytes" in found.text


def test_head_of_raw_tensors_has_the_limit_of_json(start: Start) -> None:
    server = start(limits=RequestLimits(json_bytes=1000))
    length = {"inference-header-content-length": "1001"}
    found = server.client.post("/v2/models/double/infer", content=b" " * 4000, headers=length)
    assert found.status_code == 413


@pytest.mark.parametrize("what", ["inputs", "outputs"])
def test_tensors_are_counted_before_they_are_read(what: str) -> None:
    given: dict[str, Any] = {"inputs": [], "outputs": [], what: [{}] * 3}
    body = to_json(given)
    with pytest.raises(RequestError, match=f"{what}: at most 1 tensors, received 3"):
        tensors.read(body, None, (SPEC,), (SPEC,), 1000)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ([[[]], 1], "unequal lengths"),
        ([[]] * 4, "4 values for shape"),
        ([[1, 2, 3], [1]], "unequal lengths"),
        ([[1], 2, "a"], "expected numbers"),
        ([{}], "expected numbers"),
        ([[["a"]]], "expected numbers"),
    ],
)
def test_lists_that_are_no_tensor(data: list[Any], text: str) -> None:
    item = {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": data}
    with pytest.raises(RequestError, match=text):
        tensors.from_values(item, SPEC, 1000)


def test_lists_inside_each_other_have_a_depth() -> None:
    data: list[Any] = [1]
    for _ in range(900):
        data = [data]
    item = {"name": "x", "datatype": "FP32", "shape": [1], "data": data}
    with pytest.raises(RequestError, match="more than 32 lists inside each other"):
        tensors.from_values(item, SPEC, 1000)


@pytest.mark.parametrize(
    ("kind", "data"),
    [("float32", [1e39]), ("float32", [1, 10**39]), ("float16", [70000.0]), ("float16", [70000])],
)
def test_numbers_beyond_a_type_are_refused(kind: str, data: list[Any]) -> None:
    spec = TensorSpec("x", kind, (len(data),))
    item = {"name": "x", "datatype": f"FP{kind[5:]}", "shape": [len(data)], "data": data}
    with pytest.raises(RequestError, match=r"values beyond|expected numbers"):
        tensors.from_values(item, spec, 1000)


@pytest.mark.parametrize("kind", ["float32", "float64", "int64", "uint8", "uint64", "bool"])
@pytest.mark.parametrize(
    "data", [[1, True], [True, 1], [1.5, True], [0.5, False, 0.0], [[1, True]], [[1.0], [True]]]
)
def test_truth_is_no_number(kind: str, data: list[Any]) -> None:
    shape = np.shape(data)
    item: dict[str, Any] = {"name": "x", "datatype": tensors.datatype(TensorSpec("x", kind, shape))}
    item |= {"shape": list(shape), "data": data}
    with pytest.raises(RequestError, match="expected numbers"):
        tensors.from_values(item, TensorSpec("x", kind, shape), 1000)


def test_noughts_and_ones_are_numbers() -> None:
    item = {"name": "x", "datatype": "FP32", "shape": [4], "data": [0.0, 1.0, 1, 0]}
    found = tensors.from_values(item, TensorSpec("x", "float32", (4,)), 1000)
    assert found.tolist() == [0, 1, 1, 0]
    item = {"name": "x", "datatype": "BOOL", "shape": [2], "data": [True, False]}
    found = tensors.from_values(item, TensorSpec("x", "bool", (2,)), 1000)
    assert found.tolist() == [True, False]


def test_the_largest_integers_are_exact() -> None:
    item = {"name": "x", "datatype": "UINT64", "shape": [2], "data": [2**64 - 1, 0]}
    found = tensors.from_values(item, TensorSpec("x", "uint64", (2,)), 1000)
    assert found.tolist() == [2**64 - 1, 0]


def test_lists_keep_their_order() -> None:
    data = np.arange(24).reshape(2, 4, 3).tolist()
    item = {"name": "x", "datatype": "FP32", "shape": [8, 3], "data": data}
    found = tensors.from_values(item, SPEC, 1000)
    assert found.tolist() == np.arange(24, dtype=np.float32).reshape(8, 3).tolist()


def test_errors_repeat_a_part_of_what_was_sent(server: Server) -> None:
    long = "A" * 100_000
    for path, given in (
        ("/v1/completions", {"model": long, "prompt": "a"}),
        ("/v1/completions", {"model": "tiny", "prompt": "a", "temperature": long}),
        ("/v1/completions", {"model": "tiny", "prompt": "a", long: 1}),
        ("/v2/models/tiny/generate", {"text_input": "a", long: 1}),
    ):
        found = server.client.post(path, json=given)
        assert found.status_code in (400, 404)
        assert len(found.content) < MOST_TEXT + 200
    assert len(status_of(InputError("x", "a", long)).text) <= MOST_TEXT + 2


def test_nesting_is_the_clients_fault(server: Server) -> None:
    deep = {"text_input": "a", "parameters": "[" * 100_000}
    assert server.client.post("/v2/models/tiny/generate", json=deep).status_code == 400
    assert status_of(RecursionError()).status == 400


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"messages": [{"role": "user", "content": "a"}] * 513}, "messages: at most 512"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}] * 129}, "tools: at most 128"),
        ({"stop": [str(n) for n in range(33)]}, "stop: expected at most 32 texts"),
        ({"stop": "z" * 1025}, "1024 characters together"),
        ({"messages": [{"role": "user", "content": "the cat " * 200_000}]}, "prompt"),
    ],
)
def test_more_than_a_model_can_read_is_refused(
    server: Server, more: dict[str, Any], text: str
) -> None:
    found = server.client.post("/v1/chat/completions", json={**CHAT, **more})
    assert found.status_code == 400
    assert text in found.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "given"),
    [
        ("/tokenize", {"prompt": "a" * 100_000}),
        ("/detokenize", {"tokens": [5] * 513}),
        ("/v1/completions", {"prompt": "a" * 1_000_000, "max_tokens": 1}),
        (
            "/v1/messages/count_tokens",
            {"messages": [{"role": "user", "content": "the cat " * 100_000}]},
        ),
    ],
)
def test_texts_that_can_never_fit_are_refused(
    server: Server, path: str, given: dict[str, Any]
) -> None:
    found = server.client.post(path, json={"model": "tiny", **given})
    assert found.status_code == 400
    assert "at most" in found.text


def test_text_is_refused_before_its_tokens_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = TextTokenizer(byte_level(), 420, None)
    seen: list[int] = []
    encode_part = tokenizer.encode_part

    def watched(text: str) -> list[int]:
        seen.append(len(text))
        return encode_part(text)

    monkeypatch.setattr(tokenizer, "encode_part", watched)
    with pytest.raises(InputError, match="if all are the longest of the vocabulary"):
        tokenizer.encode("a" * 1_000_000, most=100)
    assert seen == []
    # As where a vocabulary has runs of a hundred blanks.
    monkeypatch.setattr(tokenizer, "_longest", 100)
    with pytest.raises(InputError, match=r"its first 800 characters have \d+; shorten it"):
        tokenizer.encode("z?" * 900, most=100)
    assert seen == [800]
    assert tokenizer.encode("the cat " * 20, most=100) == encode_part("the cat " * 20)


def test_others_are_answered_while_a_text_is_read(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Templates and tokens had kept the event loop."""
    text = server.hub.models["tiny"].text
    assert text is not None
    begun, go_on = threading.Event(), threading.Event()
    encode = text.model.tokenizer.encode

    def slow(text: str, most: int | None = None) -> list[int]:
        begun.set()
        assert go_on.wait(30)
        return encode(text, most)

    monkeypatch.setattr(text.model.tokenizer, "encode", slow)
    answers: list[int] = []
    given = {"model": "tiny", "prompt": "a", "max_tokens": 1}
    asking = threading.Thread(
        target=lambda: answers.append(server.client.post("/v1/completions", json=given).status_code)
    )
    asking.start()
    try:
        assert begun.wait(30)
        assert server.client.get("/v2/health/live", timeout=10).status_code == 200
        assert server.client.get("/metrics", timeout=10).status_code == 200
    finally:
        go_on.set()
        asking.join()
    assert answers == [200]


def test_form_without_a_blank_line_is_refused_at_once() -> None:
    """Expressions had gone over sixty megabytes of head."""
    body = b"--x\r\n" + b' name="' * 8_000_000 + b"\r\n--x--"
    started = time.thread_time()
    with pytest.raises(RequestError, match="no name in its first 4096 bytes"):
        read_form(body, b"multipart/form-data; boundary=x")
    assert time.thread_time() - started < 2
    long = b'--x\r\nname: name="file"' + b" " * 5000 + b"\r\n\r\na\r\n--x--"
    with pytest.raises(RequestError, match="no name"):
        read_form(long, b"multipart/form-data; boundary=x")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("/srv/models/a.edge: no task", "a.edge: no task"),
        ("cannot read '/home/me/x y.edge'", "cannot read 'x y.edge'"),
        ("/var/cache/pages: cannot keep pages here: chmod go-w /var/cache/pages", None),
        (r"C:\models\a.edge: no task", "a.edge: no task"),
        ("pipeline/vocab.txt: no vocabulary", "pipeline/vocab.txt: no vocabulary"),
        ("tokens/s, 3 / 4, http://a.example/v1/x", "tokens/s, 3 / 4, http://a.example/v1/x"),
    ],
)
def test_clients_are_not_told_where_files_lie(text: str, told: str | None) -> None:
    found = without_folders(text)
    assert found == (told or "pages: cannot keep pages here: chmod go-w pages")
    assert status_of(UsageError(text)).text == found


def test_raw_texts_are_bounded_before_they_are_read() -> None:
    """Fifteen megabytes of them took 2.6 s and 280 MB."""
    raw = memoryview(bytes(4 * (1 << 21) + 4))
    item = {"name": "s", "datatype": "BYTES", "shape": [len(raw) // 4]}
    with pytest.raises(RequestError, match="texts of more than 8388608 bytes") as caught:
        tensors.from_bytes(item, TensorSpec("s", "string", (None,)), raw, 1 << 30)
    assert caught.value.status == 413


def test_raw_texts_count_as_what_they_become(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inflight, "WAIT_S", 0.01)
    server = start(limits=RequestLimits(memory_bytes=1 << 20))
    rows = 1 << 12
    head = to_json(
        {
            "inputs": [
                {
                    "name": name,
                    "datatype": kind,
                    "shape": shape,
                    "parameters": {"binary_data_size": size},
                }
                for name, kind, shape, size in (
                    ("x", "FP32", [rows, 3], 12 * rows),
                    ("k", "INT64", [rows], 8 * rows),
                )
            ]
        }
    )
    sent = {"inference-header-content-length": str(len(head))}
    # What others have leaves room for raw tensors, and not for texts of as many bytes.
    server.hub.memory.add(1 << 18, b"")
    for has_texts, status in ((True, 503), (False, 200)):
        server.hub.models["double"].plans.has_texts = has_texts
        found = server.client.post(
            "/v2/models/double/infer", content=head + bytes(20 * rows), headers=sent
        )
        assert found.status_code == status, found.text[:200]
    server.hub.memory.give(1 << 18, b"")
