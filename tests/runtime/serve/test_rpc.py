"""gRPC: the real client of Triton gets the right numbers, and one clear error where it cannot."""

from __future__ import annotations

import contextlib
import queue
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edgeinfer.runtime.serve import inflight, rpc, turns, wire
from edgeinfer.runtime.serve.lanes import Lane
from edgeinfer.runtime.serve.messages import SERVICE, messages
from edgeinfer.runtime.serve.options import RequestLimits
from tests.runtime.conftest import Fakes
from tests.runtime.serve.conftest import KEY, Server, Start, starter

grpc = pytest.importorskip("grpc")
client = pytest.importorskip("tritonclient.grpc", reason="pip install 'tritonclient[grpc]'")
OTHER = "another-key-of-enough-letters"
X, K = np.array([[1, 2, 3], [4, 5, 6]], np.float32), np.array([7, -(2**40)])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with starter(tmp_path_factory.mktemp("served")) as (start, _):
        yield start(grpc_port=0)


@pytest.fixture(scope="module")
def triton(server: Server) -> Iterator[Any]:
    with connected(server) as made:
        yield made


def connected(server: Server) -> Any:
    assert server.app.rpc is not None
    return client.InferenceServerClient(f"127.0.0.1:{server.app.rpc.port}")


def inputs(x: Any = X, k: Any = K) -> list[Any]:
    made = []
    for name, array, kind in (("x", x, "FP32"), ("k", k, "INT64")):
        made.append(client.InferInput(name, list(array.shape), kind))
        made[-1].set_data_from_numpy(array)
    return made


def test_messages_are_those_of_the_protocol() -> None:
    from tritonclient.grpc import model_config_pb2, service_pb2

    theirs = {
        name: each
        for module in (service_pb2, model_config_pb2)
        for name, each in module.DESCRIPTOR.message_types_by_name.items()
    }
    seen = set()

    def same(ours: Any, other: Any) -> None:
        if ours.full_name in seen:
            return
        seen.add(ours.full_name)
        for field in ours.fields:
            known = other.fields_by_name[field.name]
            assert (known.number, known.type) == (field.number, field.type), field.full_name
            assert known.is_repeated == field.is_repeated, field.full_name
            if field.message_type is not None:
                same(field.message_type, known.message_type)
            if field.enum_type is not None:
                numbers = {v.name: v.number for v in known.enum_type.values}
                assert numbers == {v.name: v.number for v in field.enum_type.values}

    for name, made in messages().items():
        if name in theirs:
            same(made.DESCRIPTOR, theirs[name])
    missed = {name for name in messages() if f"inference.{name}" not in seen}
    assert missed == {"HealthCheckRequest", "HealthCheckResponse"}


def test_numbers_are_right(triton: Any) -> None:
    result = triton.infer("double", inputs(), request_id="7")
    np.testing.assert_array_equal(result.as_numpy("double"), X * 2)
    np.testing.assert_array_equal(result.as_numpy("k'"), K)
    assert result.get_response().id == "7"
    one = triton.infer("double", inputs(), outputs=[client.InferRequestedOutput("k'")])
    assert one.as_numpy("double") is None
    np.testing.assert_array_equal(one.as_numpy("k'"), K)


@pytest.mark.parametrize("is_free", [True, False])
def test_the_only_call_runs_at_once_where_that_is_soon(
    start: Start, monkeypatch: pytest.MonkeyPatch, is_free: bool
) -> None:
    server = start(grpc_port=0)
    model = server.hub.models["double"]
    assert model.tensors is not None
    model.lane = Lane(model.tensors, {1: 1e-5}, {"x": X, "k": K})
    here, run_now = [], Lane.run_now

    def watched(self: Lane, feeds: Any) -> Any:
        found = run_now(self, feeds)
        here.append(found is not None)
        return found

    monkeypatch.setattr(Lane, "run_now", watched)
    if not is_free:
        monkeypatch.setattr(server.hub._runtime._scheduler, "_entered", lambda _: False)
    with connected(server) as triton:
        for number in range(3):
            found = triton.infer("double", inputs(X + number))
            assert np.array_equal(found.as_numpy("double"), 2 * (X + number))
        with pytest.raises(client.InferenceServerException, match="shape"):
            triton.infer("double", inputs(X[:, :2]))
    assert here[:3] == [is_free] * 3
    assert model.metrics.statuses == {200: 3, 400: 1}
    assert model.waiting == server.hub.memory.used == 0


