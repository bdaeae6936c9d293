"""Requests a second and CPU a request of ``edgeinfer serve`` beside other servers.

    python -m benchmarks.serving                                    # only this server
    python -m benchmarks.serving --peer fastapi=/venv/bin/python --peer litserve=/venv/bin/python

A peer is one of ``serving_peers/`` with the Python that has its packages. Everyone serves the same
network by ONNX Runtime with one thread and batches of up to 16; who gives other numbers is not
timed. ``wrk`` drives them one after the other in each round, so that whatever else the machine does
meets all alike. What counts are medians of ratios within rounds, and CPU time of all the server's
processes for a request, which load of the machine changes least. Keys, limits, counters and logs
of this server are on.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import psutil
from onnx import TensorProto, helper, numpy_helper

KEY = "a-key-for-this-benchmark"
LENGTH = "inference-header-content-length"
NETS = {"small": (16, 64, 4), "mid": (256, 1024, 1024, 16), "big": (512, 2048, 2048, 2048, 16)}
"""Widths of layers: 5 kB, 5 MB and 38 MB of weights."""

PEERS = Path(__file__).parent / "serving_peers"
BARS = {"fastapi": 2.5, "triton": 3.0, "litserve": 4.0, "mlserver": 6.0, "bentoml": 6.0}
"""Times as many requests a second, small network, 32 connections."""

Answer = Callable[[bytes, Mapping[str, str]], Any]


@dataclass
class Server:
    """One server, and how it is asked.

    Attributes:
        name: in the table.
        path: of the address.
        body: of a request.
        answer: reads numbers from an answer.
        command: that starts it.
        headers: of a request.
    """

    name: str
    path: str
    body: bytes
    answer: Answer
    command: list[str]
    port: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    running: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{self.path}"

    @property
    def process(self) -> subprocess.Popen[bytes]:
        if self.running is None:
            raise SystemExit(f"{self.name}: was not started")
        return self.running

    def cpu_s(self) -> float:
        """Return seconds of processor time of all its processes."""
        root = psutil.Process(self.process.pid)
        spent = 0.0
        for each in (root, *root.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                times = each.cpu_times()
                spent += times.user + times.system
        return spent

    def memory_mb(self) -> float:
        """Return the proportional share of memory of all its processes."""
        root = psutil.Process(self.process.pid)
        shares = [p.memory_full_info().pss for p in (root, *root.children(recursive=True))]
        return float(sum(shares)) / 2**20


@dataclass(frozen=True)
class Load:
    """Holds what one run of the load generator measured."""

    per_second: float
    p50_ms: float
    p99_ms: float
    cpu_us: float


def write_net(path: Path, widths: Sequence[int]) -> None:
    """Write layers of a matrix and a Relu, without the last Relu."""
    rng = np.random.default_rng(0)
    nodes, weights, name = [], [], "x"
    for i, (rows, columns) in enumerate(itertools.pairwise(widths)):
        matrix = (rng.standard_normal((rows, columns)) / math.sqrt(rows)).astype(np.float32)
        weights.append(numpy_helper.from_array(matrix, f"w{i}"))
        last = i == len(widths) - 2
        made = "y" if last else f"m{i}"
        nodes.append(helper.make_node("MatMul", [name, f"w{i}"], [made]))
        if not last:
            nodes.append(helper.make_node("Relu", [made], [f"r{i}"]))
        name = f"r{i}"
    shapes = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", w])
        for n, w in (("x", widths[0]), ("y", widths[-1]))
    ]
    graph = helper.make_graph(nodes, "net", shapes[:1], shapes[1:], weights)
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), path)


def free_port() -> int:
    """Return a port behind which two more are free as well."""
    while True:
        with contextlib.ExitStack() as stack:
            first = stack.enter_context(socket.socket())
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            try:
                for more in (1, 2):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port + more))
            except OSError:
                continue
            return port


def v2_json(name: str, x: np.ndarray) -> bytes:
    tensor = {"name": name, "datatype": "FP32", "shape": list(x.shape), "data": x.ravel().tolist()}
    return json.dumps({"inputs": [tensor]}).encode()


def v2_raw(x: np.ndarray) -> tuple[bytes, int]:
    size = {"binary_data_size": x.nbytes}
    tensor = {"name": "x", "datatype": "FP32", "shape": list(x.shape), "parameters": size}
    head = {"inputs": [tensor], "parameters": {"binary_data_output": True}}
    text = json.dumps(head).encode()
    return text + x.tobytes(), len(text)


def of_v2(body: bytes, headers: Mapping[str, str]) -> Any:
    size = headers.get(LENGTH)
    if size is not None:
        return np.frombuffer(body[int(size) :], np.float32)
    return json.loads(body)["outputs"][0]["data"]


def of_data(body: bytes, headers: Mapping[str, str]) -> Any:
    found = json.loads(body)
    return found["data"] if isinstance(found, dict) else found


def of_bytes(body: bytes, headers: Mapping[str, str]) -> Any:
    return np.frombuffer(body, np.float32)


def ours(bundle: Path, keys: Path, x: np.ndarray, batch: int) -> list[Server]:
    command = [sys.executable, "-m", "edgeinfer", "serve", f"net={bundle}", "--keys", str(keys)]
    command += ["--threads", "1", "--batch", str(batch), "--port"]
    raw, size = v2_raw(x)
    key = {"authorization": f"Bearer {KEY}"}
    name, path = f"edgeinfer{'' if batch > 1 else ' b1'}", "/v2/models/net/infer"
    made = [Server(f"{name} json", path, v2_json("x", x), of_v2, command, headers=key)]
    made.append(
        Server(f"{name} raw", path, raw, of_v2, command, headers={**key, LENGTH: str(size)})
    )
    return made


def peer(kind: str, python: str, model: Path, x: np.ndarray) -> list[Server]:
    """Return how a peer is asked; Triton in its own protocol both ways."""
    command = [python, str(PEERS / f"{kind}_peer.py"), str(model)]
    plain = json.dumps({"data": x.tolist()}).encode()
    v2 = "/v2/models/net/infer"
    raw, size = v2_raw(x)
    match kind:
        case "fastapi":
            return [
                Server("fastapi json", "/json", plain, of_data, command),
                Server("fastapi raw", "/raw", x.tobytes(), of_bytes, command),
            ]
        case "litserve":
            return [Server("litserve json", "/predict", plain, of_data, command)]
        case "mlserver":
            return [Server("mlserver json", v2, v2_json("x", x), of_v2, command)]
        case "bentoml":
            return [Server("bentoml json", "/run", plain, of_data, command)]
        case "triton":
            head = {LENGTH: str(size)}
            return [
                Server("triton json", v2, v2_json("x", x), of_v2, command),
                Server("triton raw", v2, raw, of_v2, command, headers=head),
            ]
    raise SystemExit(f"no peer {kind!r}; known: {', '.join(BARS)}")


@contextlib.contextmanager
def started(servers: Sequence[Server], want: np.ndarray) -> Iterator[list[Server]]:
    """Start each process once; leave out, with a word, who does not give the right numbers."""
    begun: dict[tuple[str, ...], tuple[subprocess.Popen[bytes], int]] = {}
    good = []
    try:
        for server in servers:
            key = tuple(server.command)
            if key not in begun:
                port = free_port()
                env = {**os.environ, "OMP_NUM_THREADS": "1"}
                log = open(f"{tempfile.gettempdir()}/serving-{len(begun)}.log", "wb")  # noqa: SIM115
                begun[key] = (
                    subprocess.Popen([*server.command, str(port)], stdout=log, stderr=log, env=env),
                    port,
                )
            server.running, server.port = begun[key]
        for server in servers:
            start = time.perf_counter()
            problem = ready(server, want)
            print(
                f"{server.name}: {problem or f'ready, {server.memory_mb():.0f} MB'}"
                f" ({time.perf_counter() - start:.1f} s waited)",
                flush=True,
            )
            if not problem:
                good.append(server)
        yield good
    finally:
        for process, _ in begun.values():
            stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a server and what it started."""
    children = (
        psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    )
    process.terminate()
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()


