"""Shared memory: right numbers for clients of this machine, and nothing of anybody else's."""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import struct
from collections.abc import Callable, Iterator
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest

from edgeinfer.errors import UsageError
from edgeinfer.runtime.serve import regions
from edgeinfer.runtime.serve.http import RequestError
from edgeinfer.runtime.serve.options import RequestLimits, ServeOptions
from edgeinfer.runtime.serve.regions import Caller, Connection, Regions, user_of
from edgeinfer.runtime.serve.tensors import InferRequest, Place, SharedTensors, datatype, to_buffer
from edgeinfer.runtime.serve.terms import NO_TERMS
from edgeinfer.runtime.serve.unread import caller_of, plain_host
from edgeinfer.types import Array, TensorSpec
from tests.runtime.serve.conftest import KEY, Server, Start, starter

pytestmark = pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="no /dev/shm")
PREFIX = f"edgeinfer-test-{os.getpid()}-"
OTHER = "another-key-of-enough-letters"
X, K = np.array([[1, 2, 3], [4, 5, 6]], np.float32), np.array([7, -(2**40)])
URL, BASE = "/v2/models/double/infer", "/v2/systemsharedmemory"
Made = Callable[..., Any]


@pytest.fixture
def made() -> Iterator[Made]:
    """Make an object; all are removed."""
    all_: list[SharedMemory] = []

    def make(name: str, size: int = 64) -> Any:
        all_.append(SharedMemory(f"{PREFIX}{name}", create=True, size=size))
        return all_[-1]

    yield make
    for each in all_:
        each.close()
        each.unlink()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with starter(tmp_path_factory.mktemp("served")) as (start, _):
        yield start(shared_memory=PREFIX, grpc_port=0, keys=(KEY, OTHER))


@pytest.fixture(autouse=True)
def _no_regions(server: Server) -> Iterator[None]:
    yield
    for key in (KEY, OTHER):
        assert post(server, f"{BASE}/unregister", key=key).status_code == 200


def post(server: Server, url: str, data: object = None, key: str = KEY) -> httpx.Response:
    return server.client.post(url, json=data, headers={"x-api-key": key})


def register(
    server: Server, name: str, key: object, more: Any = None, by: str = KEY
) -> httpx.Response:
    data = {"key": key, "offset": 0, "byte_size": 64, **(more or {})}
    return post(server, f"{BASE}/region/{name}/register", data, by)


def at(region: str, size: int, offset: int = 0) -> dict[str, Any]:
    where = {"shared_memory_region": region, "shared_memory_byte_size": size}
    return {**where, **({"shared_memory_offset": offset} if offset else {})}


def asked(x: dict[str, Any], double: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "inputs": [
            {"name": "x", "datatype": "FP32", "shape": [2, 3], "parameters": x},
            {"name": "k", "datatype": "INT64", "shape": [2], "data": K.tolist()},
        ],
        "outputs": [{"name": "double", "parameters": double or {}}, {"name": "k'"}],
    }


def status(server: Server, key: str = KEY, name: str = "") -> Any:
    url = f"{BASE}/region/{name}/status" if name else f"{BASE}/status"
    return server.client.get(url, headers={"x-api-key": key}).json()