def test_values_may_come_as_lists(server: Server) -> None:
    kinds = messages()
    request = kinds["ModelInferRequest"](model_name="double")
    request.inputs.add(name="x", datatype="FP32", shape=[2, 3]).contents.fp32_contents.extend(
        X.ravel().tolist()
    )
    k = request.inputs.add(name="k", datatype="INT64", shape=[2])
    k.contents.int64_contents.extend(K.tolist())
    found = called(server, "ModelInfer", request, kinds["ModelInferResponse"])
    assert np.frombuffer(found.raw_output_contents[0], np.float32).tolist() == [2, 4, 6, 8, 10, 12]
    k.contents.int_contents.append(1)
    with pytest.raises(grpc.RpcError, match="expected values in int64_contents, received int_c"):
        called(server, "ModelInfer", request, kinds["ModelInferResponse"])


def called(server: Server, method: str, request: Any, answer: Any, service: str = "") -> Any:
    assert server.app.rpc is not None
    name = service or "inference.GRPCInferenceService"
    with grpc.insecure_channel(f"127.0.0.1:{server.app.rpc.port}") as channel:
        call = channel.unary_unary(
            f"/{name}/{method}",
            request_serializer=lambda message: (
                message if isinstance(message, bytes) else message.SerializeToString()
            ),
            response_deserializer=answer.FromString,
        )
        return call(request)


def test_what_is_known_of_models(triton: Any) -> None:
    assert triton.is_server_live()
    assert triton.is_server_ready()
    assert triton.is_model_ready("double")
    assert "sequence" in triton.get_server_metadata().extensions
    found = triton.get_model_metadata("double")
    assert [(t.name, t.datatype, list(t.shape)) for t in found.inputs] == [
        ("x", "FP32", [-1, 3]),
        ("k", "INT64", [-1]),
    ]
    config = triton.get_model_config("double").config
    assert (config.backend, config.input[0].data_type) == ("edgeinfer", 11)
    assert {m.name: m.state for m in triton.get_model_repository_index().models} == {
        "double": "READY",
        "tiny": "READY",
    }
    stats = triton.get_inference_statistics("double").model_stats[0]
    assert stats.inference_count >= 1
    assert stats.inference_stats.success.count == stats.inference_count


def test_models_are_unloaded_and_loaded(triton: Any) -> None:
    triton.unload_model("double")
    assert not triton.is_model_ready("double")
    with pytest.raises(client.InferenceServerException, match="UNAVAILABLE") as caught:
        triton.infer("double", inputs())
    assert "is not ready: unloaded" in str(caught.value)
    triton.load_model("double")
    np.testing.assert_array_equal(triton.infer("double", inputs()).as_numpy("k'"), K)


def test_probes_of_health(server: Server) -> None:
    kinds = messages()
    asked = [("", 1), ("inference.GRPCInferenceService", 1), ("double", 1)]
    for service, status in asked:
        request = kinds["HealthCheckRequest"](service=service)
        answer = kinds["HealthCheckResponse"]
        assert called(server, "Check", request, answer, "grpc.health.v1.Health").status == status


WRONG: list[tuple[Callable[[], dict[str, Any]], str, str]] = [
    (lambda: {"model_name": "nobody"}, "NOT_FOUND", "no model 'nobody'; known: double, tiny"),
    (lambda: {"model_version": "3"}, "NOT_FOUND", "there is version 1 only"),
    (lambda: {"model_name": "tiny"}, "INVALID_ARGUMENT", "is not a model of tensors"),
    (lambda: {"inputs": inputs()[:1]}, "INVALID_ARGUMENT", "'k'"),
    (lambda: {"inputs": inputs(x=X[:, :2])}, "INVALID_ARGUMENT", "'x'"),
    (lambda: {"sequence_id": 3}, "INVALID_ARGUMENT", "has no states"),
    (lambda: {"parameters": {"magic": 1}}, "INVALID_ARGUMENT", "magic: not supported"),
    (
        lambda: {"outputs": [client.InferRequestedOutput("z")]},
        "INVALID_ARGUMENT",
        "no tensor 'z'; known: double, k'",
    ),
]


