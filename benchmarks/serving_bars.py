"""Bars of the server that need no other server; see ``serving.py``, which runs them."""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from benchmarks.serving_load import (
    KEY,
    Load,
    Net,
    Server,
    drive,
    free_port,
    idle_share,
    ours,
    prepare,
    ready,
    started,
    stop,
)

STREAMS, TOKENS = 16, 64
"""Conversations at once, and tokens of each answer."""


@dataclass(frozen=True)
class Bar:
    """What was wanted, and what came of it."""

    name: str
    measured: float
    at_least: float | None = None
    at_most: float | None = None

    @property
    def holds(self) -> bool:
        low = self.at_least is None or self.measured >= self.at_least
        return low and (self.at_most is None or self.measured <= self.at_most)

    def __str__(self) -> str:
        wanted = f">= {self.at_least:g}" if self.at_least is not None else f"<= {self.at_most:g}"
        return (
            f"| {self.name} | {self.measured:.3g} | {wanted} | {'' if self.holds else 'MISSED'} |"
        )


def engine_ms(net: Net, count: int = 400) -> float:
    """Return the median time of the engine alone, in this process."""
    run, times = net.run(), []
    for _ in range(count):
        start = time.perf_counter()
        run(net.feeds)
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def loads(
    servers: Sequence[Server], connections: int, given: argparse.Namespace
) -> list[list[Load]]:
    """Return what each measured in each round, in turns."""
    found: list[list[Load]] = [[] for _ in servers]
    with tempfile.TemporaryDirectory() as made:
        place = Path(made)
        for server in servers:
            drive(server, connections, 1, place)
        for number in range(given.rounds):
            order = range(len(servers))
            for i in order if number % 2 == 0 else reversed(order):
                found[i].append(drive(servers[i], connections, given.seconds, place))
    return found


def middle(found: Sequence[Load], name: str) -> float:
    return float(statistics.median(getattr(load, name) for load in found))


def overhead(given: argparse.Namespace, folder: Path) -> Iterator[Bar]:
    """Time what the server adds to the engine, with one client and with 32."""
    for name, what in (("small", "16 values"), ("wide", "110 kB")):
        net = prepare(name, folder)
        servers = ours(net.bundle, net.keys, net.feeds, 16, ["--grpc-port", "PORT+1"])
        with started(servers, net.want) as good:
            alone = engine_ms(net)
            one = dict(zip(("json", "raw"), loads(good, 1, given), strict=True))
            p50 = {form: middle(found, "p50_ms") for form, found in one.items()}
            beyond = p50["raw"] - alone
            yield Bar(f"{what} raw, 1 client: ms p50 beyond the engine", beyond, at_most=0.25)
            cpu = middle(one["raw"], "cpu_us")
            yield Bar(f"{what} raw, 1 client: us of CPU", cpu, at_most=200)
            most = 0.35 if name == "small" else 3.0
            yield Bar(f"{what} JSON, 1 client: ms p50", p50["json"], at_most=most)
            many = loads(good[1:], 32, given)[0]
            cpu = middle(many, "cpu_us")
            yield Bar(f"{what} raw, 32 clients: us of CPU", cpu, at_most=90)
            if name == "small":
                call = grpc_ms(net, good[0].port + 1)
                yield Bar("16 values, gRPC unary, 1 client: ms p50", call, at_most=1.0)


def grpc_ms(net: Net, port: int, count: int = 1000) -> float:
    """Return the median time of a unary call; its client, in Python, is within it."""
    import grpc

    from edgeinfer.runtime.serve.messages import SERVICE, messages

    known = messages()
    request = known["ModelInferRequest"](model_name="net")
    request.inputs.add(name="x", datatype="FP32", shape=net.feeds["x"].shape)
    request.raw_input_contents.append(net.feeds["x"].tobytes())
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(
            f"/{SERVICE}/ModelInfer",
            request_serializer=lambda m: m.SerializeToString(),
            response_deserializer=known["ModelInferResponse"].FromString,
        )
        times = []
        for _ in range(count):
            start = time.perf_counter()
            answer = call(request, metadata=(("authorization", f"Bearer {KEY}"),))
            times.append(time.perf_counter() - start)
    if not np.allclose(np.frombuffer(answer.raw_output_contents[0], np.float32), net.want, 1e-3):
        raise SystemExit("gRPC: other numbers")
    return statistics.median(times) * 1e3