def ready(server: Server, want: np.ndarray) -> str:
    """Wait for the right answer; return what is wrong instead."""
    problem, end = "no answer", time.monotonic() + 60
    while time.monotonic() < end and server.process.poll() is None:
        headers = {"content-type": "application/json", **server.headers}
        asked = urllib.request.Request(server.url, server.body, headers)
        try:
            with urllib.request.urlopen(asked, timeout=10) as found:
                lower = {k.lower(): v for k, v in found.headers.items()}
                got = np.asarray(server.answer(found.read(), lower), np.float32).ravel()
        except urllib.error.HTTPError as e:
            problem = f"status {e.code}: {e.read()[:200]!r}"
        except OSError as e:
            problem = str(e)
        else:
            near = got.shape == want.shape and np.allclose(got, want, 1e-3, 1e-4)
            return "" if near else "other numbers"
        time.sleep(0.2)
    return f"not timed: {problem}"


SCRIPT = """
wrk.method = "POST"
local file = io.open("{body}", "rb")
wrk.body = file:read("*all")
file:close()
{headers}
function done(summary, latency, requests)
  local e = summary.errors
  local bad = e.connect + e.read + e.write + e.status + e.timeout
  print("RESULT", summary.requests, summary.duration, bad,
        latency:percentile(50), latency:percentile(99))
end
"""


