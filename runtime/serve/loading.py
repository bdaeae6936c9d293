"""Models come into memory and leave it, while others are asked."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from edgeinfer.errors import BundleError, EdgeInferError, NotAvailableError, UsageError
from edgeinfer.machine.pages import give_back_start
from edgeinfer.runtime.batches import Batching, check_batching
from edgeinfer.runtime.fleet import FleetModel, Runtime
from edgeinfer.runtime.pool import Pool
from edgeinfer.runtime.rows import rows_of
from edgeinfer.runtime.serve.answer_size import AnswerSize
from edgeinfer.runtime.serve.batching import measure
from edgeinfer.runtime.serve.http import RequestError, status_of, without_folders
from edgeinfer.runtime.serve.lanes import Lane
from edgeinfer.runtime.serve.options import ServeOptions
from edgeinfer.runtime.serve.plans import Plans
from edgeinfer.runtime.serve.served import Served
from edgeinfer.runtime.serve.turns import SharedPool

_log = logging.getLogger("edgeinfer")

TRY_S = 10.0
"""Seconds within which a model that is tried must begin."""


class Loader:
    """Loads models, frees their memory, and tries them.

    Args:
        runtime: owns what runs tensors.
        options: Options of the server.
        trust: keyword arguments of ``Bundle.open``.
        text: keyword arguments of ``LLM``.
    """

    def __init__(
        self,
        runtime: Runtime,
        options: ServeOptions,
        trust: Mapping[str, Any],
        text: Mapping[str, Any],
    ) -> None:
        self._runtime, self._options = runtime, options
        self._trust, self._text = trust, text
        # Each model owns its changes: they have one of the threads, one after the other in the
        # order in which they came, and leave the other one to other models.
        self._changes = Pool("edgeinfer-changes", 2, 64)
        self._tries = SharedPool("edgeinfer-tries", 2, 64)

    async def change(self, model: Served, what: str) -> None:
        """Load or unload a model, after all changes of it that were requested before.

        Args:
            model: which.
            what: ``load`` or ``unload``.

        Raises:
            RequestError: 503, it could not be loaded.
            QueueFullError: too many wait.
        """
        work = partial(self.load if what == "load" else self.unload, model)
        try:
            problem = await self._changes.run(work, model.name.encode())
        finally:
            # They are the loop's, which looks through them: no thread forgets one meanwhile.
            if model.sequences is not None and not model.is_ready:
                model.sequences.clear()
        if problem:
            raise RequestError(503, f"model {model.name!r}: {problem}")

    async def tried(self, models: Sequence[Served]) -> dict[str, str]:
        """Run each of some models that is ready once.

        Returns:
            What went wrong, by name; empty where nothing did.

        Raises:
            QueueFullError: too many wait.
        """
        found = await self._tries.run(lambda: [(m, _tried(m)) for m in models if m.is_ready])
        # One that was unloaded meanwhile is not requested.
        return {model.name: problem for model, problem in found if model.is_ready}

    def load_all(self, models: Iterable[Served]) -> None:
        """Load models and run each once; from a thread."""
        for model in list(models):
            self.load(model)
        give_back_start()

    def load(self, model: Served) -> str:
        """Load a model and run it once; one that is loaded goes on answering meanwhile.

        Returns:
            What went wrong, which is its state then; empty where nothing did.
        """
        with model.changing:
            if not model.is_ready:
                model.state = "loading"
            try:
                self._load(model)
            except Exception as error:
                # Whatever is wrong with one model, the others are served.
                name, is_known = model.name, isinstance(error, EdgeInferError)
                _log.error("model %s could not be loaded: %s", name, error, exc_info=not is_known)
                surprise = f"{type(error).__name__}; the log says more"
                model.state = _without_paths(str(error), model) if is_known else surprise
                _free(model)
                return model.state
            model.state = "ready"
            return ""

    def unload(self, model: Served) -> None:
        """Free a model's memory; ``load`` brings it back."""
        with model.changing:
            model.state = "unloaded"
            _free(model)

    def _load(self, model: Served) -> None:
        if model.upstream is not None:
            model.down_until = 0.0
        elif model.kind == "text":
            self._load_text(model, model.path)
        else:
            self._load_tensors(model)
            if model.chat is not None and model.answerer is model:
                self._load_text(model, model.chat)

    def _load_text(self, model: Served, path: Path) -> None:
        if model.text is None:
            from edgeinfer.runtime.llm.llm import LLM

            model.text = LLM(path, **self._text, **self._trust)
            _expect(path, model.text.digest, model.digests[path])
        model.text.wake()

    def _load_tensors(self, model: Served) -> None:
        is_new = not model.engines
        if is_new:
            several = len(model.parts) > 1
            for i, path in enumerate(model.parts):
                name = f"{model.name}/{i}" if several else model.name
                limits: dict[str, Any] = {
                    "isolate": self._options.isolate,
                    "allow": self._options.allow,
                }
                if self._options.run_timeout_s is not None:
                    limits["run_timeout_s"] = self._options.run_timeout_s
                model.engines.append(added := self._runtime.add(path, name=name, **limits))
                _expect(path, added.engine.digest, model.digests[path])
        for engine in model.engines:
            # Loaded before it is ready, also where the bundle has no vectors to run.
            engine.engine.warm()
        if model.kind == "tensors":
            model.tensors = tensors = model.engines[0]
            for feeds in model.warm[:1]:
                tensors.run(feeds)
            if is_new:
                self._measure(model, tensors)
        if model.has_meaning and model.pipeline is None:
            from edgeinfer.runtime.serve.meaning import check_chat, open_pipeline

            try:
                opened = open_pipeline(model.parts, model.engines, self._trust)
                check_chat(opened, model.answerer is not None)
                model.pipeline = opened
            except (UsageError, NotAvailableError) as error:
                # Its tensors are served all the same, and a request for more gets the reason.
                model.no_meaning = _without_paths(str(error), model)
                if model.kind == "pipeline":
                    raise

    def _measure(self, model: Served, tensors: FleetModel) -> None:
        """Let a model's requests run together as far as that gains, and is allowed."""
        model.batch, tensors.batching, model.lane = 1, None, None
        model.plans = Plans(model.inputs)
        model.answer_size = AnswerSize(model.inputs, model.outputs)
        most = self._options.batch
        try:
            check_batching(model.name, Batching(max(most, 2)), model.inputs, model.outputs)
            rows = rows_of(model.warm)
        except UsageError:
            # A model that cannot be batched runs alone.
            rows, most = list(model.warm[:1]), 1
        table = measure(tensors.run, rows, most)
        _log.info("model %s: %d requests a run: %s", model.name, table.size, table.reason)
        if table.size > 1:
            model.batch, tensors.batching = table.size, Batching(table.size)
        # How long texts take, the size of their arrays does not say.
        texts = any(spec.dtype == "string" for spec in model.inputs)
        if rows and not texts and not self._options.isolate:
            lane = Lane(tensors, table.seconds, rows[0])
            model.lane = lane if lane.is_brief else None


