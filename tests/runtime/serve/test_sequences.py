"""Sequences: each client's states are its own, and a step that fails changes nothing."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.bundle.manifest import StateRecord
from edgeinfer.errors import UsageError
from edgeinfer.runtime.serve.http import RequestError
from edgeinfer.runtime.serve.options import RequestLimits
from edgeinfer.runtime.serve.sequences import KeptStates, Sequences
from edgeinfer.types import Array, Feeds
from tests.runtime.conftest import FakeExecutable, write_bundle
from tests.runtime.serve.conftest import KEY, Server, Start, starter

OTHER = "another-key-of-letters"
URL = "/v2/models/count/infer"


def step(self: FakeExecutable, feeds: Feeds) -> dict[str, Array]:
    """Add the state to ``x``, and one to the state."""
    if self.backend.run_error:
        raise RuntimeError(self.backend.run_error)
    return {"double": feeds["x"] + feeds["k"][:, None].astype(np.float32), "k'": feeds["k"] + 1}


def counting(folder: Path) -> str:
    states = (StateRecord("k", "k'"),)
    return f"count={write_bundle(folder / 'count.edge', 'fake', vectors=0, states=states)}"


@pytest.fixture(autouse=True, scope="module")
def steps() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeExecutable, "run", step)
        yield


@pytest.fixture(scope="module")
def server(steps: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("counted")
    with starter(tmp_path_factory.mktemp("served")) as (start, _):
        yield start(counting(folder), grpc_port=0)


def ask(server: Server, id: Any, rows: int = 1, key: str = "", **parameters: Any) -> Any:
    x = {"name": "x", "datatype": "FP32", "shape": [rows, 3], "data": [0.0] * 3 * rows}
    given = {"sequence_id": id, **parameters}
    headers = {"x-api-key": key} if key else {}
    found = server.client.post(URL, json={"inputs": [x], "parameters": given}, headers=headers)
    if found.status_code != 200:
        return found.status_code, found.json()["error"]
    (output,) = found.json()["outputs"]
    return output["data"][0]


def test_sequences_are_apart(server: Server) -> None:
    assert ask(server, 1, sequence_start=True) == 0
    assert ask(server, "a", sequence_start=True) == 0
    assert [ask(server, 1) for _ in range(3)] == [1, 2, 3]
    assert ask(server, "a", sequence_end=True) == 1
    assert ask(server, 1, sequence_start=True) == 0
    assert ask(server, 1, sequence_end=True) == 1
    for id in (1, "a", "never"):
        status, text = ask(server, id)
        assert status == 400
        assert f"sequence {id!r} is not under way" in text


def test_states_are_not_among_the_tensors(server: Server) -> None:
    found = server.client.get("/v2/models/count").json()
    assert [t["name"] for t in found["inputs"] + found["outputs"]] == ["x", "double"]
    (state,) = server.client.get("/v2/models/count/config").json()["sequence_batching"]["state"]
    assert (state["input_name"], state["output_name"]) == ("k", "k'")


def test_who_keeps_the_states_himself_gives_them(server: Server) -> None:
    tensors = [
        {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [0.0] * 3},
        {"name": "k", "datatype": "INT64", "shape": [1], "data": [41]},
    ]
    found = server.client.post(URL, json={"inputs": tensors}).json()["outputs"]
    assert {o["name"]: o["data"][0] for o in found} == {"double": 41, "k'": 42}
    mixed = {"inputs": tensors, "parameters": {"sequence_id": 9, "sequence_start": True}}
    refused = server.client.post(URL, json=mixed)
    assert refused.status_code == 400
    assert "input 'k': the sequence keeps it" in refused.json()["error"]


def test_parameters_are_checked(server: Server) -> None:
    assert ask(server, None, sequence_start=True)[0] == 400
    assert "expected true or false" in ask(server, 5, sequence_start=1)[1]
    assert "expected a number or a text" in ask(server, [5], sequence_start=True)[1]


def test_a_step_that_fails_changes_nothing(start: Start, fakes: Any, tmp_path: Path) -> None:
    server = start(counting(tmp_path), limits=RequestLimits(sequences=1))
    fakes["fake"].run_error = "no"
    assert ask(server, 1, sequence_start=True)[0] == 500
    fakes["fake"].run_error = ""
    assert "is not under way" in ask(server, 1)[1]
    assert ask(server, 1, sequence_start=True) == 0
    fakes["fake"].run_error = "no"
    assert ask(server, 1)[0] == 500
    fakes["fake"].run_error = ""
    assert ask(server, 1, rows=2)[0] == 400
    assert ask(server, 1) == 1
    assert ask(server, 2, sequence_start=True) == (429, "1 sequences are under way already")
    assert ask(server, 1, sequence_end=True) == 2
    assert ask(server, 2, sequence_start=True) == 0


def test_a_silent_sequence_is_forgotten(start: Start, tmp_path: Path) -> None:
    server = start(counting(tmp_path), limits=RequestLimits(sequences=1, sequence_idle_s=0.0))
    assert ask(server, 1, sequence_start=True) == 0
    assert "had no step for 0 s" in ask(server, 1)[1]


def test_a_sequence_belongs_to_the_key_that_began_it(start: Start, tmp_path: Path) -> None:
    client = pytest.importorskip("tritonclient.grpc", reason="pip install 'tritonclient[grpc]'")
    server = start(counting(tmp_path), keys=(KEY, OTHER), grpc_port=0)
    assert ask(server, 1, key=KEY, sequence_start=True) == 0
    status, text = ask(server, 1, key=OTHER)
    assert (status, "not under way" in text) == (400, True)
    assert ask(server, 1, key=OTHER, sequence_start=True) == 0
    assert ask(server, 1, key=OTHER, sequence_end=True) == 1
    assert ask(server, 1, key=KEY) == 1
    given = client.InferInput("x", [1, 3], "FP32")
    given.set_data_from_numpy(np.zeros((1, 3), np.float32))
    assert server.app.rpc is not None
    with client.InferenceServerClient(f"127.0.0.1:{server.app.rpc.port}") as triton:
        with pytest.raises(client.InferenceServerException, match="not under way"):
            triton.infer("count", [given], sequence_id=1, headers={"x-api-key": OTHER})
        # One sequence, whichever way its key comes.
        found = triton.infer("count", [given], sequence_id=1, headers={"x-api-key": KEY})
        assert found.as_numpy("double")[0, 0] == 2


def test_a_key_with_too_many_sequences_gives_way(start: Start, tmp_path: Path) -> None:
    """One client had all places of a model."""
    limits = RequestLimits(sequences=8)
    server = start(counting(tmp_path), keys=(KEY, OTHER), limits=limits)
    for id in range(1, 9):
        assert ask(server, id, key=KEY, sequence_start=True) == 0
    status, text = ask(server, 9, key=KEY, sequence_start=True)
    assert (status, "8 sequences are under way" in text) == (429, True)
    assert ask(server, 1, key=OTHER, sequence_start=True) == 0
    assert ask(server, 1, key=OTHER) == 1
    # The oldest one gave way.
    assert ask(server, 1, key=KEY)[0] == 400
    assert ask(server, 2, key=KEY) == 1


def test_states_that_are_kept_have_a_bound() -> None:
    kept = KeptStates(800)
    kept.change(b"a", 200)
    with pytest.raises(RequestError, match="states of sequences take all the memory"):
        kept.change(b"a", 1)
    for key in (b"b", b"c", b"d"):
        kept.change(key, 200)
    with pytest.raises(RequestError, match="states of sequences"):
        kept.change(b"e", 1)
    kept.change(b"a", -200)
    kept.change(b"e", 200)
    assert kept.used == 800
    # Without keys there is one client.
    alone = KeptStates(800)
    alone.change(b"", 800)


def test_states_are_given_back(start: Start, tmp_path: Path) -> None:
    server = start(counting(tmp_path))
    states = server.hub.states
    assert ask(server, 1, rows=4, sequence_start=True) == 0
    assert states.used == 4 * 8
    assert ask(server, 2, rows=2, sequence_start=True) == 0
    assert ask(server, 1, rows=4, sequence_end=True) == 1
    assert states.used == 2 * 8
    server.hub.models["count"].sequences.clear()  # type: ignore[union-attr]
    assert states.used == 0


def test_a_model_that_is_unloaded_forgets_on_the_loop(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop looked through sequences that a thread forgot, and a step of another was a fault."""
    names: list[str] = []
    clear = Sequences.clear

    def watched(self: Sequences) -> None:
        names.append(threading.current_thread().name)
        clear(self)

    monkeypatch.setattr(Sequences, "clear", watched)
    server = start(counting(tmp_path))
    assert ask(server, 1, sequence_start=True) == 0
    for what in ("unload", "load"):
        assert server.client.post(f"/v2/repository/models/count/{what}").status_code == 200
    assert "is not under way" in ask(server, 1)[1]
    assert len(names) == 1
    assert "edgeinfer-changes" not in names[0]


