"""Every artifact of a bundle on every engine of this device, held to the bundle's own vectors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from edgeinfer.backends.base import Executable
from edgeinfer.bundle.archive import Bundle
from edgeinfer.bundle.manifest import Variant
from edgeinfer.bundle.values import fits
from edgeinfer.errors import BackendError, BundleError, InputError, NotAvailableError, UsageError
from edgeinfer.machine.host import host
from edgeinfer.metrics import (
    WIDENED,
    OutputMetrics,
    budget_for,
    check,
    compare,
    counted,
    verdict_on,
    worst,
)
from edgeinfer.records import dataclass
from edgeinfer.runtime.pairs import Pairs, meant_for, open_pair, opened, pairs, stands_in
from edgeinfer.runtime.recheck import lost_channels
from edgeinfer.runtime.select import Pair, Rejected
from edgeinfer.types import Progress

TIME_LIMIT_S = 600.0
"""Seconds that an engine may take, unless the caller says otherwise: a loop may have no end."""


@dataclass(frozen=True, slots=True)
class Checked:
    """One artifact on one engine.

    Attributes:
        variant: its id.
        backend: the engine.
        version: Version of the engine.
        device: kind of unit.
        passed: whether every vector stayed within the budget.
        problems: what did not, one line each.
        metrics: the worst over all vectors, by output.
        refused: vectors that hold values the artifact refuses, so that there was nothing to judge.
        undecided: vectors of which rounding alone decides an output, so that it was not judged.
        widened: what left the plain budget and stayed within the one that is wider where the
            oracles themselves disagree, one line each.
        verdict: ``pass``, ``FAIL`` or ``metrics.WIDENED``, with what ran it where that is not
            what it is meant for, as ``metrics.verdict_on`` has it.
    """

    variant: str
    backend: str
    version: str
    device: str
    passed: bool
    problems: tuple[str, ...]
    metrics: dict[str, OutputMetrics]
    refused: tuple[int, ...] = ()
    undecided: tuple[int, ...] = ()
    widened: tuple[str, ...] = ()
    verdict: str = ""


@dataclass(frozen=True, slots=True)
class BundleVerification:
    """What ``verify`` found.

    Attributes:
        bundle: where it lies.
        vectors: how many test vectors each artifact was run with; the least, where bundles inside
            it have fewer.
        signed_by: id of the trusted key that signed the bundle; empty where none was requested.
        checked: one for each artifact on each engine that can run it here; one for each verdict,
            where it says less for one target than for another that shares the artifact.
        not_run: the rest, with reasons.
    """

    bundle: str
    vectors: int
    signed_by: str
    checked: tuple[Checked, ...]
    not_run: tuple[Rejected, ...]

    @property
    def passed(self) -> bool:
        """Whether every artifact stayed within its budget on every engine here."""
        return all(c.passed for c in self.checked)

    def __repr__(self) -> str:
        verdict = "passed" if self.passed else "FAILED"
        count = f"{len(self.checked)} checked, {len(self.not_run)} not run"
        return f"<BundleVerification {self.bundle}: {verdict}, {count}>"


def verify(
    bundle: str | Path | Bundle,
    *,
    backend: str | None = None,
    threads: int | None = None,
    allow_fallback: bool = False,
    time_limit_s: float = TIME_LIMIT_S,
    progress: Progress | None = None,
    **opening: Any,
) -> BundleVerification:
    """Run every artifact of a bundle on every engine here, and compare with its test vectors.

    Args:
        bundle: its path, or an open one, which stays open.
        backend: only this engine; None is every one here.
        threads: Threads of the engine; None leaves them to it.
        allow_fallback: operators that the device does not take may run on the CPU.
        time_limit_s: that an engine may take to load an artifact, and for a run: each has a process
            of its own, where the system has such, which is ended then.
        progress: Called with what is being done and what share of it is done, 0..1.
        **opening: how the bundle is opened, as ``Bundle.open`` takes it.

    Raises:
        BundleError: it is damaged, or it or a bundle inside it has no test vectors.
        NotAvailableError: nothing in it can run here; says why for each pair.
        UsageError: there is no such backend.
    """
    with opened(bundle, opening) as open_bundle:
        vectors = _fewest_vectors(open_bundle)
        found = pairs(open_bundle, None if backend == "all" else backend)
        how: Any = {"fallback": allow_fallback, "limit_s": time_limit_s}
        checked = _check_all(open_bundle, found, threads, progress, **how)
        rejected = list(found.rejected)
        for name in open_bundle.manifest.parts:
            with open_bundle.part(name) as part:
                try:
                    inner = pairs(part, None if backend == "all" else backend)
                except NotAvailableError as e:
                    rejected.append(Rejected(name, backend or "all", "", str(e)))
                    continue
                of_part = _check_all(part, inner, threads, progress, **how)
            checked += [replace(c, variant=f"{name}/{c.variant}") for c in of_part]
            rejected += [replace(r, variant=f"{name}/{r.variant}") for r in inner.rejected]
        return BundleVerification(
            bundle=str(open_bundle.location),
            vectors=vectors,
            signed_by=open_bundle.signed_by,
            checked=tuple(checked),
            not_run=tuple(rejected),
        )


def _fewest_vectors(bundle: Bundle) -> int:
    """Return the number of test vectors of a bundle, or of one inside it that has fewer.

    Raises:
        BundleError: some have none; names all of them.
    """
    counts = {bundle.location: len(bundle.manifest.vectors)}
    for name in bundle.manifest.parts:
        with bundle.part(name) as part:
            counts[part.location] = len(part.manifest.vectors)
    if without := [str(place) for place, count in counts.items() if not count]:
        raise BundleError(
            "; ".join(f"{w}: has no test vectors, so nothing can be verified" for w in without)
        )
    return min(counts.values())


def _check_all(
    bundle: Bundle,
    found: Pairs,
    threads: int | None,
    progress: Progress | None,
    *,
    fallback: bool,
    limit_s: float,
) -> list[Checked]:
    checked = []
    for number, candidate in enumerate(found.candidates):
        pair = candidate.pair
        if progress is not None:
            progress(f"verify {pair}", number / len(found.candidates))
        metrics: dict[str, OutputMetrics] = {}
        widened: list[str] = []
        variant = found.variants[pair.variant]
        refused: list[int] = []
        undecided: dict[int, None] = {}
        try:
            executable = open_pair(
                *(bundle, found, candidate, threads), fallback=fallback, limit_s=limit_s
            )
            try:
                metrics, problems = _check(
                    *(executable, bundle, variant, refused, undecided, widened)
                )
            finally:
                executable.close()
        # A precision without a budget is the bundle's fault, not of who asks.
        except (BackendError, InputError, UsageError) as e:
            problems = [str(e)]
        verdict = "FAIL" if problems else WIDENED if widened else "pass"
        # Once for each verdict: targets that share an artifact may differ in what they ask for.
        said: dict[str, str] = {}
        for target in found.meant(pair):
            said.setdefault(_said(verdict, target, pair), target.id)
        checked += [
            Checked(
                variant=ident,
                backend=pair.backend,
                version=candidate.version,
                device=pair.device,
                passed=not problems,
                problems=tuple(problems),
                metrics=metrics,
                refused=tuple(refused),
                undecided=tuple(undecided),
                widened=tuple(widened),
                verdict=text,
            )
            for text, ident in said.items()
        ]
    return checked


def _said(verdict: str, variant: Variant, pair: Pair) -> str:
    """Return a verdict with what ran the variant, where that is not what it is meant for."""
    profile, here = meant_for(variant), host()
    said = verdict_on(
        verdict,
        stands_in=stands_in(profile, pair),
        is_of_target=profile is None or here.is_kind(profile),
        arch=here.arch,
    )
    made_for = sorted({engine.backend for engine in variant.engines})
    # Other inputs may meet what another engine gets wrong, which only its own artifacts repair.
    return said if pair.backend in made_for else f"{said}, made for {' and '.join(made_for)}"


def _check(
    executable: Executable,
    bundle: Bundle,
    variant: Variant,
    refused: list[int],
    undecided: dict[int, None],
    widened: list[str],
) -> tuple[dict[str, OutputMetrics], list[str]]:
    """Run every vector; return the worst metrics by output, and what left the budget.

    The numbers of vectors with values that the artifact refuses are added to ``refused``, of those
    that rounding alone decides to ``undecided``, and what only a widened budget allows to
    ``widened``.
    """
    precision = variant.precision
    budget = budget_for(precision)
    seen: dict[str, list[OutputMetrics]] = {o.name: [] for o in bundle.manifest.outputs}
    floors: dict[str, float] = {}
    problems = []
    records = bundle.manifest.vectors
    vectors = list(bundle.vectors())
    judged = [v for v, r in zip(vectors, records, strict=True) if r.judged_at(precision)]
    right, here = [], []
    for number, (feeds, expected) in enumerate(vectors):
        if not fits(variant.constraints, feeds):
            refused.append(number)
            continue
        if not records[number].judged_at(precision):
            if records[number].undecided:
                undecided.setdefault(number)
            continue
        actual = {n: np.array(a) for n, a in executable.run(feeds).items()}
        right.append(expected)
        here.append(actual)
        for name, want in expected.items():
            metrics = compare(want, actual[name])
            base = budget.among(answers[name] for _, answers in judged)
            floors[name] = base.max_abs
            where = f"vector {number}, output {name!r}"
            plain = check(metrics, base)
            breaches = check(metrics, records[number].budget(base, name)) if plain else []
            if plain and not breaches and records[number].decides_nothing(base, name):
                undecided.setdefault(number)
                continue
            seen[name].append(metrics)
            if plain:
                problems += [f"{where}: {b}" for b in breaches]
                widened += [] if breaches else [f"{where}: {b}" for b in plain]
    if not right:
        problems.append("not checked: every vector is one that it refuses, or that nothing decides")
    problems += lost_channels(right, here, budget)
    problems += [
        f"output {name!r}: rounding alone decides it on every vector, so nothing of it is judged"
        for name in floors
        if not seen[name]
    ]
    return {name: worst(counted(seen[name], floors[name])) for name in floors}, problems