def test_numbers_come_and_go(server: Server, made: Made) -> None:
    region = made("a", 4096)
    region.buf[100:124] = X.tobytes()
    region.buf[200:224] = bytes(24)
    given = {"offset": 100, "byte_size": 200}
    assert register(server, "a b", f"/{PREFIX}a", given).status_code == 200
    listed = [{"name": "a b", "key": f"{PREFIX}a", **given}]
    assert status(server) == status(server, name="a b") == listed
    for body in (asked(at("a b", 24)), asked(at("a b", 24), at("a b", 24, 100))):
        found = post(server, URL, body).json()["outputs"]
        assert found[1]["data"] == K.tolist()
        if body["outputs"][0]["parameters"]:
            assert found[0].keys() == {"name", "datatype", "shape"}
            double = np.frombuffer(bytes(region.buf[200:224]), np.float32)
        else:
            double = np.array(found[0]["data"])
        np.testing.assert_array_equal(double, (X * 2).ravel())
    # What was kept of it is not another request's.
    region.buf[100:104] = np.float32(50).tobytes()
    assert post(server, URL, asked(at("a b", 24))).json()["outputs"][0]["data"][0] == 100
    assert post(server, f"{BASE}/region/a%20b/unregister").status_code == 200
    assert status(server) == []
    assert "no region" in post(server, URL, asked(at("a b", 24))).json()["error"]


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("psm_somebodys", "key: expected @NAME"),
        ("@../../etc/passwd", "key: expected"),
        ("../@a", "key: expected"),
        ("//@a", "key: expected"),
        ("/dev/shm/@a", "key: expected"),
        ("@a\n", "key: expected"),
        ("@a\0", "key: expected"),
        (7, "key: expected"),
        ("@nobody", "No such file"),
        ("@link", "symbolic"),
        ("@folder", "directory"),
        ("@pipe", "no file of the user"),
    ],
)
def test_objects_that_may_not_be_registered(
    server: Server, made: Made, key: object, text: str
) -> None:
    made("a")
    # Of its own in each process that runs some of the tests.
    text = text.replace("@", PREFIX)
    key = key.replace("@", PREFIX) if isinstance(key, str) else key
    there = [Path(f"/dev/shm/{PREFIX}{name}") for name in ("link", "folder", "pipe")]
    try:
        there[0].symlink_to(f"/dev/shm/{PREFIX}a")
        there[1].mkdir()
        os.mkfifo(there[2])
        found = register(server, "r", key)
    finally:
        for path in there:
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    assert found.status_code == 400
    assert text in found.json()["error"]
    assert status(server) == []


@pytest.mark.parametrize(
    ("offset", "size", "text"),
    [
        (0, 65, "beyond the end of object"),
        (1, 64, "beyond the end"),
        (2**63 - 1, 64, "beyond the end"),
        (2**64 - 1, 2**64 - 1, "beyond the end"),
        (2**64, 1, "expected a byte_size"),
        (-1, 64, "expected a byte_size"),
        (0, -64, "expected a byte_size"),
        (0, 0, "expected a byte_size"),
        (0, True, "expected a byte_size"),
        (0, "64", "expected a byte_size"),
        (0.5, 64, "expected a byte_size"),
        (None, None, "expected a byte_size"),
    ],
)
def test_regions_beyond_their_object(
    server: Server, made: Made, offset: object, size: object, text: str
) -> None:
    made("a")
    found = register(server, "r", f"{PREFIX}a", {"offset": offset, "byte_size": size})
    assert found.status_code == 400
    assert text in found.json()["error"]


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (at("r", 24, 41), "24 bytes from 41 on are not within region 'r' of 64"),
        (at("r", 24, 2**64 - 1), "not within region"),
        (at("r", 2**62), "at most"),
        (at("r", 24, -8), "expected the name of a region"),
        (at("r", -24), "expected the name of a region"),
        ({"shared_memory_region": "r"}, "expected the name of a region"),
        ({**at("r", 24), "shared_memory_region": 7}, "expected the name of a region"),
        (at("r", 20), "expected 24 bytes for shape [2, 3], received 20"),
        (at("r", 28), "expected 24 bytes for shape [2, 3], received 28"),
        ({**at("r", 24), "binary_data_size": 24}, "values together with shared memory"),
        (at("other", 24), "no region 'other'"),
    ],
)
def test_inputs_that_are_not_there(
    server: Server, made: Made, x: dict[str, Any], text: str
) -> None:
    made("a")
    register(server, "r", f"{PREFIX}a")
    found = post(server, URL, asked(x))
    assert found.status_code in (400, 404, 413)
    assert text in found.json()["error"]


def test_what_is_said_of_an_input_is_checked(server: Server, made: Made) -> None:
    made("a")
    register(server, "r", f"{PREFIX}a")
    for change, text in (
        ({"datatype": "FP64"}, "expected datatype FP32"),
        ({"shape": [3, 3]}, "expected 36 bytes"),
        ({"shape": [-2, 3]}, "expected a list of sizes"),
        ({"data": X.tolist()}, "values together with shared memory"),
    ):
        body = asked(at("r", 24))
        body["inputs"][0] |= change
        assert text in post(server, URL, body).json()["error"]


