"""A server in a thread, with a model of tensors and a tiny language model."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from edgeinfer.bundle.manifest import EngineRequirement, Manifest, SourceRecord, Variant
from edgeinfer.bundle.writer import BundleWriter
from edgeinfer.llm.generation import FORMAT
from edgeinfer.runtime.llm.llm import LLM
from edgeinfer.runtime.serve.app import App
from edgeinfer.runtime.serve.hub import Hub
from edgeinfer.runtime.serve.options import ServeOptions
from edgeinfer.types import TensorSpec
from tests.runtime.llm.test_llm import model as tiny_model

KEY = "a-key-of-enough-letters"


@dataclass
class Server:
    """A running server and a client of it."""

    url: str
    hub: Hub
    client: httpx.Client
    stop: Callable[[], None]


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


@pytest.fixture
def start(
    fakes: Any, make_bundle: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Start]:
    """Start servers; the engine ``fake`` doubles ``x`` and returns ``k``."""
    running: list[Server] = []
    monkeypatch.setattr(LLM, "_open", lambda *_: tiny_model())

    def begin(**options: Any) -> Server:
        fakes.add("fake")
        models = [
            f"double={make_bundle('fake', name=f'{len(running)}.edge')}",
            f"tiny={text_bundle(tmp_path / f'text{len(running)}.edge')}",
        ]
        hub = Hub(models, ServeOptions(port=0, **options))
        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        config = uvicorn.Config(
            App(hub), loop="uvloop", http="httptools", log_config=None, lifespan="on"
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"

        def stop() -> None:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive()

        made = Server(url, hub, httpx.Client(base_url=url, timeout=60), stop)
        running.append(made)
        while True:
            try:
                if made.client.get("/v2/health/ready").status_code == 200:
                    return made
            except httpx.TransportError:
                pass
            time.sleep(0.01)

    yield begin
    for server in running:
        server.client.close()
        server.stop()


@pytest.fixture
def server(start: Start) -> Server:
    return start()