def drive(server: Server, connections: int, seconds: int, folder: Path) -> Load:
    """Ask as fast as answers come.

    Raises:
        SystemExit: an answer was an error: such a server is not timed.
    """
    body, script = folder / "body", folder / "load.lua"
    body.write_bytes(server.body)
    headers = {"content-type": "application/json", **server.headers}
    lines = "\n".join(f'wrk.headers["{k}"] = "{v}"' for k, v in headers.items())
    script.write_text(SCRIPT.format(body=body, headers=lines))
    before = server.cpu_s()
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "30s"]
    done = subprocess.run(
        [*command, "-s", str(script), server.url], capture_output=True, text=True, check=True
    )
    spent = server.cpu_s() - before
    found = re.search(r"^RESULT\s+(.*)$", done.stdout, re.MULTILINE)
    if found is None:
        raise SystemExit(f"{server.name}: wrk said {done.stdout!r}")
    count, duration_us, bad, p50, p99 = map(float, found[1].split())
    if bad or not count:
        raise SystemExit(f"{server.name}: {bad:.0f} of {count:.0f} answers were errors")
    return Load(count / duration_us * 1e6, p50 / 1e3, p99 / 1e3, spent / count * 1e6)


def compare(servers: list[Server], connections: int, rounds: int, seconds: int) -> bool:
    """Print a table; return whether the bars hold."""
    loads: dict[str, list[Load]] = {s.name: [] for s in servers}
    with tempfile.TemporaryDirectory() as place:
        for server in servers:
            drive(server, connections, 1, Path(place))
        for number in range(rounds):
            turn = servers if number % 2 == 0 else servers[::-1]
            for server in turn:
                loads[server.name].append(drive(server, connections, seconds, Path(place)))
    print(f"\n{connections} connections, {rounds} rounds of {seconds} s, medians")
    print("| server | requests/s | p50 ms | p99 ms | CPU us | this server's times (range) | CPU |")
    print("|---|---|---|---|---|---|---|")
    holds = True
    for server in servers:
        found = loads[server.name]
        form = server.name.rsplit(" ", 1)[1]
        mine = loads.get(f"edgeinfer {form}", found)
        ratios = [a.per_second / b.per_second for a, b in zip(mine, found, strict=True)]
        cpu = [b.cpu_us / a.cpu_us for a, b in zip(mine, found, strict=True)]
        row = [
            statistics.median(getattr(load, name) for load in found)
            for name in ("per_second", "p50_ms", "p99_ms", "cpu_us")
        ]
        ratio = statistics.median(ratios)
        spread = f"{ratio:.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        print(
            f"| {server.name} | {row[0]:.0f} | {row[1]:.2f} | {row[2]:.2f} | {row[3]:.0f} "
            f"| {spread} | {statistics.median(cpu):.2f} |",
            flush=True,
        )
        bar = BARS.get(server.name.split(" ", maxsplit=1)[0])
        if bar is not None and connections == 32:
            holds &= ratio >= bar
    return holds


def measure(net: str, arguments: argparse.Namespace, folder: Path) -> bool:
    """Time everyone on one network."""
    model, bundle, keys = folder / f"{net}.onnx", folder / f"{net}.edge", folder / "keys"
    write_net(model, NETS[net])
    keys.write_text(KEY + "\n")
    made = [sys.executable, "-m", "edgeinfer", "convert", str(model), "-t", "onnxruntime"]
    subprocess.run([*made, "-o", str(bundle), "--overwrite"], check=True, capture_output=True)
    import onnxruntime

    x = np.random.default_rng(1).standard_normal((1, NETS[net][0])).astype(np.float32)
    want = onnxruntime.InferenceSession(str(model)).run(None, {"x": x})[0].ravel()
    servers = [*ours(bundle, keys, x, 16), *ours(bundle, keys, x, 1)]
    for given in arguments.peer:
        kind, _, python = given.partition("=")
        servers += peer(kind, python, model, x)
    print(f"\n## {net}: {' x '.join(map(str, NETS[net]))}")
    holds = True
    with started(servers, want) as good:
        print(f"idle: {idle_share(good[0]):.2%} of a core")
        for connections in arguments.connections:
            holds &= compare(good, connections, arguments.rounds, arguments.seconds)
    return holds or net != "small"


def idle_share(server: Server) -> float:
    """Return the share of a core that a server takes when nobody asks."""
    before, seconds = server.cpu_s(), 3.0
    time.sleep(seconds)
    return (server.cpu_s() - before) / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--peer", action="append", default=[], metavar="KIND=PYTHON")
    parser.add_argument("--net", nargs="+", default=["small"], choices=NETS)
    parser.add_argument("--connections", nargs="+", type=int, default=[1, 32])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=2)
    arguments = parser.parse_args()
    if shutil.which("wrk") is None:
        raise SystemExit("needs wrk, a package of Debian and Homebrew")
    print(f"load of the machine {os.getloadavg()[0]:.1f}, {os.cpu_count()} processors")
    with tempfile.TemporaryDirectory() as place:
        held = [measure(net, arguments, Path(place)) for net in arguments.net]
    raise SystemExit(0 if all(held) else "a bar of the small network does not hold")


if __name__ == "__main__":
    main()