def test_outputs_without_room_are_refused_before_the_run(server: Server, made: Made) -> None:
    region = made("a")
    region.buf[:24] = X.tobytes()
    register(server, "r", f"{PREFIX}a")
    tensors = server.hub.models["double"].tensors
    assert tensors is not None
    runs = tensors.stats().calls.runs
    for place, text in (
        (at("r", 23, 24), "output 'double': 24 bytes; its place in shared memory has 23"),
        (at("r", 24, 41), "not within region"),
        (at("other", 24), "no region 'other'"),
    ):
        found = post(server, URL, asked(at("r", 24), place))
        assert found.status_code == (404 if "no region" in text else 400)
        assert text in found.json()["error"]
    assert tensors.stats().calls.runs == runs


def test_a_region_that_was_shortened_ends_nothing(server: Server, made: Made) -> None:
    region = made("a", 1 << 20)
    region.buf[:24] = X.tobytes()
    register(server, "r", f"{PREFIX}a", {"byte_size": 1 << 20})
    os.truncate(f"/dev/shm/{PREFIX}a", 16)
    given = asked({}, at("r", 24, 4096))
    given["inputs"][0]["data"] = X.tolist()
    for body in (asked(at("r", 24)), given):
        found = post(server, URL, body)
        assert found.status_code == 400
        assert "beyond the end of object" in found.json()["error"]
    os.truncate(f"/dev/shm/{PREFIX}a", 1 << 20)
    assert post(server, URL, asked(at("r", 24), at("r", 24, 4096))).status_code == 200


def test_who_keeps_an_object_open_needs_no_name(server: Server, made: Made) -> None:
    region = made("a")
    region.buf[:24] = X.tobytes()
    register(server, "r", f"{PREFIX}a")
    there = Path(f"/dev/shm/{PREFIX}a")
    there.unlink()
    there.write_bytes(bytes(64))
    # It is the object that was checked, whatever has the name now.
    assert post(server, URL, asked(at("r", 24), at("r", 24, 24))).status_code == 200
    np.testing.assert_array_equal(np.frombuffer(region.buf[24:48], np.float32), (X * 2).ravel())
    assert there.read_bytes() == bytes(64)


def test_regions_are_of_their_key(server: Server, made: Made) -> None:
    made("a")
    assert register(server, "r", f"{PREFIX}a").status_code == 200
    assert "registered already" in register(server, "r", f"{PREFIX}a").json()["error"]
    assert status(server, OTHER) == []
    assert "no region 'r'" in status(server, OTHER, "r")["error"]
    assert post(server, f"{BASE}/region/r/unregister", key=OTHER).status_code == 200
    assert post(server, f"{BASE}/unregister", key=OTHER).status_code == 200
    assert [r["name"] for r in status(server)] == ["r"]
    assert "no region 'r'" in post(server, URL, asked(at("r", 24)), OTHER).json()["error"]
    assert register(server, "r", f"{PREFIX}a", by=OTHER).status_code == 200
    assert server.client.get(f"{BASE}/status").status_code == 401