def batching(given: argparse.Namespace, folder: Path) -> Iterator[Bar]:
    """Time batches of up to 16 next to one request at a time."""
    least = {"mid": 2.0, "big": 5.0}
    nets = [(name, prepare(name, folder)) for name in least]
    for each in given.model:
        name, _, file = each.rpartition("=")
        nets.append((name or Path(file).stem, prepare(name or "model", folder, Path(file))))
    for name, net in nets:
        servers = ours(net.bundle, net.keys, net.feeds, 16) + ours(
            net.bundle, net.keys, net.feeds, 1
        )
        alone = engine_gain(net) if name in least else 1.0
        with started(servers, net.want) as good:
            many, one = loads(good, 32, given), loads(good, 1, given)
        for at, form in enumerate(("json", "raw")):
            pairs = zip(many[at], many[at + 2], strict=True)
            ratios = [a.per_second / b.per_second for a, b in pairs]
            gain = statistics.median(ratios)
            spent = [round(middle(many[i], "cpu_us")) for i in (at, at + 2)]
            print(f"{name} {form}: {spent[0]} us of CPU in batches, {spent[1]} without", flush=True)
            spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
            title = f"{name} {form}: batches of 16 next to none, 32 clients ({spread})"
            yield Bar(title, gain, at_least=least.get(name, 0.97))
            if name in least:
                title = f"{name} {form}: of what the engine alone gains ({alone:.1f})"
                yield Bar(title, gain / alone, at_least=0.6)
            slower = [a.p50_ms / b.p50_ms for a, b in zip(one[at], one[at + 2], strict=True)]
            title = f"{name} {form}: p50 next to none, 1 client"
            yield Bar(title, statistics.median(slower), at_most=1.1)


def engine_gain(net: Net, rounds: int = 5) -> float:
    """Return how much less time a request takes in the best batch of up to 16, engine alone."""
    run = net.run()
    feeds = {n: {k: np.repeat(x, n, 0) for k, x in net.feeds.items()} for n in (1, 2, 4, 8, 16)}
    least = dict.fromkeys(feeds, float("inf"))
    for _ in range(rounds):
        for size, given in feeds.items():
            start = time.perf_counter()
            for _ in range(10):
                run(given)
            least[size] = min(least[size], (time.perf_counter() - start) / 10 / size)
    return least[1] / min(least.values())


LEAST = """
import sys
import onnxruntime, psutil
session = onnxruntime.InferenceSession(sys.argv[1])
print(psutil.Process().memory_full_info().pss / 2**20)
"""


