"""Mixed requests for long: every reply belongs to its request, memory and descriptors stay.

    python -m benchmarks.serving_soak                       # 2,000,000 requests or 30 minutes
    python -m benchmarks.serving_soak --count 0 --minutes 9
    python -m benchmarks.serving_soak --chat smollm2.edge   # texts and streams of events among them

Client processes ask in JSON, raw bytes, gRPC and sequences, send what is wrong, and leave in the
middle; each checks every reply and ends the run at the first that is not its own. Now and then one
is killed. The run is over when both count and time are reached. Exits 1 where a reply was wrong,
memory grew by 1 MB or more over the last half (by the line through its samples) or descriptors did.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

GROWTH_MB = 1.0
CONNECTIONS = 4
"""Of each client."""

RESTED_S = 4.0
"""After which a server may close a connection that nobody asks over."""

SAMPLE_S = 0.5
LENGTH = "inference-header-content-length"
DOUBLE = "double (float[N, 3] x) => (float[N, 3] y) { y = Add(x, x) }"
COUNT = """
count (float[1] x, float[1] s) => (float[1] y, float[1] t)
{ y = Add(x, s)
  one = Constant <value_floats = [1.0]> ()
  t = Add(s, one) }
"""


class WrongReplyError(Exception):
    """A reply that is not what its request requested."""


def check(is_good: bool, *told: object) -> None:
    """Raise where a reply is wrong."""
    if not is_good:
        raise WrongReplyError(*told)


class Connection:
    """One kept connection of a client.

    Args:
        port: of the server.
        chat: it has a language model.
    """

    def __init__(self, port: int, chat: bool) -> None:
        self.port, self.chat = port, chat
        self.texts: dict[str, str] = {}
        self.leaves = False
        self._asked = time.monotonic()
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._call: Any = None

    async def ask(
        self, path: str, body: bytes, headers: str = ""
    ) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body of an answer.

        As every client, again where the server closed a connection that had rested meanwhile.
        """
        try:
            return await self._ask(path, body, headers)
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            partial = getattr(error, "partial", b"")
            rested, self._asked = time.monotonic() - self._asked, time.monotonic()
            self.close()
            if partial or rested < RESTED_S:
                raise
            return await self._ask(path, body, headers)

    async def _ask(self, path: str, body: bytes, headers: str) -> tuple[int, dict[str, str], bytes]:
        if self._writer is None or self._reader is None:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self.port)
        head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
        self._writer.write(f"{head}{headers}\r\n".encode() + body)
        first, *lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[:-2]
        found = dict(line.lower().split(": ", 1) for line in lines)
        if "content-length" in found:
            answer = await self._reader.readexactly(int(found["content-length"]))
        else:
            answer = b"".join([part async for part in self._chunks(self._reader)])
        self._asked = time.monotonic()
        if found.get("connection") == "close":
            self.close()
        return int(first.split()[1]), found, answer

    async def _chunks(self, reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
        """Yield the parts of a stream; now and then leave behind one of them."""
        while size := int(await reader.readline(), 16):
            yield (await reader.readexactly(size + 2))[:-2]
            if self.leaves:
                self.close()
                return
        await reader.readline()

    def close(self) -> None:
        """Let the next request begin a connection."""
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None

    def grpc(self) -> Any:
        """Return the call of a model and the messages of the protocol."""
        if self._call is None:
            import grpc

            from edgeinfer.runtime.serve.messages import SERVICE, messages

            known = messages()
            channel = grpc.aio.insecure_channel(f"127.0.0.1:{self.port + 1}")
            self._call = (
                known["ModelInferRequest"],
                channel.unary_unary(
                    f"/{SERVICE}/ModelInfer",
                    request_serializer=lambda m: m.SerializeToString(),
                    response_deserializer=known["ModelInferResponse"].FromString,
                ),
            )
        return self._call


async def by_json(to: Connection, rng: random.Random, number: int) -> int:
    # Few are read next to the event loop.
    rows = rng.randint(1, 4) if rng.random() < 0.99 else rng.randint(2_000, 6_000)
    data = [float(number % 1000 + i) for i in range(rows * 3)]
    x = {"name": "x", "datatype": "FP32", "shape": [rows, 3], "data": data}
    given = json.dumps({"id": str(number), "inputs": [x]}).encode()
    status, _, body = await to.ask("/v2/models/double/infer", given)
    answer = json.loads(body)
    check(status == 200 and answer["id"] == str(number), status, number, body)
    check(answer["outputs"][0]["data"] == [2 * v for v in data], data, body)
    return 1


async def by_bytes(to: Connection, rng: random.Random, number: int) -> int:
    # Few are large, and come in pieces.
    rows = rng.randint(1, 64) if rng.random() < 0.98 else rng.randint(1_000, 40_000)
    x = np.full((rows, 3), number % 4096, np.float32)
    item: dict[str, Any] = {"name": "x", "datatype": "FP32", "shape": list(x.shape)}
    item["parameters"] = {"binary_data_size": x.nbytes}
    text = json.dumps({"inputs": [item], "parameters": {"binary_data_output": True}}).encode()
    headers = f"{LENGTH}: {len(text)}\r\n"
    status, told, body = await to.ask("/v2/models/double/infer", text + x.tobytes(), headers)
    check(status == 200, status, body)
    check(body[int(told[LENGTH]) :] == (2 * x).tobytes(), number, body)
    return 1


async def by_grpc(to: Connection, rng: random.Random, number: int) -> int:
    kind, call = to.grpc()
    x = np.full((rng.randint(1, 8), 3), number % 4096, np.float32)
    # What has no id is known from the second time on.
    name = rng.choice(["", str(number)])
    request = kind(model_name="double", id=name)
    request.inputs.add(name="x", datatype="FP32", shape=x.shape)
    request.raw_input_contents.append(x.tobytes())
    answer = await call(request)
    good = answer.raw_output_contents[0] == (2 * x).tobytes()
    check(answer.id == name and good, number, answer)
    return 1


async def by_sequence(to: Connection, rng: random.Random, number: int) -> int:
    steps = rng.randint(1, 5)
    name = f"{os.getpid()}-{number}"
    for step in range(steps):
        x = {"name": "x", "datatype": "FP32", "shape": [1], "data": [number % 1000]}
        parameters = {"sequence_id": name, "sequence_start": step == 0}
        parameters["sequence_end"] = step == steps - 1
        given = json.dumps({"inputs": [x], "parameters": parameters}).encode()
        _, _, body = await to.ask("/v2/models/count/infer", given)
        check(json.loads(body)["outputs"][0]["data"] == [number % 1000 + step], step, body)
    return steps


async def by_text(to: Connection, rng: random.Random, number: int) -> int:
    prompt = f"Story number {number % 16}: once upon a time"
    data = {"model": "chat", "prompt": prompt, "max_tokens": 1 + number % 16, "temperature": 0}
    key = f"{prompt} {data['max_tokens']}"
    status, _, body = await to.ask("/v1/completions", json.dumps(data).encode())
    check(status == 200, status, body)
    answer = json.loads(body)
    told = answer["choices"][0]["text"]
    check(answer["usage"]["completion_tokens"] <= 1 + number % 16, body)
    check(to.texts.setdefault(key, told) == told, key, told)
    return 1


async def by_stream(to: Connection, rng: random.Random, number: int) -> int:
    """Read events, which tell what the whole answer does; leave some of them in the middle."""
    prompt = f"Story number {number % 16}: once upon a time"
    data = {"model": "chat", "prompt": prompt, "max_tokens": 1 + number % 16, "temperature": 0}
    key = f"{prompt} {data['max_tokens']}"
    to.leaves = rng.random() < 0.2
    status, _, body = await to.ask("/v1/completions", json.dumps({**data, "stream": True}).encode())
    check(status == 200, status, body)
    lines = [line[6:] for line in body.split(b"\n") if line.startswith(b"data: ")]
    if to.leaves:
        to.leaves = False
        return 1
    check(lines[-1] == b"[DONE]", body)
    told = "".join(c["text"] for line in lines[:-1] for c in json.loads(line)["choices"])
    check(to.texts.setdefault(key, told) == told, key, told)
    return 1


async def wrong(to: Connection, rng: random.Random, number: int) -> int:
    given = rng.choice([b"", b"{", b'{"inputs": []}', b'{"inputs": [{"name": "z"}]}', b"\xff" * 99])
    status, _, body = await to.ask("/v2/models/double/infer", given)
    check(status == 400 and bool(json.loads(body)["error"]), status, body)
    return 1


async def left(to: Connection, rng: random.Random, number: int) -> int:
    """Leave in the middle: of the head, of the body, or before the answer."""
    _, writer = await asyncio.open_connection("127.0.0.1", to.port)
    size = rng.choice([50, 50, 200_000])
    head = b"POST /v2/models/double/infer HTTP/1.1\r\nhost: localhost\r\n"
    whole = head + b"content-length: %d\r\n\r\n" % size + b" " * size
    writer.write(whole[: rng.randint(0, len(whole))])
    await writer.drain()
    writer.close()
    return 1


Ask = Callable[[Connection, random.Random, int], Awaitable[int]]
KINDS: list[tuple[Ask, int]] = [
    (by_json, 45), (by_bytes, 34), (by_sequence, 8), (wrong, 8), (left, 3), (by_grpc, 2),
]  # fmt: skip


async def client(port: int, seed: int, chat: bool) -> None:
    """Ask until killed; a line to stdout tells how many requests were answered since the last."""
    done = [0]
    kinds = [*KINDS, (by_text, 1), (by_stream, 1)] if chat else KINDS
    asks, weights = [k for k, _ in kinds], [w for _, w in kinds]
    numbers = itertools.count(seed * 1_000_003)

    async def asking(number: int) -> None:
        rng, to = random.Random(seed * 97 + number), Connection(port, chat)
        while True:
            count = await rng.choices(asks, weights)[0](to, rng, next(numbers))
            done[0] += count

    async def telling() -> None:
        while True:
            await asyncio.sleep(SAMPLE_S / 2)
            count, done[0] = done[0], 0
            print(count, flush=True)

    await asyncio.gather(telling(), *map(asking, range(CONNECTIONS)))


@dataclass
class Crowd:
    """Client processes, of which one is killed now and then.

    Attributes:
        answered: requests of all of them.
        killed: how many were.
        problem: what one of them found wrong.
    """

    command: list[str]
    answered: int = 0
    killed: int = 0
    problem: str = ""
    _running: list[subprocess.Popen[str]] = field(default_factory=list)
    _seeds: Any = field(default_factory=lambda: itertools.count(1))
    _lock: Any = field(default_factory=threading.Lock)

    def add(self) -> None:
        """Begin one more."""
        command = [*self.command, str(next(self._seeds))]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._running.append(process)
        threading.Thread(target=self._read, args=(process,), daemon=True).start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        for line in process.stdout or ():
            with self._lock:
                self.answered += int(line)
        told = process.stderr.read() if process.stderr is not None else ""
        if process.wait() not in (-signal.SIGKILL, -signal.SIGTERM):
            self.problem = self.problem or told or f"a client ended: {process.returncode}"

    def kill_one(self, rng: random.Random) -> None:
        """Kill one, wherever it is, and begin another."""
        self._running.pop(rng.randrange(len(self._running))).kill()
        self.killed += 1
        self.add()

    def end(self) -> None:
        """End all."""
        for process in self._running:
            process.terminate()
        for process in self._running:
            process.wait()


@dataclass(frozen=True)
class Watched:
    """What was seen of the server: samples in the order of time."""

    memory_mb: list[float]
    files: list[int]
    count: int
    killed: int
    seconds: float

    @property
    def growth_mb(self) -> float:
        """Of the last half, by the line through its samples."""
        half = self.memory_mb[len(self.memory_mb) // 2 :]
        return float(np.polyfit(range(len(half)), half, 1)[0]) * len(half)

    @property
    def more_files(self) -> int:
        """Most descriptors of the last half beyond the most of the first."""
        middle = len(self.files) // 2
        return max(self.files[middle:]) - max(self.files[:middle])

    @property
    def holds(self) -> bool:
        return self.growth_mb < GROWTH_MB and self.more_files <= CONNECTIONS


def watch(port: int, process: psutil.Process, given: argparse.Namespace) -> tuple[Watched, str]:
    """Let clients ask; return samples of the server, and what a client found wrong."""
    command = [sys.executable, "-m", "benchmarks.serving_soak", "--client", str(port)]
    if given.chat is not None:
        command += ["--chat", str(given.chat)]
    crowd, rng = Crowd([*command, "--seed"]), random.Random(0)
    for _ in range(given.clients):
        crowd.add()
    start = told = time.monotonic()
    kill = rng.uniform(0, given.kill_every)
    memory: list[float] = []
    files: list[int] = []
    while not crowd.problem:
        time.sleep(SAMPLE_S)
        memory.append(process.memory_info().rss / 2**20)
        files.append(process.num_fds())
        now = time.monotonic()
        if crowd.answered > kill:
            crowd.kill_one(rng)
            kill = crowd.answered + rng.uniform(0, given.kill_every)
        if now - told > 60:
            told = now
            print(
                f"{now - start:.0f} s: {crowd.answered} answered, {memory[-1]:.1f} MB", flush=True
            )
        if crowd.answered >= given.count and now - start >= given.minutes * 60:
            break
    crowd.end()
    seconds = time.monotonic() - start
    return Watched(memory, files, crowd.answered, crowd.killed, seconds), crowd.problem


def bundles(folder: Path, chat: Path | None) -> list[str]:
    """Convert the models that are asked."""
    import onnx
    from onnx import parser

    made = []
    for name, text, states in (("double", DOUBLE, []), ("count", COUNT, ["--state", "s:t"])):
        file = folder / f"{name}.onnx"
        whole = f'<ir_version: 8, opset_import: ["" : 17]>\n{text.strip()}'
        onnx.save(parser.parse_model(whole), file)
        command = [sys.executable, "-m", "edgeinfer", "convert", str(file), "-t", "onnxruntime"]
        output = str(folder / f"{name}.edge")
        subprocess.run([*command, *states, "-o", output], check=True, capture_output=True)
        made.append(output)
    return made if chat is None else [*made, f"chat={chat}"]


@contextmanager
def serving(
    models: list[str], command: tuple[str, ...] = ("-m", "edgeinfer"), **options: Any
) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """Start a server; it has to end in good order, with nobody waiting.

    Args:
        models: as `edgeinfer serve` takes them.
        command: what Python runs.
        options: of the process.

    Yields:
        The port, of gRPC the next one, and the process.
    """
    from benchmarks.serving_load import free_port

    port = free_port()
    ports = ["--port", str(port), "--grpc-port", str(port + 1)]
    started = [sys.executable, *command, "serve", *models, *ports]
    with subprocess.Popen(started, stderr=subprocess.DEVNULL, text=True, **options) as server:
        try:
            asyncio.run(_ready(port))
            yield port, server
            waiting = asyncio.run(_waiting(port))
        finally:
            server.terminate()
        code = server.wait(60)
    if waiting or code not in (0, 128 + signal.SIGTERM):
        raise WrongReplyError(f"at the end {waiting} waited; exit code {code}")


def soak(given: argparse.Namespace) -> Watched:
    """Start a server, soak it, and end it."""
    with (
        tempfile.TemporaryDirectory() as place,
        serving(bundles(Path(place), given.chat)) as (port, server),
    ):
        found, problem = watch(port, psutil.Process(server.pid), given)
        check(not problem, problem)
    return found


async def _get(port: int, path: str) -> tuple[int, Any]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1]), json.loads(body)


