"""What a device may send to TVM's client: answers, and nothing that the client would follow."""

from __future__ import annotations

import contextlib
import os
import platform
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from edgeinfer.convert.lower.tvm.machines import machine
from edgeinfer.kernels.tuning.relay import Relay
from edgeinfer.kernels.tuning.worker import TuningWorker

MAGIC = 0xFF271
INIT, CALL, RETURN, EXCEPTION, COPY_FROM, COPY_ACK, GET_FUNCTION = 2, 3, 4, 5, 6, 8, 9
NONE, INT, HANDLE, TENSOR_POINTER, TEXT, BYTES = 0, 1, 4, 7, 8, 9
STR, FUNCTION, TENSOR, MODULE = 65, 68, 70, 73

Answers = Callable[[int, bytes], bytes | None]


def exactly(one: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = one.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def frame(body: bytes) -> bytes:
    return struct.pack("<Q", len(body)) + body


def packet(one: socket.socket) -> bytes:
    return exactly(one, struct.unpack("<Q", exactly(one, 8))[0])


def greet(one: socket.socket, key: str) -> bytes:
    name = key.encode()
    one.sendall(struct.pack("<ii", MAGIC, len(name)) + name)
    magic, size = struct.unpack("<ii", exactly(one, 8))
    assert magic == MAGIC
    return exactly(one, size)


def number(value: int) -> bytes:
    return struct.pack("<iq", INT, value)


def handle(value: int = 0x1234, kind: int = HANDLE) -> bytes:
    return struct.pack("<iQ", kind, value)


def text(value: bytes, kind: int = TEXT) -> bytes:
    return struct.pack("<iQ", kind, len(value)) + value


def answer(*values: bytes, code: int = RETURN, count: int | None = None) -> bytes:
    there = len(values) if count is None else count
    return frame(struct.pack("<ii", code, there) + b"".join(values))


VOID = struct.pack("<i", NONE)


class Device:
    """An RPC server by hand, with an answer to each question."""

    def __init__(self, answers: Answers) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listening.getsockname()[1]}"
        self.asked: list[bytes] = []
        self.key = b""
        self._answers = answers
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                one = self.listening.accept()[0]
                threading.Thread(target=self._answer, args=(one,), daemon=True).start()

    def _answer(self, one: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError), one:
            _, size = struct.unpack("<ii", exactly(one, 8))
            self.key = exactly(one, size)
            one.sendall(struct.pack("<ii", MAGIC, 7) + b"server:")
            while True:
                question = packet(one)
                self.asked.append(question)
                told = self._answers(struct.unpack_from("<i", question)[0], question)
                if told is None:
                    break
                one.sendall(told)


@contextlib.contextmanager
def connected(answers: Answers) -> Iterator[tuple[Device, socket.socket]]:
    device = Device(answers)
    with device.listening, Relay(device.address) as relay:
        place, _, secret = relay.address.partition("/")
        host, _, port = place.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=20) as client:
            greet(client, f"client:{secret} -timeout=600")
            yield device, client


def ask(client: socket.socket, code: int, body: bytes = b"") -> bytes:
    client.sendall(frame(struct.pack("<i", code) + body))
    return packet(client)


def told(reply: bytes) -> str:
    """The text of an error."""
    code, count, kind, size = struct.unpack_from("<iiiQ", reply)
    assert (code, count, kind, size) == (EXCEPTION, 1, TEXT, len(reply) - 20)
    return reply[20:].decode()


GOOD = {
    "nothing": (INIT, answer(VOID)),
    "a handle": (GET_FUNCTION, answer(handle())),
    "no function": (GET_FUNCTION, answer(VOID)),
    "a number": (CALL, answer(number(INT), number(-3))),
    "nothing of a call": (CALL, answer(number(NONE), VOID)),
    "a function": (CALL, answer(number(FUNCTION), handle())),
    "a module": (CALL, answer(number(MODULE), handle())),
    "bytes": (CALL, answer(number(66), text(b"\x00\xff", BYTES))),
    "a text": (CALL, answer(number(STR), text(b"abc"))),
    "an error": (CALL, answer(text(b"RPCError: no"), code=EXCEPTION)),
}


@pytest.mark.parametrize("case", GOOD)
def test_answers_pass_as_they_are(case: str) -> None:
    code, reply = GOOD[case]
    with connected(lambda *_: reply) as (device, client):
        for _ in range(3):
            assert frame(ask(client, code, b"question")) == reply
        assert device.asked == [struct.pack("<i", code) + b"question"] * 3
        assert device.key == b"client: -timeout=600"


