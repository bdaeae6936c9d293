"""The process that ``isolated`` runs an engine in."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Callable
from socket import socket

import numpy as np

from edgeinfer.backends import registry
from edgeinfer.backends.base import Artifact, Coverage, Covering, Executable, LoadOptions, Probe
from edgeinfer.backends.operators import OperatorProfile, Placement, Placing, Profiling
from edgeinfer.backends.process import child, isolation
from edgeinfer.backends.process.isolated_memory import HEAD, SharedMemory, Slot, alike, lay_out
from edgeinfer.errors import ClosedError, InputError, NotAvailableError
from edgeinfer.machine.cgroup import available_cpus
from edgeinfer.machine.pages import SMALL_MB, give_back
from edgeinfer.types import Array, TensorSpec

AGAIN, MESSAGE = b"r", b"m"
"""A byte through a pipe wakes the other end: the same layout as before, or read the message."""

SPIN_S = 50e-6
"""How long either end looks for the other's byte before it sleeps: a core that sleeps takes up to
60 µs to wake."""

Specs = tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]


class ExecutableHost:
    """Holds one executable at a time and does what it is asked."""

    def __init__(self, name: str, memory: SharedMemory) -> None:
        self._name, self._memory = name, memory
        self._executable: Executable | None = None
        self._opening: tuple[Artifact, LoadOptions] | None = None
        self._has_failed = False
        self._feeds: dict[str, Array] = {}
        self._end = HEAD
        self.outputs: list[Slot] = []
        self._places: dict[str, Array] | None = None

    def probe(self) -> Probe:
        """Probe the engine."""
        return registry.get(self._name).probe()

    def load(self, artifact: Artifact, options: LoadOptions) -> Specs:
        """Open an artifact and return its inputs and outputs."""
        self._executable = registry.get(self._name).load(artifact, options)
        self._opening, self._has_failed = (artifact, options), False
        give_back(SMALL_MB)
        return self._executable.inputs, self._executable.outputs

    def limit(self, memory_mb: float) -> None:
        """Let no more memory be taken, where the system keeps count of it."""
        with contextlib.suppress(ImportError, OSError, ValueError):
            import resource

            most = int(memory_mb * (1 << 20))
            resource.setrlimit(resource.RLIMIT_DATA, (most, most))

    def run(self, inputs: list[Slot], end: int) -> list[Slot]:
        """Run on inputs that lie elsewhere in memory than before; return where the outputs are."""
        self._memory.reserve(end)
        self._feeds, self._end = self._memory.view(inputs), end
        self._places = None
        self.run_again()
        # The first run makes the engine's own copies of the weights.
        give_back(SMALL_MB)
        return self.outputs

    def run_again(self) -> bool:
        """Run on inputs that lie as before; return whether the outputs do too."""
        executable = self._opened_anew() if self._has_failed else self._executable
        if executable is None:
            raise ClosedError(f"backend {self._name!r}: used after close()")
        start = time.perf_counter()
        try:
            results = executable.run(self._feeds)
        except BaseException as error:
            self._has_failed = not isinstance(error, InputError)
            raise
        seconds = time.perf_counter() - start
        views = self._places
        same = views is not None and alike(results, views)
        if views is None or not same:
            self.outputs, end = lay_out(results, self._end)
            self._memory.reserve(end)
            shared = [slot for slot in self.outputs if slot.text is None]
            views = self._memory.view(shared)
            # With text among them they are described anew each time.
            self._places = views if len(shared) == len(results) else None
        for name, place in views.items():
            np.copyto(place, results[name])
        self._memory.seconds = seconds
        return same

    def _opened_anew(self) -> Executable | None:
        """Open the artifact once more: an engine may keep what a run that failed left in it."""
        if (opening := self._opening) is not None:
            # One that cannot even be closed is dropped all the same.
            with contextlib.suppress(Exception):
                self.close()
            self._executable, self._opening = None, opening
            self.load(*opening)
        return self._executable

    def coverage(self) -> Coverage | None:
        """Ask the executable, where it knows."""
        return self._executable.coverage() if isinstance(self._executable, Covering) else None

    def placement(self) -> Placement | None:
        """Ask the executable, where it knows."""
        return self._executable.placement() if isinstance(self._executable, Placing) else None

    def profile(
        self, artifact: Artifact, options: LoadOptions, feeds: dict[str, Array], runs: int
    ) -> OperatorProfile:
        """Ask the backend what operators cost."""
        backend = registry.get(self._name)
        if not isinstance(backend, Profiling):
            raise NotAvailableError(f"backend {self._name!r} cannot say what operators cost")
        return backend.profile(artifact, options, feeds, runs=runs)

    def close(self) -> None:
        """Close the executable."""
        if self._executable is not None:
            self._executable.close()
        self._executable = self._opening = None
        give_back(SMALL_MB)


def main() -> None:
    """Be the process: answer until the other end goes away."""
    connection, (requests, answers, memory) = child.connect()
    isolation.make_expendable()
    name = child.read(connection)
    host = ExecutableHost(name, SharedMemory(memory))
    spin = spinner(requests)
    while byte := os.read(requests, 1):
        if byte == MESSAGE:
            method, arguments = child.read(connection)
            _answer(host, method, arguments, connection, answers)
        else:
            _run_again(host, connection, answers)
            spin()


def spinner(descriptor: int) -> Callable[[], None]:
    """Return a wait of at most ``SPIN_S`` for a byte, none where both ends share one processor."""
    if available_cpus() < 2:
        return lambda: None
    ready = select.poll()
    ready.register(descriptor, select.POLLIN)

    # Without giving way it would keep the other end from a core that they share for a while.
    give_way = getattr(os, "sched_yield", lambda: None)

    def spin() -> None:
        until = time.perf_counter() + SPIN_S
        while not ready.poll(0) and time.perf_counter() < until:
            give_way()

    return spin


def _run_again(host: ExecutableHost, connection: socket, answers: int) -> None:
    try:
        same = host.run_again()
    except Exception as error:
        _tell(connection, answers, "failed", child.portable(error))
        return
    if same:
        os.write(answers, AGAIN)
    else:
        _tell(connection, answers, "done", host.outputs)


def _answer(
    host: ExecutableHost,
    method: str,
    arguments: tuple[object, ...],
    connection: socket,
    answers: int,
) -> None:
    try:
        result = getattr(host, method)(*arguments)
    except Exception as error:
        _tell(connection, answers, "failed", child.portable(error))
    else:
        _tell(connection, answers, "done", result)


def _tell(connection: socket, answers: int, kind: str, content: object) -> None:
    # The byte first: a long message waits for a reader.
    os.write(answers, MESSAGE)
    child.answer(connection, (kind, content))


if __name__ == "__main__":
    main()
