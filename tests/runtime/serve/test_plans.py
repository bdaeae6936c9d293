"""JSON before raw tensors is read once; what follows it is looked at each time."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest

from edgeinfer.runtime.serve.http import RequestError
from edgeinfer.runtime.serve.inflight import _OBJECTS, weigh
from edgeinfer.runtime.serve.plans import MOST, Plans
from edgeinfer.runtime.serve.tensors import InferRequest, read
from edgeinfer.runtime.serve.terms import NO_TERMS
from edgeinfer.types import Array, TensorSpec
from tests.runtime.serve.conftest import Server

INPUTS = (TensorSpec("x", "float32", ("N", 3)), TensorSpec("k", "int64", (1,)))


def body(value: float, rows: int = 1, **more: Any) -> tuple[bytes, bytes]:
    """Return a request's JSON, and all of it."""
    x, k = np.full((rows, 3), value, np.float32), np.array([7])
    items = [
        {"name": n, "datatype": d, "shape": a.shape, "parameters": {"binary_data_size": a.nbytes}}
        for n, d, a in (("x", "FP32", x), ("k", "INT64", k))
    ]
    head = json.dumps({"inputs": items, **more}).encode()
    return head, head + x.tobytes() + k.tobytes()


def kept(plans: Plans, head: bytes, whole: bytes) -> InferRequest:
    request = read(whole, len(head), INPUTS, (), 1000)
    plans.keep(head, whole, request)
    return request


def arrays(request: InferRequest | None) -> dict[str, Array]:
    assert request is not None
    return dict(request.feeds)


def test_a_known_text_gives_what_reading_gives() -> None:
    plans = Plans(INPUTS)
    kept(plans, *body(1.0, 2, parameters={"priority": 3}))
    head, whole = body(5.0, 2, parameters={"priority": 3})
    expected = read(whole, len(head), INPUTS, (), 1000)
    found = plans.read(head, whole)
    np.testing.assert_equal(arrays(found), arrays(expected))
    assert found is not None
    assert (found.id, found.outputs, found.binary) == ("", (), expected.binary)
    assert found.terms.priority == 3


def test_more_or_fewer_bytes_are_not_taken_for_it() -> None:
    plans = Plans(INPUTS)
    head, whole = body(1.0)
    kept(plans, head, whole)
    assert plans.read(head, whole) is not None
    assert plans.read(head, whole[:-1]) is None
    assert plans.read(head, whole + b"x") is None
    assert plans.read(*body(1.0, 2)) is None


@pytest.mark.parametrize("more", [{"id": "a"}, {"parameters": {"sequence_id": 3}}])
def test_what_no_other_request_says_is_not_kept(more: dict[str, Any]) -> None:
    plans = Plans(INPUTS)
    head, whole = body(1.0, **more)
    kept(plans, head, whole)
    assert plans.read(head, whole) is None


def test_numbers_in_the_text_are_not_kept() -> None:
    plans = Plans(INPUTS[:1])
    item = {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1.5, 2, 3]}
    head = json.dumps({"inputs": [item]}).encode()
    kept(plans, head, head)
    assert plans.read(head, head) is None


@pytest.mark.parametrize("dtype", ["bool", "string"])
def test_what_is_looked_at_value_by_value_is_not_kept(dtype: str) -> None:
    plans = Plans((TensorSpec("x", dtype, (3,)),))
    plans.keep(
        b"{}", b"{}abc", InferRequest("", {"x": np.zeros(3, bool)}, (), frozenset(), NO_TERMS)
    )
    assert plans.read(b"{}", b"{}abc") is None
    assert not plans.is_raw


def test_no_body_is_kept() -> None:
    """64 of 64 MB each stayed with every model."""
    plans = Plans(INPUTS)
    held = bytearray(b"{}" + bytes(24))
    feeds = {"x": np.frombuffer(memoryview(held)[2:], np.float32).reshape(2, 3)}
    plans.keep(b"{}", bytes(held), InferRequest("", feeds, (), frozenset(), NO_TERMS))
    assert plans.read(b"{}", bytes(held)) is not None
    del feeds
    # This raises where anything still looks at its bytes.
    held.clear()


def test_few_are_kept() -> None:
    plans = Plans(INPUTS)
    for rows in range(1, 3 * MOST):
        kept(plans, *body(1.0, rows))
    assert len(plans._known) <= MOST


def test_over_http_numbers_are_those_of_their_own_request(server: Server) -> None:
    for value in (1.0, -3.5, 9.0):
        head, whole = body(value, parameters={"binary_data_output": True})
        size = {"inference-header-content-length": str(len(head))}
        found = server.client.post("/v2/models/double/infer", content=whole, headers=size)
        at = int(found.headers["inference-header-content-length"])
        assert np.frombuffer(found.content[at : at + 12], np.float32).tolist() == [2 * value] * 3
        cut = server.client.post("/v2/models/double/infer", content=whole[:-3], headers=size)
        assert cut.status_code == 400


def test_weight_is_that_of_every_mark() -> None:
    rng = random.Random(0)
    for _ in range(300):
        text = "".join(
            rng.choice('[]{},":\\ua1 .é-e') for _ in range(rng.randrange(rng.choice((60, 900))))
        ).encode()
        wide = 1 if text.isascii() and b"\\u" not in text else 4
        expected = wide * len(text) + sum(
            text.count(bytes([mark])) * size for mark, size in _OBJECTS
        )
        assert weigh(text) == expected


@pytest.mark.parametrize("wrong", [None, "a", [1.0], {}, 10**400])
def test_what_is_no_number_among_numbers_is_refused(wrong: Any) -> None:
    item = {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1.5, wrong, 2]}
    with pytest.raises(RequestError):
        read(json.dumps({"inputs": [item]}).encode(), None, INPUTS[:1], (), 1000)


@pytest.mark.parametrize(("kind", "name"), [("FP32", "float32"), ("FP64", "float64")])
def test_numbers_of_json_round_once_to_the_nearest(kind: str, name: str) -> None:
    rng = np.random.default_rng(0)
    halves = np.ldexp(1 + (2 * rng.integers(0, 2**23, 2000) + 1) / 2**24, rng.integers(-150, 127))
    edges = [3.4028235677973362e38, 1e-46, 7e-46, -0.0, 2.5, 1.401298464324817e-45, 5e-324]
    values = [*edges, *halves.tolist(), *(halves * (1 + 2**-40)).tolist()]
    item = {"name": "x", "datatype": kind, "shape": [len(values)], "data": values}
    specs = (TensorSpec("x", name, ("N",)),)
    request = read(json.dumps({"inputs": [item]}).encode(), None, specs, (), 10_000)
    wanted = np.array(values).astype(name)
    assert request.feeds["x"].tobytes() == wanted.tobytes()