BAD = {
    "a question": (INIT, frame(struct.pack("<i", INIT) + b"0.8.0")),
    "a call": (CALL, frame(struct.pack("<iQi", CALL, 0, 0))),
    "a copy": (CALL, frame(struct.pack("<i", 7) + b"x" * 40)),
    "an end": (CALL, frame(struct.pack("<i", 1))),
    "an unknown code": (CALL, frame(struct.pack("<i", 99) + b"x" * 8)),
    "a negative code": (CALL, frame(struct.pack("<i", -5) + b"x" * 8)),
    "an empty frame": (CALL, struct.pack("<Q", 0) * 2),
    "too long a frame": (CALL, struct.pack("<Qi", 1 << 40, RETURN)),
    "no value": (GET_FUNCTION, answer()),
    "no value of a call": (CALL, answer(number(NONE))),
    "many values": (CALL, answer(*[VOID] * 9)),
    "a negative count": (CALL, answer(count=-1)),
    # The client takes these for objects of its own, and counts who holds them.
    "a pointer to a function": (CALL, answer(number(FUNCTION), handle(kind=FUNCTION))),
    "a pointer to a module": (GET_FUNCTION, answer(handle(kind=MODULE))),
    "a pointer as a text": (CALL, answer(number(STR), handle(kind=FUNCTION))),
    "a tensor": (CALL, answer(number(TENSOR), handle(), handle())),
    "a tensor without one": (CALL, answer(number(TENSOR), handle())),
    "a pointer to a tensor": (CALL, answer(number(TENSOR), handle(kind=TENSOR_POINTER))),
    "another kind": (CALL, answer(number(1 << 32 | TENSOR), handle())),
    "a handle for a text": (CALL, answer(number(STR), handle())),
    "a text for a handle": (CALL, answer(number(MODULE), text(b"x"))),
    # The client puts a zero behind a text, wherever that is.
    "a text of no length": (CALL, answer(number(STR), struct.pack("<iQ", TEXT, (1 << 64) - 1))),
    "a text beyond the frame": (CALL, answer(number(STR), struct.pack("<iQ", TEXT, 9) + b"x")),
    "something behind it": (CALL, answer(number(INT), number(1), VOID, count=2)),
    "an error that is none": (CALL, answer(handle(), code=EXCEPTION)),
    "a copy that nobody requested": (CALL, frame(struct.pack("<i", COPY_ACK) + b"x" * 8)),
}


@pytest.mark.parametrize("case", BAD)
def test_nothing_else_passes(case: str) -> None:
    code, reply = BAD[case]
    with connected(lambda *_: reply) as (device, client):
        assert told(ask(client, code)).startswith(f"{device.address}: ")
        assert client.recv(1) == b""
        assert len(device.asked) == 1


def tensor(size: int) -> bytes:
    return b"T" * 40 + struct.pack("<Q", size)


def test_a_tensor_has_the_size_that_was_asked_for() -> None:
    data = os.urandom(300_000)
    with connected(lambda *_: frame(struct.pack("<i", COPY_ACK) + data)) as (_, client):
        assert ask(client, COPY_FROM, tensor(len(data)))[4:] == data
        assert "in the place of a tensor of 7" in told(ask(client, COPY_FROM, tensor(7)))


def test_texts_of_errors_command_no_terminal() -> None:
    with connected(lambda *_: answer(text(b"\x1b[31mred\xff"), code=EXCEPTION)) as (_, client):
        found = told(ask(client, CALL))
        assert "red" in found
        assert "\x1b" not in found


def test_a_device_that_is_not_there_is_an_answer() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with Relay(address) as relay:
        place, _, secret = relay.address.partition("/")
        port = int(place.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
            greet(client, f"client:{secret}")
            assert "refused" in told(ask(client, INIT))
    with connected(lambda *_: None) as (_, client):
        assert "it closed the connection" in told(ask(client, INIT))


def test_who_does_not_know_the_secret_reaches_nothing() -> None:
    device = Device(lambda *_: answer(VOID))
    with device.listening, Relay(device.address) as relay:
        port = int(relay.address.partition("/")[0].rpartition(":")[2])
        for key in ("client:", "client:" + "0" * 32, "", "x" * 10_000):
            with (
                socket.create_connection(("127.0.0.1", port), timeout=20) as client,
                contextlib.suppress(ConnectionError),
            ):
                client.sendall(struct.pack("<ii", MAGIC, len(key)) + key.encode())
                assert client.recv(1) == b""
        assert device.key == b""


class Tracker:
    """A tracker that has one device."""

    def __init__(self, place: list[Any]) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listening.getsockname()[1]}"
        self._place = place
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        import json

        with contextlib.suppress(OSError):
            while True:
                one = self.listening.accept()[0]
                with contextlib.suppress(OSError, EOFError), one:
                    one.sendall(exactly(one, 4))
                    while True:
                        (size,) = struct.unpack("<i", exactly(one, 4))
                        code = json.loads(exactly(one, size))[0]
                        summary = {"server_info": [{"key": "server:board", "addr": []}]}
                        reply = json.dumps([0, summary if code == 6 else self._place]).encode()
                        one.sendall(struct.pack("<i", len(reply)) + reply)


