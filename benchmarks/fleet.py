"""A hundred small models at once in one ``Runtime``, against running them one after another.

    python -m benchmarks.fleet [--models 100] [--rounds 12] [--length 128] [--callers 4]

Each round calls every model once, first one after another (sessions of one thread and sessions of
all threads, the faster counts), then all at once through the runtime, then from some threads of
which each waits for every call. Rounds alternate. Exits 1 when the runtime's calls a second, all at
once, fall below 95 % of the faster baseline, when its answers differ, or when memory leaves the
budget. Waiting time at p99 is printed; it is the length of the queue.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import edgeinfer
from benchmarks.tiny import SEQUENCE, bundle
from edgeinfer.machine.cgroup import available_cpus
from edgeinfer.machine.pages import resident_mb
from edgeinfer.runtime.profiledb import ProfileDB
from edgeinfer.types import Array

LIMIT = 0.95


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--length", type=int, default=128, help="of the sequences")
    parser.add_argument("--callers", type=int, default=4, help="threads that wait for each call")
    parser.add_argument("--memory-mb", type=float, default=1000.0)
    arguments = parser.parse_args()
    count = arguments.models
    rng = np.random.default_rng(0)
    feeds = {"x": rng.standard_normal((1, arguments.length, 64), np.float32)}
    with tempfile.TemporaryDirectory() as temporary, ProfileDB(Path(temporary) / "h") as history:
        paths = [bundle(SEQUENCE, Path(temporary) / f"{i}.edge", feeds) for i in range(count)]
        return _race(paths, feeds, history, arguments)


def _against(baselines: list[list[float]], ours: list[float]) -> list[float]:
    """Quartiles of how many times the calls a second of the faster baseline ours gave."""
    return statistics.quantiles((min(b) / o for *b, o in zip(*baselines, ours, strict=True)), n=4)


def _from_threads(models: list[edgeinfer.Model], feeds: dict[str, Array], callers: int) -> None:
    def call(some: list[edgeinfer.Model]) -> None:
        for model in some:
            model.run(feeds)

    threads = [threading.Thread(target=call, args=(models[i::callers],)) for i in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _race(
    paths: list[Path],
    feeds: dict[str, Array],
    history: ProfileDB,
    arguments: argparse.Namespace,
) -> int:
    rounds, memory_mb = arguments.rounds, arguments.memory_mb

    def sessions(threads: int | None) -> list[edgeinfer.Session]:
        return [edgeinfer.load(p, threads=threads, measure=False, history=history) for p in paths]

    single, full = sessions(1), sessions(None)
    expected = single[0].run(feeds)["y"]
    base = resident_mb()
    with edgeinfer.Runtime(history=history, memory_mb=memory_mb) as runtime:
        models = [
            runtime.add(p, name=str(i), measure=False, backend="onnxruntime")
            for i, p in enumerate(paths)
        ]

        def together() -> list[dict[str, Array]]:
            return [f.result() for f in [m.submit(feeds) for m in models]]

        differing = sum(not np.array_equal(y["y"], expected) for y in together())
        runtime.stats(reset=True)
        ways: dict[str, Callable[[], object]] = {
            "one after another, 1 thread": lambda: [s.run(feeds) for s in single],
            "one after another, all threads": lambda: [s.run(feeds) for s in full],
            "runtime": together,
            f"runtime, {arguments.callers} callers": lambda: _from_threads(
                models, feeds, arguments.callers
            ),
        }
        took: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, work in ways.items():
                took[name].append(_seconds(work))
        grown = resident_mb() - base
        runtime.stats(reset=True)
        for _ in range(rounds):
            together()
        waits = [s.calls.p99_ms or 0.0 for s in runtime.stats().values()]
    n = len(paths)
    print(f"machine: {platform.machine()}, {available_cpus()} cores, {n} models, {rounds} rounds")
    for name, seconds in took.items():
        low, middle, high = statistics.quantiles(seconds, n=4)
        rate = n / middle
        print(f"{name:32} {rate:9.0f} calls/s  (quartiles {n / high:.0f} .. {n / low:.0f})")
    *baselines, ours, callers = took.values()
    low, ratio, high = _against(baselines, ours)
    print(
        f"runtime against the faster of both: {ratio:.3f} (quartiles {low:.3f} .. {high:.3f}, "
        f"limit {LIMIT}); callers {_against(baselines, callers)[1]:.3f}"
    )
    print(f"wait and run of a call when {n} come at once: p99 {max(waits):.1f} ms")
    print(
        f"memory of {n} loaded models: {grown:.0f} MB (budget {memory_mb:.0f}); {differing} differ"
    )
    return int(ratio < LIMIT or bool(differing) or grown > memory_mb)


if __name__ == "__main__":
    sys.exit(main())
