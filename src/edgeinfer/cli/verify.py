"""``edgeinfer verify``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from edgeinfer.cli.names import BACKEND, named
from edgeinfer.cli.output import Output, Progress, output_options, table
from edgeinfer.cli.trust import trust_options
from edgeinfer.errors import BackendError, BundleError, InputError, UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from edgeinfer.backends.base import Executable
    from edgeinfer.bundle.archive import Bundle
    from edgeinfer.bundle.manifest import Variant
    from edgeinfer.cli.pairs import Pairs
    from edgeinfer.metrics import OutputMetrics


@dataclass(frozen=True, slots=True)
class Checked:
    """One artifact on one engine.

    Attributes:
        variant: its id.
        backend: the engine.
        version: of the engine.
        device: kind of unit.
        passed: whether every vector stayed within the budget.
        problems: what did not, one line each.
        metrics: the worst over all vectors, by output.
        refused: vectors that hold values the artifact refuses, so that there was nothing to judge.
        widened: what left the plain budget and stayed within the one that is wider where the
            oracles themselves disagree, one line each.
        verdict: ``pass``, ``FAIL`` or ``metrics.WIDENED``.
    """

    variant: str
    backend: str
    version: str
    device: str
    passed: bool
    problems: tuple[str, ...]
    metrics: dict[str, OutputMetrics]
    refused: tuple[int, ...] = ()
    widened: tuple[str, ...] = ()
    verdict: str = ""


@click.command()
@click.argument("bundle")
@named("-b", "--backend", type=BACKEND, help="Only this engine; default every one here.")
@click.option("--threads", type=click.IntRange(1, 1024), help="Of the engine.")
@click.option("--allow-fallback", is_flag=True, help="Let operators run on the CPU.")
@trust_options("--key")
@output_options
def verify(
    bundle: str,
    backend: str | None,
    threads: int | None,
    allow_fallback: bool,
    trust: dict[str, Any],
    out: Output,
) -> None:
    """Check BUNDLE here, with its own test vectors.

    Every artifact is run on every engine of this device and compared with the expected outputs.
    Machine code is run only where a trusted key signed BUNDLE, where this machine made it, or with
    --allow-native; otherwise it is listed as not run. Exits with 1 when an artifact leaves its
    accuracy budget on an engine.
    """
    from edgeinfer.bundle.archive import Bundle
    from edgeinfer.cli.pairs import pairs, within

    threads = within(threads, out)
    with out.progress() as progress, Bundle.open(bundle, **trust) as opened:
        if not opened.manifest.vectors:
            raise BundleError(f"{bundle}: has no test vectors, so nothing can be verified")
        found = pairs(opened, None if backend == "all" else backend)
        checked = _check_all(opened, found, threads, progress, fallback=allow_fallback)
        vectors = len(opened.manifest.vectors)
        signed_by = opened.signed_by
    passed = all(c.passed for c in checked)
    data = {
        "passed": passed,
        "vectors": vectors,
        "signed_by": signed_by or None,
        "checked": checked,
        "not_run": found.rejected,
    }
    out.result(data, lambda: _view(checked, found, vectors, signed_by))
    if not passed:
        raise click.exceptions.Exit(1)


def _check_all(
    bundle: Bundle,
    found: Pairs,
    threads: int | None,
    progress: Progress | None,
    *,
    fallback: bool,
) -> list[Checked]:
    from edgeinfer.cli.pairs import open_pair
    from edgeinfer.metrics import WIDENED

    checked = []
    for number, candidate in enumerate(found.candidates):
        pair = candidate.pair
        if progress is not None:
            progress(f"verify {pair}", number / len(found.candidates))
        metrics: dict[str, OutputMetrics] = {}
        widened: list[str] = []
        variant = found.variants[pair.variant]
        refused: list[int] = []
        try:
            executable = open_pair(bundle, found, candidate, threads, fallback=fallback)
            try:
                metrics, problems = _check(executable, bundle, variant, refused, widened)
            finally:
                executable.close()
        # A precision without a budget is the bundle's fault, not of who asks.
        except (BackendError, InputError, UsageError) as e:
            problems = [str(e)]
        checked.append(
            Checked(
                variant=pair.variant,
                backend=pair.backend,
                version=candidate.version,
                device=pair.device,
                passed=not problems,
                problems=tuple(problems),
                metrics=metrics,
                refused=tuple(refused),
                widened=tuple(widened),
                verdict="FAIL" if problems else WIDENED if widened else "pass",
            )
        )
    return checked


def _check(
    executable: Executable,
    bundle: Bundle,
    variant: Variant,
    refused: list[int],
    widened: list[str],
) -> tuple[dict[str, OutputMetrics], list[str]]:
    """Run every vector; return the worst metrics by output, and what left the budget.

    The numbers of vectors with values that the artifact refuses are added to ``refused``, and what
    only a widened budget allows to ``widened``.
    """
    import numpy as np

    from edgeinfer.bundle.values import fits
    from edgeinfer.metrics import budget_for, check, compare, worst
    from edgeinfer.runtime.recheck import lost_channels

    precision = variant.precision
    budget = budget_for(precision)
    seen: dict[str, list[OutputMetrics]] = {}
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
            continue
        actual = {n: np.array(a) for n, a in executable.run(feeds).items()}
        right.append(expected)
        here.append(actual)
        for name, want in expected.items():
            metrics = compare(want, actual[name])
            seen.setdefault(name, []).append(metrics)
            base = budget.among(answers[name] for _, answers in judged)
            where = f"vector {number}, output {name!r}"
            if plain := check(metrics, base):
                breaches = check(metrics, records[number].budget(base, name))
                problems += [f"{where}: {b}" for b in breaches]
                widened += [] if breaches else [f"{where}: {b}" for b in plain]
    problems += lost_channels(right, here, budget)
    return {name: worst(found) for name, found in seen.items()}, problems


def _view(
    checked: list[Checked], found: Pairs, vectors: int, signed_by: str
) -> Iterator[str | Table]:
    columns = ("variant", "engine", "device", ">error", ">signal", "verdict")
    yield table(columns, [_row(c) for c in checked])
    yield ""
    for line in checked:
        yield from (f"{line.variant} on {line.backend}: {problem}" for problem in line.problems)
    for line in checked:
        numbers = ", ".join(map(str, line.refused))
        if numbers:
            yield f"{line.variant} on {line.backend}: refuses the values of vector {numbers}"
    for line in checked:
        on = f"{line.variant} on {line.backend}"
        yield from (f"{on}: only within the widened budget: {text}" for text in line.widened)
    yield from (f"not run: {rejected}" for rejected in found.rejected)
    if signed_by:
        yield f"signed by key {signed_by}"
    failed = sum(not c.passed for c in checked)
    count = f"{vectors} test vector" + ("s" if vectors != 1 else "")
    wide = sum(c.passed and bool(c.widened) for c in checked)
    verdict = f"{failed} of {len(checked)} FAILED" if failed else "all within budget"
    verdict += f", {wide} of {len(checked)} only within a widened one" if wide else ""
    yield f"{count} on each: {verdict}"


def _row(checked: Checked) -> tuple[str, ...]:
    engine = f"{checked.backend} {checked.version}"
    if not checked.metrics:
        return checked.variant, engine, checked.device, "-", "-", checked.verdict
    largest = max(m.max_rel for m in checked.metrics.values())
    lowest = min(m.sqnr_db for m in checked.metrics.values())
    error = "equal" if largest == 0 else f"{largest:.1e}"
    signal = "exact" if lowest == float("inf") else f"{lowest:.0f} dB"
    return checked.variant, engine, checked.device, error, signal, checked.verdict
