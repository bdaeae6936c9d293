"""How many connections there may be, and which of them give way."""

from __future__ import annotations

import asyncio
import itertools
import logging
import ssl
from pathlib import Path

import pytest

from edgeinfer.runtime.serve import connections as connections_module
from edgeinfer.runtime.serve import protocol as protocol_module
from edgeinfer.runtime.serve.connections import Connections, files
from edgeinfer.runtime.serve.options import ServeOptions
from edgeinfer.runtime.serve.run import tls_of
from tests.runtime.serve.test_connections import ASK, over_a_connection
from tests.runtime.serve.test_tls import pair

__all__ = ["pair"]


class Door:
    def __init__(self) -> None:
        self.is_ended = False

    def end(self) -> None:
        self.is_ended = True


def come(connections: Connections, count: int, first: int = 0) -> list[Door]:
    """Connect from as many addresses."""
    doors = [Door() for _ in range(count)]
    for i, door in enumerate(doors, first):
        assert connections.enter(door, f"10.0.{i // 256}.{i % 256}")
    return doors


def test_the_oldest_silent_one_gives_way(caplog: pytest.LogCaptureFixture) -> None:
    """Of many addresses each had one, and nobody else came in."""
    connections = Connections(16)
    doors = come(connections, 12)
    connections.asks(doors[0])
    assert not any(door.is_ended for door in doors)
    with caplog.at_level(logging.WARNING, logger="edgeinfer.serve"):
        more = come(connections, 5, 100)
    assert [door.is_ended for door in doors] == [False, *[True] * 5, *[False] * 6]
    assert len(connections) == 12
    # Those that came last give way when all before them have asked.
    for door in doors[6:]:
        connections.asks(door)
    come(connections, 1, 200)
    assert more[0].is_ended
    assert [record.getMessage()[:23] for record in caplog.records] == ["12 connections are open"]


def test_who_rests_gives_way_after_who_is_silent() -> None:
    connections = Connections(16)
    doors = come(connections, 12)
    for door in doors:
        connections.asks(door)
    late = Door()
    assert not connections.enter(late, "10.9.9.9"), "all are answered: nobody gives way"
    connections.rests(doors[7])
    connections.rests(doors[3])
    (silent,) = come(connections, 1, 300)
    assert doors[7].is_ended
    assert not doors[3].is_ended
    come(connections, 1, 301)
    assert silent.is_ended
    assert not doors[3].is_ended
    connections.leave(doors[3])
    connections.leave(doors[3])
    assert len(connections) == 11


def test_a_network_of_ipv6_has_one_share() -> None:
    connections = Connections(16)
    taken = [connections.enter(Door(), f"2001:db8::{i}") for i in range(6)]
    assert taken == [True] * 4 + [False] * 2
    assert connections.enter(Door(), "2001:db8:0:1::1")
    mapped = [connections.enter(Door(), f"::ffff:10.0.0.{i}") for i in range(6)]
    assert all(mapped)
    assert connections.enter(Door(), "fe80::1%eth0")


def test_what_a_process_may_open_is_raised() -> None:
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, before[0]), before[1]))
        found = files()
        after = resource.getrlimit(resource.RLIMIT_NOFILE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert after[0] == min(before[1], 1 << 16)
    assert found == max(512, after[0])


@pytest.mark.parametrize("engine", ["asyncio", "uvloop"])
def test_handshakes_that_never_end_are_counted(
    engine: str, pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection of TLS was counted once both sides had agreed."""
    monkeypatch.setattr(protocol_module, "files", lambda: 12)
    made: list[Connections] = []

    class Watched(Connections):
        def __init__(self, files: int) -> None:
            super().__init__(files)
            made.append(self)

    monkeypatch.setattr(protocol_module, "Connections", Watched)
    tls = tls_of(ServeOptions(certificate=pair[0], private_key=pair[1]))
    client = ssl.create_default_context(cafile=pair[0])

    async def talk(host: str, port: int) -> None:
        silent = [await asyncio.open_connection(host, port) for _ in range(3)]
        # Its share is taken.
        with pytest.raises((ConnectionError, ssl.SSLError)):
            await asyncio.open_connection(host, port, ssl=client, server_hostname="localhost")
        assert len(made[0]) == 3
        silent[0][1].write(b"no TLS")
        assert await silent[0][0].read() != b"anything"
        silent[1][1].close()
        while len(made[0]) > 1:
            await asyncio.sleep(0.01)
        reader, writer = await asyncio.open_connection(
            host, port, ssl=client, server_hostname="localhost"
        )
        for _ in range(2):
            writer.write(ASK)
            assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
        writer.close()
        # The last one is closed when its time is over.
        assert await silent[2][0].read() == b""
        while made[0]:
            await asyncio.sleep(0.01)

    loop = pytest.importorskip(engine).new_event_loop
    over_a_connection(30.0, None, tls=tls, whole=talk, head_s=2.0, loop=loop)


def test_one_that_is_answered_is_no_silent_one(monkeypatch: pytest.MonkeyPatch) -> None:
    names = itertools.count()
    monkeypatch.setattr(connections_module, "network", lambda address: str(next(names)))
    monkeypatch.setattr(protocol_module, "files", lambda: 4)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        host, port = writer.get_extra_info("peername")[:2]
        writer.write(ASK)
        assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
        others = [await asyncio.open_connection(host, port) for _ in range(6)]
        writer.write(ASK)
        assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
        for _, other in others:
            other.close()
        return True

    assert over_a_connection(30.0, talk)
