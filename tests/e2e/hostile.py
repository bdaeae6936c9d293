"""A hostile life for sessions: forks, signals, kills and memory that runs out, in random order.

    python -m tests.e2e.hostile BUNDLE EVENTS SEED

The bundle's model is y = softmax(relu(x w)) with an open first axis and the weights of ``weights``.
Worlds are processes that load it in every way and on every engine; each lives through some events.
What is wrong is printed as JSON: answers that are not the input's own, errors that nobody was told
to expect, and worlds that did not end in time.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import os
import random
import resource
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import edgeinfer
from edgeinfer.backends import registry
from edgeinfer.errors import CrashedError, EdgeInferError, RunError
from edgeinfer.types import Array
from tests.patience import Patience

SIZE = 64
OWN_S = 60.0
"""What a forked process may take of its own time: what it runs and sleeps, not what it waits for a
processor. It takes seconds; whoever waits for one that waits for one has that time once more."""
EVENTS = 25
"""Events of one world."""
LARGE = 60_000
"""Rows of a batch that does not fit into the memory that is left."""
SPARE = 24 << 20

Run = Callable[[Array], Array]


def weights() -> Array:
    """Return the model's weights."""
    return np.random.default_rng(7).standard_normal((SIZE, SIZE)).astype(np.float32) / 4


def right(x: Array) -> Array:
    """Return the answer, in float64."""
    z = np.maximum(x.astype(np.float64) @ weights(), 0)
    e = np.exp(z - z.max(axis=1, keepdims=True))
    answer: Array = e / e.sum(axis=1, keepdims=True)
    return answer


def inputs() -> list[tuple[Array, Array]]:
    """Return inputs of several sizes with their answers; no two answers are close."""
    rng = np.random.default_rng(1)
    made = [rng.standard_normal((n, SIZE)).astype(np.float32) for n in (1, 2, 1, 5, 1, 3)]
    return [(x, right(x)) for x in made]


class WrongError(Exception):
    """An answer is another one's."""


