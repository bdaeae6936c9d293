"""``Runtime``: many models in one process, within one budget of threads and one of memory."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeinfer import forks
from edgeinfer.bundle.archive import Bundle
from edgeinfer.bundle.opening import Opening, openings
from edgeinfer.errors import (
    ClosedError,
    InputError,
    MemoryBudgetError,
    UsageError,
)
from edgeinfer.machine.cores import cores_here
from edgeinfer.machine.fingerprint import known_facts
from edgeinfer.machine.pages import give_back
from edgeinfer.options import method_called_with, option, values_of
from edgeinfer.records import dataclass
from edgeinfer.runtime.batches import Batching, alike, check_batching, together
from edgeinfer.runtime.inputs import InputCheck
from edgeinfer.runtime.memory_budget import ResidentSession
from edgeinfer.runtime.profiledb import ProfileDB
from edgeinfer.runtime.rows import VECTORS, are_apart, rows_of
from edgeinfer.runtime.scheduler import Outputs, PendingOutputs, QueuedRun, Scheduler, deadline_of
from edgeinfer.runtime.session import Session
from edgeinfer.runtime.telemetry import Recorder, SessionStats
from edgeinfer.types import Array, Feeds, TensorSpec

if TYPE_CHECKING:
    from typing import Self

BRIEF_S = 2e-3
"""Seconds of a run below which callers that wait run it for each other: waking a thread would take
a good part of that, and none of them is kept for long."""

TIDY_S = 0.5
"""Seconds between two looks for memory that nobody uses; each costs some milliseconds."""

_log = logging.getLogger("edgeinfer")


@dataclass(frozen=True, slots=True)
class ModelStats:
    """What one model of a ``Runtime`` did.

    Attributes:
        calls: times from asking to the answer, waiting included.
        loaded: whether its engine is in memory now.
        loads: how often it was loaded.
        memory_mb: that it takes while it is loaded, as measured.
        dispatched: runs of the engine, each of one or more calls, by why they began: ``idle``, a
            place was free for what had come; ``waited``, it had become free for who waited;
            ``full``, a batch had as many calls as it may.
        oldest_wait_s: Seconds for which the oldest call waits for its run; 0.0 where none does.
        queued_s: that calls waited before they ran, of all together.
        computed_s: that they ran; a batch counts for each of its calls.
    """

    calls: SessionStats
    loaded: bool
    loads: int
    memory_mb: float
    dispatched: dict[str, int]
    oldest_wait_s: float
    queued_s: float
    computed_s: float

    @property
    def batches(self) -> int:
        """Runs of the engine."""
        return sum(self.dispatched.values())


@dataclass(frozen=True, kw_only=True)
class RuntimeOptions(Opening):
    """The arguments of ``Runtime``; those of ``Opening`` hold for every bundle."""

    threads: int | None = option(
        None,
        "Number of threads that run engines. None takes the processors this process may use, "
        "without slow cores where there are fast ones. It is never more than this process may "
        "keep busy.",
    )
    memory_mb: float | None = option(
        None, "Resident memory that engines may take together; None sets no limit."
    )
    history: ProfileDB | None = option(
        None, "Measurements of this machine; None takes those in the cache folder."
    )


class Runtime(forks.Here):
    """Owns the threads and the memory of all its models.

    Engines are loaded with one thread each and run on the runtime's own threads and on those of
    callers who wait, as many at once as ``threads`` says, so that a hundred models keep as many
    cores busy as there are. Models are loaded when they are first used and unloaded, the least
    recently used first, when another one needs the memory. Models of the same bundle and options
    share one engine, and so its weights.

    >>> with edgeinfer.Runtime(threads=2, memory_mb=500) as runtime:    # doctest: +SKIP
    ...     door = runtime.add("door.edge", priority=1)
    ...     scene = runtime.add("scene.edge", batching=edgeinfer.Batching(size=8))
    ...     future = scene.submit({"x": frame}, deadline_s=0.1)
    ...     y = door(x)

    Attributes:
        threads: as given or found.
        memory_mb: as given.
        scheduler: decides who runs next.
        loading: held while an engine is loaded, one at a time.
        guard: Guard of what runs on which engine.
        released: called when nothing runs on an engine any more.
    """

    @method_called_with(RuntimeOptions)
    def __init__(self, options: RuntimeOptions) -> None:
        """Load nothing yet.

        {options}

        Raises:
            UsageError: a number makes no sense.
        """
        threads, memory_mb = options.threads, options.memory_mb
        if threads is not None and threads < 1:
            raise UsageError(f"threads: expected at least 1, received {threads}")
        cores = cores_here(threads, known_facts().cpu.clusters)
        if cores.note:
            _log.warning("runtime: %s", cores.note)
        if memory_mb is not None and memory_mb <= 0:
            raise UsageError(f"memory_mb: expected more than 0, received {memory_mb:g}")
        self.threads = cores.threads
        self.memory_mb = memory_mb
        self._history = options.history
        self._trust = openings(values_of(options))
        self._scheduler = Scheduler(self.threads, cores.cpus)
        self._engines: dict[tuple[object, ...], ResidentSession] = {}
        self._models: dict[str, FleetModel] = {}
        self._lock = forks.lock()
        self._is_closed = False
        self._loading = forks.lock()
        self._guard = forks.lock()
        self._released = threading.Condition(self._guard)
        self._pool_mb, self._tidied = 0.0, -math.inf
        forks.watch(self)

    def forked(self) -> None:
        """Wait for nobody who waits in the parent; engines know their process by themselves."""
        self._released = threading.Condition(self._guard)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def models(self) -> Mapping[str, FleetModel]:
        """All models by name."""
        return dict(self._models)

    def add(
        self,
        path: str | os.PathLike[str],
        *,
        name: str | None = None,
        priority: float = 0.0,
        batching: Batching | None = None,
        pinned: bool = False,
        threads: int = 1,
        **options: Any,
    ) -> FleetModel:
        """Open a bundle; its engine is loaded at the first use, or now where it is pinned.

        Args:
            path: Path of the bundle.
            name: by which ``models`` and messages know it; None takes the bundle's.
            priority: Priority of its calls; higher ones run first.
            batching: put concurrent calls together along the first axis.
            pinned: load now and never unload.
            threads: Threads of its engine.
            **options: for ``load``: backend, policy, device, trusted, isolate, ...

        Raises:
            UsageError: the name is taken, or batches cannot be made of this model. That its rows
                change each other is seen, and said, by its first run.
            BundleError: the bundle is damaged, altered or unsafe.
            MemoryBudgetError: it is pinned and does not fit.
        """
        if not 1 <= threads <= self.threads:
            raise UsageError(f"threads: expected 1 to {self.threads}, received {threads}")
        place = Path(path).resolve()
        options = {**self._trust, **options}
        options["require_signature"] |= bool(self._trust["require_signature"])
        with Bundle.open(place, verify=False, **openings(options)) as bundle:
            manifest, digest = bundle.manifest, bundle.digest
            name, rows = name or manifest.name, []
            if batching is not None:
                check_batching(name, batching, manifest.inputs, manifest.outputs)
                rows = rows_of([feeds for feeds, _ in islice(bundle.vectors(), VECTORS)])
        # A copy of a bundle is the same model.
        key = (digest, threads, *sorted((k, repr(v)) for k, v in options.items()))
        with self._lock:
            if self._is_closed:
                raise ClosedError("runtime: used after close()")
            if name in self._models:
                raise UsageError(f"runtime: there is a model {name!r} already; give name=")
            engine = self._engines.get(key)
            if engine is None:
                own = {"history": self._history, "threads": threads, "pooled": True}
                options = {**own, **options}
                engine = self._engines[key] = ResidentSession(self, place, digest, options)
            engine.users += 1
            model = FleetModel(self, name, engine, manifest.inputs, manifest.outputs)
            model.priority, model.batching, model.width = priority, batching, threads
            model.untried = rows
            self._models[name] = model
        if pinned:
            try:
                engine.pin()
            except BaseException:
                model.close()
                raise
        return model

    def stats(self, *, reset: bool = False) -> dict[str, ModelStats]:
        """Say of every model how long its calls took and what it holds.

        Args:
            reset: begin to count calls anew.
        """
        return {name: model.stats(reset=reset) for name, model in self.models.items()}

    def close(self) -> None:
        """Cancel what waits, end what runs, free every engine."""
        with self._lock:
            self._is_closed = True
        self._scheduler.close(wait=True)
        with self._lock:
            engines = list(self._engines.values())
            for model in self._models.values():
                model.is_closed = True
            self._models.clear()
            self._engines.clear()
        for engine in engines:
            engine.end()
        problems = [problem for engine in engines if (problem := engine.unloaded())]
        if problems:
            raise problems[0]

    def _submit(
        self,
        model: FleetModel,
        feeds: Feeds,
        priority: float,
        deadline: float,
        waits: bool,
        owner: bytes,
    ) -> PendingOutputs:
        """Queue a call of one of its models."""
        call = QueuedRun(feeds, PendingOutputs(self._scheduler), deadline, time.monotonic())
        batching = model.batching
        if batching is None:
            self._scheduler.submit(model, call, priority=priority, waits=waits, owner=owner)
            return call.future
        self._scheduler.submit(
            *(model, call),
            priority=priority,
            waits=waits and not batching.wait_ms,
            size=batching.size,
            wait_s=batching.wait_ms / 1e3,
            fits=lambda other: alike(other.feeds, call.feeds),
            owner=owner,
        )
        return call.future

    def _forget(self, model: FleetModel) -> None:
        """Take a model out, and its engine with the last one that uses it."""
        engine = model.engine
        with self._lock:
            if self._models.get(model.name) is not model:
                return
            del self._models[model.name]
            model.is_closed = True
            engine.users -= 1
            if engine.users:
                return
            self._engines = {k: e for k, e in self._engines.items() if e is not engine}
        engine.end()
        engine.unload()

    def _make_room(self, engine: ResidentSession, needed_mb: float) -> None:
        """Unload engines that nobody uses, the least recently used first; wait for those that run.

        Raises:
            MemoryBudgetError: it would not fit even if only pinned engines were left.
        """
        if self.memory_mb is None:
            return
        while self._held_mb() + needed_mb > self.memory_mb:
            others = [e for e in list(self._engines.values()) if e is not engine and e.is_loaded]
            if any(e.unload_idle() for e in sorted(others, key=lambda e: e.used)) or self._pool_mb:
                self._tidy()
                continue
            running = [e for e in others if not e.is_pinned]
            if not running:
                raise MemoryBudgetError(
                    f"{engine.path.name}: needs {needed_mb:.0f} MB; memory_mb is "
                    f"{self.memory_mb:.0f}, and pinned models hold {self._held_mb():.0f} of it"
                )
            with self._guard:
                if not any(e.is_idle for e in running):
                    self._released.wait(timeout=1.0)

    def _fits(self, pool_mb: float) -> bool:
        """Say whether all is within the budget after a run; what can go goes if it is not.

        Args:
            pool_mb: that the run added to the memory which runs of all engines share.
        """
        with self._guard:
            self._pool_mb += pool_mb
        if self.memory_mb is None or self._held_mb() <= self.memory_mb:
            return True
        engines = list(self._engines.values())
        engines.sort(key=lambda e: e.used)
        fits = any(e.unload_idle() and self._held_mb() <= self.memory_mb for e in engines)
        self._tidy()
        return fits

    def _tidy(self) -> None:
        """Give the system back what closed engines and ended runs left, once in a while."""
        if time.monotonic() - self._tidied > TIDY_S:
            self._tidied = time.monotonic()
            give_back()
        with self._guard:
            self._pool_mb = 0.0

    def _held_mb(self) -> float:
        loaded = [engine for engine in list(self._engines.values()) if engine.is_loaded]
        return self._pool_mb + sum(engine.memory_mb for engine in loaded)


class FleetModel(forks.Here):
    """One model of a ``Runtime``; threads may share it.

    Attributes:
        name: in the runtime.
        inputs: what it takes.
        outputs: what it gives.
        priority: Priority of its calls.
        check: returns the inputs of one call as the engine takes them, or raises ``InputError``.
        untried: rows with which its first run sees that batches keep them apart.
        most_here: Most calls of a run on the caller's thread, where that takes batches.
        is_closed: whether it was taken out of the runtime.
    """

    def __init__(
        self,
        runtime: Runtime,
        name: str,
        engine: ResidentSession,
        inputs: tuple[TensorSpec, ...],
        outputs: tuple[TensorSpec, ...],
    ) -> None:
        self.name, self.engine = name, engine
        self.inputs, self.outputs = inputs, outputs
        self.priority = 0.0
        self.batching: Batching | None = None
        self.width = 1
        self.untried: Sequence[Feeds] = ()
        self.most_here = 0
        self.limit = runtime.threads
        self._runtime = runtime
        self.check = InputCheck(inputs)
        self._recorder = Recorder({"model": name})
        self._dispatched = {"idle": 0, "waited": 0, "full": 0}
        self._queued_s = self._computed_s = 0.0
        # Unknown counts as long.
        self._run_s = math.inf
        self.is_closed = False

    def __call__(self, *args: Array, **named: Array) -> Array | tuple[Array, ...]:
        """Run once; as ``Session.__call__``."""
        feeds = dict(zip((s.name for s in self.inputs), args, strict=False))
        if len(args) > len(self.inputs) or feeds.keys() & named.keys():
            raise InputError("*", f"{len(self.inputs)} inputs, each once", f"{len(args)} and more")
        results = tuple(self.run({**feeds, **named}).values())
        return results[0] if len(results) == 1 else results

    def run(
        self, feeds: Feeds, *, priority: float | None = None, deadline_s: float | None = None
    ) -> Outputs:
        """Run once and wait; as ``submit``, but on this thread where a place is free."""
        found = self._here((feeds,)) if deadline_s is None else None
        if found is not None:
            return found[0]
        return self._queued(feeds, priority, deadline_s, waits=True).result()

    def submit(
        self,
        feeds: Feeds,
        *,
        priority: float | None = None,
        deadline_s: float | None = None,
        owner: bytes = b"",
    ) -> Future[Outputs]:
        """Queue a run; leave the arrays alone until it is done.

        Args:
            feeds: an array for every input, by name.
            priority: Priority of this call; None takes the model's.
            deadline_s: seconds from now after which it is not started any more.
            owner: whose call it is: among equal priorities owners take turns; empty for nobody's.

        Returns:
            The future of the outputs, which may be cancelled while it waits. It raises
            ``DeadlineError``, ``MemoryBudgetError`` and what ``load`` and ``Session.run`` raise.

        Raises:
            InputError: an input is not what the model takes.
            ClosedError: the runtime was closed.
        """
        return self._queued(feeds, priority, deadline_s, waits=False, owner=owner)

    def _queued(
        self,
        feeds: Feeds,
        priority: float | None,
        deadline_s: float | None,
        *,
        waits: bool,
        owner: bytes = b"",
    ) -> PendingOutputs:
        feeds = self.check(feeds)
        if self.is_closed:
            raise ClosedError(f"model {self.name!r}: used after close()")
        priority = self.priority if priority is None else priority
        return self._runtime._submit(self, feeds, priority, deadline_of(deadline_s), waits, owner)

    @property
    def is_brief(self) -> bool:
        """Whether a run is known to be over soon."""
        return self._run_s < BRIEF_S and self.engine.is_loaded

    def _here(self, several: Sequence[Feeds], calls: int = 0) -> list[Outputs] | None:
        """Run on the caller's thread, if a place is free there and nothing waits for it."""
        is_simple = self.batching is None or not self.batching.wait_ms
        if not is_simple or not self.engine.is_loaded or self.is_closed:
            return None
        now = partial(self._now, calls=calls) if calls else self._now
        return self._runtime._scheduler.here(self, now, several)

    def run_joined(self, feeds: Feeds, calls: int) -> Outputs | None:
        """Run calls that are joined already, as ``run_here``.

        Args:
            feeds: inputs of all of them behind each other along the first axis; of one, its own.
            calls: Number of calls.

        Returns:
            Outputs of all of them; None where it cannot run now.

        Raises:
            ClosedError: the model was closed.
            InputError: an input is not what the model takes.
            RunError: the engine failed.
        """
        if self.is_closed:
            raise ClosedError(f"model {self.name!r}: used after close()")
        found = self._here([feeds], calls)
        return None if found is None else found[0]

    def run_here(self, several: Sequence[Feeds]) -> list[Outputs] | None:
        """Run calls as one, on this thread, where a place is free and nothing waits.

        Args:
            several: inputs of calls that ``batches.alike`` holds for, checked; one is run alone,
                and need not be.

        Returns:
            Outputs of each call; None where it cannot run now.

        Raises:
            ClosedError: the model was closed.
            InputError: an input of the only call is not what the model takes.
            RunError: the engine failed.
        """
        if self.is_closed:
            raise ClosedError(f"model {self.name!r}: used after close()")
        return self._here(several)

    def _now(self, several: Sequence[Feeds], calls: int = 0) -> list[Outputs]:
        """Run on the caller's thread."""
        start, run, calls = time.monotonic(), object(), calls or len(several)
        try:
            try:
                session = self._acquired(run)
                is_full = 1 < calls == self.most_here
                self._dispatched["full" if is_full else "idle"] += 1
                if len(several) == 1:
                    results = [self.engine.run(session, several[0])]
                else:
                    results = together(partial(self.engine.run, session), several)
            finally:
                self.engine.runs.discard(run)
                self.engine.released()
        except InputError:
            raise
        except Exception as error:
            for _ in range(calls):
                self._recorder.failed(type(error).__name__)
            raise
        self._took(start, start, calls)
        return results

    def _acquired(self, run: object) -> Session:
        session = self.engine.acquire(run)
        if not session._concurrent:
            self.limit = 1
        if self.untried and not are_apart(partial(self.engine.run, session), self.untried):
            raise UsageError(
                f"model {self.name!r}: batching: a row's result depends on the others of its "
                "batch, so calls cannot be put together; add the model without batching"
            )
        self.untried = ()
        return session

    def _took(self, queued: float, started: float, calls: int = 1) -> None:
        now = time.monotonic()
        spent = now - started
        self._queued_s += calls * (started - queued)
        self._computed_s += calls * spent
        # One slow run makes no model slow.
        self._run_s = min(spent, 0.9 * self._run_s + 0.1 * spent)
        self._recorder.took(int((now - queued) * 1e9), calls)

    def execute(self, calls: list[QueuedRun]) -> None:
        """Run what the scheduler took, and settle the futures."""
        run = object()
        try:
            self._execute(self._acquired(run), calls)
        # Whatever goes wrong belongs to who waits for it; a worker thread has nobody to tell.
        except Exception as error:
            for call in calls:
                self._recorder.failed(type(error).__name__)
                call.future.set_exception(error)
        finally:
            self.engine.runs.discard(run)
            self.engine.released()

    def _execute(self, session: Session, calls: list[QueuedRun]) -> None:
        is_full = self.batching is not None and len(calls) == self.batching.size
        why = "full" if is_full else "idle" if calls[0].found_free else "waited"
        self._dispatched[why] += 1
        start = time.monotonic()
        try:
            results = together(partial(self.engine.run, session), [call.feeds for call in calls])
        except Exception:
            if len(calls) == 1:
                raise
            # One bad call must not spoil the others.
            for call in calls:
                self.execute([call])
            return
        for call, outputs in zip(calls, results, strict=True):
            self._took(call.queued, start)
            call.future.set_result(outputs)

    def stats(self, *, reset: bool = False) -> ModelStats:
        """Say how long its calls took and what it holds."""
        engine, oldest = self.engine, self._runtime._scheduler.oldest(self)
        return ModelStats(
            calls=self._recorder.stats(reset),
            loaded=engine.is_loaded,
            loads=engine.loads,
            memory_mb=engine.memory_mb,
            dispatched=dict(self._dispatched),
            oldest_wait_s=0.0 if oldest is None else time.monotonic() - oldest,
            queued_s=self._queued_s,
            computed_s=self._computed_s,
        )

    def close(self) -> None:
        """Take it out of the runtime."""
        self._runtime._forget(self)
