"""Messages that are known are answered as those that are read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.runtime.serve.calls import CallPlans, _raw_inputs
from edgeinfer.runtime.serve.messages import SERVICE, messages
from tests.runtime.conftest import write_bundle
from tests.runtime.serve.conftest import KEY, Server, Start, starter

grpc = pytest.importorskip("grpc")
OTHER = "another-key-of-enough-letters"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with starter(tmp_path_factory.mktemp("served")) as (start, _):
        yield start(grpc_port=0)


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return a list that says of each message whether it was known."""
    found: list[bool] = []
    read = CallPlans.read

    def watched(self: CallPlans, hub: Any, raw: bytes) -> Any:
        made = read(self, hub, raw)
        found.append(made is not None)
        return made

    monkeypatch.setattr(CallPlans, "read", watched)
    return found


def message(value: float = 1.5, rows: int = 2, **more: Any) -> Any:
    x, k = np.full((rows, 3), value, np.float32), np.arange(rows, dtype=np.int64)
    made = messages()["ModelInferRequest"](model_name="double", **more)
    for name, kind, array in (("x", "FP32", x), ("k", "INT64", k)):
        made.inputs.add(name=name, datatype=kind, shape=array.shape)
        made.raw_input_contents.append(array.tobytes())
    return made


def asked(server: Server, request: Any, key: str = "") -> Any:
    assert server.app.rpc is not None
    raw = request if isinstance(request, bytes) else request.SerializeToString()
    with grpc.insecure_channel(f"127.0.0.1:{server.app.rpc.port}") as channel:
        call = channel.unary_unary(
            f"/{SERVICE}/ModelInfer",
            response_deserializer=messages()["ModelInferResponse"].FromString,
        )
        return call(raw, metadata=(("x-api-key", key),) if key else None)


def test_the_second_answer_is_the_first(server: Server, known: list[bool]) -> None:
    # No other test here asks for so many rows: what it asked would be known already.
    for request in (message(rows=5), message(rows=5, outputs=[{"name": "k'"}]), message(rows=6)):
        assert asked(server, request) == asked(server, request)
    assert known == [False, True] * 3


def test_numbers_are_those_of_their_own_message(server: Server, known: list[bool]) -> None:
    asked(server, message())
    found = asked(server, message(-4.0))
    assert np.frombuffer(found.raw_output_contents[0], np.float32).tolist() == [-8.0] * 6
    assert [(o.name, list(o.shape)) for o in found.outputs] == [("double", [2, 3]), ("k'", [2])]
    assert known[-1]


@pytest.mark.parametrize(
    "change",
    [
        lambda m: setattr(m, "id", "a"),
        lambda m: m.inputs[0].shape.__setitem__(slice(None), [2, 4]),
        lambda m: setattr(m.inputs[0], "name", "y"),
        lambda m: setattr(m.inputs[0], "datatype", "FP16"),
        lambda m: setattr(m, "model_name", "doable"),
        lambda m: m.raw_input_contents.reverse(),
        lambda m: m.parameters["sequence_id"].__setattr__("int64_param", 3),
    ],
)
def test_another_message_is_read(server: Server, known: list[bool], change: Any) -> None:
    """Its answer is that of a server that knows none."""
    asked(server, message())
    other = message()
    change(other)
    found = []
    for _ in range(2):
        try:
            found.append(asked(server, other))
        except grpc.RpcError as error:
            found.append((error.code(), error.details()))
    assert found[0] == found[1]
    assert not any(known[-2:])


def test_another_key_is_asked_for_its_rights(start: Start, known: list[bool]) -> None:
    server = start(grpc_port=0, keys=(KEY, f"{OTHER} models=tiny"))
    asked(server, message(), KEY)
    asked(server, message(), KEY)
    assert known == [False, True]
    with pytest.raises(grpc.RpcError, match="no model 'double'"):
        asked(server, message(), OTHER)
    with pytest.raises(grpc.RpcError, match="a key is needed"):
        asked(server, message(), "wrong" * 5)


def test_a_model_that_is_loaded_anew_is_read_anew(start: Start, known: list[bool]) -> None:
    server = start(grpc_port=0)
    asked(server, message())
    model = server.hub.models["double"]
    server.hub.loader.unload(model)
    with pytest.raises(grpc.RpcError, match="not ready"):
        asked(server, message())
    server.hub.loader.load(model)
    asked(server, message())
    asked(server, message())
    assert known[-2:] == [False, True]


def test_what_a_fallback_answers_is_not_kept(
    start: Start, fakes: Any, known: list[bool], tmp_path: Path
) -> None:
    """The model answers once it is there again, also to keys that may not use the fallback."""
    fakes.add("quick")
    small = write_bundle(tmp_path / "small.edge", "quick")
    keys = (KEY, f"{OTHER} models=double")
    server = start(str(small), grpc_port=0, fallbacks=("double=small",), keys=keys)
    model = server.hub.models["double"]

    def names() -> list[str]:
        return [asked(server, message(), key).model_name for key in (KEY, KEY, OTHER)]

    server.hub.loader.unload(model)
    assert names() == ["small"] * 3
    server.hub.loader.load(model)
    assert names() == ["double"] * 3
    assert known == [False] * 4 + [True] * 2
    # Also of a message that is known: each is counted once.
    server.hub.loader.unload(model)
    assert names() == ["small"] * 3
    assert model.metrics.passed_on == 6
    server.hub.loader.load(model)
    assert names() == ["double"] * 3


def test_a_fallback_answers_known_messages_of_a_busy_model(
    start: Start, fakes: Any, known: list[bool], tmp_path: Path
) -> None:
    fakes.add("quick")
    small = write_bundle(tmp_path / "small.edge", "quick")
    server = start(str(small), grpc_port=0, fallbacks=("double=small:1",))
    assert [asked(server, message()).model_name for _ in range(2)] == ["double"] * 2
    model = server.hub.models["double"]
    model.waiting += 1
    assert asked(server, message()).model_name == "small"
    assert model.metrics.passed_on == 1
    model.waiting -= 1
    assert asked(server, message()).model_name == "double"
    assert known == [False, True, False, True]


def test_raw_tensors_are_found_where_they_are() -> None:
    request = message()
    raw = request.SerializeToString()
    parts = [raw[start:end] for start, end in _raw_inputs(raw)]
    assert parts == list(request.raw_input_contents)
    assert _raw_inputs(b"\x08\x01" + raw) == []
