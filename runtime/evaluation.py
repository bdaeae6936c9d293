"""How right every artifact of a bundle is on data whose answers are known."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from edgeinfer.accuracy import LABELLED, Metric, Outputs, TaskMeasure
from edgeinfer.backends import registry
from edgeinfer.backends.base import Executable
from edgeinfer.bundle.archive import Bundle
from edgeinfer.bundle.manifest import Manifest, Variant
from edgeinfer.bundle.values import fits
from edgeinfer.errors import BackendError, InputError, UsageError
from edgeinfer.llm.generation import is_language_model
from edgeinfer.media.samples import SampleSet, open_data
from edgeinfer.records import dataclass
from edgeinfer.runtime.inputs import InputCheck
from edgeinfer.runtime.pairs import open_pair, opened, pairs
from edgeinfer.runtime.select import Candidate, Rejected
from edgeinfer.types import Feeds, Progress


@dataclass(frozen=True, slots=True)
class Evaluated:
    """One artifact on one engine.

    Attributes:
        variant: its id.
        backend: the engine.
        version: Version of the engine.
        device: kind of unit.
        precision: Precision of the artifact.
        size_bytes: Size in bytes of the artifact.
        quality: by the metric, the higher the better; None where it could not be measured.
        sample_ms: half of the runs took less for each sample in them; None likewise, and where an
            engine's times say nothing of a device.
        problem: why it could not be measured; else empty.
    """

    variant: str
    backend: str
    version: str
    device: str
    precision: str
    size_bytes: int
    quality: float | None
    sample_ms: float | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What ``evaluate`` found.

    Attributes:
        bundle: where it lies.
        data: where the samples are from.
        metric: name of the measure.
        samples: how many have a label; each artifact was run on all of them.
        rows: one for each artifact on each engine that can run it here, in the bundle's order.
        not_run: the rest, with reasons.
        also: variants of other targets that are the same artifact, by the variant of a row.
    """

    bundle: str
    data: str
    metric: str
    samples: int
    rows: tuple[Evaluated, ...]
    not_run: tuple[Rejected, ...]
    also: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether every artifact that can run here could be measured."""
        return all(row.quality is not None for row in self.rows)

    def __repr__(self) -> str:
        known = [row for row in self.rows if row.quality is not None]
        best = max(known, key=lambda row: row.quality or -math.inf, default=None)
        what = "nothing" if best is None else f"{self.metric} {best.quality:.4g} ({best.variant})"
        return f"<Evaluation {self.bundle}: best {what}, {len(self.rows)} rows>"


def evaluate(
    bundle: str | Path | Bundle,
    data: str | Path | Sequence[Feeds],
    metric: str | Metric = "top1",
    *,
    backend: str | None = None,
    threads: int | None = None,
    allow_fallback: bool = False,
    time_limit_s: float | None = None,
    progress: Progress | None = None,
    **opening: Any,
) -> Evaluation:
    """Measure every artifact of a bundle on every engine here, on data with labels.

    Args:
        bundle: its path, or an open one, which stays open.
        data: as calibration data: a folder of images, recordings or ``.npz`` files, whose
            sub-folders are classes; one ``.npz`` with all samples and their ``labels``; or feeds,
            each with ``labels``.
        metric: one of ``edgeinfer.accuracy.NAMES``, of the output that it judges; or a
            callable of the outputs of all runs and the labels of all samples, higher is better.
        backend: only this engine; None is every one here.
        threads: Threads of the engine; None leaves them to it.
        allow_fallback: operators that the device does not take may run on the CPU.
        time_limit_s: that an engine may take to load an artifact, and for a run, in a process of
            its own; None runs it in this one, where nothing can end it.
        progress: Called with what is being done and what share of it is done, 0..1.
        **opening: how the bundle is opened, as ``Bundle.open`` takes it.

    Raises:
        BundleError: it is damaged.
        InputError: a sample does not fit the model.
        NotAvailableError: nothing in it can run here; says why for each pair.
        UsageError: a sample has no label, there is no such backend or metric, or the metric cannot
            judge these labels.
    """
    with opened(bundle, opening) as open_bundle:
        manifest = open_bundle.manifest
        if is_language_model(open_bundle):
            raise UsageError(
                f"{open_bundle.location}: a language model has no outputs with labels to compare; "
                "the report in the bundle says how it was judged"
            )
        judge = TaskMeasure(metric, manifest.labels) if isinstance(metric, str) else metric
        given = Path(data) if isinstance(data, str | Path) else data
        samples = open_data(given, manifest.inputs, manifest.preprocessing, called="evaluation")
        labels = _labels(samples)
        found = pairs(open_bundle, None if backend == "all" else backend)
        rows = []
        for number, candidate in enumerate(found.candidates):
            if progress is not None:
                progress(f"evaluate {candidate.pair}", number / len(found.candidates))
            start = partial(open_pair, open_bundle, found, candidate, threads)
            start = partial(start, fallback=allow_fallback, limit_s=time_limit_s)
            variant = found.variants[candidate.pair.variant]
            rows.append(
                _row(start, open_bundle.manifest, candidate, variant, samples, labels, judge)
            )
        return Evaluation(
            bundle=str(open_bundle.location),
            data=samples.origin,
            metric=judge.name if isinstance(judge, TaskMeasure) else "metric",
            samples=len(labels),
            rows=tuple(rows),
            not_run=found.rejected,
            also={n: more for n, more in found.also.items() if n in {r.variant for r in rows}},
        )


def _labels(samples: SampleSet) -> list[Any]:
    """Return all labels; a sample without one would be left out of a number that says all."""
    labels: list[Any] = []
    for sample in samples.samples():
        if not sample.labels:
            raise UsageError(f"evaluation data: {sample.origin} has no label: expected {LABELLED}")
        labels.extend(sample.labels)
    if not labels:
        raise UsageError(f"evaluation data {samples.origin} holds no sample")
    return labels


def _row(
    start: Callable[[], Executable],
    manifest: Manifest,
    candidate: Candidate,
    variant: Variant,
    samples: SampleSet,
    labels: list[Any],
    judge: Metric,
) -> Evaluated:
    pair = candidate.pair
    quality, sample_ms, problem = None, None, ""
    try:
        executable = start()
        try:
            names = [spec.name for spec in manifest.outputs]
            if isinstance(judge, TaskMeasure):
                names = [judge.judged({spec.name: spec.dtype for spec in manifest.outputs})]
            outputs, times = _run(executable, manifest, variant, samples, names)
        finally:
            executable.close()
    except (BackendError, InputError) as e:
        problem = str(e)
    else:
        quality = float(judge(outputs, labels))
        if registry.get(pair.backend).capabilities().keeps_time:
            sample_ms = statistics.median(times)
        if not math.isfinite(quality):
            quality, problem = None, f"the metric gives {quality}"
    return Evaluated(
        variant=pair.variant,
        backend=pair.backend,
        version=candidate.version,
        device=pair.device,
        precision=variant.precision,
        size_bytes=variant.size_bytes,
        quality=quality,
        sample_ms=sample_ms,
        problem=problem,
    )


def _run(
    executable: Executable,
    manifest: Manifest,
    variant: Variant,
    samples: SampleSet,
    names: Sequence[str],
) -> tuple[list[Outputs], list[float]]:
    """Return the outputs of every run, and the time that each took for one of its samples.

    Raises:
        InputError: a sample holds values that the artifact refuses.
    """
    check = InputCheck(manifest.inputs)
    outputs: list[Outputs] = []
    times = []
    for number, sample in enumerate(samples.samples()):
        feeds = check(sample.feeds)
        if not fits(variant.constraints, feeds):
            raise InputError("*", "values that the artifact takes", f"others in {sample.origin}")
        if number == 0:
            # What a first run sets up is not of the time that a sample takes.
            executable.run(feeds)
        start = time.perf_counter()
        made = executable.run(feeds)
        times.append(1e3 * (time.perf_counter() - start) / len(sample.labels))
        # Engines may write the next run's outputs over these.
        outputs.append({name: np.array(made[name]) for name in names})
    return outputs, times
