"""Clients that leave, and clients that send and never read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from edgeinfer.runtime.serve.inflight import Held, InFlight
from edgeinfer.runtime.serve.keys import Keys
from edgeinfer.runtime.serve.options import ServeOptions
from edgeinfer.runtime.serve.protocol import Joined


class Transport:
    """What a connection writes to."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.is_lost = False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def is_closing(self) -> bool:
        return self.is_lost

    def close(self) -> None:
        self.is_lost = True


def test_nothing_is_written_to_a_client_that_left() -> None:
    async def told() -> list[bytes]:
        transport = Transport()
        joined = Joined(transport, asyncio.get_running_loop())
        joined.write(b"head ")
        joined.write(b"body")
        await asyncio.sleep(0)
        joined.write(b"late")
        transport.is_lost = True
        await asyncio.sleep(0)
        joined.close()
        return transport.written

    assert asyncio.run(told()) == [b"head body"]


def test_what_waits_is_written_before_the_end() -> None:
    async def told() -> list[bytes]:
        transport = Transport()
        joined = Joined(transport, asyncio.get_running_loop())
        joined.write(b"last")
        joined.close()
        await asyncio.sleep(0)
        return transport.written

    assert asyncio.run(told()) == [b"last"]


def test_a_stream_whose_answers_nobody_reads_is_not_read_further() -> None:
    pytest.importorskip("grpc")
    from edgeinfer.runtime.serve.rpc import Rpc

    class Echo(Rpc):
        async def _streamed(self, raw: bytes, held: Held, problem: Any) -> Any:
            held.release()
            return raw

    taken: list[int] = []

    async def requests() -> AsyncIterator[bytes]:
        for i in range(10_000):
            taken.append(i)
            yield str(i).encode()

    async def run() -> None:
        options = ServeOptions()
        hub: Any = SimpleNamespace(memory=InFlight(1 << 20), options=options)
        context: Any = SimpleNamespace(invocation_metadata=lambda: ())
        answers = Echo(hub, Keys(()))._stream(requests(), context)
        assert await anext(answers) == b"0"
        for _ in range(20_000):
            await asyncio.sleep(0)
        most = options.limits.queue
        assert len(taken) <= most + 3
        assert [await anext(answers) for _ in range(9_999)][-1] == b"9999"
        assert len(taken) == 10_000

    asyncio.run(run())
