"""CPU time of a request's way through the server, without sockets: what other work disturbs least.

    python -m benchmarks.serving_path                       # 16 values and 110 kB, 1 and 32 clients
    python -m benchmarks.serving_path --net mid --clients 32

Bytes of requests go into the protocol of so many connections, their answers are taken from it;
keys, limits, counters and logs are on. What counts is the least of many stretches; threads next to
the event loop are counted too.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
import uvloop
from uvicorn.server import ServerState

from benchmarks.serving_load import NETS, Net, Server, ours, prepare
from edgeinfer.cli.serve import _log_requests
from edgeinfer.runtime.pool import Pool
from edgeinfer.runtime.serve.app import App
from edgeinfer.runtime.serve.hub import Hub
from edgeinfer.runtime.serve.options import ServeOptions, keys_of
from edgeinfer.runtime.serve.protocol import protocol
from edgeinfer.runtime.serve.reading import feed

_DATE = (b"date", b"Mon, 30 Nov 2026 01:00:00 GMT")
_SHORT = 8


class Wire:
    """Counts what is written to a client."""

    def __init__(self) -> None:
        self.count, self.last = 0, b""

    def write(self, data: bytes) -> None:
        self.count += 1
        self.last = data

    def writelines(self, parts: Iterable[bytes]) -> None:
        self.write(b"".join(parts))

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        raise SystemExit(f"the connection was closed: {self.last[:300]!r}")

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)}.get(name, default)

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


def text_of(server: Server) -> bytes:
    """Return a request as clients send it."""
    headers = {"host": "127.0.0.1:8000", "content-type": "application/json", **server.headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = f"POST {server.path} HTTP/1.1\r\n{lines}content-length: {len(server.body)}\r\n\r\n"
    return head.encode() + server.body


async def spent_us(net: Net, server: Server, clients: int, stretches: int) -> list[float]:
    """Return microseconds of CPU time of a request, of each stretch, the least first."""
    options = ServeOptions(port=0, threads=1, keys=keys_of(str(net.keys)))
    hub = Hub([f"net={net.bundle}"], options)
    app = App(hub)
    await Pool("load", 1, 1).run(partial(hub.loader.load_all, hub.models.values()))
    config = uvicorn.Config(app, lifespan="off", ws="none", log_config=None)
    config.load()
    state = ServerState()
    state.default_headers = [_DATE]
    kind: Any = protocol(10.0, app.fast)
    text = text_of(server)
    lines: list[tuple[Any, Wire]] = []
    for _ in range(clients):
        lines.append((kind(config=config, server_state=state, app_state={}), Wire()))
        lines[-1][0].connection_made(lines[-1][1])

    async def ask() -> None:
        wanted = lines[0][1].count + 1
        for connection, _ in lines:
            feed(connection, text)
        turns = 0
        while any(wire.count < wanted for _, wire in lines):
            # Turns without work cost as well; threads have some that lasts.
            turns += 1
            await asyncio.sleep(0 if turns < _SHORT else 2e-4)

    for _ in range(10):
        await ask()
    if not lines[0][1].last.startswith(b"HTTP/1.1 200"):
        raise SystemExit(f"no answer: {lines[0][1].last[:300]!r}")
    rounds = max(1, 64 // clients)
    found = []
    for _ in range(stretches):
        start = time.process_time()
        for _ in range(rounds):
            await ask()
        found.append((time.process_time() - start) / rounds / clients * 1e6)
    hub.close()
    return sorted(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--net", nargs="+", default=["small", "wide"], choices=NETS)
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 32])
    parser.add_argument("--stretches", type=int, default=300)
    given = parser.parse_args()
    _log_requests()
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    print("| network | form | clients | us of CPU, least | median |\n|---|---|---|---|---|")
    for name in given.net:
        with tempfile.TemporaryDirectory() as place:
            net = prepare(name, Path(place))
            for server in ours(net.bundle, net.keys, net.feeds, 16):
                for clients in given.clients:
                    found = uvloop.run(spent_us(net, server, clients, given.stretches))
                    row = f"{found[0]:.1f} | {found[len(found) // 2]:.1f}"
                    print(f"| {name} | {server.name.split()[1]} | {clients} | {row} |", flush=True)


if __name__ == "__main__":
    main()
