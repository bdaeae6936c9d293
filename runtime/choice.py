"""From an open bundle to one loaded executable: probe, rank, measure once, remember."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import islice
from typing import TYPE_CHECKING

from edgeinfer import forks, log
from edgeinfer.backends import registry
from edgeinfer.backends.base import Backend, Executable, LoadOptions, Probe
from edgeinfer.backends.process import guard, isolation
from edgeinfer.bundle.archive import Bundle
from edgeinfer.bundle.consent import allowed
from edgeinfer.bundle.manifest import Variant, VectorRecord
from edgeinfer.bundle.passing import is_passing
from edgeinfer.bundle.values import KEY, fits
from edgeinfer.errors import (
    BackendError,
    ClosedError,
    InputError,
    LoadError,
    NotAvailableError,
    UsageError,
)
from edgeinfer.machine.cgroup import available_cpus
from edgeinfer.machine.cores import cores_here, on_cores
from edgeinfer.machine.fingerprint import fingerprint, known_facts
from edgeinfer.machine.pages import resident_mb
from edgeinfer.records import dataclass
from edgeinfer.runtime import probes, profiledb
from edgeinfer.runtime.chips import chip_here
from edgeinfer.runtime.chosen import Choice
from edgeinfer.runtime.offered_variants import unprepared, with_requested
from edgeinfer.runtime.options import ChoiceOptions
from edgeinfer.runtime.prebuilt_engines import artifact_of, as_built, options_named
from edgeinfer.runtime.profiledb import MeasurementKey, ProfileDB, ended_while_tried, is_being_tried
from edgeinfer.runtime.select import Candidate, Measured, Pair, Plan, rank
from edgeinfer.runtime.trusted import barred, left_out

if TYPE_CHECKING:
    from edgeinfer.runtime.bench import Vector

MAX_VECTORS = 8
"""Vectors that a load checks and times; ``Session.verify`` checks all."""

CHECK_S = 4.0
"""Seconds of a load in which the vectors are checked, all candidates together; each is requested
one vector whatever that takes."""

SLOW_CHECK_S = 0.5
"""What a candidate that is several times slower than another one has of it at most."""

RACE_S, ALONE_S = 3.0, 0.2
"""Seconds that candidates are timed for at most, and a single one."""

ANEW_S, ANEW_MB = 0.5, 200.0
"""Seconds and memory that a candidate's loading may have taken for it to be opened anew: where it
takes more, runs are long enough to make little of an instance's luck."""


def choose(
    bundle: Bundle,
    request: ChoiceOptions,
    history: ProfileDB,
    *,
    unwanted: Callable[[], bool] | None = None,
) -> Choice:
    """Load the best that can run here.

    Args:
        bundle: open.
        request: what to heed.
        history: what was measured before.
        unwanted: asked before each candidate is opened to be measured; true ends the choice.

    Raises:
        ClosedError: it is not wanted any more.
        UsageError: the request names an unknown backend or policy.
        NotAvailableError: nothing can run here, or nothing of what was requested.
        LoadError: an accelerator failed and ``strict`` forbids to go on without it.
    """
    return _Chooser(bundle, request, history, unwanted).run()


def ranked(bundle: Bundle, request: ChoiceOptions, history: ProfileDB) -> Plan:
    """Say what ``choose`` would begin with; nothing is loaded or measured.

    Raises:
        UsageError: the request names an unknown backend or policy.
        NotAvailableError: a backend or kind was requested and nothing can run on it.
    """
    return _Chooser(bundle, request, history).rank()


