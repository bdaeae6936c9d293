"""Servers that benchmarks start, ask and measure; ``wrk`` asks where many requests are wanted."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import psutil
from onnx import TensorProto, helper, numpy_helper

KEY = "a-key-for-this-benchmark"
LENGTH = "inference-header-content-length"
NETS = {
    "small": (16, 64, 4),
    "wide": (27_648, 4),
    "mid": (256, 1024, 1024, 16),
    "big": (512, 2048, 2048, 2048, 16),
}
"""Widths of layers: 5 kB, 442 kB (with 110 kB of input), 5 MB and 38 MB of weights."""

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


Feeds = Mapping[str, np.ndarray]
KINDS = {"f": "FP", "i": "INT", "u": "UINT"}


def _tensor(name: str, x: np.ndarray, **more: Any) -> dict[str, Any]:
    kind = f"{KINDS[x.dtype.kind]}{8 * x.dtype.itemsize}"
    return {"name": name, "datatype": kind, "shape": list(x.shape), **more}


def v2_json(feeds: Feeds) -> bytes:
    tensors = [_tensor(name, x, data=x.ravel().tolist()) for name, x in feeds.items()]
    return json.dumps({"inputs": tensors}).encode()


def v2_raw(feeds: Feeds) -> tuple[bytes, int]:
    tensors = [
        _tensor(name, x, parameters={"binary_data_size": x.nbytes}) for name, x in feeds.items()
    ]
    head = {"inputs": tensors, "parameters": {"binary_data_output": True}}
    text = json.dumps(head).encode()
    return text + b"".join(x.tobytes() for x in feeds.values()), len(text)


def ours(
    bundle: Path, keys: Path, feeds: Feeds, batch: int, more: Sequence[str] = ()
) -> list[Server]:
    """Return how this server is asked, in JSON and in raw bytes; keys and logs are on."""
    command = [sys.executable, "-m", "edgeinfer", "serve", f"net={bundle}", "--keys", str(keys)]
    command += ["--threads", "1", "--batch", str(batch), "--log", *more, "--port"]
    raw, size = v2_raw(feeds)
    key = {"authorization": f"Bearer {KEY}"}
    name, path = f"edgeinfer{'' if batch > 1 else ' b1'}", "/v2/models/net/infer"
    made = [Server(f"{name} json", path, v2_json(feeds), of_v2, command, headers=key)]
    made.append(
        Server(f"{name} raw", path, raw, of_v2, command, headers={**key, LENGTH: str(size)})
    )
    return made


@dataclass(frozen=True)
class Net:
    """A model to serve.

    Attributes:
        model: the ONNX file.
        bundle: made of it.
        keys: a file with this benchmark's key.
        feeds: inputs of a request.
        want: all outputs, one behind the other.
    """

    model: Path
    bundle: Path
    keys: Path
    feeds: Feeds
    want: np.ndarray

    def run(self) -> Callable[[Feeds], Sequence[np.ndarray]]:
        """Return what runs it in this process, with one thread."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(str(self.model), options)
        return lambda feeds: session.run(None, dict(feeds))


def prepare(name: str, folder: Path, file: Path | None = None) -> Net:
    """Write one of ``NETS``, or take a file, and convert it; a file's inputs are its vector's."""
    model, bundle, keys = file or folder / f"{name}.onnx", folder / f"{name}.edge", folder / "keys"
    if file is None:
        write_net(model, NETS[name])
    keys.write_text(KEY + "\n")
    made = [sys.executable, "-m", "edgeinfer", "convert", str(model), "-t", "onnxruntime"]
    subprocess.run([*made, "-o", str(bundle), "--overwrite"], check=True, capture_output=True)
    if file is None:
        shape = (1, NETS[name][0])
        feeds = {"x": np.random.default_rng(1).standard_normal(shape).astype(np.float32)}
    else:
        from edgeinfer.bundle.archive import Bundle

        with Bundle.open(bundle) as opened:
            feeds = {n: np.asarray(a)[:1] for n, a in next(iter(opened.vectors()))[0].items()}
    net = Net(model, bundle, keys, feeds, np.empty(0))
    outputs = [np.asarray(y, np.float32).ravel() for y in net.run()(feeds)]
    return replace(net, want=np.concatenate(outputs))


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
                # A server may listen on the port behind it, too.
                command = [str(port + 1) if w == "PORT+1" else w for w in server.command]
                begun[key] = (
                    subprocess.Popen([*command, str(port)], stdout=log, stderr=log, env=env),
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


def ready(server: Server, want: np.ndarray, pause_s: float = 0.2) -> str:
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
        time.sleep(pause_s)
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
    if not (bad or count) and seconds < 60:
        return drive(server, connections, 4 * seconds, folder)
    if bad or not count:
        raise SystemExit(f"{server.name}: {bad:.0f} of {count:.0f} answers were errors")
    return Load(count / duration_us * 1e6, p50 / 1e3, p99 / 1e3, spent / count * 1e6)


def idle_share(server: Server) -> float:
    """Return the share of a core that a server takes when nobody asks."""
    before, seconds = server.cpu_s(), 3.0
    time.sleep(seconds)
    return (server.cpu_s() - before) / seconds