@pytest.mark.parametrize(
    ("key", "place", "said"),
    [
        ("board", None, None),
        ("other", None, "the tracker has no device 'other'"),
        ("board", ["127.0.0.1", 99999999, "k"], "no answer that trackers give"),
        ("board", ["127.0.0.1", 80, "a b"], "no answer that trackers give"),
        ("board", [7, 80, "k"], "no answer that trackers give"),
        ("board", "x", "no answer that trackers give"),
    ],
)
def test_a_tracker_names_a_device(key: str, place: Any, said: str | None) -> None:
    device = Device(lambda *_: answer(VOID))
    port = int(device.address.rpartition(":")[2])
    tracker = Tracker(place or ["127.0.0.1", port, "board:0.25"])
    with device.listening, tracker.listening, Relay(f"{tracker.address}/{key}") as relay:
        where, _, secret = relay.address.partition("/")
        there = ("127.0.0.1", int(where.rpartition(":")[2]))
        with socket.create_connection(there, timeout=20) as client:
            greet(client, f"client:{secret} -timeout=9")
            reply = ask(client, INIT)
            if said is None:
                assert frame(reply) == answer(VOID)
                assert device.key == b"client:board:0.25 -timeout=9"
            else:
                assert said in told(reply)


# ---- with TVM's own client and server

CLIENT = """
import os
import sys
from edgeinfer.kernels.tuning.measure import _connected
try:
    session = _connected(sys.argv[1])
    function = session.get_function("runtime.config_threadpool")
    function(1, 1)
except Exception as error:
    print(type(error).__name__, error)
print("alive", flush=True)
os._exit(0)
"""


def _client(address: str, script: str = CLIENT) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script, address], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, (done.returncode, done.stderr[-500:])
    return done.stdout


def test_a_device_calls_no_function_of_this_machine() -> None:
    """It sent TVM's own first question back, and was served as the device is."""
    pytest.importorskip("tvm", reason="apache-tvm is not installed")
    device = Device(lambda code, question: frame(question))
    with device.listening, Relay(device.address) as relay:
        printed = _client(relay.address)
    assert "it asks (code 2) where it is to answer" in printed
    assert printed.endswith("alive\n")
    assert len(device.asked) == 1


ODD = """
import os
import sys
from edgeinfer.kernels.tuning.measure import _connected
for _ in range(40):
    try:
        session = _connected(sys.argv[1])
        function = session.get_function("runtime.config_threadpool")
        for _ in range(5):
            print(function(1, 1))
    except Exception as error:
        print(type(error).__name__, error)
    session = function = None
print("alive", flush=True)
os._exit(0)
"""


def test_odd_answers_do_not_end_the_client() -> None:
    """Whatever passes, TVM makes a value or an error of it."""
    pytest.importorskip("tvm", reason="apache-tvm is not installed")
    draw = random.Random(7)
    kinds = [NONE, INT, 2, 3, HANDLE, TEXT, BYTES, 11, 64, STR, 66, FUNCTION, TENSOR, MODULE, 99]

    def value() -> bytes:
        kind = draw.choice(kinds)
        size = draw.choice([0, 1, 8, 1 << 32, (1 << 64) - 1])
        if kind in (TEXT, BYTES):
            return text(b"x" * (size % 16), kind)
        return VOID if kind == NONE else handle(size, kind)

    def odd(code: int, _: bytes) -> bytes:
        if code != CALL:
            return answer(VOID if code == INIT else handle())
        reply = answer(number(draw.choice(kinds)), value())
        return reply if draw.random() < 0.9 else answer(text(b"no"), code=EXCEPTION)

    device = Device(odd)
    with device.listening, Relay(device.address) as relay:
        printed = _client(relay.address, ODD)
    assert printed.endswith("alive\n")
    assert sum(q[0] == CALL for q in device.asked) > 40


PRODUCT = """
@T.prim_func(s_tir=True)
def main(
    a: T.Buffer((8, 8), "float32"), b: T.Buffer((8, 8), "float32"), c: T.Buffer((8, 8), "float32")
):
    T.func_attr({"tirx.noalias": True})
    for i, j, k in T.grid(8, 8, 8):
        with T.sblock("product"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                c[vi, vj] = T.float32(0.0)
            c[vi, vj] = c[vi, vj] + a[vi, vk] * b[vk, vj]
"""


@pytest.fixture
def server() -> Iterator[str]:
    pytest.importorskip("tvm", reason="apache-tvm is not installed")
    pytest.importorskip("cloudpickle", reason="TVM's RPC server needs it")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ports = ["--host", "127.0.0.1", "--port", str(port), "--port-end", str(port + 1)]
    process = subprocess.Popen(
        [sys.executable, "-m", "tvm.exec.rpc_server", *ports],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "bind to" in line:
            break
    yield f"127.0.0.1:{port}"
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stderr.close()


@pytest.mark.sweep
def test_a_kernel_is_measured_and_compared_on_a_device(server: str) -> None:
    """It is built and linked where nothing but its folder is written, and runs over there."""
    name = {"x86_64": "x86-64-v3", "aarch64": "cortex-a72"}[platform.machine()]
    target = machine(name).description(1)
    with Relay(server) as relay:
        setup = (target, 1, None, relay.address, "cc")
        worker = TuningWorker("edgeinfer.kernels.tuning.measure", *setup)
        try:
            seconds, _ = worker.ask("kernel", PRODUCT, seconds=120)
            assert 0 < seconds < 1
            times, wrong = worker.ask("compare", PRODUCT, [], PRODUCT, 2, seconds=120)
            assert (len(times), wrong) == (1, [])
        finally:
            worker.close()