def test_ids_have_a_length(server: Server) -> None:
    assert ask(server, "x" * 128, sequence_start=True, sequence_end=True) == 0
    status, text = ask(server, "x" * 129, sequence_start=True)
    assert (status, "at most 128 characters" in text) == (400, True)


def test_the_real_client_keeps_order_in_a_stream(server: Server) -> None:
    client = pytest.importorskip("tritonclient.grpc", reason="pip install 'tritonclient[grpc]'")
    assert server.app.rpc is not None
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with client.InferenceServerClient(f"127.0.0.1:{server.app.rpc.port}") as triton:
        triton.start_stream(lambda result, error: answers.put((result, error)))
        given = client.InferInput("x", [1, 3], "FP32")
        given.set_data_from_numpy(np.zeros((1, 3), np.float32))
        for number in range(12):
            for id in (77, "text"):
                triton.async_stream_infer(
                    "count",
                    [given],
                    sequence_id=id,
                    sequence_start=number == 0,
                    sequence_end=number == 11,
                )
        found = [answers.get(timeout=60) for _ in range(24)]
        triton.stop_stream()
    assert [e for _, e in found if e] == []
    assert [r.as_numpy("double")[0, 0] for r, _ in found] == [n for n in range(12) for _ in "ab"]


def test_a_step_that_is_read_for_long_is_not_overtaken(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values in lists are read next to the loop: a raw step behind one was run before it."""
    grpc = pytest.importorskip("grpc")
    from edgeinfer.runtime.serve.messages import SERVICE, messages

    assert server.app.rpc is not None
    kind, reads = messages()["ModelInferRequest"], server.app.rpc._asked

    async def slowly(request: Any) -> Any:
        found = await reads(request)
        if not request.raw_input_contents:
            await asyncio.sleep(0.05)
        return found

    monkeypatch.setattr(server.app.rpc, "_asked", slowly)

    def asking(number: int, is_raw: bool) -> bytes:
        request = kind(model_name="count", id=str(number))
        tensor = request.inputs.add(name="x", datatype="FP32", shape=[1, 3])
        if is_raw:
            request.raw_input_contents.append(bytes(12))
        else:
            tensor.contents.fp32_contents.extend([0.0] * 3)
        request.parameters["sequence_id"].int64_param = 70 + number % 2
        request.parameters["sequence_start"].bool_param = number < 2
        return bytes(request.SerializeToString())

    # Two sequences in turns; the last message but one is none.
    sent = [asking(number, number % 4 in (1, 2)) for number in range(12)]
    sent.insert(11, kind(model_name="count", id="none").SerializeToString())
    with grpc.insecure_channel(f"127.0.0.1:{server.app.rpc.port}") as channel:
        call = channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")
        answers = [
            messages()["ModelStreamInferResponse"].FromString(raw)
            for raw in call(iter(sent), timeout=60)
        ]
    ids = [answer.infer_response.id for answer in answers]
    assert ids == [*map(str, range(11)), "none", "11"]
    assert answers.pop(11).error_message
    assert [answer.error_message for answer in answers] == [""] * 12
    got = [np.frombuffer(a.infer_response.raw_output_contents[0], "f4")[0] for a in answers]
    assert got == [number // 2 for number in range(12)]


def test_no_model_with_states_stands_in_for_another(start: Start, tmp_path: Path) -> None:
    """A sequence went on with what the other model remembered of an earlier one."""
    one = counting(tmp_path)
    two = "other=" + one.partition("=")[2]
    with pytest.raises(UsageError, match="'count' has states, which are its own"):
        start(one, two, fallbacks=("count=other",))
