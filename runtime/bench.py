"""Measuring loaded candidates against each other on the bundled vectors."""

from __future__ import annotations

import math
import random
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field, replace
from functools import partial
from itertools import cycle, islice
from typing import Generic, Protocol, TypeVar

import numpy as np

from edgeinfer.backends.base import Executable
from edgeinfer.bundle.manifest import VectorRecord
from edgeinfer.errors import BackendError, InputError
from edgeinfer.metrics import Budget, check, compare
from edgeinfer.records import dataclass
from edgeinfer.runtime.select import Measured
from edgeinfer.types import Array

K = TypeVar("K")
K_in = TypeVar("K_in", contravariant=True)
Vector = tuple[dict[str, Array], dict[str, Array]]

MIN_ROUNDS = 7
ALONE_ROUNDS = 15
MAX_TURN = 400
BLOCK_S, BEFORE_S = 8e-3, 2e-3
"""Seconds of a turn that count, and those before them that do not. A user's engine runs again and
again, its weights in the cache and its workers awake. The first run after another engine's was seen
to take 20 to 36 % longer on OpenVINO and 7 % on LiteRT, and OpenVINO's workers spin for 1.2 ms
more, so a turn that counts its first runs measures who wakes up quickly."""

LONG_S = 0.02
"""Seconds of a run from which a turn is one run: waking up is no part of it that counts."""

SETTLE_S = 0.15
"""Seconds that all run in turns before any turn counts: new workers do not yet sit on the cores
where they stay. Also what the first of those turns are: an estimate of how many runs fill one."""

CLOSE = 1.25
"""Times the fastest up to which one that dropped out races the winner again: what slows a machine
lasts longer than a turn, so that several in a row may be wrong together."""

LUCK = 2.0
"""Times the fastest up to which one is opened anew before it loses. Instances of one engine differ:
by the cores that their workers come to sit on, by where their memory lies. LiteRT with two threads
was seen to take 0.039 or 0.060 ms of one file for as long as an instance lived."""

TIE = 0.01
"""Relative difference that is too small to look for."""

_HOPELESS = 3.0
"""Times the fastest above which a candidate is not timed any further."""
_SLOW, _SLOW_S = 10.0, 0.1
"""Times the fastest, and seconds, above which one run says enough."""
_LONG_HOPELESS = 1.5
"""The same as ``_HOPELESS`` of runs so long that little disturbs them."""

_WARM_S = 0.05
"""Seconds after which the first runs, of which there are two at least, are enough."""

_SIGMAS = 3.0


def accuracy_problem(
    executable: Executable,
    vectors: Sequence[Vector],
    budget: Budget,
    seconds: float = math.inf,
    records: Sequence[VectorRecord] = (),
    spent: list[float] | None = None,
) -> str:
    """Say what leaves the budget, with the figure; empty when nothing does.

    Args:
        executable: loaded.
        vectors: run in turn.
        budget: Budget of the variant's precision.
        seconds: after which no further vector is begun; the first one always is.
        records: Records of the vectors, which may widen the budget.
        spent: gets the seconds of each run.
    """
    deadline = time.perf_counter() + seconds
    for number, (feeds, expected) in enumerate(vectors):
        if number and time.perf_counter() > deadline:
            break
        start = time.perf_counter()
        try:
            actual = executable.run(feeds)
        except (BackendError, InputError) as e:
            return str(e)
        if spent is not None:
            spent.append(time.perf_counter() - start)
        for name, want in expected.items():
            if name not in actual:
                return f"output {name!r} is missing"
            base = budget.among(answers[name] for _, answers in vectors)
            allowed = records[number].budget(base, name) if records else base
            breaches = check(compare(want, actual[name]), allowed)
            if breaches:
                return f"wrong numbers in vector {number}, output {name!r}: {breaches[0]}"
    return ""


class Instances(Protocol[K_in]):
    """What opens engines anew."""

    def fresh(self, key: K_in, /) -> Executable | None:
        """Open another instance; None where that would take too much or is not possible."""
        ...

    def keep(self, key: K_in, executable: Executable, /) -> None:
        """Take an instance in place of the first one, which is not used any more."""
        ...

    def drop(self, executable: Executable, /) -> None:
        """Let go of an instance that was opened anew."""
        ...


