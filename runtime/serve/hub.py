"""The models of a server: tensors through ``Runtime``, language models through their engines."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeinfer.bundle.archive import Bundle
from edgeinfer.errors import ClosedError, EdgeInferError, QueueFullError, UsageError
from edgeinfer.llm.generation import FORMAT
from edgeinfer.runtime.batches import Batching
from edgeinfer.runtime.fleet import Model, Runtime
from edgeinfer.runtime.serve.http import Receive, RequestError, client_left
from edgeinfer.runtime.serve.metrics import Metrics, ModelMetrics
from edgeinfer.runtime.serve.options import ServeOptions, model_name
from edgeinfer.types import Array, Feeds, TensorSpec

if TYPE_CHECKING:
    from edgeinfer.runtime.llm.llm import LLM
    from edgeinfer.runtime.llm.stats import EngineStats

_log = logging.getLogger("edgeinfer")

SOON_S = 0.02
"""A request that is answered sooner is not watched for a client that leaves."""


@dataclass(slots=True)
class Served:
    """One model.

    Attributes:
        name: in addresses.
        path: of its bundle.
        metrics: its counters.
        kind: ``tensors`` or ``text``.
        state: ``loading``, ``ready``, ``unloaded`` or why it failed.
        waiting: requests without an answer.
        created: when it was added, in seconds since 1970.
    """

    name: str
    path: Path
    metrics: ModelMetrics
    kind: str = "tensors"
    state: str = "loading"
    waiting: int = 0
    created: int = 0
    tensors: Model | None = None
    text: LLM | None = None
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    warm: Sequence[Feeds] = field(default_factory=tuple)

    @property
    def is_ready(self) -> bool:
        """Whether it takes requests."""
        return self.state == "ready"


class Hub:
    """Owns all models of a server.

    Args:
        models: bundles, each ``PATH`` or ``NAME=PATH``.
        options: of the server.
        trust: keyword arguments of ``Bundle.open``.
        text: keyword arguments of ``LLM``.

    Raises:
        UsageError: two models have one name.
        BundleError: a bundle is damaged.
    """

    def __init__(
        self,
        models: Sequence[str],
        options: ServeOptions,
        trust: Mapping[str, Any] | None = None,
        text: Mapping[str, Any] | None = None,
    ) -> None:
        self.options = options
        self._trust, self._text = dict(trust or {}), dict(text or {})
        self.metrics = Metrics(self._engine_stats)
        self._runtime = Runtime(threads=options.threads, memory_mb=options.memory_mb, **self._trust)
        self.models: dict[str, Served] = {}
        self.is_stopping = False
        try:
            for given in models:
                self._open(*model_name(given))
        except BaseException:
            self.close()
            raise

    @property
    def is_ready(self) -> bool:
        """Whether every model that is to be loaded takes requests."""
        wanted = [m for m in self.models.values() if m.state != "unloaded"]
        return not self.is_stopping and all(m.is_ready for m in wanted)

    def get(self, name: str) -> Served:
        """Return a model that takes requests.

        Raises:
            RequestError: 404 where there is none, 503 where it is not ready.
        """
        model = self.models.get(name)
        if model is None:
            raise RequestError(404, f"no model {name!r}; known: {', '.join(self.models)}")
        if self.is_stopping:
            raise RequestError(503, "the server is stopping", 5.0)
        if not model.is_ready:
            raise RequestError(503, f"model {name!r} is not ready: {model.state}", 1.0)
        return model

    def of_kind(self, name: str, kind: str) -> Served:
        """Return a model of a kind.

        Raises:
            RequestError: as ``get``; 400 where it is of another kind.
        """
        model = self.get(name)
        if model.kind != kind:
            word = "a language model" if kind == "text" else "a model of tensors"
            raise RequestError(400, f"model {name!r} is not {word}")
        return model

    def load_all(self) -> None:
        """Load every model and run it once; from a thread."""
        for model in list(self.models.values()):
            self.load(model)

    def load(self, model: Served) -> None:
        """Load a model and run it once; what goes wrong is its state."""
        model.state = "loading"
        try:
            if model.kind == "text":
                if model.text is None:
                    from edgeinfer.runtime.llm.llm import LLM

                    model.text = LLM(model.path, **self._text, **self._trust)
                model.text.wake()
            else:
                tensors = model.tensors
                if tensors is None:
                    tensors = model.tensors = self._add(model.name, model.path)
                for feeds in model.warm:
                    tensors.run(feeds)
        except EdgeInferError as error:
            model.state = str(error)
            _log.error("model %s could not be loaded: %s", model.name, error)
        else:
            model.state = "ready"

    def unload(self, model: Served) -> None:
        """Free a model's memory; ``load`` brings it back."""
        model.state = "unloaded"
        if model.text is not None:
            model.text.close()
            model.text = None
        if model.tensors is not None:
            model.tensors.close()
            model.tensors = None

    async def infer(
        self,
        model: Served,
        feeds: Feeds,
        receive: Receive,
        priority: float | None = None,
        deadline_s: float | None = None,
    ) -> Mapping[str, Array]:
        """Run a model once.

        Args:
            model: of tensors.
            feeds: arrays by the input's name.
            receive: of the request, whose body was read; tells when the client leaves.
            priority: higher ones run first.
            deadline_s: after which it is not started any more.

        Raises:
            QueueFullError: too many wait.
            InputError: an input is not what the model takes.
        """
        if model.tensors is None:
            raise ClosedError(f"model {model.name!r} was unloaded")
        with self.place(model):
            limit = self.options.limits.wait_s
            if deadline_s is None or (limit is not None and limit < deadline_s):
                deadline_s = limit
            future = asyncio.wrap_future(
                model.tensors.submit(feeds, priority=priority, deadline_s=deadline_s)
            )
            done, _ = await asyncio.wait((future,), timeout=SOON_S)
            if not done:
                watch = asyncio.ensure_future(client_left(receive))
                try:
                    await asyncio.wait((future, watch), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    watch.cancel()
                if not future.done():
                    future.cancel()
            return await future

    @contextlib.contextmanager
    def place(self, model: Served) -> Iterator[None]:
        """Hold a place in a model's queue.

        Raises:
            QueueFullError: there is none.
        """
        if model.waiting >= self.options.limits.queue:
            raise QueueFullError(f"model {model.name!r}: {model.waiting} requests wait already")
        model.waiting += 1
        model.metrics.waiting.inc()
        try:
            yield
        finally:
            model.waiting -= 1
            model.metrics.waiting.dec()

    def close(self) -> None:
        """End everything; may be called twice."""
        self.is_stopping = True
        for model in self.models.values():
            if model.text is not None:
                model.text.close()
                model.text = None
        self._runtime.close()

    def _open(self, name: str, path: str) -> None:
        if name in self.models:
            raise UsageError(f"two models are called {name!r}; give NAME=BUNDLE")
        self.models[name] = self._opened(name, Path(path))

    def _opened(self, name: str, path: Path) -> Served:
        with Bundle.open(path, **self._trust) as bundle:
            manifest = bundle.manifest
            served = Served(name, path, self.metrics.of(name), created=int(time.time()))
            if any(v.format == FORMAT for v in manifest.variants):
                served.kind = "text"
                return served
            served.inputs, served.outputs = manifest.inputs, manifest.outputs
            served.warm = [feeds for feeds, _ in bundle.vectors()][:1]
            return served

    def _add(self, name: str, path: str | os.PathLike[str]) -> Model:
        add, size = self._runtime.add, self.options.batch
        if size > 1:
            # A model that cannot be batched runs alone.
            with contextlib.suppress(UsageError):
                return add(path, name=name, batching=Batching(size))
        return add(path, name=name)

    def _engine_stats(self) -> Iterator[tuple[str, EngineStats]]:
        for model in self.models.values():
            text = model.text
            if text is not None:
                yield model.name, text.stats()