class World:
    """A process with sessions of one engine, used in every way.

    Args:
        bundle: of the model.
        backend: the engine.
        threads: of it.
        rng: of the events.
    """

    def __init__(self, bundle: str, backend: str, threads: int, rng: random.Random) -> None:
        self.rng, self.inputs = rng, inputs()
        options: dict[str, Any] = {"backend": backend, "threads": threads, "measure": False}
        self.session = edgeinfer.load(bundle, **options)
        self.apart = edgeinfer.load(bundle, isolate=True, **options)
        self.runtime = edgeinfer.Runtime(threads=1)
        del options["threads"]
        self.model = self.runtime.add(bundle, **options)
        self.buffers = [self.session.bind({"x": x.copy()}) for x, _ in self.inputs[:2]]
        self.ways: list[Run] = [
            lambda x: self.session.run({"x": x})["y"],
            lambda x: self.session.run_async({"x": x}).result()["y"],
            self.bound,
            lambda x: self.apart.run({"x": x})["y"],
            lambda x: self.model.run({"x": x})["y"],
            lambda x: self.model.submit({"x": x}).result()["y"],
        ]
        self.running: list[threading.Thread] = []
        self.stop = False
        self.faults: list[str] = []

    def bound(self, x: Array) -> Array:
        """Run over bound buffers of the input's size, where there are some."""
        for bound in self.buffers:
            if bound.inputs["x"].shape == x.shape:
                bound.inputs["x"][...] = x
                return bound()["y"].copy()
        return self.session.run({"x": x})["y"]

    def ask(self, way: int | None = None) -> None:
        """Run once in one of the ways, and compare."""
        x, y = self.rng.choice(self.inputs)
        way = self.rng.randrange(len(self.ways)) if way is None else way
        found = self.ways[way](x)
        if found.shape != y.shape or not np.allclose(found, y, atol=1e-4):
            raise WrongError(f"way {way}, {x.shape}: {found.shape}, off by {_off(found, y)}")

    def begin(self) -> None:
        """Have another thread run all the time."""

        def run() -> None:
            rng = random.Random(5)
            while not self.stop:
                x, y = rng.choice(self.inputs)
                try:
                    found = self.session.run({"x": x})["y"]
                except EdgeInferError:
                    # A fault that was made for the main thread.
                    continue
                if found.shape != y.shape or not np.allclose(found, y, atol=1e-4):
                    self.faults.append(f"thread, {x.shape}: off by {_off(found, y)}")
                time.sleep(0.001)

        self.stop = False
        self.running = [threading.Thread(target=run, daemon=True)]
        self.running[0].start()

    def end(self) -> None:
        """Let it come to its end."""
        self.stop = True
        for thread in self.running:
            thread.join()
        self.running = []

    def fork(self, deep: int = 1) -> None:
        """Fork, and see to the other process: all its answers are right, and it ends."""
        way = self.rng.randrange(4)
        child = os.fork()
        if child == 0:
            self._be_forked(way, deep)
        _reap(child, OWN_S * (1 + deep), killed=way == 3)

    def _be_forked(self, way: int, deep: int) -> None:
        self.rng = random.Random(os.getpid())
        self.running = []
        try:
            if deep and self.rng.random() < 0.2:
                self.fork(deep - 1)
            for _ in range(3):
                self.ask()
        except SystemExit:
            raise
        except BaseException as error:
            _tell(f"forked: {type(error).__name__}: {error}")
            os._exit(9)
        if way == 0:
            os._exit(0)
        if way == 3:
            threading.Timer(self.rng.random() / 50, os.kill, (os.getpid(), signal.SIGKILL)).start()
            while True:
                with contextlib.suppress(RuntimeError):
                    self.ask()
        if way == 1:
            self.session.close()
            self.runtime.close()
            del self.session, self.apart, self.buffers
            gc.collect()
        # The interpreter's own end, with everything that runs there.
        raise SystemExit(0)

    def kill_engine(self) -> None:
        """Kill the processes of engines; one run of each may tell so, the next is right."""
        for number in _children():
            os.kill(number, signal.SIGKILL)
        # A session whose load was killed before has a process of its own without being asked.
        for way in range(len(self.ways)):
            with contextlib.suppress(CrashedError):
                self.ask(way)
        # After a second crash in a row it is started again later.
        tries = 300
        for way in range(len(self.ways)):
            while True:
                try:
                    self.ask(way)
                    break
                except CrashedError:
                    if not (tries := tries - 1):
                        raise
                    time.sleep(0.1)

    def interrupt(self) -> None:
        """Break a run off by Ctrl-C; what follows is right."""
        with contextlib.suppress(KeyboardInterrupt), _interrupts(self.rng.random() / 200):
            for _ in range(200):
                self.ask(self.rng.choice((0, 2, 3, 4)))

    def run_short(self) -> None:
        """Run out of memory in a process of its own, some times; what follows is right.

        There, because an engine's own threads may end their process then.
        """
        child = os.fork()
        if child:
            _reap(child, OWN_S, killed=False, aborts=True)
            return
        try:
            self._be_short()
        except WrongError as error:
            _tell(f"short of memory: {error}")
            os._exit(9)
        os._exit(0)

    def _be_short(self) -> None:
        self.ask(0)
        large = np.zeros((LARGE, SIZE), np.float32)
        with open("/proc/self/statm", encoding="utf-8") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + SPARE, -1))
        for _ in range(self.rng.randrange(1, 3)):
            with contextlib.suppress(RunError, MemoryError):
                self.session.run({"x": large})
        with contextlib.suppress(RunError, MemoryError):
            self.ask(0)
        # There is memory again, also for engines that were started while there was none.
        for number in (os.getpid(), *_children()):
            resource.prlimit(number, resource.RLIMIT_AS, (-1, -1))
        del large
        for _ in range(4):
            self.ask(self.rng.choice((0, 2)))

    def live(self, events: int, beat: Callable[[], object]) -> None:
        """Live through some events, and tell after each that it is over."""
        chances = {self.fork: 6, self.interrupt: 2, self.kill_engine: 1, self.run_short: 1}
        for _ in range(events):
            is_busy = self.rng.random() < 0.3
            if is_busy:
                self.begin()
            event = self.rng.choices([*chances], [*chances.values()])[0]
            try:
                event()
                self.ask()
            finally:
                if is_busy:
                    self.end()
            beat()
        if self.faults:
            raise WrongError(self.faults[0])