def measure(
    executables: Mapping[K, Executable],
    vectors: Sequence[Vector],
    *,
    seconds: float = 2.0,
    callers: int = 0,
    bound: bool = False,
    by_cpu: bool = False,
    known: Mapping[K, float] | None = None,
    instances: Instances[K] | None = None,
) -> dict[K, Measured]:
    """Time candidates against each other, until it is known which one is the fastest.

    They run in turns of some milliseconds, so that a change of the machine's load hits all alike.
    One that is surely slower than the fastest drops out; it is over when one is left, or when those
    that are left surely differ by less than ``TIE``. A winner that was close races those it was
    close to once more, each by the better one of two instances where it can be opened anew.

    Args:
        executables: loaded and known to give right numbers.
        vectors: run in turn; at least one.
        seconds: what the whole measurement may take, apart from the first run of each and from
            opening them anew.
        callers: threads for runs a second; 0 derives the figure from the latency.
        bound: time calls over bound buffers.
        by_cpu: those drop out that take more processor time, not those that take longer.
        known: seconds of a run of each, as seen before; the hopeless are not run again.
        instances: opens them anew; the one of two that is kept is the one that the figures are of.
    """
    race = _Race(executables, vectors, bound, by_cpu, instances)
    try:
        race.run(seconds, known or {})
        executables = race.kept(executables)
    finally:
        race.drop()
    results = race.results()
    if not callers:
        return results
    for key, measured in results.items():
        if measured.problem:
            continue
        try:
            rate = _rate(executables[key], vectors, callers, seconds / 4)
        except (BackendError, InputError) as e:
            results[key] = Measured(problem=str(e))
        else:
            results[key] = replace(measured, per_second=rate)
    return results


@dataclass(slots=True)
class _Runner:
    """A candidate in the race.

    Attributes:
        runs: one call for each vector.
        by_cpu: whether turns are judged by processor time.
        wall: seconds of each run.
        turns: figure of the turn of each round: the median of its runs, or processor time of one.
        busy: processor time of the runs that were counted.
        first: seconds of the first runs that count, once what is made ready by a run is there.
    """

    runs: list[Callable[[], object]]
    by_cpu: bool
    wall: list[float] = field(default_factory=list)
    turns: dict[int, float] = field(default_factory=dict)
    busy: float = 0.0
    first: float = 0.0

    def middle(self, since: int = 0) -> float:
        """Median of the turns from a round on, or what is known without any."""
        turns = [took for number, took in self.turns.items() if number >= since]
        return statistics.median(turns) if turns else self.first

    @property
    def each(self) -> float:
        """Seconds that a run takes now, about."""
        return max(statistics.median(self.wall[-9:]) if self.wall else self.first, 1e-9)

    def forget(self) -> None:
        """Count what comes from now on."""
        self.first = self.each
        self.turns.clear()
        self.wall.clear()
        self.busy = 0.0

    def warm(self, seen: float) -> None:
        """Run some times and keep the shortest: the first may compile, another be interrupted.

        One that takes long is not run again.
        """
        spent = 0.0
        for number in range(5):
            self.wall.clear()
            self.busy = 0.0
            self._run(self.runs[0], 1)
            took = self.wall[0]
            self.first = took if number < 2 else min(self.first, took)
            spent += took
            if took > max(_SLOW_S, _SLOW * seen) or (number and spent > _WARM_S):
                break

    def turn(self, number: int) -> None:
        """Run for a while; the runs before that wake workers and fetch weights to the cache."""
        run, each = self.runs[number % len(self.runs)], self.each
        if each < LONG_S:
            for _ in range(min(math.ceil(BEFORE_S / each), MAX_TURN)):
                run()
        size = min(max(1, round(BLOCK_S / each)), MAX_TURN)
        before, done = self.busy, len(self.wall)
        self._run(run, size)
        if self.by_cpu:
            self.turns[number] = (self.busy - before) / size
        else:
            self.turns[number] = statistics.median(self.wall[done:])

    def _run(self, run: Callable[[], object], times: int) -> None:
        clock = time.perf_counter
        busy = time.process_time()
        for _ in range(times):
            start = clock()
            run()
            self.wall.append(clock() - start)
        self.busy += time.process_time() - busy