def _expect(path: object, found: str, digest: str) -> None:
    if found != digest:
        raise BundleError(
            f"{path}: another bundle than the one that this server began with; start it anew to "
            "serve that"
        )


def _free(model: Served) -> None:
    model.loads += 1
    text, engines = model.text, model.engines
    model.text = model.tensors = model.pipeline = model.lane = None
    model.engines = []
    if text is not None:
        text.close()
    for engine in engines:
        engine.close()


def _tried(model: Served) -> str:
    text, tensors = model.text, model.tensors
    try:
        if text is not None:
            from edgeinfer.runtime.llm.params import SamplingParams

            text.generate([[0]], SamplingParams(max_tokens=1))
        elif tensors is not None:
            for feeds in model.warm[:1]:
                tensors.run(feeds, deadline_s=TRY_S)
    except Exception as error:
        _log.error("model %s failed when it was tried", model.name, exc_info=error)
        return status_of(error).text
    return ""


def _without_paths(text: str, model: Served) -> str:
    """Return a message for clients, which hides where bundles lie."""
    paths = {model.path, *model.parts, *((model.chat,) if model.chat else ())}
    for path in sorted(paths, key=lambda p: -len(str(p))):
        for form in (str(path.resolve()), str(path)):
            text = text.replace(form, path.name)
    return without_folders(text)
