"""The models of a server: tensors through ``Runtime``, language models through their engines."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from edgeinfer.bundle.archive import Bundle
from edgeinfer.bundle.manifest import Manifest
from edgeinfer.errors import (
    UsageError,
)
from edgeinfer.llm.generation import is_text
from edgeinfer.runtime.bell import Bell
from edgeinfer.runtime.fleet import ModelStats, Runtime
from edgeinfer.runtime.pool import Pool
from edgeinfer.runtime.rows import VECTORS
from edgeinfer.runtime.serve.answer_size import counted_outputs
from edgeinfer.runtime.serve.answers import Answers
from edgeinfer.runtime.serve.http import (
    DisconnectedError,
    Receive,
    RequestError,
    from_json,
    read_body,
    status_of,
)
from edgeinfer.runtime.serve.inflight import LARGE_BYTES, LIST_WEIGHT, InFlight, held, weigh
from edgeinfer.runtime.serve.keys import GRANT, check_ahead, owner, sharer
from edgeinfer.runtime.serve.lanes import Ran
from edgeinfer.runtime.serve.leaving import Left, until_left
from edgeinfer.runtime.serve.loading import Loader
from edgeinfer.runtime.serve.metrics import Engine, Metrics, ModelMetrics
from edgeinfer.runtime.serve.options import (
    ServeOptions,
    Upstream,
    model_name,
    pipeline_name,
    read_fallback,
    read_key,
    read_upstreams,
)
from edgeinfer.runtime.serve.sequences import KeptStates, Sequences
from edgeinfer.runtime.serve.served import Served
from edgeinfer.runtime.serve.terms import Terms
from edgeinfer.runtime.serve.turns import SharedPool
from edgeinfer.types import Array, ConstantInput, Feeds, StateInput

if TYPE_CHECKING:
    from edgeinfer.runtime.llm.llm import LLM
    from edgeinfer.runtime.serve.regions import Caller, Regions
    from edgeinfer.runtime.serve.tensors import InferRequest

_log = logging.getLogger("edgeinfer")

T = TypeVar("T")
WEIGHING = 16
"""Times as many bytes of JSON are weighed in the time in which others are read."""


class Hub:
    """Owns all models of a server.

    Args:
        models: bundles, each ``PATH`` or ``NAME=PATH``.
        options: Options of the server.
        trust: keyword arguments of ``Bundle.open``.
        text: keyword arguments of ``LLM``.
        pipelines: several bundles that are one, each ``NAME=PATH,PATH``.

    Attributes:
        words: reads requests for texts: templates and tokens.
        images: likewise where the model sees images.
        numbers: reads and writes large tensors.
        loader: loads models, and tries them.
        facts: counts for whoever asks.
        regions: Shared memory of clients; None where it is off.

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
        pipelines: Sequence[str] = (),
    ) -> None:
        self.options = options
        self._trust = dict(trust or {})
        self.metrics = Metrics(self._engine_stats, self._waiting, self._runs)
        self._runtime = Runtime(threads=options.threads, memory_mb=options.memory_mb, **self._trust)
        self.loader = Loader(self._runtime, options, self._trust, dict(text or {}))
        self.models: dict[str, Served] = {}
        self.memory = InFlight(options.limits.memory_bytes)
        self.states = KeptStates(options.limits.memory_bytes // 2)
        queue = options.limits.queue
        self.words = SharedPool("edgeinfer-words", 2, queue)
        self.images = SharedPool("edgeinfer-images", 2, queue)
        self.numbers = SharedPool("edgeinfer-numbers", 2, queue)
        self.facts = Pool("edgeinfer-facts", 1, 64)
        self.answers = Answers(int(options.answers_mb * 2**20)) if options.answers_mb else None
        self.metrics.answers = self.answers
        self.regions: Regions | None = None
        if options.shared_memory:
            from edgeinfer.runtime.serve.regions import Regions

            limits = options.limits
            self.regions = Regions(options.shared_memory, limits.memory_bytes, limits.elements)
        self.is_stopping = False
        self._bell: Bell | None = None
        try:
            for given in models:
                name, path = model_name(given)
                self._open(name, (Path(path),))
            for given in pipelines:
                self._open(*pipeline_name(given))
            for name, upstream in read_upstreams(options.upstreams):
                self._add_upstream(name, upstream)
            for given in options.fallbacks:
                self._add_fallback(given)
            self._check_keys()
        except BaseException:
            self.close()
            raise

    @property
    def is_ready(self) -> bool:
        """Whether every model that is to be loaded takes requests."""
        wanted = [m for m in self.models.values() if m.state != "unloaded"]
        return not self.is_stopping and all(m.is_ready for m in wanted)

    @property
    def visible(self) -> Mapping[str, Served]:
        """Models that the key of this request may use; to it there are no others."""
        grant = GRANT.get()
        if grant is None or not grant.models:
            return self.models
        return {name: model for name, model in self.models.items() if name in grant.models}

    def get(self, name: str) -> Served:
        """Return a model that takes requests: the one that is named, or its fallback.

        Raises:
            RequestError: 404 where there is none, 503 where it is not ready.
        """
        model = self.visible.get(name)
        if model is None:
            raise RequestError(404, f"no model {name!r}; known: {', '.join(self.visible)}")
        if self.is_stopping:
            raise RequestError(503, "the server is stopping", 5.0)
        if (other := model.other) is not None:
            model.metrics.passed_on += 1
            return other
        if model.is_down:
            raise model.unreachable()
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

    async def asked(
        self, receive: Receive, *, named: bool = True
    ) -> tuple[dict[str, Any], Served, LLM]:
        """Read a request for a language model.

        Args:
            receive: The request's receive function.
            named: it must name the model, also where there is one alone.

        Raises:
            RequestError: it is no JSON, names no model, or one that is not ready.
        """
        data = await self.read_json(receive)
        name = data.get("model")
        texts = [m.name for m in self.visible.values() if m.kind == "text"]
        if name is None and len(texts) == 1 and not named:
            name = texts[0]
        if not isinstance(name, str):
            raise RequestError(400, "model: expected a name")
        model = self.of_kind(name, "text")
        if (text := model.text) is None:
            raise RequestError(503, f"model {name!r} was unloaded", 1.0)
        return data, model, text

    async def read_json(self, receive: Receive) -> dict[str, Any]:
        """Return the object that the body of a request is.

        Raises:
            RequestError: it is none, larger than the limit, or does not come in time.
            DisconnectedError: the client left.
        """
        limits = self.options.limits
        return await self.parsed(await read_body(receive, limits.json_bytes, limits.body_s))

    async def parsed(self, body: bytes) -> dict[str, Any]:
        """Likewise of a body that is here.

        Raises:
            RequestError: it is none, or there is no memory for it.
        """
        await self.hold_data(body)
        data = await self.read(len(body), partial(from_json, body))
        if not isinstance(data, dict):
            raise RequestError(400, "expected an object")
        return data

    async def hold_data(self, body: bytes) -> None:
        """Hold what JSON takes once it is read: many times its size.

        Raises:
            RequestError: 503, there is no memory for it.
        """
        # Weighing is fast: half a megabyte takes a third of a millisecond.
        work = len(body) // WEIGHING
        await held().take_data(await self.read(work, partial(weigh, body)))

    async def read(self, size: int, work: Callable[[], T]) -> T:
        """Read or write something of tensors, in a thread where others would wait for it.

        Args:
            size: bytes of it.
            work: reads or writes it.

        Raises:
            QueueFullError: too many wait.
        """
        return work() if size < LARGE_BYTES else await self.numbers.run(work)

    async def infer(
        self, model: Served, request: InferRequest, left: Left | None = None
    ) -> Mapping[str, Array]:
        """Run a model once.

        Args:
            model: Tensor model.
            request: what was asked.
            left: returns when the client is gone; None where the task is cancelled then.

        Raises:
            QueueFullError: too many wait.
            InputError: an input is not what the model takes.
            RequestError: its sequence is not under way; 403, it may not come so far before others;
                503, there is no memory for its outputs; 429 where the key's own are in the way.
        """
        if (at := request.shared) is None:
            return await self._inferred(model, request, left)
        most, size = self.options.limits.body_bytes, sum(p.size for _, p in at.inputs.values())
        if size > most:
            raise RequestError(413, f"inputs in shared memory take {size} bytes, at most {most}")
        await held().take(size * (1 + LIST_WEIGHT * model.plans.has_texts))
        request = await self.on_regions(lambda r, who: r.read(who, model, request, at))
        results = await self._inferred(model, request, left)
        await self.on_regions(lambda r, who: r.write(who, request, results))
        return results

    def infer_now(self, model: Served, request: InferRequest) -> Mapping[str, Array] | None:
        """Run a model for who is alone, where that is soon; None where it has to be waited for.

        Raises:
            QueueFullError, InputError, RequestError: as ``infer``.
        """
        lane, terms = model.lane, request.terms
        if lane is None or self.answers is not None or request.shared is not None:
            return None
        if terms.sequence is not None or not model.answer_size.is_known:
            return None
        if model.answer_size.of(request.feeds) >= LARGE_BYTES:
            return None
        check_ahead(terms.priority or 0)
        model.check_place(self.options.limits.queue, sharer())
        return lane.run_now(request.feeds)

    async def on_regions(self, work: Callable[[Regions, Caller], T]) -> T:
        """Do something with shared memory for who asks, in a thread.

        Raises:
            RequestError: it is off.
        """
        if (regions := self.regions) is None:
            raise RequestError(400, "shared memory is off; --shared-memory PREFIX turns it on")
        from edgeinfer.runtime.serve.regions import CONNECTION, Caller

        connection, key = CONNECTION.get(), owner()
        # A socket of the event loop is asked here, where nothing closes it meanwhile.
        is_here = connection.is_at_hand
        user = connection.user() if is_here else await self.numbers.run(connection.user)
        return await self.numbers.run(partial(work, regions, Caller(key, user)))

    async def _inferred(
        self, model: Served, request: InferRequest, left: Left | None
    ) -> Mapping[str, Array]:
        terms = request.terms
        check_ahead(terms.priority or 0)
        await held().reserve(model.answer_size.of(request.feeds))
        with self.place(model):
            if terms.sequence is None:
                return counted_outputs(await self._kept(model, request.feeds, terms, left))
            if model.sequences is None:
                raise RequestError(400, f"sequence_id: model {model.name!r} has no states")
            if kept := set(request.outputs).intersection(model.sequences.pairs.values()):
                raise RequestError(400, f"outputs: the sequence keeps {', '.join(sorted(kept))}")

            async def run(feeds: Feeds) -> Mapping[str, Array]:
                return await self._run(model, feeds, terms, left)

            return counted_outputs(
                await model.sequences.step(terms.sequence, terms, request.feeds, run)
            )

    async def _kept(
        self, model: Served, feeds: Feeds, terms: Terms, left: Left | None
    ) -> Mapping[str, Array]:
        """Return what the model answered to the same inputs before, or run it."""
        answers = self.answers
        if answers is None:
            return await self._run(model, feeds, terms, left)
        key = answers.key(model.name, model.loads, feeds, owner())
        found = answers.get(key)
        if found is None:
            found = dict(await self._run(model, feeds, terms, left))
            answers.put(key, found)
        return found

    async def _run(
        self, model: Served, feeds: Feeds, terms: Terms, left: Left | None
    ) -> Mapping[str, Array]:
        tensors, lane = model.tensors, model.lane
        if tensors is None:
            raise model.unloaded()
        deadline_s, share = self.deadline(terms), sharer()
        if lane is None:
            future = tensors.submit(
                feeds, priority=terms.priority, deadline_s=deadline_s, owner=share
            )
            return await until_left(future, left)
        answer: asyncio.Future[Ran] = asyncio.get_running_loop().create_future()
        lane.submit(feeds, terms.priority, deadline_s, answer, share)
        found = await answer
        return found if isinstance(found, dict) else await until_left(found, left)

    def bell(self) -> Bell:
        """Return what wakes the loop that runs."""
        loop = asyncio.get_running_loop()
        if self._bell is None or self._bell.loop is not loop:
            self._bell = Bell(loop)
        return self._bell

    def deadline(self, terms: Terms) -> float | None:
        """Return the seconds after which a request may not start any more; None for no end."""
        limit = self.options.limits.wait_s
        if limit is None or terms.deadline_s is None:
            return terms.deadline_s if limit is None else limit
        return min(limit, terms.deadline_s)

    @contextlib.contextmanager
    def place(self, model: Served) -> Iterator[None]:
        """Hold a place in a model's queue.

        Raises:
            QueueFullError: there is none.
        """
        share = sharer()
        model.check_place(self.options.limits.queue, share)
        model.enter(share)
        try:
            yield
        finally:
            model.leave(share)

    def counted(self, model: Served) -> _Counted:
        """Count a request by how it ends, and its time, as the context of it."""
        return _Counted(model.metrics)

    def close(self) -> None:
        """End everything; may be called twice."""
        self.is_stopping = True
        for model in self.models.values():
            if (text := model.text) is not None:
                model.text = None
                text.close()
        self._runtime.close()
        if self.regions is not None:
            self.regions.close()

    def _add_upstream(self, name: str, upstream: Upstream) -> None:
        if name in self.models:
            raise UsageError(f"two models are called {name!r}")
        made = Served(name, Path(), self.metrics.of(name), "upstream", upstream=upstream)
        made.created = int(time.time())
        self.models[name] = made

    def _add_fallback(self, given: str) -> None:
        name, other, count = read_fallback(given)
        if unknown := [n for n in (name, other) if n not in self.models]:
            raise UsageError(f"fallback {given}: no model {', '.join(unknown)}")
        first, second = self.models[name], self.models[other]
        if first is second or first.role != second.role:
            raise UsageError(f"fallback {given}: {other!r} does not take what {name!r} takes")
        if first.sequences is not None:
            raise UsageError(f"fallback {given}: {name!r} has states, which are its own")
        if second.fallback is not None or any(m.fallback is first for m in self.models.values()):
            raise UsageError(f"fallback {given}: a fallback has none of its own")
        first.fallback, first.spill = second, count or self.options.limits.queue

    def _check_keys(self) -> None:
        for key in map(read_key, self.options.keys):
            if unknown := sorted(key.models - self.models.keys()):
                raise UsageError(f"key {key.name!r}: no model {', '.join(unknown)}")

    def _open(self, name: str, paths: tuple[Path, ...]) -> None:
        if name in self.models:
            raise UsageError(f"two models are called {name!r}; give NAME=BUNDLE")
        if len(paths) == 1:
            self.models[name] = self._opened(name, paths[0])
            return
        metrics = self.metrics.of(name)
        served = Served(name, paths[0], metrics, "pipeline", created=int(time.time()))
        manifests = []
        for number, path in enumerate(paths, 1):
            with Bundle.open(path, **self._trust) as bundle:
                served.digests[path] = bundle.digest
                if number == len(paths) and is_text(bundle.manifest):
                    served.chat, served.answerer = path, self._served(path) or served
                    continue
                manifests.append(bundle.manifest)
                served.parts = (*served.parts, path)
        served.has_meaning, served.meaning = True, _meaning(manifests[0], manifests[-1])
        self.models[name] = served

    def _served(self, path: Path) -> Served | None:
        """Return the language model of a bundle that is served as such, too."""
        there = path.resolve()
        texts = (model for model in self.models.values() if model.kind == "text")
        return next((model for model in texts if model.path.resolve() == there), None)

    def _opened(self, name: str, path: Path) -> Served:
        with Bundle.open(path, **self._trust) as bundle:
            manifest = bundle.manifest
            served = Served(name, path, self.metrics.of(name), created=int(time.time()))
            served.digests[path] = bundle.digest
            if is_text(manifest):
                served.kind = "text"
                return served
            served.inputs, served.outputs = manifest.inputs, manifest.outputs
            served.has_meaning, served.parts = manifest.head is not None, (path,)
            served.meaning = _meaning(manifest, manifest)
            served.warm = [feeds for feeds, _ in itertools.islice(bundle.vectors(), VECTORS)]
            if manifest.states:
                limits = self.options.limits
                served.sequences = Sequences(
                    manifest.states,
                    manifest.inputs,
                    limits.sequences,
                    limits.sequence_idle_s,
                    self.states,
                )
            return served

    def _waiting(self) -> Iterator[tuple[str, int]]:
        for model in list(self.models.values()):
            yield model.name, model.waiting

    def _runs(self) -> Iterator[tuple[str, ModelStats]]:
        for model in list(self.models.values()):
            if (tensors := model.tensors) is not None:
                yield model.name, tensors.stats()

    def _engine_stats(self) -> Iterator[Engine]:
        for model in list(self.models.values()):
            if (text := model.text) is not None:
                yield model.name, text.stats(), text.histograms(), text.sizes()


def _meaning(first: Manifest, last: Manifest) -> tuple[object, ...]:
    """Return what requests for a bundle's meaning, or for that of several, take and give."""
    records = first.preprocessing.values()
    takes = frozenset(r.kind for r in records if not isinstance(r, ConstantInput | StateInput))
    return takes, None if last.head is None else last.head.kind, last.labels


class _Counted:
    """Counts a request; entered where it begins. A generator would take twice as long."""

    __slots__ = ("_metrics", "_started")

    def __init__(self, metrics: ModelMetrics) -> None:
        self._metrics = metrics

    def __enter__(self) -> None:
        self._started = time.perf_counter()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        status = 200
        if isinstance(error, (DisconnectedError, asyncio.CancelledError)):
            status = 499
        elif isinstance(error, Exception):
            status = status_of(error).status
        self._metrics.ended(status, time.perf_counter() - self._started)
