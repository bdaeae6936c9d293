"""Steps of a language model, next to llama.cpp on the same file, in turns.

    python -m benchmarks.llm BUNDLE GGUF --peer FOLDER --cpu haswell [--threads 1] [--rounds 16]
        [--cache float16] [--context 64] [--what 1,2,4,8,16,p512,v2,v4,b1] [--busy 0] [--each 1]

BUNDLE was made of GGUF; benchmarks/llamacpp.py says where FOLDER comes from. A number is that many
sequences that decode a token each behind ``--context`` others, ``p`` a prompt of so many tokens,
``v`` our own steps alone: so many tokens of one sequence, as guesses are verified, over one. Both
engines run in this process, one step of each after the other, or ``--each`` steps: with one alone
each finds the other's weights in a cache that could hold its own. With one thread the CPU time of
the process counts, otherwise wall time; printed are the median of the ratios of neighbours, its
quartiles, and median and least times. ``--busy`` starts so many processes that keep processors
busy; ``b`` is our own steps next to them over such while they stand still, before the other engine
is loaded, whose threads look for work for a while after each of its steps. ``--profile`` prints
where our time goes instead.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.llamacpp import Library, Part, Peer
from edgeinfer.backends.llm.backend import open_native
from edgeinfer.backends.llm.executor import NativeExecutor
from edgeinfer.backends.llm.sizes import ExecutorSizes
from edgeinfer.bundle.archive import Bundle
from edgeinfer.cli import roofline
from edgeinfer.llm.step import PAGE, StepBatch
from edgeinfer.llm.tape import Products, Tape
from edgeinfer.types import Array

SEQUENCES = 16
LEAST_CONTEXT = 1024


@dataclass(frozen=True, slots=True)
class Ours:
    """Our executor, with a table of pages that lie in no order."""

    executor: NativeExecutor
    table: Array

    def batch(self, parts: Sequence[Part]) -> StepBatch:
        """A step of these parts."""
        tokens: list[int] = []
        positions: list[int] = []
        owner: list[int] = []
        rows: list[int] = []
        for sequence, ids, first, last in parts:
            tokens += [int(i) for i in ids]
            rows += range(len(tokens) - last, len(tokens))
            positions += range(first, first + len(ids))
            owner += [sequence] * len(ids)
        t, p, o, r = (np.array(v, np.int32) for v in (tokens, positions, owner, rows))
        return StepBatch(tokens=t, positions=p, owner=o, table=self.table, rows=r)

    def step(self, parts: Sequence[Part]) -> Array:
        """Decode."""
        return self.executor.step(self.batch(parts))


def longest(context: int, steps: int) -> int:
    """Tokens that a sequence has room for, whole pages of both engines, behind that many steps."""
    return max(LEAST_CONTEXT, -(-(context + steps) // 256) * 256)


def opened(bundle: Bundle, cache: str, threads: int, most: int) -> Ours:
    """Open the language model of a bundle, for sequences of so many tokens."""
    variant = next(v for v in bundle.manifest.variants if v.format == "llm")
    folder = bundle.paths(variant)[0].parent
    pages = SEQUENCES * most // PAGE
    sizes = ExecutorSizes(pages, 512, SEQUENCES, most, cache, threads)
    order = np.random.default_rng(0).permutation(pages).astype(np.int32)
    return Ours(open_native(folder, sizes), order.reshape(SEQUENCES, -1))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("bundle")
    parser.add_argument("gguf", type=Path)
    parser.add_argument("--peer", type=Path, required=True)
    parser.add_argument("--cpu", default="haswell")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--cache", default="float16", choices=("float16", "uint8", "uint4"))
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--what", default="1,2,4,8,16,p512")
    parser.add_argument("--busy", type=int, default=0)
    parser.add_argument("--each", type=int, default=1)
    parser.add_argument("--profile", action="store_true")
    asked = parser.parse_args()
    with neighbours(asked.busy) as busy, Bundle.open(asked.bundle, native="allow") as bundle:
        most = longest(asked.context, (asked.rounds + 1) * asked.each + SEQUENCES)
        ours = opened(bundle, asked.cache, asked.threads, most)
        ids = np.random.default_rng(0).integers(100, 30000, (SEQUENCES, most))
        if asked.profile:
            return profile(ours, ids, asked.context, asked.what)
        kinds = asked.what.split(",")
        for kind in (k for k in kinds if k.startswith("b")):
            beside(busy, ours, ids, (int(kind[1:]), asked.context, asked.rounds))
        kinds = [k for k in kinds if not k.startswith("b")]
        if not kinds:
            return None
        peer = Peer(
            *(Library(asked.peer, asked.cpu), asked.gguf),
            threads=asked.threads,
            context=most,
            sequences=SEQUENCES,
            cache=8 if asked.cache == "uint8" else 1,
        )
        clock = time.process_time if asked.threads == 1 else time.perf_counter
        for what in kinds:
            turns = Turns(ours, peer, ids, asked.context, asked.rounds, asked.each, clock)
            turns.run(what)
    return None


@contextmanager
def neighbours(count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that compute without end."""
    loop = [sys.executable, "-c", "while True: pass"]
    started = [subprocess.Popen(loop) for _ in range(count)]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


