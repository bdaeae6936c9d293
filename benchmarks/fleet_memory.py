"""What many models in one process hold: arenas in common against one each, weights once or often.

    python -m benchmarks.fleet_memory [--models 60] [--rounds 40] [--length 128]
    python -m benchmarks.fleet_memory --bundle model.edge [--models 8]

Without a bundle: small models in two runtimes, one with ONNX Runtime's common arena, one whose
sessions have their own; rounds in turns, calls a second as a ratio, memory that loading and the
first runs took. Exits with 1 where the common one is more than 5 % slower or takes more.

With a bundle: so many models of it in one runtime, and so many calls of ``load``, each in a process
of its own, for every engine that runs it here.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import edgeinfer
from benchmarks.tiny import SEQUENCE, bundle
from edgeinfer.backends import registry
from edgeinfer.errors import EdgeInferError
from edgeinfer.machine.pages import resident_mb
from edgeinfer.runtime.profiledb import ProfileDB
from edgeinfer.types import Array, Feeds

SLOWER = 0.95
WAYS = ("runtime", "load")


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--length", type=int, default=128, help="of the sequences")
    parser.add_argument("--bundle", type=Path)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        backend, way = arguments.one
        print(_held(arguments.bundle, backend, way, arguments.models))
        return 0
    if arguments.bundle:
        return _weights(arguments.bundle, arguments.models or 8)
    return _arenas(arguments.models or 60, arguments.rounds, arguments.length)


def _arenas(count: int, rounds: int, length: int) -> int:
    rng = np.random.default_rng(0)
    feeds = {"x": rng.standard_normal((1, length, 64), np.float32)}
    with tempfile.TemporaryDirectory() as temporary, ProfileDB(Path(temporary) / "h") as history:
        paths = [bundle(SEQUENCE, Path(temporary) / f"{i}.edge", feeds) for i in range(count)]
        kinds: dict[bool, list[edgeinfer.Model]] = {}
        memory: dict[bool, float] = {}
        for pooled in (False, True):
            before = resident_mb()
            runtime = edgeinfer.Runtime(history=history)
            options: dict[str, Any] = {"measure": False, "backend": "onnxruntime"}
            options["pooled"] = pooled
            kinds[pooled] = [runtime.add(p, name=str(i), **options) for i, p in enumerate(paths)]
            _all(kinds[pooled], feeds)
            memory[pooled] = resident_mb() - before
        ratios = []
        for number in range(rounds):
            order = (False, True) if number % 2 else (True, False)
            took = {pooled: _all(kinds[pooled], feeds) for pooled in order}
            ratios.append(took[False] / took[True])
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(
        f"{count} models, sequences of {length}: common arena {middle:.3f} times the calls a "
        f"second of one each (quartiles {low:.3f} .. {high:.3f}, n={rounds}); "
        f"{memory[True]:.1f} MB instead of {memory[False]:.1f}"
    )
    return int(middle < SLOWER or memory[True] > memory[False])


def _all(models: list[edgeinfer.Model], feeds: Feeds) -> float:
    start = time.perf_counter()
    for future in [model.submit(feeds) for model in models]:
        future.result()
    return time.perf_counter() - start


def _weights(path: Path, count: int) -> int:
    with edgeinfer.Bundle.open(path) as opened:
        named = {e.backend for v in opened.manifest.variants for e in v.engines}
        largest = max(v.size_bytes for v in opened.manifest.variants) / 2**20
    print(f"{path.name}, {largest:.1f} MB the largest variant; {count} models, MB held")
    for backend in sorted(named):
        if not registry.get(backend).probe().available:
            continue
        held = []
        for way in WAYS:
            command = [sys.executable, "-m", "benchmarks.fleet_memory", "--bundle", str(path)]
            command += ["--models", str(count), "--one", backend, way]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            held.append(done.stdout.strip() or done.stderr.strip().splitlines()[-1])
        print(f"{backend:14} in one Runtime {held[0]}, by load {held[1]}", flush=True)
    return 0


def _held(path: Path, backend: str, way: str, count: int) -> str:
    """Memory of so many models, beyond that of one that was loaded, run and closed before."""
    options: dict[str, Any] = {"backend": backend, "measure": False}
    try:
        with edgeinfer.load(path, threads=1, **options) as session:
            feeds = _zeros(session)
            session.run(feeds)
        before = resident_mb()
        if way == "runtime":
            runtime = edgeinfer.Runtime()
            models = [runtime.add(path, name=str(i), **options) for i in range(count)]
            outputs = [model.run(feeds) for model in models]
        else:
            sessions = [edgeinfer.load(path, threads=1, **options) for _ in range(count)]
            outputs = [session.run(feeds) for session in sessions]
    except EdgeInferError as error:
        return str(error)
    return f"{resident_mb() - before:.0f}" if outputs else ""


def _zeros(session: edgeinfer.Session) -> dict[str, Array]:
    """Inputs with one of every size that is open."""
    return {
        s.name: np.zeros([d if isinstance(d, int) else 1 for d in s.shape or ()], s.dtype)
        for s in session.inputs
    }


if __name__ == "__main__":
    sys.exit(main())