def _off(found: Array, y: Array) -> str:
    return f"{np.abs(found - y).max():.3g}" if found.shape == y.shape else "its shape"


def _tell(text: str) -> None:
    os.write(1, f"fault: {text}\n".encode())


def _children() -> list[int]:
    path = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    found = path.read_text(encoding="utf-8").split()
    return [int(number) for number in found]


@contextlib.contextmanager
def _interrupts(seconds: float) -> Iterator[None]:
    """Raise KeyboardInterrupt in the main thread after a while."""

    def raise_it(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, raise_it)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-4))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _reap(
    child: int, seconds: float, *, killed: bool, aborts: bool = False, beats: int | None = None
) -> None:
    """Wait for the end of a process; one that does not end in its own time is killed and told.

    One that tells of its events through a pipe has that time for each.
    """
    patience = Patience(child, seconds)
    while True:
        number, status = os.waitpid(child, os.WNOHANG)
        if number:
            break
        with contextlib.suppress(BlockingIOError):
            if beats is not None and os.read(beats, EVENTS):
                patience.renew()
        if patience.is_over():
            os.kill(child, signal.SIGABRT)
            os.waitpid(child, 0)
            raise WrongError("a forked process did not end")
        time.sleep(0.002)
    code = os.waitstatus_to_exitcode(status)
    if code == 0 or (killed and code == -signal.SIGKILL) or (aborts and code == -signal.SIGABRT):
        return
    raise WrongError(f"a forked process ended with {code}")


def live(
    bundle: str, backend: str, threads: int, seed: int, events: int, beat: Callable[[], object]
) -> int:
    """Be a world, in a process of its own; return its exit code."""
    faulthandler.enable()
    try:
        World(bundle, backend, threads, random.Random(seed)).live(events, beat)
    except SystemExit:
        raise
    except BaseException as error:
        _tell(f"{backend}, {threads} threads, seed {seed}: {type(error).__name__}: {error}")
        return 9
    return 0


def _left() -> list[str]:
    return [name for name in os.listdir(tempfile.gettempdir()) if name.startswith("edgeinfer-")]


def main(bundle: str, events: int, seed: int) -> int:
    """Make worlds until all events have happened; print what went wrong."""
    with edgeinfer.Bundle.open(bundle) as opened:
        named = {e.backend: None for v in opened.manifest.variants for e in v.engines}
    engines = [name for name in named if registry.get(name).probe().available]
    rng, happened, worlds = random.Random(seed), 0, 0
    while happened < events:
        backend = engines[worlds % len(engines)]
        count = min(EVENTS, events - happened, 1 + events // len(engines))
        arguments = (bundle, backend, rng.choice((1, 2)), rng.randrange(1 << 30), count)
        beats, told = os.pipe()
        os.set_blocking(beats, False)
        child = os.fork()
        if child == 0:
            os._exit(live(*arguments, partial(os.write, told, b".")))
        os.close(told)
        try:
            _reap(child, 3 * OWN_S, killed=False, beats=beats)
        except WrongError as error:
            _tell(f"world {arguments[1:]}: {error}")
        os.close(beats)
        happened, worlds = happened + count, worlds + 1
    # Engines' processes see to theirs when they see that nobody is left to ask them.
    until = time.monotonic() + 2
    while (left := _left()) and time.monotonic() < until:
        time.sleep(0.02)
    found = {"events": happened, "worlds": worlds, "engines": engines, "left": left}
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