def beside(
    busy: Sequence[subprocess.Popen[bytes]], ours: Ours, ids: Array, given: tuple[int, int, int]
) -> None:
    """Print what steps of some sequences take next to busy processes, and while these stand still.

    Args:
        busy: the processes.
        ours: our executor.
        ids: Tokens of each sequence.
        given: sequences, tokens before, and rounds.
    """
    count, context, rounds = given
    fill(ours.step, ids, count, context)
    parts: list[Part] = [(s, list(ids[s, context : context + 1]), context, 1) for s in range(count)]
    found = []
    for _ in range(rounds):
        both = []
        for name in ("SIGCONT", "SIGSTOP"):
            for process in busy:
                process.send_signal(signal.Signals[name])
            times = [_timed(time.perf_counter, ours.step, parts) for _ in range(_STEPS)]
            both.append(np.median(times[_STEPS // 5 :]))
        found.append(both)
    for process in busy:
        process.send_signal(signal.SIGCONT)
    mine, quiet = np.array(found).T
    low, middle, high = np.percentile(mine / quiet, [25, 50, 75])
    print(
        f"beside {len(busy)} busy processes, {count}: {middle:.2f} ({low:.2f}-{high:.2f}) of the "
        f"quiet step, {np.median(mine) * 1e3:.2f} and {np.median(quiet) * 1e3:.2f} ms, n {rounds}",
        flush=True,
    )


_STEPS = 50


def _timed(clock: Callable[[], float], step: Callable[[list[Part]], object], *parts: Any) -> float:
    start = clock()
    for part in parts:
        step(part)
    return (clock() - start) / len(parts)


@dataclass(frozen=True, slots=True)
class Turns:
    """Both engines on the same work, one step after the other."""

    ours: Ours
    peer: Peer
    ids: Array
    context: int
    rounds: int
    each: int
    clock: Callable[[], float]

    def run(self, what: str) -> None:
        """Measure one kind of step and print it."""
        for sequence in range(SEQUENCES):
            self.peer.forget(sequence)
        if what.startswith("v"):
            self._verify(int(what[1:]))
            return
        if what.startswith("p"):
            count, rounds = int(what[1:]), max(3, self.rounds // 5)
        else:
            count, rounds = int(what), self.rounds
            fill(self.ours.step, self.ids, count, self.context)
            fill(self.peer.step, self.ids, count, self.context)
        times = [self._round(what, count, r) for r in range(rounds + 1)][1:]
        mine, theirs = np.array(times).T
        low, middle, high = np.percentile(theirs / mine, [25, 50, 75])
        unit = f"context {self.context}" if not what.startswith("p") else "prompt"
        print(
            f"{what:>5} {unit}: ours {np.median(mine) * 1e3:8.2f} ({mine.min() * 1e3:.2f}) ms, "
            f"llama.cpp {np.median(theirs) * 1e3:8.2f} ({theirs.min() * 1e3:.2f}) ms, "
            f"ratio {middle:.2f} ({low:.2f}-{high:.2f}), of the least "
            f"{theirs.min() / mine.min():.2f}, n {len(times)}, load {os.getloadavg()[0]:.1f}",
            flush=True,
        )

    def _decoded(self, count: int, at: int) -> list[Part]:
        """A token of each sequence."""
        return [(s, list(self.ids[s, at : at + 1]), at, 1) for s in range(count)]

    def _verify(self, count: int) -> None:
        """Time a step that verifies guesses over one without."""
        fill(self.ours.step, self.ids, 1, self.context)
        found = []
        for number in range(self.rounds + 1):
            at = self.context + number
            one: list[Part] = [(0, list(self.ids[0, at : at + 1]), at, 1)]
            more: list[Part] = [(0, list(self.ids[0, at : at + count]), at, count)]
            both = [_timed(self.clock, self.ours.step, part) for part in (more, one)]
            found.append(both[0] / both[1])
        low, middle, high = np.percentile(found[1:], [25, 50, 75])
        print(
            f"verify {count}: {middle:.2f} ({low:.2f}-{high:.2f}) of a step of one, "
            f"n {len(found) - 1}",
            flush=True,
        )

    def _round(self, what: str, count: int, number: int) -> tuple[float, float]:
        steps: list[list[Part]] = []
        if what.startswith("p"):
            steps.append([(0, list(self.ids[0, :count]), 0, 1)])
            self.peer.forget(0)
        else:
            first = self.context + number * self.each
            steps += (self._decoded(count, at) for at in range(first, first + self.each))
        if number % 2:
            mine = _timed(self.clock, self.ours.step, *steps)
            return mine, _timed(self.clock, self.peer.step, *steps)
        theirs = _timed(self.clock, self.peer.step, *steps)
        return _timed(self.clock, self.ours.step, *steps), theirs


def fill(step: Callable[[list[Part]], object], ids: Array, count: int, context: int) -> None:
    """Read the beginnings of sequences."""
    for sequence in range(count):
        for first in range(0, context, 256):
            step([(sequence, list(ids[sequence, first : min(context, first + 256)]), first, 1)])


def product_bytes(tape: Tape) -> dict[str, int]:
    """Bytes of weights that a step's products read, by kernel."""
    found: dict[str, int] = {}
    for phase in tape.phases:
        for call in phase.calls.values() if isinstance(phase, Products) else ():
            for name in (a[2:] for a in call.arguments if a.startswith("w:")):
                array = tape.weights[name]
                size = int(np.prod(array.shape)) * np.dtype(array.dtype).itemsize
                found[call.kernel] = found.get(call.kernel, 0) + size
    return found


def profile(ours: Ours, ids: Array, context: int, what: str) -> None:
    """Print where our time goes, and how fast products read next to a loop that only reads."""
    roof = roofline.measure(1).gb_s
    read = product_bytes(ours.executor.tape)
    for kind in what.split(","):
        if kind.startswith("p"):
            parts: list[Part] = [(0, list(ids[0, : int(kind[1:])]), 0, 1)]
        else:
            fill(ours.step, ids, int(kind), context)
            parts = [(s, list(ids[s, context : context + 1]), context, 1) for s in range(int(kind))]
        best = ours.executor.profile(ours.batch(parts), runs=9)
        print(f"{kind}: {sum(best.values()) / 1e3:.2f} ms")
        for name, us in sorted(best.items(), key=lambda i: -i[1])[:14]:
            speed = read.get(name, 0) / us / 1e3
            share = f"  {speed:.1f} GB/s, {speed / roof:.2f} of {roof:.1f}" if speed else ""
            print(f"    {us:9.0f} us  {name}{share}")
        products = sum(us for name, us in best.items() if name in read)
        speed = sum(read[name] for name in best if name in read) / products / 1e3
        print(f"    products together {speed:.1f} GB/s, {speed / roof:.2f} of {roof:.1f}")


if __name__ == "__main__":
    main()
