"""Any backend in a process of its own: what takes the engine down is an exception here.

A segmentation fault, an abort, a run that never ends, memory that runs out or a killed process
becomes a ``CrashedError`` that names the engine, what it was doing and the signal. The next run
starts a new process and loads the artifact again; after further crashes only once a while has
passed, so that an artifact that always crashes does not keep the machine busy.

Tensors travel in shared memory, a byte through a pipe wakes the other process; for 1 MB of input
a call takes about 40 to 55 µs longer (``python -m benchmarks.isolation``).
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
import time
import weakref
from collections.abc import Callable
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from edgeinfer import forks
from edgeinfer.backends import registry
from edgeinfer.backends.base import Artifact, Bound, Capabilities, Coverage, LoadOptions, Probe
from edgeinfer.backends.checks import array_type, check_buffers, one_line
from edgeinfer.backends.operators import OperatorProfile, Placement
from edgeinfer.backends.process.answers import Listed
from edgeinfer.backends.process.child import Child, ChildEndedError, raise_answered
from edgeinfer.backends.process.isolated_host import AGAIN, MESSAGE, spinner
from edgeinfer.backends.process.isolated_memory import HEAD, SharedMemory, Slot, alike, lay_out
from edgeinfer.errors import (
    BackendError,
    ClosedError,
    CrashedError,
    LoadError,
    NotAvailableError,
    RunError,
)
from edgeinfer.machine.pages import resident_mb
from edgeinfer.types import Array, Feeds, TensorSpec

if TYPE_CHECKING:
    from edgeinfer.backends.process.emulator import Emulator

_HOST = "edgeinfer.backends.process.isolated_host"
_LISTED = Listed(Slot, TensorSpec, Probe, Coverage, Placement, OperatorProfile)
_ANSWER = tuple[Literal["done"], Any] | tuple[Literal["failed"], tuple[Exception, str]]
"""What the other process gives."""

_LOOK_S = 0.1
"""Seconds between two looks at how much memory a process holds."""

_NOT_OPENED = (LoadError, NotAvailableError)

CEILING_MB = 4096
"""Memory of a process whose engine takes what a program of anybody asks for."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 60.0

_log = logging.getLogger(__name__)


class IsolatedBackend:
    """A registered backend whose artifacts are loaded in processes of their own.

    ``close`` ends the processes that hold nothing; use it as a context manager.

    Args:
        backend: name in the registry; what it is there is what runs in the process.
        run_s: a run that takes longer is stopped; None waits forever.
        load_s: likewise for loading.
        memory_mb: a process that holds more is ended between two runs, and another one started.
        reuse: keep the process of an artifact that is closed for the next one.
        emulator: Emulator of another CPU, for which the processes are.
        note: why they are, for the notes of what is loaded.
    """

    name: ClassVar[str] = ""
    is_apart: ClassVar[bool] = True

    def __init__(
        self,
        backend: str,
        *,
        run_s: float | None = None,
        load_s: float | None = None,
        memory_mb: float | None = None,
        reuse: bool = True,
        emulator: Emulator | None = None,
        note: str = "",
    ) -> None:
        self._notes = (note,) if note else ()
        self.name = backend  # type: ignore[misc]  # a class of its own for each would say no more
        self._inner = registry.get(backend)
        self._run_s, self._load_s, self._memory_mb = run_s, load_s, memory_mb
        self._reuse, self._emulator = reuse, emulator
        self._is_fragile = self._inner.capabilities().fragile
        self._idle: list[_Process] = []
        self._started: _Process | None = None
        forks.watch(self)

    def forked(self) -> None:
        """Begin without processes; those of the parent are its own."""
        self._idle, self._started = [], None

    def start(self) -> None:
        """Start a process that probes the engine, without waiting for it; ``probe`` does.

        Raises:
            NotAvailableError: no process can be started here.
        """
        if self._started is None:
            process = self._process()
            process.begin("probe")
            self._started = process

    def probe(self) -> Probe:
        """Probe the engine in a process; one that crashes is a reason not to use it."""
        try:
            self.start()
            process, self._started = self._started, None
            if process is None:
                raise ClosedError(f"backend {self.name!r}: closed while it was probed")
            try:
                probe: Probe = process.end("look for its devices", self._load_s)
            except BaseException:
                process.kill()
                raise
        except BackendError as error:
            return Probe(self.name, None, reason=str(error))
        self._idle.append(process)
        return probe

    def capabilities(self) -> Capabilities:
        """What the engine can do; tensors are copied, and runs wait for one another."""
        inner = self._inner.capabilities()
        return Capabilities(
            *(inner.formats, inner.dtypes, inner.dynamic_shapes),
            zero_copy=False,
            keeps_time=inner.keeps_time,
            forks=True,
        )

    def load(self, artifact: Artifact, options: LoadOptions) -> IsolatedExecutable:
        """Open an artifact in a process.

        Raises:
            NotAvailableError: as the backend, or no process can be started here.
            LoadError: as the backend.
            CrashedError: the engine crashed or took too long.
        """
        stage = f"load {artifact.path.name}"

        def start() -> tuple[_Process, Any]:
            process = self._process()
            try:
                if self._is_fragile:
                    process.ask(stage, self._load_s, "limit", CEILING_MB)
                return process, process.ask(stage, self._load_s, "load", artifact, options)
            except BaseException:
                process.kill()
                raise

        give_back = self._idle.append if self._reuse else _Process.end_now
        return IsolatedExecutable(
            *(self.name, start, give_back, self._run_s, self._memory_mb, self._notes)
        )

    def profile(
        self, artifact: Artifact, options: LoadOptions, feeds: Feeds, *, runs: int
    ) -> OperatorProfile:
        """Say what operators cost, as the backend does in a process.

        Raises:
            CrashedError: the engine crashed.
            EdgeInferError: as the backend.
        """
        process = self._process()
        stage = f"profile {artifact.path.name}"
        try:
            asked = (artifact, options, dict(feeds), runs)
            found: OperatorProfile = process.ask(stage, self._load_s, "profile", *asked)
        finally:
            process.kill()
        return found

    def close(self) -> None:
        """End the processes that hold nothing."""
        if self._started is not None:
            self._idle.append(self._started)
            self._started = None
        while self._idle:
            self._idle.pop().kill()

    def __enter__(self) -> IsolatedBackend:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _process(self) -> _Process:
        while self._idle:
            process = self._idle.pop()
            if process.is_alive():
                return process
            process.kill()
        return _Process(self.name, self._emulator)


