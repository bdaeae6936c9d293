"""The local network is told where the server is, where that is requested."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from edgeinfer.errors import UsageError
from edgeinfer.runtime.serve import announce
from edgeinfer.runtime.serve.announce import KIND, Announcement
from edgeinfer.runtime.serve.app import App
from edgeinfer.runtime.serve.hub import Hub
from edgeinfer.runtime.serve.options import ServeOptions
from tests.runtime.serve.conftest import KEY

HERE = ["127.0.0.1"]


@pytest.mark.parametrize("given", [{}, {"host": "0.0.0.0", "port": 0, "insecure": True}])
def test_what_nobody_reaches_is_not_announced(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="mdns: only a --host and a --port"):
        ServeOptions(mdns=True, **given)


def test_it_is_found_and_taken_back() -> None:
    zeroconf = pytest.importorskip("zeroconf")
    from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

    options = ServeOptions(host="0.0.0.0", port=8765, grpc_port=8766, keys=(KEY,), mdns=True)

    async def main() -> None:
        changes: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

        def changed(*, name: str, state_change: Any, **_: Any) -> None:
            changes.put_nowait((state_change.name, name))

        async def next_of(what: str) -> str:
            while True:
                kind, name = await asyncio.wait_for(changes.get(), 60)
                if kind == what and name.startswith("edgeinfer on "):
                    return name

        announcement = Announcement(options, HERE)
        async with AsyncZeroconf(interfaces=HERE) as network:
            AsyncServiceBrowser(network.zeroconf, KIND, handlers=[changed])
            await announcement.start()
            name = await next_of("Added")
            info = AsyncServiceInfo(KIND, name)
            assert await info.async_request(network.zeroconf, 10_000)
            assert (info.port, info.parsed_addresses()) == (8765, HERE)
            found = info.decoded_properties
            assert (found["path"], found["scheme"], found["key"]) == ("/v2", "http", "yes")
            assert found["grpc"] == "8766"
            await announcement.stop()
            assert await next_of("Removed") == name

    assert zeroconf is not None
    asyncio.run(main())


@pytest.mark.parametrize("fault", ["taken", "broken"])
def test_a_network_that_takes_no_name_keeps_nobody_from_serving(
    fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody in it may answer for every name, without end."""
    options = ServeOptions(host="0.0.0.0", port=8765, keys=(KEY,), mdns=True)
    closed: list[bool] = []

    class Network:
        async def async_close(self) -> None:
            closed.append(True)

    async def start(self: Announcement) -> None:
        self._network = Network()
        if fault == "broken":
            raise OSError("no such device")
        await asyncio.Event().wait()

    monkeypatch.setattr(Announcement, "start", start)
    monkeypatch.setattr(announce, "PATIENCE_S", 0.1)

    async def main() -> None:
        hub = Hub((), options)
        app, sent = App(hub), asyncio.Queue[Any]()
        told = asyncio.Queue[Any]()
        told.put_nowait({"type": "lifespan.startup"})
        living = asyncio.create_task(app({"type": "lifespan"}, told.get, sent.put))
        assert (await asyncio.wait_for(sent.get(), 10))["type"] == "lifespan.startup.complete"
        await asyncio.sleep(0.3)
        told.put_nowait({"type": "lifespan.shutdown"})
        await asyncio.wait_for(living, 10)

    asyncio.run(main())
    assert closed == [True]
    why = {"taken": "no name was free in 0.1 s", "broken": "no such device"}[fault]
    assert f"this server is not announced in the local network: {why}" in caplog.text