@pytest.mark.parametrize(("changes", "code", "text"), WRONG)
def test_refusals(triton: Any, changes: Any, code: str, text: str) -> None:
    given = {"model_name": "double", "inputs": inputs(), **changes()}
    with pytest.raises(client.InferenceServerException) as caught:
        triton.infer(**given)
    assert caught.value.status() == f"StatusCode.{code}"
    assert text in caught.value.message()


def test_an_array_of_another_type_is_refused(triton: Any) -> None:
    wrong = client.InferInput("x", [2, 3], "FP64")
    wrong.set_data_from_numpy(X.astype(np.float64))
    with pytest.raises(client.InferenceServerException, match="expected datatype FP32, received"):
        triton.infer("double", [wrong, inputs()[1]])


def test_streams_answer_in_order_and_go_on_after_an_error(triton: Any) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    triton.start_stream(lambda result, error: answers.put((result, error)))
    for value in range(20):
        x = np.full((1, 2 if value == 7 else 3), value, np.float32)
        triton.async_stream_infer("double", inputs(x, np.array([value])), request_id=str(value))
    found = [answers.get(timeout=60) for _ in range(20)]
    triton.stop_stream()
    for value, (result, error) in enumerate(found):
        if value == 7:
            assert "'x'" in str(error)
        else:
            assert result.get_response().id == str(value)
            assert result.as_numpy("double").tolist() == [[2.0 * value] * 3]


def test_a_key_is_needed_where_there_are_keys(start: Start) -> None:
    server = start(keys=(KEY,), grpc_port=0)
    with connected(server) as triton:
        assert triton.is_server_live()
        with pytest.raises(client.InferenceServerException, match="UNAUTHENTICATED"):
            triton.infer("double", inputs())
        for headers in ({"authorization": f"Bearer {KEY}"}, {"x-api-key": KEY}):
            assert triton.infer("double", inputs(), headers=headers).as_numpy("k'") is not None


def test_models_have_no_names_without_a_key(start: Start) -> None:
    server, kinds = start(keys=(KEY,), grpc_port=0), messages()
    check, answer = kinds["HealthCheckRequest"], kinds["HealthCheckResponse"]
    health = "grpc.health.v1.Health"
    assert called(server, "Check", check(), answer, health).status == 1
    for name in ("double", "unknown"):
        with pytest.raises(grpc.RpcError, match="UNAUTHENTICATED") as caught:
            called(server, "Check", check(service=name), answer, health)
        assert "tiny" not in str(caught.value)


def test_a_message_is_not_read_before_the_key(start: Start) -> None:
    server, answer = start(keys=(KEY,), grpc_port=0), messages()["ModelInferResponse"]
    with pytest.raises(grpc.RpcError, match="UNAUTHENTICATED"):
        called(server, "ModelInfer", b"\xff" * 8, answer)


def _slowly(server: Server, name: str, count: int = 1, **metadata: str) -> list[Any]:
    """Begin calls whose message never comes; return how they end."""
    assert server.app.rpc is not None
    with grpc.insecure_channel(f"127.0.0.1:{server.app.rpc.port}") as channel:
        call = channel.stream_unary(f"/{SERVICE}/{name}")
        over = threading.Event()

        def nothing() -> Iterator[bytes]:
            over.wait(60)
            yield from ()

        headers = [*metadata.items()]
        calls = [call.future(nothing(), metadata=headers, timeout=30) for _ in range(count)]
        try:
            return [each.exception() for each in calls]
        finally:
            over.set()


