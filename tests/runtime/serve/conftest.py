"""A server in a thread, with a model of tensors and a tiny language model."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from edgeinfer.bundle.archive import Bundle
from edgeinfer.bundle.manifest import EngineRequirement, Manifest, SourceRecord, Variant
from edgeinfer.bundle.writer import BundleWriter
from edgeinfer.llm.generation import FORMAT
from edgeinfer.runtime.llm.bundle import BundledModel
from edgeinfer.runtime.llm.llm import LLM
from edgeinfer.runtime.serve import lanes
from edgeinfer.runtime.serve.app import App
from edgeinfer.runtime.serve.hub import Hub
from edgeinfer.runtime.serve.options import ServeOptions
from edgeinfer.runtime.serve.protocol import protocol
from edgeinfer.runtime.serve.run import tls_of
from edgeinfer.types import TensorSpec
from tests.runtime.conftest import Fakes, make_fakes, write_bundle
from tests.runtime.llm.test_llm import model as tiny_model

KEY = "a-key-of-enough-letters"
SCHEMA = {
    "type": "object",
    "properties": {"on": {"type": "boolean"}},
    "required": ["on"],
    "additionalProperties": False,
}


@dataclass
class Server:
    """A running server and a client of it."""

    url: str
    hub: Hub
    client: httpx.Client
    stop: Callable[[], None]
    app: App


def text_bundle(path: Path) -> Path:
    with BundleWriter(path) as writer:
        file = writer.add_bytes("variants/v/weights.bin", b"none")
        variant = Variant("v", "cpu", FORMAT, "fp32", (file,), (EngineRequirement("llm"),))
        manifest = Manifest(
            name="tiny",
            inputs=(TensorSpec("tokens", "int32", ("tokens",)),),
            outputs=(TensorSpec("logits", "float32", (420,)),),
            variants=(variant,),
            vectors=(),
            source=SourceRecord("gguf", "tiny.gguf", "ab" * 32),
        )
        return writer.finish(manifest)


Start = Callable[..., Server]


class Starter:
    """Starts servers in threads; the engine ``fake`` doubles ``x`` and returns ``k``."""

    def __init__(self, folder: Path, fakes: Fakes) -> None:
        self._folder, self._fakes = folder, fakes
        self._running: list[Server] = []
        self._count = itertools.count()

    def __call__(
        self, *models: str, only: bool = False, pipelines: Sequence[str] = (), **options: Any
    ) -> Server:
        """Start one, with ``double`` and ``tiny`` besides the models that are given."""
        self._fakes.add("fake")
        folder = self._folder / str(next(self._count))
        folder.mkdir()
        double = write_bundle(folder / "double.edge", "fake")
        usual = [str(double), f"tiny={text_bundle(folder / 'text.edge')}"]
        hub = Hub(
            [*([] if only else usual), *models],
            ServeOptions(port=0, **options),
            pipelines=pipelines,
        )
        app, limits = App(hub), hub.options.limits
        patience = hub.memory, limits.body_s
        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        config = uvicorn.Config(
            app,
            loop="uvloop",
            http=protocol(limits.head_s, app.fast, tls_of(hub.options), patience),
            log_config=None,
            lifespan="on",
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        scheme = "http" if hub.options.certificate is None else "https"
        url = f"{scheme}://127.0.0.1:{listening.getsockname()[1]}"

        def stop() -> None:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive()

        # Certificates are slow to read, and none is needed.
        client = httpx.Client(base_url=url, timeout=60, verify=False)
        made = Server(url, hub, client, stop, app)
        self._running.append(made)
        while client.get("/v2/health/live").status_code != 200:
            time.sleep(0.002)
        while loading(hub):
            time.sleep(0.002)
        return made

    def close(self) -> None:
        for server in self._running:
            server.client.close()
            server.stop()


class Brisk:
    """What uvicorn's server sees as asyncio: it waits a tenth as long until it ends."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / 10)


def loading(hub: Hub) -> bool:
    return any(model.state == "loading" for model in hub.models.values())


@contextlib.contextmanager
def held(server: Server, steps: int = 20) -> Iterator[Callable[[], None]]:
    """Let the language model wait after so many steps; yields what waits for a command.

    Whoever leaves meanwhile leaves a text that is not at its end, however fast the machine is.
    """
    llm = server.hub.models["tiny"].text
    assert llm is not None
    thread, released, count = llm.engine, threading.Event(), itertools.count()
    executor: Any = thread.call(lambda engine: engine._cache.executor).result()
    step = executor.step

    def waits(batch: Any) -> Any:
        assert next(count) < steps or released.wait(60), "nobody released the executor"
        return step(batch)

    def told() -> None:
        end = time.monotonic() + 60
        # It may have come before the wait, and have ended all that ran.
        while thread._mailboxes and not thread._commands:
            assert time.monotonic() < end, "nobody told the engine anything"
            time.sleep(0.002)

    executor.step = waits
    try:
        yield told
    finally:
        executor.step = step
        released.set()


def held_as(make: Callable[[], BundledModel]) -> Callable[..., BundledModel]:
    """Return an ``LLM._open`` that makes a model in the place of what a bundle holds."""

    def opened(_: LLM, path: Path, *__: object) -> BundledModel:
        with Bundle.open(path) as bundle:
            return replace(make(), digest=bundle.digest)

    return opened


@contextlib.contextmanager
def starter(folder: Path) -> Iterator[tuple[Starter, Fakes]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LLM, "_open", held_as(tiny_model))
        patch.setattr(uvicorn.server, "asyncio", Brisk())
        fakes = make_fakes(patch)
        made = Starter(folder, fakes)
        try:
            yield made, fakes
        finally:
            made.close()


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[tuple[Starter, Fakes]]:
    with starter(tmp_path) as made:
        yield made


@pytest.fixture
def start(begin: tuple[Starter, Fakes]) -> Start:
    """Start servers of a test's own."""
    return begin[0]


@pytest.fixture
def fakes(begin: tuple[Starter, Fakes]) -> Fakes:
    """Return the engines of servers that ``start`` starts."""
    return begin[1]


@pytest.fixture
def on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no run be brief: a test's gate would hold the event loop."""
    monkeypatch.setattr(lanes, "BRIEF_S", 0.0)
    monkeypatch.setattr(lanes, "HANDED_S", 0.0)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Start one server for all tests of a module, which leave it as it was."""
    with starter(tmp_path_factory.mktemp("served")) as (start, _):
        yield start()
