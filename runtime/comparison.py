"""Times of every artifact on every engine, in turns with the plain engines."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgeinfer.backends.onnxruntime.regions import FORMAT as REGIONS
from edgeinfer.bundle.archive import Bundle
from edgeinfer.errors import BackendError, BundleError, InputError
from edgeinfer.records import dataclass
from edgeinfer.runtime.inputs import InputCheck
from edgeinfer.runtime.pairs import Pairs, fallen, open_pair, opened, pairs
from edgeinfer.runtime.plain import ENGINES, plain_call
from edgeinfer.runtime.timing import Timing, interleave
from edgeinfer.types import Array

PLAIN = "plain "
"""What stands before the name of an engine that is called without edgeinfer."""


@dataclass(frozen=True, slots=True)
class Row:
    """What was timed.

    Attributes:
        variant: id of the artifact, or the source's file name.
        engine: backend, or ``plain`` and the engine called without edgeinfer.
        version: Version of the engine.
        device: kind of unit.
        threads: Threads of the engine; None is its own choice.
        remark: what a plain engine does by itself that edgeinfer's rows do not.
        consent: kind that has to be allowed for a session to take it; empty where none has.
    """

    variant: str
    engine: str
    version: str
    device: str
    threads: int | None
    remark: str = ""
    consent: str = ""


@dataclass(frozen=True, slots=True)
class TimingResult:
    """What ``bench`` found.

    Attributes:
        bundle: where it lies.
        rows: what each call took, the fastest first.
        not_run: what could not be timed and why, one line each.
        shapes: Shapes of the input that was run, by name.
    """

    bundle: str
    rows: dict[Row, Timing]
    not_run: tuple[str, ...]
    shapes: dict[str, tuple[int, ...]]

    def gains(self) -> dict[str, float]:
        """Return how many times faster a model gets by each kind that has to be allowed.

        That is the fastest variant that needs it, against the fastest that needs nothing, of those
        with the same number of threads.
        """
        found: dict[str, float] = {}
        best: dict[int | None, float] = {}
        own = {row: t.median_ms for row, t in self.rows.items() if not row.engine.startswith(PLAIN)}
        for row, ms in own.items():
            if not row.consent:
                best[row.threads] = min(ms, best.get(row.threads, ms))
        for row, ms in own.items():
            if row.consent and row.threads in best:
                factor = best[row.threads] / ms
                found[row.consent] = max(factor, found.get(row.consent, factor))
        return found

    def __repr__(self) -> str:
        if not self.rows:
            return f"<Timed {self.bundle}: nothing>"
        row, timing = next(iter(self.rows.items()))
        best = f"{row.variant} on {row.engine} {timing.median_ms:.3g} ms"
        return f"<Timed {self.bundle}: {len(self.rows)} rows, fastest {best}>"


@dataclass(frozen=True, slots=True)
class TimingPlan:
    """What can be timed, and what cannot and why."""

    calls: dict[Row, Callable[[], object]]
    failed: list[str]


def bench(
    bundle: str | Path | Bundle,
    inputs: Mapping[str, Array] | None = None,
    *,
    backend: str | None = None,
    threads: Sequence[int | None] = (None,),
    runs: int = 200,
    seconds: float = 10.0,
    allow_fallback: bool = False,
    source: Path | None = None,
    engine_defaults: bool = False,
    time_limit_s: float | None = None,
    progress: Callable[[float], None] | None = None,
    **opening: Any,
) -> TimingResult:
    """Time every artifact of a bundle on every engine here, in turns with the plain engines.

    Args:
        bundle: its path, or an open one, which stays open.
        inputs: arrays by input name; None is the bundle's first test vector.
        backend: only this engine; None is every one here.
        threads: thread counts to try; None leaves them to the engine.
        runs: Runs of each, at most.
        seconds: for all of it, at most, once each had its first few runs.
        allow_fallback: operators that the device does not take may run on the CPU.
        engine_defaults: the plain engines run as they come, which may be in another precision and
            with threads that spin; else like for like, with the settings that edgeinfer has.
        time_limit_s: that an engine may take to load an artifact, and for a run, in a process of
            its own; plain engines, which nothing can end, are then left out. None for no limit.
        source: model that the plain engines run instead of the artifacts.
        progress: called with the share that is done, 0..1.
        **opening: how the bundle is opened, as ``Bundle.open`` takes it.

    Raises:
        BundleError: it is damaged, or has no test vectors and no inputs are given.
        NotAvailableError: nothing in it can run here; says why for each pair.
        InputError: the inputs are not those of the model.
        UsageError: there is no such backend.
    """
    with opened(bundle, opening) as open_bundle, contextlib.ExitStack() as stack:
        found = pairs(open_bundle, None if backend == "all" else backend)
        feeds = dict(inputs) if inputs is not None else first_vector(open_bundle)
        plan = _plan(
            *(open_bundle, found, feeds, list(threads), source, stack),
            fallback=allow_fallback,
            defaults=engine_defaults,
            limit_s=time_limit_s,
        )
        timings = interleave(plan.calls, runs=runs, seconds=seconds, progress=progress)
        ordered = sorted(timings.items(), key=lambda item: item[1].median_ms)
        return TimingResult(
            bundle=str(open_bundle.location),
            rows=dict(ordered),
            not_run=(*map(str, found.rejected), *plan.failed),
            shapes={name: tuple(np.shape(array)) for name, array in feeds.items()},
        )


def first_vector(bundle: Bundle) -> dict[str, Array]:
    """Return the inputs of a bundle's first test vector.

    Raises:
        BundleError: it has none.
    """
    first = next(bundle.vectors(), None)
    if first is None:
        raise BundleError(f"{bundle.location}: has no test vectors; give an INPUT")
    return dict(first[0])


def _plan(
    bundle: Bundle,
    found: Pairs,
    feeds: dict[str, Array],
    counts: list[int | None],
    source: Path | None,
    stack: contextlib.ExitStack,
    *,
    fallback: bool,
    defaults: bool,
    limit_s: float | None,
) -> TimingPlan:
    checked = dict(InputCheck(bundle.manifest.inputs)(feeds))
    plan = TimingPlan({}, [])
    plain: set[tuple[str, Path, str, int | None]] = set()
    for candidate in found.candidates:
        pair = candidate.pair
        for threads in counts:
            variant = found.variants[pair.variant]
            row = Row(
                *(pair.variant, pair.backend, candidate.version, pair.device, threads),
                consent=variant.consent,
            )
            try:
                executable = open_pair(
                    *(bundle, found, candidate, threads), fallback=fallback, limit_s=limit_s
                )
                stack.callback(executable.close)
                if warning := fallen(executable):
                    plan.failed.append(f"{pair}: warning: {warning}")
                plan.calls[row] = _running(executable.run, checked)
            except BackendError as e:
                plan.failed.append(f"{pair}: {e}")
            if limit_s is not None or (source is None and variant.format == REGIONS):
                # Without edgeinfer there is no such graph, and no end of a run.
                continue
            artifact = source or bundle.paths(variant)[0]
            arithmetic = "" if defaults else variant.computed_in
            key = pair.backend, artifact, arithmetic, threads
            if pair.backend not in ENGINES or key in plain or (arithmetic and pair.device != "cpu"):
                continue
            plain.add(key)
            name = source.name if source else pair.variant
            values = [checked[spec.name] for spec in bundle.manifest.inputs]
            try:
                call, remark = plain_call(
                    *(pair.backend, artifact, values, threads),
                    defaults=defaults,
                    computed_in=arithmetic,
                )
                row = Row(
                    *(name, PLAIN + pair.backend, candidate.version, "cpu", threads),
                    *(remark, variant.consent if arithmetic else ""),
                )
                plan.calls[row] = call
            except BackendError as e:
                plan.failed.append(str(e))
    _drop_failing(plan)
    return plan


def _running(run: Callable[[dict[str, Array]], object], feeds: dict[str, Array]) -> Any:
    return lambda: run(feeds)


def _drop_failing(plan: TimingPlan) -> None:
    """Run each once; what cannot run this input is reported, not timed."""
    for row, call in list(plan.calls.items()):
        try:
            call()
        except InputError:
            raise
        # Plain engines raise their own classes.
        except Exception as e:
            plan.failed.append(f"{row.variant} on {row.engine}: {' '.join(str(e).split())}")
            del plan.calls[row]
    if not plan.calls:
        raise BackendError(f"nothing could be run: {'; '.join(plan.failed)}")