def test_no_memory_is_taken_for_a_message_before_the_key(start: Start) -> None:
    """24 clients without a key each sent most of 60 MB, and waited."""
    server = start(keys=(KEY,), grpc_port=0)
    (refused,) = _slowly(server, "ModelInfer")
    assert refused.code() == grpc.StatusCode.UNAUTHENTICATED


def test_a_message_has_its_time(start: Start) -> None:
    server = start(keys=(KEY,), grpc_port=0, limits=RequestLimits(body_s=0.3))
    (refused,) = _slowly(server, "ModelInfer", authorization=f"Bearer {KEY}")
    assert refused.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    assert "did not come within 0.3 s" in refused.details()
    with connected(server) as triton:
        headers = {"x-api-key": KEY}
        assert triton.infer("double", inputs(), headers=headers).as_numpy("k'") is not None


def test_as_many_messages_are_received_as_there_is_memory_for(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "WAIT_S", 0.1)
    server = start(
        grpc_port=0, limits=RequestLimits(body_s=2.0, body_bytes=1 << 20, memory_bytes=2 << 20)
    )
    codes = Counter(each.code() for each in _slowly(server, "ModelInfer", 5))
    assert codes == {
        grpc.StatusCode.DEADLINE_EXCEEDED: 2,
        grpc.StatusCode.UNAVAILABLE: 3,
    }
    # Probes do not wait for them.
    with connected(server) as triton:
        assert triton.is_server_live()