class _Race(Generic[K]):
    """Candidates that run in turns."""

    def __init__(
        self,
        executables: Mapping[K, Executable],
        vectors: Sequence[Vector],
        bound: bool,
        by_cpu: bool,
        instances: Instances[K] | None = None,
    ) -> None:
        self._by_cpu = by_cpu
        self._instances = instances
        self._call = partial(_calls, vectors=vectors, bound=bound)
        self._fresh: dict[K, tuple[Executable, _Runner]] = {}
        self._better: dict[K, Executable] = {}
        self._failed: dict[K, str] = {}
        self._runners: dict[K, _Runner] = {}
        for key, executable in executables.items():
            try:
                self._runners[key] = _Runner(self._call(executable), by_cpu)
            except (BackendError, InputError) as e:
                self._failed[key] = str(e)
        self._order = list(executables)
        self._alive: list[K] = []
        self._random = random.Random(0)
        self._since = 0
        self._is_again = False
        self._opening = 0.0

    def run(self, seconds: float, known: Mapping[K, float]) -> None:
        """Warm up, then race for so many seconds at most."""
        self._warm_up(known)
        start = time.perf_counter()
        self._settle(min(SETTLE_S, seconds / 4))
        number = 0
        while self._alive and not self._is_over(number, start, seconds):
            self._round(number)
            number += 1
            if number - self._since < MIN_ROUNDS or len(self._runners) < 2:
                continue
            self._take_better()
            if len(self._alive) > 1:
                self._drop_slower()
                if not self._is_again and self._is_tie():
                    number = self._race_again(number)

    def _round(self, number: int) -> None:
        """Give each a turn, in any order, or one would always run after the same other."""
        running = [(key, self._runners[key]) for key in self._alive]
        running += [(key, runner) for key, (_, runner) in self._fresh.items() if key in self._alive]
        for key, runner in self._random.sample(running, len(running)):
            self._try(key, runner, number)
        self._alive = [key for key in self._alive if key not in self._failed]

    def _settle(self, seconds: float) -> None:
        """Run in turns that do not count; the slow need none, and one alone disturbs nobody."""
        until = time.perf_counter() + seconds
        number = 0
        while (
            len(self._alive) > 1
            and sum(self._runners[key].first for key in self._alive) < seconds
            and time.perf_counter() < until
        ):
            self._round(number)
            number += 1
        for key in self._alive if number else ():
            self._runners[key].forget()

    def _race_again(self, number: int) -> int:
        """Let the winner race those that it was close to, in new turns; return the next one.

        Those that an instance's luck may have decided about are opened anew, and the winner too.
        """
        self._is_again = True
        winner = self._leader()
        turns = self._runners[winner].turns
        behind = {
            key: _against(runner.turns, turns)[0]
            for key, runner in self._runners.items()
            if key != winner and key not in self._failed and runner.turns
        }
        begin = time.perf_counter()
        if lucky := [key for key, ratio in behind.items() if ratio < LUCK]:
            for key in (winner, *lucky):
                self._open_anew(key)
        close = [key for key in lucky if behind[key] < CLOSE or key in self._fresh]
        if not close and not self._fresh:
            return number
        self._alive = [winner, *close]
        self._opening = time.perf_counter() - begin
        until = time.perf_counter() + SETTLE_S
        while self._fresh and time.perf_counter() < until:
            self._round(number)
            number += 1
        for _, runner in self._fresh.values():
            runner.forget()
        self._since = number
        return number

    def _open_anew(self, key: K) -> None:
        """Have another instance run with the first one."""
        executable = self._instances.fresh(key) if self._instances else None
        if executable is None:
            return
        try:
            runner = _Runner(self._call(executable), self._by_cpu)
            self._fresh[key] = executable, runner
            runner.warm(self._runners[key].each)
        except (BackendError, InputError):
            self._forget_fresh(key)

    def _forget_fresh(self, key: K) -> None:
        executable, _ = self._fresh.pop(key)
        if self._instances:
            self._instances.drop(executable)

    def _take_better(self) -> None:
        """Of two instances of an engine keep the better one."""
        for key, (executable, fresh) in list(self._fresh.items()):
            first = self._runners[key]
            ratio, _, _ = _against(fresh.turns, first.turns)
            if key in self._failed or ratio > 1 - TIE:
                self._forget_fresh(key)
                continue
            # Those that dropped out before are compared by turns that it had no part in.
            fresh.turns |= {n: t * ratio for n, t in first.turns.items() if n < self._since}
            self._runners[key], self._better[key] = fresh, executable
            del self._fresh[key]

    def kept(self, executables: Mapping[K, Executable]) -> Mapping[K, Executable]:
        """Hand over the better instances; return the one of each that is used from now on."""
        instances, better = self._instances, self._better
        while instances and better:
            key, executable = better.popitem()
            instances.keep(key, executable)
            executables = {**executables, key: executable}
        return executables

    def drop(self) -> None:
        """Let go of the instances that were opened anew and not handed over."""
        for key in list(self._fresh):
            self._forget_fresh(key)
        while self._instances and self._better:
            self._instances.drop(self._better.popitem()[1])

    def results(self) -> dict[K, Measured]:
        """Figures of all."""
        since = dict.fromkeys(self._alive, self._since)
        medians = {
            k: r.middle(since.get(k, 0)) for k, r in self._runners.items() if k not in self._failed
        }
        best = (
            self._leader() if self._alive else min(medians, key=medians.__getitem__, default=None)
        )
        results = {}
        for key in self._order:
            if key in self._failed or best is None:
                results[key] = Measured(problem=self._failed[key])
                continue
            runner, noise = self._runners[key], 0.0
            if key != best and runner.turns:
                ratio, noise, _ = self._against(key, best)
                if not self._by_cpu:
                    # One that dropped out did not do so by chance.
                    medians[key] = medians[best] * (ratio if key in self._alive else max(ratio, 1))
            results[key] = _summary(runner, medians[key], noise)
        return results

    def _against(self, key: K, leader: K) -> tuple[float, float, float]:
        """Compare by the rounds since both race again, or by all that they have in common."""
        one, other = self._runners[key].turns, self._runners[leader].turns
        return _against({n: t for n, t in one.items() if n >= self._since} or one, other)

    def _warm_up(self, known: Mapping[K, float]) -> None:
        """Run each for the first time, and keep those that could be the fastest."""
        quickest = min(known.values(), default=math.inf)
        for key, runner in self._runners.items():
            if known.get(key, 0.0) > _SLOW_S:
                runner.first = known[key]
                runner.wall, runner.busy = [runner.first], runner.first
                continue
            try:
                runner.warm(quickest)
            except (BackendError, InputError) as e:
                self._failed[key] = str(e)
            else:
                # An interruption of both runs makes nothing hopeless that was quick before.
                runner.first = min(runner.first, known.get(key, math.inf))
                quickest = min(quickest, runner.first)
        running = {k: r for k, r in self._runners.items() if k not in self._failed}
        # Near the clock's and the machine's hiccups nothing is hopeless after one run.
        limit = max(_HOPELESS * quickest, quickest + 2e-4)
        if self._by_cpu:
            limit = max(_SLOW_S, _SLOW * quickest)
        elif quickest > _SLOW_S:
            limit = _LONG_HOPELESS * quickest
        self._alive = [k for k, r in running.items() if r.first <= limit]
        for key in self._alive:
            self._runners[key].wall.clear()
            self._runners[key].busy = 0.0

    def _try(self, key: K, runner: _Runner, number: int) -> None:
        try:
            runner.turn(number)
        except (BackendError, InputError) as e:
            if runner is self._runners[key]:
                self._failed[key] = str(e)
            else:
                self._forget_fresh(key)

    def _leader(self) -> K:
        return min(self._alive, key=lambda k: self._runners[k].middle(self._since))

    def _drop_slower(self) -> None:
        leader = self._leader()
        kept = []
        for key in self._alive:
            ratio, noise, low = self._against(key, leader)
            is_slower = ratio - _SIGMAS * noise > 1 + TIE / 2 and low > 1 + TIE / 2
            if key == leader or not is_slower:
                kept.append(key)
        self._alive = kept

    def _is_over(self, rounds: int, start: float, seconds: float) -> bool:
        spent = time.perf_counter() - start - self._opening
        if spent > seconds:
            return rounds >= (3 if spent < 2 * seconds + 0.1 else 1)
        if rounds - self._since < MIN_ROUNDS:
            return False
        if len(self._alive) == 1:
            return not self._fresh and (rounds >= ALONE_ROUNDS or len(self._runners) > 1)
        return self._is_tie()

    def _is_tie(self) -> bool:
        """Whether those that are left surely differ by less than anybody cares for."""
        leader = self._leader()
        spans = [self._against(key, leader) for key in self._alive if key != leader]
        return all(abs(ratio - 1) + _SIGMAS * noise < TIE for ratio, noise, _ in spans)