class _Process:
    """The other process and the ways to it; it ends with this object.

    Attributes:
        owes: an answer is still to come: it would be taken for the one to the next question.
    """

    def __init__(self, engine: str, emulator: Emulator | None = None) -> None:
        self._engine = engine
        self.memory = SharedMemory()
        theirs_in, self._requests = os.pipe()
        self._answers, theirs_out = os.pipe()
        ours = (self._requests, self._answers, self.memory.descriptor)
        try:
            inherited = (theirs_in, theirs_out, self.memory.descriptor)
            self._child = Child(_HOST, descriptors=inherited, keep_errors=True, emulator=emulator)
        except BaseException:
            _close(ours)
            raise
        finally:
            _close((theirs_in, theirs_out))
        self.kill = weakref.finalize(self, _end, self._child, ours)
        self._poll = select.poll()
        self._poll.register(self._answers, select.POLLIN)
        self._spin = spinner(self._answers)
        forks.watch(self)
        self._child.send(engine)
        self.owes = False

    def forked(self) -> None:
        """Close our copies of the parent's pipes."""
        if ended := self.kill.detach():
            _close(ended[2][1])

    def end_now(self) -> None:
        self.kill()

    def is_alive(self) -> bool:
        return self._child.is_alive()

    def resident_mb(self) -> float:
        """Return the memory that the process holds; 0 where the system does not say."""
        return resident_mb(self._child.pid)

    def ask(self, stage: str, seconds: float | None, method: str, *arguments: Any) -> Any:
        """Have something done.

        Raises:
            CrashedError: the process ended, or gave no answer in time.
            BackendError: what the backend raised.
        """
        self.begin(method, *arguments)
        return self.end(stage, seconds)

    def begin(self, method: str, *arguments: Any) -> None:
        """Ask for something; ``end`` says whether it works."""
        self.owes = True
        with contextlib.suppress(ChildEndedError, BrokenPipeError):
            os.write(self._requests, MESSAGE)
            self._child.send((method, arguments))

    def end(self, stage: str, seconds: float | None) -> Any:
        """Wait until it is done."""
        try:
            return self._wait(seconds)
        except BaseException as error:
            self._judge(error, stage, seconds)
            raise

    def run_again(self, seconds: float | None) -> list[Slot] | None:
        """Run on inputs that lie as before; return where the outputs are unless they do too."""
        self.owes = True
        try:
            os.write(self._requests, AGAIN)
            self._spin()
            found: list[Slot] | None = self._wait(seconds)
        except BaseException as error:
            self._judge(error, "run", seconds)
            raise
        return found

    def _wait(self, seconds: float | None) -> Any:
        if seconds is not None and not self._poll.poll(seconds * 1e3):
            raise TimeoutError
        byte = os.read(self._answers, 1)
        if byte == AGAIN:
            self.owes = False
            return None
        if not byte:
            raise ChildEndedError(self._child.how())
        kind, content = self._child.receive(seconds, _LISTED, _ANSWER)
        self.owes = False
        if kind == "done":
            return content
        if isinstance(content[0], MemoryError):
            raise ChildEndedError("out of memory")
        raise_answered(*content)

    def _judge(self, error: BaseException, stage: str, seconds: float | None) -> None:
        """Raise what an error means; return where it is the backend's own.

        Raises:
            CrashedError: the process ended, or gave no answer in time.
        """
        if isinstance(error, TimeoutError):
            how = f"no answer for {seconds:g} s"
        elif isinstance(error, ChildEndedError):
            how = error.how
        elif isinstance(error, BrokenPipeError):
            how = self._child.how()
        elif isinstance(error, Exception):
            return
        else:
            # Interrupted: an answer to this would be taken for one to the next question.
            self.kill()
            return
        self.kill()
        raise CrashedError(self._engine, stage, how) from error