def test_one_key_leaves_others_messages_to_receive(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its calls without a message took all places for half a minute, again and again."""
    monkeypatch.setattr(turns, "WAIT_S", 0.1)
    limits = RequestLimits(body_s=20.0, body_bytes=1 << 20, memory_bytes=4 << 20)
    server = start(grpc_port=0, keys=(KEY, OTHER), limits=limits)
    assert server.app.rpc is not None
    over, ended = threading.Event(), queue.Queue[Any]()

    def nothing() -> Iterator[bytes]:
        over.wait(60)
        yield from ()

    with grpc.insecure_channel(f"127.0.0.1:{server.app.rpc.port}") as channel:
        call = channel.stream_unary(f"/{SERVICE}/ModelInfer")
        for _ in range(5):
            call.future(nothing(), metadata=(("x-api-key", KEY),)).add_done_callback(ended.put)
        try:
            refused = [ended.get(timeout=60) for _ in range(3)]
            assert {each.code() for each in refused} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
            assert "are received of this key at once" in refused[0].details()
            with connected(server) as triton:
                headers = {"x-api-key": OTHER}
                found = triton.infer("double", inputs(), headers=headers)
                assert found.as_numpy("k'") is not None
        finally:
            over.set()


def test_one_key_leaves_others_streams(start: Start) -> None:
    limits = RequestLimits(body_bytes=1 << 20, memory_bytes=2 << 20)
    server = start(grpc_port=0, keys=(KEY, OTHER), limits=limits)
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with connected(server) as first, connected(server) as second, connected(server) as third:
        for triton, key in ((first, KEY), (second, KEY), (third, OTHER)):
            triton.start_stream(
                lambda result, error: answers.put((result, error)), headers={"x-api-key": key}
            )
            with contextlib.suppress(client.InferenceServerException):
                triton.async_stream_infer("double", inputs())
            result, error = answers.get(timeout=60)
            if triton is second:
                assert "1 streams are open" in str(error)
                assert "one key of several" in str(error)
            else:
                assert result.as_numpy("k'") is not None
        # Who goes leaves the place.
        first.stop_stream()
        with connected(server) as fourth:
            fourth.start_stream(
                lambda result, error: answers.put((result, error)), headers={"x-api-key": KEY}
            )
            fourth.async_stream_infer("double", inputs())
            assert answers.get(timeout=60)[1] is None


def test_a_stream_too_many_is_refused(start: Start) -> None:
    server = start(grpc_port=0, limits=RequestLimits(body_bytes=1 << 20, memory_bytes=1 << 20))
    with connected(server) as first, connected(server) as second:
        answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
        for triton in (first, second):
            triton.start_stream(lambda result, error: answers.put((result, error)))
            with contextlib.suppress(client.InferenceServerException):
                # It may know already.
                triton.async_stream_infer("double", inputs())
            result, error = answers.get(timeout=60)
            if triton is first:
                assert result.as_numpy("k'") is not None
            else:
                assert "1 streams are open" in str(error)


def _silent(server: Server, count: int, *messages: bytes) -> tuple[list[Any], Any]:
    """Open streams that ask this much and then nothing; return them and what ends them."""
    assert server.app.rpc is not None
    channel, over = grpc.insecure_channel(f"127.0.0.1:{server.app.rpc.port}"), threading.Event()

    def asking() -> Iterator[bytes]:
        yield from messages
        over.wait(60)

    open_one = channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")
    calls = [open_one(asking(), timeout=60) for _ in range(count)]

    def end() -> None:
        over.set()
        channel.close()

    return calls, end


def test_a_stream_that_never_begins_is_ended(start: Start) -> None:
    server = start(grpc_port=0, limits=RequestLimits(body_s=0.3))
    (call,), end = _silent(server, 1)
    try:
        with pytest.raises(grpc.RpcError, match=r"did not come within 0\.3 s") as caught:
            next(call)
        assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    finally:
        end()


def _message(x: Any = X, k: Any = K) -> bytes:
    request = messages()["ModelInferRequest"](model_name="double")
    for name, array, kind in (("x", x, "FP32"), ("k", k, "INT64")):
        request.inputs.add(name=name, datatype=kind, shape=array.shape)
        request.raw_input_contents.append(array.tobytes())
    return bytes(request.SerializeToString())


def test_a_silent_stream_gives_way(start: Start) -> None:
    """It kept its place for as long as its client liked."""
    limits = RequestLimits(body_bytes=1 << 20, memory_bytes=1 << 20)
    server = start(grpc_port=0, limits=limits)
    assert server.app.rpc is not None
    (first,), end = _silent(server, 1, _message())
    try:
        assert next(first)
        (refused,), end_refused = _silent(server, 1, _message())
        with pytest.raises(grpc.RpcError, match="1 streams are open"):
            next(refused)
        end_refused()
        # As if it had been silent for half a minute.
        server.app.rpc._streams._rest_s = 0.0
        (second,), end_second = _silent(server, 1, _message())
        try:
            assert next(second)
            with pytest.raises(grpc.RpcError, match="this stream was silent") as caught:
                next(first)
            assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        finally:
            end_second()
    finally:
        end()


def test_probes_are_answered_beside_calls_without_a_message(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has no key kept them waiting, and a cluster's probes end a server."""
    monkeypatch.setattr(rpc, "_PROBE_S", 60.0)
    server = start(keys=(KEY,), grpc_port=0)
    assert server.app.rpc is not None
    over, ended = threading.Event(), queue.Queue[Any]()

    def nothing() -> Iterator[bytes]:
        over.wait(60)
        yield from ()

    with grpc.insecure_channel(f"127.0.0.1:{server.app.rpc.port}") as channel:
        call = channel.stream_unary(f"/{SERVICE}/ServerLive")
        for _ in range(8):
            call.future(nothing()).add_done_callback(ended.put)
        try:
            # Two of one network may wait: the others gave way, and so will these.
            gone = [ended.get(timeout=60) for _ in range(6)]
            assert {each.code() for each in gone} == {grpc.StatusCode.UNAVAILABLE}
            assert "sent nothing" in gone[0].details()
            for _ in range(4):
                with connected(server) as triton:
                    assert triton.is_server_live()
        finally:
            over.set()


@pytest.mark.parametrize("name", ["ServerLive", "ModelReady"])
def test_messages_that_name_something_are_small(
    server: Server, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A probe of a quarter of a million fields, of anybody, took the event loop 0.2 s."""
    assert server.app.rpc is not None
    monkeypatch.setattr(wire, "look", None)
    with grpc.insecure_channel(f"127.0.0.1:{server.app.rpc.port}") as channel:
        call = channel.unary_unary(f"/{SERVICE}/{name}", None, None)
        with pytest.raises(grpc.RpcError, match="a message of 80000 bytes, more than") as caught:
            call(b"\x1a\x00" * 40_000, timeout=60, compression=grpc.Compression.Gzip)
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("form", ["stream", "unary"])
def test_answers_that_nobody_reads_count(start: Start, form: str) -> None:
    """A client that sent much and read nothing had the server keep all of it, uncounted."""
    server = start(grpc_port=0, limits=RequestLimits(elements=1 << 22))
    assert server.app.rpc is not None
    rows, memory = 1 << 19, server.hub.memory
    x, k = np.zeros((rows, 3), np.float32), np.zeros(rows, np.int64)
    size, message, over = x.nbytes + k.nbytes, _message(x, k), threading.Event()

    def asking() -> Iterator[bytes]:
        yield message
        over.wait(60)

    def held(wanted: bool) -> bool:
        end = time.monotonic() + 60
        while (memory.used >= size) != wanted and time.monotonic() < end:
            time.sleep(0.01)
        return memory.used >= size

    address = f"127.0.0.1:{server.app.rpc.port}"
    most = [("grpc.max_receive_message_length", -1), ("grpc.http2.lookahead_bytes", 1 << 16)]
    with grpc.insecure_channel(address, most) as channel:
        if form == "stream":
            call = channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")(asking())
        else:
            call = channel.unary_stream(f"/{SERVICE}/ModelInfer")(message)
        assert held(True)
        # It is answered, and counts all the same.
        end = time.monotonic() + 60
        while not server.hub.models["double"].metrics.statuses and time.monotonic() < end:
            time.sleep(0.01)
        assert [*server.hub.models["double"].metrics.statuses] == [200]
        time.sleep(0.1)
        assert memory.used >= size
        assert len(next(call)) > size
        assert not held(False)
        over.set()
        call.cancel()
    assert memory.used == 0


def test_what_is_no_message_is_told(server: Server) -> None:
    with pytest.raises(grpc.RpcError, match="no ModelInferRequest") as caught:
        called(server, "ModelInfer", b"\xff" * 8, messages()["ModelInferResponse"])
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (lambda r: r.inputs.add(), "inputs: the model has 2, received 3"),
        (
            lambda r: [r.outputs.add(name="k'") for _ in range(3)],
            "outputs: the model has 2, received 3",
        ),
        (lambda r: r.raw_input_contents.extend([b""] * 3), "raw_input_contents: expected 2"),
        (
            lambda r: r.raw_input_contents.extend([bytes(24), bytes(16)]),
            "input 'x': contents together with raw_input_contents",
        ),
        (lambda r: r.inputs[0].shape.extend([1] * 40), "input 'x': shape: 42 sizes"),
        (
            lambda r: [r.parameters[str(n)].Clear() for n in range(65)],
            "parameters: at most 64, received 65",
        ),
    ],
)
def test_messages_of_more_than_a_model_has_are_refused(
    server: Server, more: Callable[[Any], Any], text: str
) -> None:
    request = messages()["ModelInferRequest"](model_name="double")
    request.inputs.add(name="x", datatype="FP32", shape=[2, 3])
    request.inputs.add(name="k", datatype="INT64", shape=[2])
    request.inputs[0].contents.fp32_contents.extend([1] * 6)
    request.inputs[1].contents.int64_contents.extend([1] * 2)
    more(request)
    with pytest.raises(grpc.RpcError, match=re.escape(text)):
        called(server, "ModelInfer", request, messages()["ModelInferResponse"])


@pytest.mark.parametrize("name", ["ModelInfer", "ModelStreamInfer"])
def test_memory_is_taken_before_a_message_is_read(
    start: Start, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Eight messages of 16 MB, each read before it was counted, took 505 MB of 128."""
    monkeypatch.setattr(inflight, "WAIT_S", 0.05)
    server = start(grpc_port=0, limits=RequestLimits(body_bytes=4 << 20, memory_bytes=16 << 20))
    assert server.app.rpc is not None
    request = messages()["ModelInferRequest"](model_name="double")
    tensor = request.inputs.add(name="x", datatype="FP32", shape=[1 << 18, 3])
    tensor.contents.int64_contents.extend([1] * (1 << 17))
    read, known = [], server.app.rpc._messages
    recording = SimpleNamespace(
        DESCRIPTOR=request.DESCRIPTOR, FromString=lambda raw: read.append(len(raw))
    )
    monkeypatch.setattr(server.app.rpc, "_messages", {**known, "ModelInferRequest": recording})
    # What others have leaves room for the message, and not for what becomes of it.
    server.hub.memory.add(12 << 20, b"")
    with grpc.insecure_channel(f"127.0.0.1:{server.app.rpc.port}") as channel:
        call = channel.stream_stream(f"/{SERVICE}/{name}")
        try:
            said = b"".join(call(iter([request.SerializeToString()]), timeout=60)).decode("latin1")
        except grpc.RpcError as error:
            said = str(error)
    assert "take all the memory" in said
    assert read == []
    server.hub.memory.give(12 << 20, b"")


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({"json_bytes": 1 << 15}, "values in lists are "),
        ({"body_bytes": 1 << 17, "memory_bytes": 1 << 20}, "values in lists become "),
    ],
)
def test_lists_of_numbers_have_the_limit_of_json(
    start: Start, limits: dict[str, int], text: str
) -> None:
    server = start(grpc_port=0, limits=RequestLimits(**limits))
    request = messages()["ModelInferRequest"](model_name="double")
    request.inputs.add(name="x").contents.int64_contents.extend([1] * (1 << 16))
    with pytest.raises(grpc.RpcError, match=text) as caught:
        called(server, "ModelInfer", request, messages()["ModelInferResponse"])
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    raw = inputs(np.ones((1 << 12, 3), np.float32), np.ones(1 << 12, np.int64))
    with connected(server) as triton:
        assert triton.infer("double", raw).as_numpy("double").sum() == 3 << 13