def resources(given: argparse.Namespace, folder: Path) -> list[Bar]:
    """Measure start, memory and idleness with one small model."""
    net = prepare("small", folder)
    starts = []
    for _ in range(given.rounds):
        server = replace(ours(net.bundle, net.keys, net.feeds, 16)[1], port=free_port())
        start = time.perf_counter()
        command = [*server.command, str(server.port)]
        server.running = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            if problem := ready(server, net.want, pause_s=0.01):
                raise SystemExit(problem)
            starts.append(time.perf_counter() - start)
            memory, idle = server.memory_mb(), idle_share(server)
        finally:
            stop(server.running)
    least = float(
        subprocess.run(
            [sys.executable, "-c", LEAST, str(net.model)],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    )
    print(f"NumPy and ONNX Runtime with the model, and no server: {least:.0f} MB")
    return [
        Bar("MB of memory (proportional share) with one small model", memory, at_most=50),
        Bar("s from start to the first answer", statistics.median(starts), at_most=1.0),
        Bar("share of a core when nobody asks", idle, at_most=0.005),
    ]


def chat(given: argparse.Namespace, folder: Path) -> list[Bar]:
    """Time conversations as streams next to the engine without HTTP, and next to llama-server."""
    if given.chat is None:
        print("left out: --chat names no bundle of a language model")
        return []
    keys, port = folder / "keys", free_port()
    keys.write_text(KEY + "\n")
    command = [
        sys.executable,
        "-m",
        "edgeinfer",
        "serve",
        f"chat={given.chat}",
        "--keys",
        str(keys),
    ]
    server = Server(
        "chat", "/v1/models", b"", lambda body, headers: body, [*command, "--port"], port
    )
    server.running = subprocess.Popen([*command, "--port", str(port)], stderr=subprocess.DEVNULL)
    engine: list[tuple[float, float]] = []
    http: list[tuple[float, float]] = []
    llama: list[float] = []
    try:
        url = f"http://127.0.0.1:{port}"
        asyncio.run(answering(url))
        asyncio.run(streams(url, "chat"))
        for _ in range(given.rounds):
            before = server.cpu_s()
            tokens, seconds = asyncio.run(streams(url, "chat"))
            http.append((tokens / seconds, (server.cpu_s() - before) / tokens))
            engine.append(engine_alone(given.chat))
            if given.llama:
                tokens, seconds = asyncio.run(streams(given.llama, "any"))
                llama.append(tokens / seconds)
    finally:
        stop(server.running)
    pairs = list(zip(http, engine, strict=True))
    rate = statistics.median(a[0] / b[0] for a, b in pairs)
    cost = statistics.median((a[1] - b[1]) * 1e6 for a, b in pairs)
    bars = [
        Bar(f"{STREAMS} streams: tokens/s next to the engine without HTTP", rate, at_least=0.95),
        Bar(f"{STREAMS} streams: us of CPU a token beyond the engine's", cost, at_most=60),
    ]
    if llama:
        ratio = statistics.median(a[0] / b for a, b in zip(http, llama, strict=True))
        bars.append(Bar(f"{STREAMS} streams: tokens/s of llama-server", ratio, at_least=1.3))
    return bars


ALONE = """
import sys, time, json
from edgeinfer.runtime.llm.llm import LLM
from edgeinfer.runtime.llm.params import SamplingParams
with LLM(sys.argv[1], sequences={streams}) as llm:
    params = SamplingParams(max_tokens={tokens}, ignore_eos=True, temperature=0.0)
    prompts = [f"Story number {{i}}: once upon a time" for i in range({streams})]
    llm.generate(prompts, params)
    start, cpu = time.perf_counter(), time.process_time()
    done = llm.generate(prompts, params)
    print(json.dumps([time.perf_counter() - start, time.process_time() - cpu]))
"""


def engine_alone(bundle: Path) -> tuple[float, float]:
    """Return tokens a second of the engine in a process of its own, and its CPU for each."""
    program = ALONE.format(streams=STREAMS, tokens=TOKENS)
    command = [sys.executable, "-c", program, str(bundle)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds, cpu = json.loads(done.stdout.splitlines()[-1])
    count = STREAMS * TOKENS
    return count / seconds, cpu / count


async def answering(url: str) -> None:
    """Wait until a server is ready."""
    while True:
        try:
            head, _ = await asked(url, "/v2/health/ready", None)
            if b" 200 " in head.split(b"\r\n", 1)[0]:
                return
        except OSError:
            pass
        await asyncio.sleep(0.05)


async def streams(url: str, model: str) -> tuple[int, float]:
    """Ask for all conversations at once; return tokens that came, and seconds."""
    start = time.perf_counter()
    counts = await asyncio.gather(*(stream(url, model, number) for number in range(STREAMS)))
    return sum(counts), time.perf_counter() - start


async def stream(url: str, model: str, number: int) -> int:
    """Read one stream of events; return its tokens, as the server counts them."""
    data: dict[str, Any] = {"model": model, "prompt": f"Story number {number}: once upon a time"}
    data |= {"max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, "stream": True}
    data["stream_options"] = {"include_usage": True}
    _, body = await asked(url, "/v1/completions", data)
    for line in reversed(body.split(b"\n")):
        at = line.find(b"{")
        if b'"usage"' in line and at >= 0:
            usage = json.loads(line[at : line.rfind(b"}") + 1]).get("usage")
            if usage:
                return int(usage["completion_tokens"])
    raise SystemExit(f"{url}: no stream: {body[:300]!r}")


async def asked(url: str, path: str, data: dict[str, Any] | None) -> tuple[bytes, bytes]:
    """Ask over a connection of its own; return head and body as they came."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    text = b"" if data is None else json.dumps(data).encode()
    head = f"{'GET' if data is None else 'POST'} {path} HTTP/1.1\r\nhost: localhost\r\n"
    head += f"authorization: Bearer {KEY}\r\ncontent-type: application/json\r\n"
    head += f"content-length: {len(text)}\r\nconnection: close\r\n\r\n"
    writer.write(head.encode() + text)
    whole = await reader.read()
    writer.close()
    first, _, body = whole.partition(b"\r\n\r\n")
    return first, body