async def _ready(port: int) -> None:
    while True:
        try:
            if (await _get(port, "/v2/health/ready"))[0] == 200:
                return
        except OSError:
            pass
        await asyncio.sleep(0.05)


async def _waiting(port: int) -> int:
    """Return requests and sequences that the server still holds, once clients are gone."""
    for _ in range(200):
        _, told = await _get(port, "/v2/models/stats")
        models = told["model_stats"]
        count = sum(int(m["waiting"]) for m in models)
        if not count:
            break
        await asyncio.sleep(0.05)
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--count", type=int, default=2_000_000)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--clients", type=int, default=4, help="processes")
    parser.add_argument("--kill-every", type=int, default=20_000, help="most answers between kills")
    parser.add_argument("--chat", type=Path, help="bundle of a language model")
    parser.add_argument("--client", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.client is not None:
        asyncio.run(client(given.client, given.seed, given.chat is not None))
    found = soak(given)
    print(
        f"{found.count} requests in {found.seconds / 60:.1f} minutes, {found.killed} clients "
        f"killed; memory {found.memory_mb[-1]:.1f} MB, {found.growth_mb:+.2f} MB over the last "
        f"half; descriptors {found.files[-1]}, {found.more_files:+d} beyond the first half's most"
    )
    raise SystemExit(0 if found.holds else 1)


if __name__ == "__main__":
    main()
