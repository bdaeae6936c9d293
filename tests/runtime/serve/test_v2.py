"""The Open Inference Protocol: right numbers by JSON and as bytes, clear refusals."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from typing import Any

import numpy as np
import pytest

from edgeinfer.runtime.serve import tensors
from edgeinfer.runtime.serve.http import RequestError
from edgeinfer.types import TensorSpec
from tests.runtime.serve.conftest import Server, Start

X = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
URL = "/v2/models/double/infer"


def body(**changes: Any) -> dict[str, Any]:
    return {
        "id": "r1",
        "inputs": [
            {"name": "x", "datatype": "FP32", "shape": [2, 3], "data": X},
            {"name": "k", "datatype": "INT64", "shape": [2], "data": [7, -(2**40)]},
        ],
        **changes,
    }


def test_json(server: Server) -> None:
    found = server.client.post(URL, json=body()).json()
    assert (found["model_name"], found["id"]) == ("double", "r1")
    double, k = found["outputs"]
    assert (double["name"], double["datatype"], double["shape"]) == ("double", "FP32", [2, 3])
    assert double["data"] == [2, 4, 6, 8, 10, 12]
    assert k["data"] == [7, -(2**40)]


def test_binary(server: Server) -> None:
    x, k = np.array(X, np.float32), np.array([7, 8])
    head = body(outputs=[{"name": "double", "parameters": {"binary_data": True}}])
    for item, array in zip(head["inputs"], (x, k), strict=True):
        del item["data"]
        item["parameters"] = {"binary_data_size": array.nbytes}
    text = json.dumps(head).encode()
    headers = {"inference-header-content-length": str(len(text))}
    found = server.client.post(URL, content=text + x.tobytes() + k.tobytes(), headers=headers)
    size = int(found.headers["inference-header-content-length"])
    described = json.loads(found.content[:size])
    assert [o["name"] for o in described["outputs"]] == ["double"]
    np.testing.assert_array_equal(np.frombuffer(found.content[size:], np.float32), (x * 2).ravel())


@pytest.mark.parametrize(
    ("changes", "status", "text"),
    [
        ({"inputs": []}, 400, "x"),
        ({"inputs": "x"}, 400, "expected a list of tensors"),
        ({"inputs": [{"name": "z"}]}, 400, "no tensor 'z'; known: x, k"),
        ({"parameters": {"sequence_id": 1}}, 400, "has no states"),
        ({"outputs": [{"name": "y"}]}, 400, "no tensor 'y'"),
        ({"outputs": [{"name": "double", "parameters": {"classification": 3}}]}, 400, "classif"),
        (
            {"outputs": [{"name": "double", "parameters": {"shared_memory_region": "a"}}]},
            400,
            "shared memory is off",
        ),
    ],
)
def test_refusals(server: Server, changes: dict[str, Any], status: int, text: str) -> None:
    found = server.client.post(URL, json=body(**changes))
    assert found.status_code == status
    assert text in found.json()["error"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"datatype": "INT32"}, "expected datatype FP32, received 'INT32'"),
        ({"shape": [2, 2]}, "6 values for shape [2, 2]"),
        ({"shape": [2, -3]}, "expected a list of sizes"),
        ({"data": [[1, 2], [3]]}, "unequal lengths"),
        ({"data": ["a"] * 6}, "expected numbers for FP32"),
        ({"data": ["a" * 9, 1, 2, 3, 4, 5]}, "expected numbers for FP32"),
        ({"data": [[[1], [2]], ["a"]]}, "unequal lengths"),
        ({"data": [[[1], [2]], [["a"], [3]]]}, "expected numbers for FP32"),
        ({"shape": [1 << 20, 1 << 20], "data": []}, "more than"),
        ({"shape": [0, 1 << 40], "data": []}, "more than"),
        ({"shape": [1] * 99, "data": [1]}, "expected a list of sizes"),
        ({"parameters": {"binary_data_size": 24}}, "binary_data_size 24 is not there"),
    ],
)
def test_tensors_that_are_wrong(server: Server, change: dict[str, Any], text: str) -> None:
    wrong = body()
    wrong["inputs"][0] |= change
    found = server.client.post(URL, json=wrong)
    assert found.status_code in (400, 413)
    assert text in found.json()["error"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"data": X}, "input 'x': data together with binary_data_size"),
        ({"parameters": {"binary_data_size": True}}, "binary_data_size True is not there"),
    ],
)
def test_raw_tensors_that_are_said_twice_or_not(
    server: Server, change: dict[str, Any], text: str
) -> None:
    head, x = body(), np.array(X, np.float32)
    del head["inputs"][0]["data"]
    head["inputs"][0] |= {"parameters": {"binary_data_size": x.nbytes}, **change}
    said = json.dumps(head).encode()
    headers = {"inference-header-content-length": str(len(said))}
    found = server.client.post(URL, content=said + x.tobytes(), headers=headers)
    assert found.status_code == 400
    assert text in found.json()["error"]


def test_one_text_does_not_make_all_values_as_long() -> None:
    values = [["a" * 1_000_000, *[1.5] * 1000]]
    item = {"datatype": "FP32", "shape": [1, 1001], "data": values}
    tracemalloc.start()
    with pytest.raises(RequestError, match="expected numbers for FP32"):
        tensors.from_values(item, TensorSpec("x", "float32", (1, 1001)), 1 << 24)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000


def test_integers_are_never_rounded_or_wrapped(server: Server) -> None:
    for value in (1.5, 2**63, -(2**63) - 1, "7", None):
        wrong = body()
        wrong["inputs"][1]["data"] = [value, 0]
        assert server.client.post(URL, json=wrong).status_code == 400


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff", b'{"inputs": {}}', b"[" * 10_000])
def test_bodies_that_are_no_requests(server: Server, text: bytes) -> None:
    found = server.client.post(URL, content=text)
    assert found.status_code == 400
    assert "error" in found.json()


def test_what_is_known_of_models(server: Server) -> None:
    get = server.client.get
    assert get("/v2/health/live").json() == {"live": True}
    assert get("/v2").json()["name"] == "edgeinfer"
    found = get("/v2/models/double").json()
    assert found["inputs"][0] == {"name": "x", "datatype": "FP32", "shape": [-1, 3]}
    assert get("/v2/models/double/versions/1/ready").json() == {"name": "double", "ready": True}
    assert get("/v2/models/double/versions/2").status_code == 404
    assert get("/v2/models/nobody").status_code == 404
    assert get("/v2/models/../secret").status_code == 404
    assert server.client.post("/v2/models/tiny/infer", json=body()).status_code == 400
    server.client.post(URL, json=body())
    stats = get("/v2/models/double/stats").json()["model_stats"][0]
    assert stats["inference_count"] >= 1


def test_models_are_unloaded_and_loaded(server: Server) -> None:
    post = server.client.post
    assert post("/v2/repository/models/double/unload").status_code == 200
    assert post(URL, json=body()).status_code == 503
    states = {m["name"]: m["state"] for m in post("/v2/repository/index").json()}
    assert states == {"double": "UNAVAILABLE", "tiny": "READY"}
    assert post("/v2/repository/models/double/load").status_code == 200
    assert post(URL, json=body()).status_code == 200
    elsewhere = {"parameters": {"config": "{}"}}
    assert post("/v2/repository/models/double/load", json=elsewhere).status_code == 400


def test_the_real_client(server: Server) -> None:
    pytest.importorskip("geventhttpclient", reason="pip install 'tritonclient[http]'")
    client = pytest.importorskip("tritonclient.http")
    triton = client.InferenceServerClient(server.url.removeprefix("http://"))
    assert triton.is_server_ready()
    assert triton.is_model_ready("double")
    x, k = np.array(X, np.float32), np.array([7, 8], np.int64)
    for binary in (True, False):
        inputs = [
            client.InferInput("x", list(x.shape), "FP32"),
            client.InferInput("k", list(k.shape), "INT64"),
        ]
        for given, array in zip(inputs, (x, k), strict=True):
            given.set_data_from_numpy(array, binary_data=binary)
        outputs = [client.InferRequestedOutput("double", binary_data=binary)]
        result = triton.infer("double", inputs, outputs=outputs, request_id="7")
        np.testing.assert_array_equal(result.as_numpy("double"), x * 2)
    assert triton.get_model_metadata("double")["name"] == "double"
    spent = triton.get_inference_statistics("double")["model_stats"][0]["inference_stats"]
    assert spent["compute_infer"]["count"] == spent["success"]["count"] > 0
    refused = pytest.raises(client.InferenceServerException, match="shared memory is off")
    with refused:
        triton.register_system_shared_memory("region", "/somebodys", 24)
    with refused:
        triton.get_system_shared_memory_status()


def test_the_real_clients_of_asyncio(start: Start) -> None:
    pytest.importorskip("geventhttpclient", reason="pip install 'tritonclient[http]'")
    http = pytest.importorskip("tritonclient.http.aio")
    grpc = pytest.importorskip("tritonclient.grpc.aio")
    server = start(grpc_port=0)
    assert server.app.rpc is not None
    addresses = server.url.removeprefix("http://"), f"127.0.0.1:{server.app.rpc.port}"

    async def ask(client: Any, address: str) -> list[list[float]]:
        async with client.InferenceServerClient(address) as triton:
            assert await triton.is_model_ready("double")

            async def one(value: float) -> list[float]:
                given = [
                    client.InferInput("x", [1, 3], "FP32"),
                    client.InferInput("k", [1], "INT64"),
                ]
                given[0].set_data_from_numpy(np.full((1, 3), value, np.float32))
                given[1].set_data_from_numpy(np.array([7]))
                found = await triton.infer("double", given)
                return list(found.as_numpy("double")[0])

            return await asyncio.gather(*(one(v) for v in range(8)))

    for client, address in zip((http, grpc), addresses, strict=True):
        assert asyncio.run(ask(client, address)) == [[2.0 * v] * 3 for v in range(8)]


def test_many_callers_get_their_own_answers(server: Server) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def ask(value: int) -> float:
        one = body()
        one["inputs"][0] |= {"shape": [1, 3], "data": [value] * 3}
        one["inputs"][1] |= {"shape": [1], "data": [value]}
        outputs = server.client.post(URL, json=one).json()["outputs"]
        assert outputs[1]["data"] == [value]
        return float(outputs[0]["data"][0])

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(ask, range(200))) == [2.0 * v for v in range(200)]


@pytest.mark.usefixtures("on_threads")
def test_a_full_queue_says_when_to_come_back(start: Start, fakes: Any) -> None:
    import threading
    from concurrent.futures import ThreadPoolExecutor

    from edgeinfer.runtime.serve.options import RequestLimits

    server = start(limits=RequestLimits(queue=2), batch=1)
    gate = fakes["fake"].gate = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        busy = [pool.submit(server.client.post, URL, json=body()) for _ in range(2)]
        while server.hub.models["double"].waiting < 2:
            pass
        refused = server.client.post(URL, json=body())
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "1"
        gate.set()
        assert [b.result().status_code for b in busy] == [200, 200]
    assert server.client.post(URL, json=body()).status_code == 200