@pytest.mark.usefixtures("on_threads")
def test_limits_and_the_end(start: Start, fakes: Fakes) -> None:
    server = start(grpc_port=0, batch=1, limits=RequestLimits(queue=1, elements=8))
    model = server.hub.models["double"]
    gate = fakes["fake"].gate = threading.Event()
    with connected(server) as triton:
        answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
        triton.async_infer("double", inputs(), lambda result, error: answers.put((result, error)))
        while not any(e.inside for e in fakes["fake"].open):  # type: ignore[attr-defined]
            pass
        with pytest.raises(client.InferenceServerException, match="RESOURCE_EXHAUSTED"):
            triton.infer("double", inputs())
        large = inputs(np.zeros((4, 3), np.float32), np.zeros(4, np.int64))
        with pytest.raises(client.InferenceServerException, match="more than 8 elements"):
            triton.infer("double", large)
        # What runs is answered before the end.
        ending = threading.Thread(target=server.stop)
        ending.start()
        gate.set()
        result, error = answers.get(timeout=60)
        assert error is None
        np.testing.assert_array_equal(result.as_numpy("double"), X * 2)
        ending.join()
    assert model.waiting == 0
    assert fakes["fake"].open == []


@pytest.mark.usefixtures("on_threads")
def test_who_cancels_leaves_the_queue(start: Start, fakes: Fakes) -> None:
    server = start(grpc_port=0, batch=1, threads=1)
    model = server.hub.models["double"]
    gate = fakes["fake"].gate = threading.Event()
    with connected(server) as triton:
        answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
        triton.async_infer("double", inputs(), lambda result, error: answers.put((result, error)))
        while model.waiting < 1:
            pass
        call = triton.async_infer("double", inputs(), lambda result, error: None)
        while model.waiting < 2:
            pass
        call.cancel()
        while model.waiting > 1:
            pass
        gate.set()
        result, error = answers.get(timeout=60)
        assert error is None
        np.testing.assert_array_equal(result.as_numpy("k'"), K)