class _Chooser:
    """The state of one choice."""

    def __init__(
        self,
        bundle: Bundle,
        request: ChoiceOptions,
        history: ProfileDB,
        unwanted: Callable[[], bool] | None = None,
    ) -> None:
        self._bundle = bundle
        self._is_unwanted = unwanted or (lambda: False)
        self._request = request
        self._history = history
        self._allow = allowed(request.allow)
        self._machine = fingerprint()
        self._cores = cores_here(request.threads, known_facts().cpu.clusters)
        self._threads = self._cores.threads
        self._backends: dict[str, Backend] = {}
        self._variants = with_requested(bundle.manifest.variants, request.backend)
        self._by_id = {variant.id: variant for variant in self._variants}
        self._barred = barred(bundle)
        self._suspects: dict[str, str] = {}
        self._suspected: dict[Pair, Measured] = {}
        foreign = unprepared(bundle.manifest.variants, request.backend)
        self._notes: list[str] = [*left_out(bundle), *filter(None, [self._cores.note, foreign])]
        self._fallen: dict[Pair, str] = {}
        self._probes = self._probed()
        self._recalled: list[Pair] = []
        self._known = self._remembered()
        self._loaded: dict[Pair, Executable] = {}
        self._grown: dict[Pair, float] = {}
        self._took: dict[Pair, float] = {}
        self._spent: dict[Pair, float] = {}

    def run(self) -> Choice:
        try:
            plan = self._planned()
            while plan.best.pair not in self._loaded:
                self._load(plan.best.pair)
                self._prove(plan.best)
                plan = self._planned() if self._recalled else self.rank()
            self._refuse_fallback(plan)
            executable = self._loaded.pop(plan.best.pair)
            if self._request.on_crash == "next":
                from edgeinfer.runtime.failover import SurvivingExecutable

                rest = [c for c in plan.candidates if self._may_follow(plan.best, c)]
                executable = SurvivingExecutable(
                    (plan.best, executable), partial(self._successor, iter(rest))
                )
            if self._is_early(plan):
                from edgeinfer.runtime.settling import SettlingExecutable

                executable = SettlingExecutable((plan.best, executable), plan)
        finally:
            for pair in list(self._loaded):
                self._close(pair)
        name = plan.best.pair.backend
        others = plan.candidates if self._is_early(plan) else ()
        may_run = {name, *(c.pair.backend for c in others)}
        return Choice(
            executable=executable,
            concurrent=all(self._backend(n).capabilities().concurrent_runs for n in may_run),
            candidate=plan.best,
            variant=self._by_id[plan.best.pair.variant],
            plan=plan,
            machine=self._machine,
            threads=self._threads,
            notes=(
                *self._bundle.notes,
                *self._history.notes,
                *self._notes,
                *filter(None, [self._fallen.get(plan.best.pair)]),
            ),
            isolated=self._apart(name),
            variants=self._by_id,
        )

    def _is_early(self, plan: Plan) -> bool:
        """Whether a session begins before what could win is measured."""
        in_background = self._request.measure == "background"
        return in_background and any(c.measured is None for c in plan.candidates)

    def _prove(self, candidate: Candidate) -> None:
        """Check what is not measured but is to run.

        An engine older than the one that its variant was tested with answers every vector, one
        that begins early the first.
        """
        pair = candidate.pair
        if pair not in self._loaded or candidate.measured is not None:
            return
        if self._older(pair):
            self._check(pair, [])
        elif self._request.measure == "background":
            self._check(pair, list(islice(self._bundle.vectors(), MAX_VECTORS)), 0.0)

    def _older(self, pair: Pair) -> str:
        """Say that an engine is older than the one that a variant was tested with; else nothing."""
        version = self._probes[pair.backend].version
        for engine in self._by_id[pair.variant].engines:
            if engine.backend == pair.backend and engine.is_newer_than(version):
                return f"tested with {pair.backend} {engine.tested}, this is {version}"
        return ""

    def _planned(self) -> Plan:
        """Rank, and measure what is not known yet.

        Where nothing is left, what failed in an earlier load is tried again: what made it fail then
        may be gone.
        """
        try:
            plan = self.rank()
        except NotAvailableError:
            if not self._recalled:
                raise
            plan = None
        if self._recalled and (plan is None or not plan.candidates):
            log.info("trying again what failed before: %s", ", ".join(map(str, self._recalled)))
            for pair in self._recalled:
                self._known.pop(pair, None)
            self._recalled.clear()
            plan = None
        plan = self.rank() if plan is None else plan
        if any(c.measured is None for c in plan.candidates):
            self._measure([c.pair for c in plan.candidates])
            plan = self.rank()
        return plan

    def _backend(self, name: str) -> Backend:
        """Return a backend, in processes of its own where that is requested or safer."""
        if name not in self._backends:
            backend = registry.get(name)
            if self._apart(name):
                # Few sessions need processes, and what starts them takes milliseconds to import.
                from edgeinfer.backends.process.isolated import IsolatedBackend

                usual_s = isolation.TIMEOUT_S if backend.capabilities().fragile else None
                backend = IsolatedBackend(
                    name,
                    run_s=self._request.run_timeout_s or usual_s,
                    load_s=self._request.load_timeout_s or usual_s,
                    memory_mb=self._request.memory_mb,
                    reuse=False,
                    note=guard.why_apart(name),
                )
            self._backends[name] = backend
        return self._backends[name]

    def _apart(self, name: str) -> bool:
        if self._asked_apart(name):
            return True
        return isolation.apart() and registry.get(name).capabilities().fragile

    def _asked_apart(self, name: str) -> bool:
        return self._request.isolate or name in self._suspects or forks.is_inherited(name)

    def _may_follow(self, best: Candidate, other: Candidate) -> bool:
        """Whether another candidate takes every value that the best one takes."""
        held = self._by_id[other.pair.variant].constraints.get(KEY)
        return other is not best and held in (
            None,
            self._by_id[best.pair.variant].constraints.get(KEY),
        )

    def _successor(self, rest: Iterator[Candidate]) -> tuple[Candidate, Executable] | None:
        """Load the next candidate whose numbers are right here."""
        for candidate in rest:
            self._load(candidate.pair)
            if candidate.pair in self._loaded:
                self._check(candidate.pair, list(islice(self._bundle.vectors(), MAX_VECTORS)))
            if executable := self._loaded.pop(candidate.pair, None):
                return candidate, executable
        return None

    def rank(self) -> Plan:
        return rank(
            self._variants,
            self._probes,
            self._machine,
            chip=chip_here(self._machine),
            policy=self._request.policy,
            history=self._known,
            backend=self._request.backend,
            kind=self._request.device,
            barred=self._barred,
            unproven=self._unproven,
            allow=self._allow,
            made_on=self._bundle.manifest.made_on,
        )

    @cached_property
    def _unproven(self) -> frozenset[str]:
        records = self._bundle.manifest.vectors
        return frozenset(
            v.id for v in self._variants if not any(r.judged_at(v.precision) for r in records)
        )

    def _probed(self) -> Mapping[str, Probe]:
        """Probe what is needed; a probe may import an engine, which takes its time."""
        here = [v for v in self._variants if v.id not in self._barred]
        named, wanted = self._request.backend, probes.wanted(here, self._request.device)
        return {n: self._probe(n, for_cpu=c) for n, c in wanted.items() if named in (None, n)}

    def _probe(self, name: str, *, for_cpu: bool) -> Probe:
        try:
            if not self._asked_apart(name):
                remembered = probes.known(name, self._machine, self._history)
                if remembered is not None:
                    return remembered
            if self._apart(name):
                return self._backend(name).probe()
            asked = self._backend(name), self._machine, self._history
            return probes.probe(*asked, for_cpu=for_cpu)
        except (UsageError, BackendError) as e:
            return Probe(name, None, reason=str(e))
        # A stranger's probe may break its promise not to raise; that is its reason then.
        except Exception as e:
            return Probe(name, None, reason=f"its probe failed: {e}")

    def _remembered(self) -> dict[Pair, Measured]:
        known = {}
        for pair in self._pairs():
            if (measured := self._history.get(self._key(pair))) is None:
                continue
            if not is_being_tried(measured):
                known[pair] = measured
                if measured.problem:
                    self._recalled.append(pair)
            elif process := ended_while_tried(measured):
                self._suspected[pair] = measured
                self._suspect(pair, process)
        return known

    def _suspect(self, pair: Pair, process: str) -> None:
        """Run a backend apart that may have taken the process down that tried it before."""
        name = pair.backend
        if name in self._suspects or self._apart(name):
            return
        note = (
            f"{pair} is tried in a process of its own, because process {process} ended while it "
            "tried it"
        )
        self._suspects[name] = note
        self._backends.pop(name, None)
        self._notes.append(note)
        log.warning("%s", note)

    def _pairs(self) -> Iterable[Pair]:
        for variant in self._variants:
            for engine in variant.engines:
                probe = self._probes.get(engine.backend)
                for kind in {unit.kind for unit in probe.devices} if probe else ():
                    yield Pair(variant.id, engine.backend, kind)

    def _key(self, pair: Pair) -> MeasurementKey:
        variant = self._by_id[pair.variant]
        if pair.device == "gpu":
            self._machine = fingerprint(ask_driver=True)
        options = self._request.decisive(self._threads)
        if not self._request.strict and pair.device != "cpu":
            options["fallback"] = True
        if named := options_named(variant, pair.backend):
            options["engine"] = named
        return MeasurementKey(
            artifact=profiledb.digest_of(variant, self._bundle.manifest),
            backend=pair.backend,
            version=self._probes[pair.backend].version or "",
            device=pair.device,
            machine=self._machine.key(pair.device),
            options=json.dumps(options, sort_keys=True),
        )

    def _load(self, pair: Pair) -> None:
        """Load a pair, or note why that failed, which takes it out of the next ranking."""
        before, start = resident_mb(), time.perf_counter()
        try:
            self._loaded[pair] = self._open(pair)
        except (BackendError, InputError) as e:
            self._fail(pair, str(e))
            return
        self._took[pair] = time.perf_counter() - start
        size = self._by_id[pair.variant].size_bytes / 2**20
        self._grown[pair] = max(resident_mb() - before, size)
        self._refuse_elsewhere(pair)

    def _open(self, pair: Pair) -> Executable:
        variant = self._by_id[pair.variant]
        artifact = artifact_of(self._bundle, variant)
        request = self._request
        options = LoadOptions(
            *(pair.device, self._threads, request.spinning),
            callers=self._threads if request.policy == "throughput" else 1,
            fallback=not request.strict,
            pooled=request.pooled,
        )
        options = as_built(self._bundle, variant, pair.backend, options)
        return guard.load(
            *(self._backend(pair.backend), artifact, options),
            again=partial(artifact_of, self._bundle, variant),
            placed=partial(on_cores, self._cores.cpus),
            examples=self._bundle.vectors,
        )

    def _refuse_elsewhere(self, pair: Pair) -> None:
        """Operators that do not run on the accelerator that was chosen are never taken silently."""
        if pair.device == "cpu":
            return
        from edgeinfer.runtime.operators import placement_of

        placed = placement_of(self._loaded[pair])
        if placed is None or not placed.elsewhere:
            return
        if self._request.strict:
            self._fail(pair, str(placed))
            return
        log.warning("%s: %s", pair, placed)
        self._fallen[pair] = f"{pair}: {placed}"

    def _fail(self, pair: Pair, problem: str) -> None:
        if older := self._older(pair):
            problem = f"{problem}; {older}: install the newer one"
        self._known[pair] = Measured(problem=problem)
        log.warning("%s cannot be used: %s", pair, problem)
        self._close(pair)

    def _close(self, pair: Pair) -> None:
        """Free one that is not used; that it cannot even be closed must not stop the others."""
        if executable := self._loaded.pop(pair, None):
            _free(executable, pair)

    def _measure(self, pairs: Sequence[Pair]) -> None:
        if self._request.measure == "background":
            return
        if not self._request.measure:
            self._notes.append("nothing was measured, as requested; the order is one of preference")
            return
        if not (vectors := list(islice(self._bundle.vectors(), MAX_VECTORS))):
            self._notes.append("the bundle has no test vectors, so nothing was checked or measured")
            return
        keys = [self._key(pair) for pair in pairs]
        self._history.begin(keys)
        try:
            self._try(pairs, vectors)
        except BaseException:
            # Interrupted, or at fault itself: nothing is known of them.
            self._history.forget(keys)
            raise
        for pair, key in zip(pairs, keys, strict=True):
            measured = self._known[pair]
            if is_passing(measured.problem) and pair in self._suspected:
                # Nothing is known of it, but that it may take this process down.
                self._history.put(key, self._suspected[pair])
            elif is_passing(measured.problem):
                self._history.forget([key])
            else:
                self._history.put(key, measured)

    def _try(self, pairs: Sequence[Pair], vectors: Sequence[Vector]) -> None:
        """Check and time pairs; a failed one has its problem among what is known."""
        left = CHECK_S
        for number, pair in enumerate(pairs):
            if self._is_unwanted():
                raise ClosedError("session: closed before its engine was chosen")
            self._known.pop(pair, None)
            log.info("loading and checking %s, %d of %d", pair, number + 1, len(pairs))
            self._load(pair)
            if pair in self._loaded:
                start = time.perf_counter()
                self._check(pair, vectors, max(left, 0.0) / (len(pairs) - number))
                left -= time.perf_counter() - start
        log.info("timing %d candidates, for %g s at most", len(self._loaded), RACE_S)
        alone = len(self._loaded) < 2
        policy = self._request.policy
        held = [self._by_id[pair.variant].constraints for pair in self._loaded]
        taken = [v for v in vectors if all(fits(c, v[0]) for c in held)] or vectors
        from edgeinfer.runtime import bench  # which a remembered choice has no need of

        for pair, measured in bench.measure(
            self._loaded,
            taken,
            seconds=ALONE_S if alone else RACE_S,
            callers=available_cpus() if policy == "throughput" else 0,
            bound=self._request.calls == "bind",
            by_cpu=policy == "energy",
            known=self._spent,
            instances=None if alone else _Anew(partial(self._fresh, vectors=vectors), self._keep),
        ).items():
            if measured.problem:
                self._fail(pair, measured.problem)
            else:
                self._known[pair] = replace(measured, memory_mb=self._grown[pair])

    def _check(self, pair: Pair, vectors: Sequence[Vector], most: float = CHECK_S) -> None:
        """Run the vectors for so many seconds, and refuse a pair whose numbers are wrong."""
        from edgeinfer.metrics import budget_for  # nor this

        variant = self._by_id[pair.variant]
        try:
            budget = budget_for(variant.precision)
        except UsageError as e:
            self._fail(pair, str(e))
            return
        if older := self._older(pair):
            # They alone decide, so none is left out for want of time.
            vectors, most = list(self._bundle.vectors()), math.inf
        feeds, records = self._judged(variant, vectors)
        if not feeds and older:
            self._fail(pair, "no test vector is for it")
            return
        if not feeds:
            self._notes.append(f"{pair}: no test vector is for it, so nothing was checked")
        # One that is many times slower than another does not run every vector.
        quickest = min(self._spent.values(), default=math.inf) * len(feeds)
        seconds = most if older else min(most, max(SLOW_CHECK_S, 4 * quickest))
        spent: list[float] = []
        from edgeinfer.runtime.bench import accuracy_problem

        problem = accuracy_problem(self._loaded[pair], feeds, budget, seconds, records, spent=spent)
        if problem:
            self._fail(pair, problem)
            return
        if older:
            self._notes.append(f"{pair}: {older}; right on all {len(feeds)} test vectors for it")
        if len(spent) > 1:
            # The first run may compile.
            self._spent[pair] = min(spent[1:])

    def _judged(
        self, variant: Variant, vectors: Sequence[Vector]
    ) -> tuple[list[Vector], list[VectorRecord]]:
        """Return the vectors that a variant answers for."""
        known = zip(vectors, self._bundle.manifest.vectors, strict=False)
        judged = [(v, r) for v, r in known if r.judged_at(variant.precision)]
        judged = [(v, r) for v, r in judged if fits(variant.constraints, v[0])]
        return [v for v, _ in judged], [r for _, r in judged]

    def _fresh(self, pair: Pair, vectors: Sequence[Vector]) -> Executable | None:
        """Open one that loads quickly once more, and see that its numbers are right too."""
        is_small = self._took[pair] <= ANEW_S and self._grown[pair] <= ANEW_MB
        if not is_small or pair.device != "cpu" or self._apart(pair.backend):
            return None
        variant = self._by_id[pair.variant]
        feeds, records = self._judged(variant, vectors)
        try:
            executable = self._open(pair)
        except (BackendError, InputError) as e:
            log.info("%s was not opened anew: %s", pair, e)
            return None
        from edgeinfer.metrics import budget_for
        from edgeinfer.runtime.bench import accuracy_problem

        problem = accuracy_problem(executable, feeds, budget_for(variant.precision), 0.0, records)
        if not problem:
            return executable
        log.warning("%s, opened anew: %s", pair, problem)
        _free(executable, pair)
        return None

    def _keep(self, pair: Pair, executable: Executable) -> None:
        """Go on with an instance that is quicker than the first one."""
        log.info("%s: an instance opened anew is quicker and is kept", pair)
        self._close(pair)
        self._loaded[pair] = executable

    def _refuse_fallback(self, plan: Plan) -> None:
        """A CPU in place of an accelerator that is here but failed is never taken in silence."""
        if plan.best.pair.device != "cpu":
            return
        failed = [
            f"{pair}: {measured.problem}"
            for pair, measured in self._known.items()
            if measured.problem and pair.device not in ("cpu", "")
        ]
        if not failed or self._request.device == "cpu":
            return
        if self._request.strict:
            hint = "load with allow_fallback=True or device='cpu' to go on without it"
            raise LoadError(f"the accelerator cannot be used: {'; '.join(failed)}; {hint}")
        self._notes.append(f"runs on the CPU because {'; '.join(failed)}")


@dataclass(frozen=True, slots=True)
class _Anew:
    """How candidates are opened anew while they race."""

    fresh: Callable[[Pair], Executable | None]
    keep: Callable[[Pair, Executable], None]

    def drop(self, executable: Executable) -> None:
        """Free an instance that is not kept."""
        _free(executable, "an instance that was opened anew")


def _free(executable: Executable, who: object) -> None:
    try:
        executable.close()
    except BackendError as e:
        log.warning("%s could not be closed: %s", who, e)