def _end(child: Child, descriptors: tuple[int, ...]) -> None:
    child.kill()
    _close(descriptors)


def _close(descriptors: tuple[int, ...]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


class IsolatedExecutable:
    """An artifact loaded in another process; calls from several threads wait for one another.

    The process opens it anew after a run that failed, and a new one is started after a crash.
    """

    is_apart: ClassVar[bool] = True

    def __init__(
        self,
        engine: str,
        start: Callable[[], tuple[_Process, Any]],
        give_back: Callable[[_Process], None],
        run_s: float | None,
        memory_mb: float | None = None,
        notes: tuple[str, ...] = (),
    ) -> None:
        self._engine, self._start, self._give_back, self._run_s = engine, start, give_back, run_s
        self._memory_mb, self._looked = memory_mb, 0.0
        self.notes = self._first_notes = notes
        self._lock = forks.lock()
        self._is_closed = self._is_asked = False
        self._crash: CrashedError | None = None
        self._crashes, self._not_before = 0, 0.0
        self._process: _Process | None = None
        self._inputs: dict[str, Array] | None = None
        self._outputs: dict[str, Array] = {}
        self._begin()
        forks.watch(self)

    def forked(self) -> None:
        """Leave the parent its process; the next run starts another one here."""
        self._process, self._inputs, self._outputs = None, None, {}
        self._crash, self._crashes, self._is_asked = None, 0, False

    @property
    def process_mb(self) -> float:
        """What the other process holds; 0 while there is none."""
        process = self._process
        return 0.0 if process is None else process.resident_mb()

    @property
    def last_run_s(self) -> float:
        """How long the last run took inside the other process."""
        return 0.0 if self._process is None else self._process.memory.seconds

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """Run once; outputs are owned by the caller.

        Raises:
            RunError: as the backend.
            CrashedError: the engine crashed; the next call starts it again.
            ClosedError: after ``close``.
        """
        with self._lock:
            return {name: array.copy() for name, array in self._run(feeds).items()}

    def bind(self, inputs: Feeds, outputs: Feeds) -> Bound:
        """Fix the buffers of all inputs and outputs; each call copies them in and out.

        Raises:
            RunError: a buffer does not fit.
            ClosedError: after ``close``.
        """
        if self._is_closed:
            self._refuse()
        types = {s.name: array_type(s.dtype) for s in (*self.inputs, *self.outputs)}
        ins = check_buffers("input", self.inputs, inputs, types)
        outs = check_buffers("output", self.outputs, outputs, types)
        return _Bound(self._run, self._lock, ins, outs)

    def renew(self) -> None:
        """End the process; the next run starts another one."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        process, self._process, self._inputs, self._outputs = self._process, None, None, {}
        self._is_asked = False
        if process is not None:
            process.kill()

    def coverage(self) -> Coverage | None:
        """As the backend; None where it does not say or its process is gone."""
        with self._lock:
            if self._process is None:
                return None
            found: Coverage | None = self._process.ask("say what it took", self._run_s, "coverage")
            return found

    def placement(self) -> Placement | None:
        """As the backend; None where it does not say or its process is gone."""
        with self._lock:
            if self._process is None:
                return None
            stage = "say where operators run"
            found: Placement | None = self._process.ask(stage, self._run_s, "placement")
            return found

    def close(self) -> None:
        """Free the engine's memory; a second call does nothing."""
        with self._lock:
            process, self._process, self._is_closed = self._process, None, True
        if process is None:
            return
        try:
            process.ask("close the artifact", self._run_s, "close")
        except BackendError:
            process.kill()
        else:
            self._give_back(process)

    def _run(self, feeds: Feeds) -> dict[str, Array]:
        """Run once; the outputs are in the shared memory until the next run."""
        if self._is_asked:
            # Ctrl-C broke a run off: its answer would be taken for the one to this question.
            self._drop()
        process = self._process or self._restarted()
        self._is_asked = True
        try:
            if self._inputs is not None and alike(feeds, self._inputs):
                _fill(self._inputs, feeds)
                found = process.run_again(self._run_s)
            else:
                found = self._run_anew(process, feeds)
            if found is not None:
                # The other process may have made the memory longer.
                process.memory.reserve(max((s.end for s in found), default=0))
                self._outputs = process.memory.view(found)
        except CrashedError as error:
            self._lost(error)
            raise
        except Exception as error:
            self._inputs = None
            # Memory may have been short here, before the answer was read.
            if process.owes or not process.is_alive():
                self._drop()
            self._is_asked = False
            if isinstance(error, _NOT_OPENED):
                # A process that memory was short in, when it began too, does not get over that.
                self._drop()
                raise self._not_opened(error) from error
            raise
        self._crashes = 0
        self._is_asked = False
        if self._memory_mb is not None and time.monotonic() - self._looked > _LOOK_S:
            self._looked = time.monotonic()
            self._renew_if_large(process, self._memory_mb)
        return self._outputs

    def _renew_if_large(self, process: _Process, limit_mb: float) -> None:
        """End a process that holds too much; the outputs stay, the next run starts another."""
        held_mb = process.resident_mb()
        if held_mb <= limit_mb:
            return
        self._outputs = {name: array.copy() for name, array in self._outputs.items()}
        self._process, self._inputs = None, None
        process.kill()
        note = (
            f"{self._engine}: its process held {held_mb:.0f} MB, memory_mb is {limit_mb:.0f}: "
            "ended, and started anew by the next run"
        )
        self.notes = (*self._first_notes, note)
        _log.warning("%s", note)

    def _run_anew(self, process: _Process, feeds: Feeds) -> list[Slot] | None:
        """Lay the inputs out, and run."""
        slots, end = lay_out(feeds, HEAD)
        process.memory.reserve(end)
        shared = [slot for slot in slots if slot.text is None]
        views = process.memory.view(shared)
        _fill(views, feeds)
        # Text is described anew each time.
        self._inputs = views if len(shared) == len(slots) else None
        found: list[Slot] | None = process.ask("run", self._run_s, "run", slots, end)
        return found

    def _begin(self) -> None:
        self._process, (self.inputs, self.outputs) = self._start()
        self._inputs = None

    def _restarted(self) -> _Process:
        if self._is_closed:
            self._refuse()
        wait = self._not_before - time.monotonic()
        if self._crash is not None and wait > 0:
            error = self._crash
            hint = f"it will be started again in {wait:.1f} s"
            raise CrashedError(error.engine, error.stage, error.how, hint) from error
        try:
            self._begin()
        except CrashedError as error:
            self._lost(error)
            raise
        except _NOT_OPENED as error:
            raise self._not_opened(error) from error
        if self._process is None:
            raise ClosedError(f"backend {self._engine!r}: used after close()")
        if self._crash is not None:
            _log.warning("%s was started again after a crash: %s", self._engine, self._crash.how)
        return self._process

    def _not_opened(self, error: BackendError) -> RunError:
        return RunError(
            f"{self._engine}: it could not be opened anew for this run: {one_line(error)}; the "
            "next run tries again"
        )

    def _lost(self, error: CrashedError) -> None:
        """Remember a crash: the first is forgiven at once, further ones in a row ever later."""
        self._process, self._crash, self._is_asked = None, error, False
        pause = min(_FIRST_PAUSE_S * 2 ** (self._crashes - 1), _LONGEST_PAUSE_S)
        self._not_before = time.monotonic() + (pause if self._crashes else 0.0)
        self._crashes += 1

    def _refuse(self) -> None:
        raise ClosedError(f"backend {self._engine!r}: used after close()")


def _fill(buffers: dict[str, Array], feeds: Feeds) -> None:
    for name, buffer in buffers.items():
        np.copyto(buffer, feeds[name])


class _Bound:
    """Buffers that are copied in and out by each call."""

    def __init__(
        self,
        run: Callable[[Feeds], dict[str, Array]],
        lock: threading.Lock,
        inputs: dict[str, Array],
        outputs: dict[str, Array],
    ) -> None:
        self.inputs: Feeds = MappingProxyType(inputs)
        self.outputs: Feeds = MappingProxyType(outputs)
        self._run, self._lock = run, lock

    def __call__(self) -> None:
        """Run once over the bound buffers."""
        with self._lock:
            results = self._run(self.inputs)
            for name, buffer in self.outputs.items():
                if results[name].shape != buffer.shape:
                    raise RunError(
                        f"bind: output {name!r}: the buffer has shape {buffer.shape}, "
                        f"the result {results[name].shape}"
                    )
                buffer[...] = results[name]
