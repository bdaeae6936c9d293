"""Every bar of ``edgeinfer serve``: overhead, other servers, batches, resources, conversations.

    python -m benchmarks.serving                                    # what needs nothing else
    python -m benchmarks.serving --peer fastapi=/venv/bin/python --peer litserve=/venv/bin/python
    python -m benchmarks.serving --part batching --model cls=ppocr-cls.onnx --model magika.onnx
    python -m benchmarks.serving --part chat --chat smollm2.edge --llama http://127.0.0.1:8080

A peer is one of ``serving_peers/`` with the Python that has its packages; ``inline`` is none, but
the least that uvicorn and the engine cost. Everyone serves the same
network by ONNX Runtime with one thread and batches of up to 16; who gives other numbers is not
timed. ``wrk`` drives them one after the other in each round, so that whatever else the machine does
meets all alike. What counts are medians of ratios within rounds, and CPU time of all the server's
processes for a request, which load of the machine changes least. Keys, limits, counters and logs
of this server are on. The other parts are in ``serving_bars.py``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks import serving_bars
from benchmarks.serving_bars import Bar
from benchmarks.serving_load import (
    LENGTH,
    Load,
    Net,
    Server,
    drive,
    of_bytes,
    of_data,
    of_v2,
    ours,
    prepare,
    started,
    v2_json,
    v2_raw,
)

PEERS = Path(__file__).parent / "serving_peers"
BARS = {"fastapi": 2.5, "triton": 3.0, "litserve": 4.0, "mlserver": 6.0, "bentoml": 6.0}
"""Times as many requests a second, small network, 32 connections."""


def peer(kind: str, python: str, net: Net) -> list[Server]:
    """Return how a peer is asked; Triton in its own protocol both ways."""
    x = net.feeds["x"]
    command = [python, str(PEERS / f"{kind}_peer.py"), str(net.model)]
    plain = json.dumps({"data": x.tolist()}).encode()
    v2 = "/v2/models/net/infer"
    raw, size = v2_raw(net.feeds)
    match kind:
        case "fastapi":
            return [
                Server("fastapi json", "/json", plain, of_data, command),
                Server("fastapi raw", "/raw", x.tobytes(), of_bytes, command),
            ]
        case "inline":
            return [Server("inline raw", "/", x.tobytes(), of_bytes, command)]
        case "litserve":
            return [Server("litserve json", "/predict", plain, of_data, command)]
        case "mlserver":
            return [Server("mlserver json", v2, v2_json(net.feeds), of_v2, command)]
        case "bentoml":
            return [Server("bentoml json", "/run", plain, of_data, command)]
        case "triton":
            head = {LENGTH: str(size)}
            return [
                Server("triton json", v2, v2_json(net.feeds), of_v2, command),
                Server("triton raw", v2, raw, of_v2, command, headers=head),
            ]
    raise SystemExit(f"no peer {kind!r}; known: inline, {', '.join(BARS)}")


def compare(servers: list[Server], connections: int, rounds: int, seconds: int) -> list[Bar]:
    """Print a table; return the bars."""
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
    bars = []
    for server in servers:
        found = loads[server.name]
        form = server.name.rsplit(" ", 1)[1]
        mine = loads.get(f"edgeinfer {form}", found)
        ratios = [a.per_second / b.per_second for a, b in zip(mine, found, strict=True)]
        cpu = [b.cpu_us / a.cpu_us for a, b in zip(mine, found, strict=True)]
        tails = [a.p99_ms / b.p99_ms for a, b in zip(mine, found, strict=True)]
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
        least = BARS.get(server.name.split(" ", maxsplit=1)[0])
        if least is not None and connections == 32:
            bars.append(Bar(f"times the requests/s of {server.name}", ratio, at_least=least))
            bars.append(Bar(f"p99 next to {server.name}", statistics.median(tails), at_most=1.0))
    return bars


def peers(arguments: argparse.Namespace, folder: Path) -> list[Bar]:
    """Time everyone on the small network."""
    net = prepare("small", folder)
    servers = ours(net.bundle, net.keys, net.feeds, 16)
    for given in arguments.peer:
        kind, _, python = given.partition("=")
        servers += peer(kind, python, net)
    bars: list[Bar] = []
    with started(servers, net.want) as good:
        for connections in arguments.connections:
            bars += compare(good, connections, arguments.rounds, arguments.seconds)
    return bars


PARTS: dict[str, Callable[[argparse.Namespace, Path], Iterable[Bar]]] = {
    "overhead": serving_bars.overhead,
    "peers": peers,
    "batching": serving_bars.batching,
    "resources": serving_bars.resources,
    "chat": serving_bars.chat,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--part", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--peer", action="append", default=[], metavar="KIND=PYTHON")
    parser.add_argument("--model", action="append", default=[], metavar="[NAME=]ONNX")
    parser.add_argument("--chat", type=Path, metavar="BUNDLE", help="of a language model")
    parser.add_argument("--llama", metavar="URL", help="of llama-server on the same weights")
    parser.add_argument("--connections", nargs="+", type=int, default=[1, 32])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=2)
    arguments = parser.parse_args()
    if shutil.which("wrk") is None:
        raise SystemExit("needs wrk, a package of Debian and Homebrew")
    print(f"load of the machine {os.getloadavg()[0]:.1f}, {os.cpu_count()} processors")
    bars: list[Bar] = []
    for name in arguments.part:
        print(f"\n## {name}", flush=True)
        with tempfile.TemporaryDirectory() as place:
            for bar in PARTS[name](arguments, Path(place)):
                # Who ends this early has what was measured so far.
                print(bar, flush=True)
                bars.append(bar)
    print("\n| bar | measured | wanted | |\n|---|---|---|---|")
    for bar in bars:
        print(bar)
    raise SystemExit(0 if all(bar.holds for bar in bars) else "a bar does not hold")


if __name__ == "__main__":
    main()
