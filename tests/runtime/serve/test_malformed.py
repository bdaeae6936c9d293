"""Requests that are changed or made up: the client's fault is the client's, and nobody else's."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from edgeinfer.runtime.serve.http import LENGTH
from edgeinfer.runtime.serve.messages import SERVICE, messages
from tests.runtime.serve.conftest import Server, Start
from tests.runtime.serve.test_v2 import URL, body

hypothesis = pytest.importorskip("hypothesis")
from hypothesis import strategies as st  # noqa: E402

SIZE = LENGTH.decode()
EDITS = st.lists(
    st.tuples(st.integers(0, 400), st.sampled_from(["put", "cut", "add"]), st.integers(0, 255)),
    max_size=4,
)


@pytest.fixture(params=[30, pytest.param(150, marks=pytest.mark.sweep)])
def limited(request: pytest.FixtureRequest) -> Any:
    """Run a test with so many examples, the same ones each time."""
    return hypothesis.settings(
        max_examples=request.param, deadline=None, database=None, derandomize=True,
        suppress_health_check=list(hypothesis.HealthCheck),
    )  # fmt: skip


def edited(good: bytes, edits: list[tuple[int, str, int]]) -> bytes:
    """Return bytes of which some are others, gone or new."""
    found = bytearray(good)
    for place, what, value in edits:
        at = place % (len(found) + 1)
        if what == "add":
            found.insert(at, value)
        elif what == "cut":
            del found[at : at + 1 + value % 9]
        elif at < len(found):
            found[at] = value
    return bytes(found)


def raw() -> tuple[bytes, bytes]:
    """Return the JSON and the tensors of a good request."""
    x, k = np.ones((2, 3), np.float32), np.array([7, 8])
    items = [
        {"name": n, "datatype": d, "shape": a.shape, "parameters": {"binary_data_size": a.nbytes}}
        for n, d, a in (("x", "FP32", x), ("k", "INT64", k))
    ]
    return json.dumps({"inputs": items}).encode(), x.tobytes() + k.tobytes()


def is_answered(server: Server, content: bytes, headers: dict[str, str] | None = None) -> None:
    """Check that a request gets numbers or is told what is wrong, as JSON and without a trace."""
    found = server.client.post(URL, content=content, headers=headers)
    assert found.status_code == 200 or 400 <= found.status_code < 500, found.text
    if found.status_code != 200:
        assert found.json()["error"]
        assert "Traceback" not in found.text
    assert server.client.post(URL, json=body()).status_code == 200


def test_json(server: Server, limited: Any) -> None:
    good = json.dumps(body()).encode()

    def ask(edits: list[tuple[int, str, int]]) -> None:
        is_answered(server, edited(good, edits))

    limited(hypothesis.given(edits=EDITS)(ask))()


def test_json_that_was_made_up(server: Server, limited: Any) -> None:
    values = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner),
        max_leaves=12,
    )
    fields = st.sampled_from(["name", "datatype", "shape", "data", "parameters"])
    tensor = st.dictionaries(fields, values | st.sampled_from(["x", "FP32", [1, 3]]), max_size=5)

    def ask(**given: Any) -> None:
        is_answered(server, json.dumps(given).encode("utf-8", "surrogatepass"))

    limited(
        hypothesis.given(inputs=st.lists(tensor, max_size=3), parameters=values, outputs=values)(
            ask
        )
    )()


def test_raw_tensors_and_the_size_before_them(server: Server, limited: Any) -> None:
    head, tensors = raw()
    sizes = st.none() | st.integers(-1, 400).map(str) | st.text(st.characters(max_codepoint=126))

    def ask(edits: list[tuple[int, str, int]], size: str | None) -> None:
        told = "" if size is None else "".join(c for c in size if c.isprintable()).strip()
        is_answered(server, edited(head + tensors, edits), {SIZE: told} if told else {})

    limited(hypothesis.given(edits=EDITS, size=sizes | st.just(str(len(head))))(ask))()


def test_messages(start: Start, limited: Any) -> None:
    grpc = pytest.importorskip("grpc")
    server, known = start(grpc_port=0), messages()
    request = known["ModelInferRequest"](model_name="double", id="a")
    for name, kind, shape in (("x", "FP32", [2, 3]), ("k", "INT64", [2])):
        request.inputs.add(name=name, datatype=kind, shape=shape)
    request.raw_input_contents.extend([np.ones(6, np.float32).tobytes(), np.arange(2).tobytes()])
    good = request.SerializeToString()
    assert server.app.rpc is not None
    theirs = {"INVALID_ARGUMENT", "NOT_FOUND", "RESOURCE_EXHAUSTED", "UNIMPLEMENTED"}
    with grpc.insecure_channel(f"127.0.0.1:{server.app.rpc.port}") as channel:
        call = channel.unary_unary(f"/{SERVICE}/ModelInfer")

        def ask(edits: list[tuple[int, str, int]]) -> None:
            found = call.future(edited(good, edits), timeout=20)
            if (error := found.exception()) is not None:
                assert error.code().name in theirs, error.details()
                assert "Traceback" not in error.details()
            assert known["ModelInferResponse"].FromString(call(good, timeout=20)).id == "a"

        limited(hypothesis.given(edits=EDITS)(ask))()