def test_there_is_an_end_to_regions(
    server: Server, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    made("a")
    monkeypatch.setattr(regions, "MOST_OWN", 2)
    monkeypatch.setattr(regions, "MOST", 3)
    codes = [
        register(server, f"{key}{n}", f"{PREFIX}a", by=key).status_code
        for key in (KEY, OTHER)
        for n in range(3)
    ]
    assert codes == [200, 200, 429, 200, 503, 503]
    assert register(server, "a" * 129, f"{PREFIX}a").status_code == 400


def test_there_is_an_end_to_their_bytes(
    start: Start, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    made("a", 1 << 20)
    limits = RequestLimits(memory_bytes=1 << 20)
    server = start(shared_memory=PREFIX, limits=limits)
    large = register(server, "r", f"{PREFIX}a", {"byte_size": 600_000})
    assert large.status_code == 429
    assert "more than half of all bytes" in large.json()["error"]
    size = {"byte_size": 500_000}
    assert register(server, "r", f"{PREFIX}a", size).status_code == 200
    assert register(server, "s", f"{PREFIX}a", size).status_code == 429
    # Another user has room.
    with monkeypatch.context() as patched:
        patched.setattr(regions, "user_of", lambda *_: os.getuid() + 1)
        patched.setattr(regions, "_opened", lambda *_: os.open(f"/dev/shm/{PREFIX}a", os.O_RDWR))
        patched.setattr(regions, "MOST_USER", 2)
        codes = [
            register(server, n, f"{PREFIX}a", {"byte_size": 1}).status_code for n in ("s", "t", "u")
        ]
        assert codes == [200, 200, 429]
    assert post(server, f"{BASE}/unregister").status_code == 200
    assert register(server, "s", f"{PREFIX}a", size).status_code == 200


def _descriptors(name: str) -> int:
    found = 0
    for each in os.listdir("/proc/self/fd"):
        try:
            found += name in os.readlink(f"/proc/self/fd/{each}")
        except FileNotFoundError:
            continue
    return found


def test_what_is_registered_is_let_go(start: Start, made: Made) -> None:
    region = made("of-the-end")
    own = _descriptors("of-the-end")
    region.buf[:24] = X.tobytes()
    server = start(shared_memory=PREFIX)
    for name in ("r", "s"):
        assert register(server, name, f"{PREFIX}of-the-end").status_code == 200
    assert _descriptors("of-the-end") == own + 2
    assert post(server, f"{BASE}/region/s/unregister").status_code == 200
    assert _descriptors("of-the-end") == own + 1
    post(server, "/v2/repository/models/double/unload")
    post(server, "/v2/repository/models/double/load")
    assert post(server, URL, asked(at("r", 24))).status_code == 200
    server.stop()
    assert _descriptors("of-the-end") == own


def test_it_is_off_unless_it_is_asked_for(start: Start) -> None:
    server = start()
    assert "system_shared_memory" not in server.client.get("/v2").json()["extensions"]
    for found in (
        server.client.get(f"{BASE}/status"),
        register(server, "r", f"{PREFIX}a"),
        post(server, f"{BASE}/unregister"),
        post(server, URL, asked(at("r", 24))),
    ):
        assert found.status_code == 400
        assert "shared memory is off" in found.json()["error"]


def test_cuda_is_refused(server: Server) -> None:
    assert (
        "system_shared_memory"
        in server.client.get("/v2", headers={"x-api-key": KEY}).json()["extensions"]
    )
    found = post(server, "/v2/cudasharedmemory/region/r/register", {})
    assert found.status_code == 400
    assert "CUDA shared memory is not supported" in found.json()["error"]


@pytest.mark.parametrize("prefix", ["/a", "../a", ".", "a/b", "a b", "a" * 101, "a\n"])
def test_prefixes(prefix: str) -> None:
    with pytest.raises(UsageError, match="as the begin of names"):
        ServeOptions(shared_memory=prefix)


def test_clients_of_other_machines_are_refused(server: Server, made: Made) -> None:
    region = made("a")
    region.buf[:24] = X.tobytes()
    register(server, "r", f"{PREFIX}a")

    async def ask(host: str) -> list[httpx.Response]:
        way = httpx.ASGITransport(server.app, client=(host, 1234))
        by = {"x-api-key": KEY}
        async with httpx.AsyncClient(transport=way, base_url=server.url, headers=by) as client:
            new = {"key": f"{PREFIX}a", "byte_size": 64}
            return [
                await client.get(f"{BASE}/status"),
                await client.post(f"{BASE}/region/s/register", json=new),
                await client.post(f"{BASE}/unregister"),
                await client.post(URL, json=asked(at("r", 24))),
            ]

    for host, text in (
        ("10.0.0.5", "only for clients of this machine"),
        ("::ffff:10.0.0.5", "only for clients of this machine"),
        ("fe80::1%eth0", "only for clients of this machine"),
        ("127.0.0.1", "does not say whose connection it is"),
    ):
        for found in asyncio.run(ask(host)):
            assert found.status_code == 403, found.text
            assert text in found.json()["error"]
    assert [r["name"] for r in status(server)] == ["r"]


def test_regions_are_of_their_user(
    server: Server, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    region = made("a")
    region.buf[:24] = X.tobytes()
    assert register(server, "r", f"{PREFIX}a").status_code == 200
    other = os.getuid() + 1
    monkeypatch.setattr(regions, "user_of", lambda *_: other)
    assert status(server) == []
    assert "no region 'r'" in post(server, URL, asked(at("r", 24))).json()["error"]
    found = register(server, "s", f"{PREFIX}a")
    assert "no file of the user who asks" in found.json()["error"]
    monkeypatch.undo()
    assert [r["name"] for r in status(server)] == ["r"]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.9", "::1", "::ffff:127.0.0.1"])
def test_the_user_of_a_connection(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, 0), family=family, dualstack_ipv6="ffff" in host)
    except OSError as e:
        pytest.skip(f"{host}: {e}")
    uid = os.getuid()
    with listening:
        port = listening.getsockname()[1]
        if not uid:
            # The user of this thread's sockets alone.
            uid = 54321
            ctypes.CDLL(None).setfsuid(uid)
        try:
            client = socket.create_connection((host, port))
        finally:
            if not os.getuid():
                ctypes.CDLL(None).setfsuid(0)
        with client:
            taken, _ = listening.accept()
            theirs, ours = caller_of(taken), (plain_host(taken.getsockname()[0]), port)
            known, sought = Connection(theirs, taken), Connection(theirs, None, port)
            assert user_of(theirs, ours) == known.user() == sought.user() == uid
            for other in (
                Connection(theirs, None, port ^ 1),
                Connection((theirs[0], theirs[1] ^ 1), taken),
                Connection(theirs, None, port, lambda: True),
            ):
                with pytest.raises(RequestError, match="does not say whose"):
                    other.user()
            # Another client takes the port of the one that has left.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            place = client.getsockname()
        next_ = socket.socket(family)
        next_.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with taken, next_:
            next_.bind(place)
            next_.connect((host, port))
            again, _ = listening.accept()
            with again:
                assert caller_of(again) == theirs
                # By two addresses it is that one's, whichever call asks.
                assert user_of(theirs, ours) == Connection(theirs, again).user() == os.getuid()
                for late in (known, sought):
                    with pytest.raises(RequestError, match="does not say whose"):
                        late.user()
        with pytest.raises(RequestError, match="does not say whose"):
            user_of(theirs, ours)


@pytest.mark.parametrize(
    "dtype",
    [
        *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
        *("float16", "float32", "float64", "string"),
    ],
)
def test_all_types(dtype: str, made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regions, "user_of", lambda *_: os.getuid())
    spec = TensorSpec("t", dtype, ("n", 2))
    values: Array = np.array([[1, 0], [1, 1], [0, 1]]).astype(
        object if dtype == "string" else dtype
    )
    if dtype == "string":
        values[:] = [["", "a"], ["ü" * 40, "b\0"], ["c", "d"]]
    raw, who = bytes(to_buffer(values)), Caller(b"", os.getuid())
    region = made("a", 512)
    region.buf[3 : 3 + len(raw)] = raw
    found = Regions(PREFIX, 1 << 20, 1 << 20)
    found.register(who, "r", f"{PREFIX}a", 1, 511)
    model: Any = SimpleNamespace(inputs=(spec,), outputs=(spec,))

    def request(size: int, room: int) -> tuple[InferRequest, SharedTensors]:
        item = {"datatype": datatype(spec), "shape": [3, 2]}
        at = SharedTensors({"t": (item, Place("r", 2, size))}, {"t": Place("r", 256, room)})
        return InferRequest("", {}, (), frozenset(), NO_TERMS, at), at

    read = found.read(who, model, *request(len(raw), len(raw)))
    np.testing.assert_array_equal(read.feeds["t"], values)
    found.write(who, read, {"t": read.feeds["t"][::-1]})
    back = bytes(region.buf[257 : 257 + len(raw)])
    assert back == bytes(to_buffer(np.ascontiguousarray(values[::-1])))
    with pytest.raises(RequestError, match=r"expected|cut off"):
        found.read(who, model, *request(len(raw) - 1, len(raw)))
    small, _ = request(len(raw), len(raw) - 1)
    with pytest.raises(RequestError, match=f"its place in shared memory has {len(raw) - 1}"):
        found.write(who, small, {"t": values})


@pytest.fixture(params=["http", "grpc"])
def triton(request: pytest.FixtureRequest, server: Server) -> Iterator[tuple[Any, Any, Any]]:
    """The real clients: module, client, and the headers with the key."""
    if request.param == "http":
        pytest.importorskip("geventhttpclient", reason="pip install 'tritonclient[http]'")
    client = pytest.importorskip(f"tritonclient.{request.param}")
    by = {"x-api-key": KEY}
    assert server.app.rpc is not None
    http = server.url.removeprefix("http://")
    with client.InferenceServerClient(
        http if request.param == "http" else f"127.0.0.1:{server.app.rpc.port}"
    ) as made:
        yield client, made, by


def _inputs(client: Any, region: str | None) -> list[Any]:
    found = [client.InferInput("x", [2, 3], "FP32"), client.InferInput("k", [2], "INT64")]
    found[1].set_data_from_numpy(K)
    if region is None:
        found[0].set_data_from_numpy(X)
    else:
        found[0].set_shared_memory(region, X.nbytes, 8)
    return found


def test_the_real_client(triton: tuple[Any, Any, Any]) -> None:
    client, server, by = triton
    shm = pytest.importorskip("tritonclient.utils.shared_memory")
    region = shm.create_shared_memory_region("r", f"{PREFIX}real", 256, create_only=True)
    try:
        shm.set_shared_memory_region(region, [X], 8)
        server.register_system_shared_memory("r", f"{PREFIX}real", 256, headers=by)
        listed = server.get_system_shared_memory_status(headers=by)
        names = [r["name"] for r in listed] if isinstance(listed, list) else [*listed.regions]
        assert names == ["r"]
        goes, sent = client.InferRequestedOutput("double"), client.InferRequestedOutput("k'")
        goes.set_shared_memory("r", 24, 64)
        for place in ("r", None, "r"):
            shm.set_shared_memory_region(region, [np.zeros((2, 3), np.float32)], 64)
            result = server.infer(
                "double", _inputs(client, place), outputs=[goes, sent], headers=by
            )
            np.testing.assert_array_equal(
                shm.get_contents_as_numpy(region, np.float32, [2, 3], 64), X * 2
            )
            np.testing.assert_array_equal(result.as_numpy("k'"), K)
        result = server.infer("double", _inputs(client, "r"), headers=by)
        np.testing.assert_array_equal(result.as_numpy("double"), X * 2)
        goes.set_shared_memory("r", 20, 64)
        with pytest.raises(client.InferenceServerException, match="24 bytes; its place"):
            server.infer("double", _inputs(client, "r"), outputs=[goes], headers=by)
        with pytest.raises(client.InferenceServerException, match="key: expected"):
            server.register_system_shared_memory("s", "/somebodys", 24, headers=by)
        with pytest.raises(client.InferenceServerException, match="CUDA shared memory is not"):
            server.unregister_cuda_shared_memory(headers=by)
        server.unregister_system_shared_memory("r", headers=by)
        with pytest.raises(client.InferenceServerException, match="no region 'r'"):
            server.infer("double", _inputs(client, "r"), headers=by)
    finally:
        shm.destroy_shared_memory_region(region)


def test_streams_of_the_real_client(server: Server) -> None:
    client = pytest.importorskip("tritonclient.grpc")
    shm = pytest.importorskip("tritonclient.utils.shared_memory")
    assert server.app.rpc is not None
    region = shm.create_shared_memory_region("r", f"{PREFIX}stream", 256, create_only=True)
    answers: list[Any] = []
    try:
        shm.set_shared_memory_region(region, [X], 8)
        by = {"x-api-key": KEY}
        with client.InferenceServerClient(f"127.0.0.1:{server.app.rpc.port}") as triton:
            triton.register_system_shared_memory("r", f"{PREFIX}stream", 256, headers=by)
            triton.start_stream(lambda result, error: answers.append((result, error)), headers=by)
            triton.async_stream_infer("double", _inputs(client, "r"))
            triton.stop_stream()
        ((result, error),) = answers
        assert error is None
        np.testing.assert_array_equal(result.as_numpy("double"), X * 2)
    finally:
        shm.destroy_shared_memory_region(region)


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_the_real_clients_of_asyncio(server: Server, kind: str) -> None:
    if kind == "http":
        pytest.importorskip("geventhttpclient", reason="pip install 'tritonclient[http]'")
    client = pytest.importorskip(f"tritonclient.{kind}.aio")
    shm = pytest.importorskip("tritonclient.utils.shared_memory")
    assert server.app.rpc is not None
    http = server.url.removeprefix("http://")
    address = http if kind == "http" else f"127.0.0.1:{server.app.rpc.port}"
    region = shm.create_shared_memory_region("r", f"{PREFIX}aio", 256, create_only=True)

    async def ask() -> Any:
        by = {"x-api-key": KEY}
        async with client.InferenceServerClient(address) as triton:
            await triton.register_system_shared_memory("r", f"{PREFIX}aio", 256, headers=by)
            found = await triton.infer("double", _inputs(client, "r"), headers=by)
            await triton.unregister_system_shared_memory(headers=by)
            return found.as_numpy("double")

    try:
        shm.set_shared_memory_region(region, [X], 8)
        np.testing.assert_array_equal(asyncio.run(ask()), X * 2)
    finally:
        shm.destroy_shared_memory_region(region)