def _against(turns: Mapping[int, float], others: Mapping[int, float]) -> tuple[float, float, float]:
    """Compare the turns of the same rounds.

    Returns:
        How many times as long they took, the error of that figure, and the ratio that three
        quarters of the pairs exceed.
    """
    ratios = sorted(turns[n] / others[n] for n in turns if others.get(n, 0.0) > 0)
    if not ratios:
        return 1.0, math.inf, 1.0
    middle = statistics.median(ratios)
    spread = statistics.median(abs(r - middle) for r in ratios)
    # Of a normal distribution; the median's own error is a quarter above that of the mean.
    error = 1.25 * 1.4826 * spread / math.sqrt(len(ratios))
    return middle, error, ratios[len(ratios) // 4]


def _calls(
    executable: Executable, vectors: Sequence[Vector], bound: bool
) -> list[Callable[[], object]]:
    """Return a call for each vector, the way the user will call."""
    if not bound:
        return [partial(executable.run, feeds) for feeds, _ in vectors]
    calls: list[Callable[[], object]] = []
    for feeds, expected in vectors:
        # ascontiguousarray would give a scalar an axis.
        inputs = {name: np.asarray(array, order="C") for name, array in feeds.items()}
        outputs = {name: np.empty_like(array, order="C") for name, array in expected.items()}
        calls.append(executable.bind(inputs, outputs))
    return calls


def _summary(runner: _Runner, middle: float, noise: float) -> Measured:
    wall = sorted(runner.wall)
    median = statistics.median(wall) if runner.by_cpu else middle
    p95 = wall[min(len(wall) - 1, int(0.95 * len(wall)))]
    return Measured(
        median_ms=median * 1e3,
        p95_ms=max(p95, median) * 1e3,
        cpu_ms=(middle if runner.by_cpu else runner.busy / len(wall)) * 1e3,
        per_second=1.0 / median if median > 0 else 0.0,
        runs=len(wall),
        noise=noise,
    )


def _rate(executable: Executable, vectors: Sequence[Vector], callers: int, seconds: float) -> float:
    """Return runs a second of several callers at once."""
    stop = threading.Event()
    feeds = [feeds for feeds, _ in islice(cycle(vectors), callers)]

    def work(own: Mapping[str, Array]) -> int:
        done = 0
        while not stop.is_set():
            executable.run(own)
            done += 1
        return done

    with ThreadPoolExecutor(callers) as pool:
        start = time.perf_counter()
        jobs = [pool.submit(work, own) for own in feeds]
        try:
            stop.wait(seconds)
        finally:
            # Also on Ctrl-C: leaving the pool waits for its threads.
            stop.set()
        done = sum(job.result() for job in jobs)
        return done / (time.perf_counter() - start)
