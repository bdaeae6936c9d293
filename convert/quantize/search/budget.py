"""``--precision auto``: the search for one target, from samples to sentences for the report."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from edgeinfer.accuracy import LABELLED, TaskMeasure
from edgeinfer.convert.quantize.calibration import limits_of
from edgeinfer.convert.quantize.recipe import METHODS
from edgeinfer.convert.quantize.rewrite import bodies
from edgeinfer.convert.quantize.rewrite.fallback import FORMS
from edgeinfer.convert.quantize.search.layers import (
    QUIET,
    Layer,
    Measure,
    MeasurementStore,
    Measures,
    Point,
    Search,
    SearchOutcome,
    smallest,
)
from edgeinfer.convert.quantize.search.quality import Judgement
from edgeinfer.convert.quantize.search.rules import layers
from edgeinfer.convert.quantize.search.timing_source import LIKE_SIZE, TimingSource
from edgeinfer.convert.quantize.search.trial import (
    CandidateTrials,
    Samples,
    foresee,
    gather,
    key_of,
)
from edgeinfer.errors import UsageError
from edgeinfer.records import dataclass

if TYPE_CHECKING:
    from edgeinfer.accuracy import Metric
    from edgeinfer.convert.pipeline.plan import Job
    from edgeinfer.convert.quantize.calibration import Quantizer
    from edgeinfer.convert.verify import Report
    from edgeinfer.convert.verify.answers import Vector
    from edgeinfer.media.samples import SampleSet
    from edgeinfer.types import Progress


ALIKE = 1.05
"""Times that differ by less are one time: what two runs of one file differ by."""

_CLEARLY_SMALLER = 0.9
_WHOLE = ("weight_only_wi8_afp32", "dynamic_wi8_afp32")
"""Recipes that the whole net is tried with: no range of activations is needed for them."""

_TIGHTER = 4
"""Searches, each for half of what the one before might lose, until the gate takes what is found;
beyond that, every layer stays float."""

SECONDS = 1800.0
"""After so long the search settles on the best that it has measured."""


_NARROWED = (0.85, 0.7, 0.6, 0.5, 0.4)
"""What ranges are narrowed to, too: a few loud samples take the steps of all others, and what is
clipped in those may not matter."""

Remembered = Callable[[str, frozenset[str], Measure], Point]


@dataclass(frozen=True, slots=True)
class Fitted:
    """A finished search.

    Attributes:
        outcome: what it settled on.
        float_point: the float model on the same engine.
        layers: what could stay float.
        samples: what was run, for the next target.
        title: Title of the job.
        max_drop: the budget.
        clock: what was run, and whether its times say something of the target's; None where
            candidates were not run.
        measured: how many of the samples candidates were measured on.
        measure: Name of what a share of may be lost.
    """

    outcome: SearchOutcome
    float_point: Point
    layers: tuple[Layer, ...]
    samples: Samples
    title: str
    max_drop: float
    clock: TimingSource | None = None
    measured: int = 0
    measure: str = "quality"

    @property
    def quality(self) -> str:
        """Return what is left of the float model's quality, on how many samples."""
        chosen = self.outcome.chosen
        return (
            f"{self.measure} {chosen.quality:.4g} (float {self.float_point.quality:.4g}), drop "
            f"{chosen.drop:.2%} ± {chosen.margin:.2%} of {self.max_drop:.2%} allowed, on "
            f"{self._samples} samples"
        )

    @property
    def _samples(self) -> int:
        return self.measured or len(self.samples.feeds)

    @property
    def is_timed(self) -> bool:
        """Whether times tell candidates apart."""
        return self.clock is None or self.clock.counts

    @property
    def timing(self) -> str:
        """Return what times are of, or what decided instead."""
        return "" if self.clock is None else self.clock.line

    @property
    def advice(self) -> str:
        """Return what is faster than the choice, if anything is."""
        chosen, before = self.outcome.chosen, self.float_point
        if not self.is_timed and chosen.size_bytes >= before.size_bytes:
            return (
                f"no smaller than float ({chosen.size_bytes / 1e6:.2f} MB against "
                f"{before.size_bytes / 1e6:.2f} MB): --precision fp32 will do"
            )
        if not self.is_timed or chosen.latency_ms <= ALIKE * before.latency_ms:
            return ""
        return (
            f"slower than float on this engine{self._here} ({chosen.latency_ms:.3f} ms against "
            f"{before.latency_ms:.3f} ms, {chosen.size_bytes / 1e6:.2f} MB against "
            f"{before.size_bytes / 1e6:.2f} MB): --precision fp32 is faster"
        )

    @property
    def _here(self) -> str:
        here = self.clock is None or self.clock.is_device
        return "" if self.clock is None or here else f" here ({self.clock.machine})"

    @property
    def lines(self) -> list[str]:
        """Sentences for the report."""
        chosen, before = self.outcome.chosen, self.float_point
        kept = set(chosen.kept)
        if chosen.recipe:
            what = f"{chosen.recipe}: 8-bit activations are slower on this engine and no smaller"
        else:
            what = f"{len(kept)} of {len(self.layers)} layers stay out of 8 bits"
        times = f"{chosen.latency_ms:.3f} ms (float {before.latency_ms:.3f} ms), "
        times *= self.is_timed
        found = [
            f"{self.title}: {what}: {self.quality}, {times}"
            f"{chosen.size_bytes / 1e6:.2f} MB (float {before.size_bytes / 1e6:.2f} MB), "
            f"{len(self.outcome.points)} candidates"
        ]
        if self.timing:
            found.append(f"{self.title}: {self.timing}")
        if chosen.calibrator:
            found.append(
                f"{self.title}: ranges are those of the calibrator {chosen.calibrator!r}: they "
                "leave the least noise, and the requested ones did not hold the budget"
            )
        if self.outcome.most_noise < math.inf:
            plain = self.outcome.points[0]
            found.append(
                f"{self.title}: {plain.noise:.1%} of the outputs' energy is wrong with integers "
                f"everywhere: that only {plain.drop:.2%} is lost on these samples says little of "
                f"others, so that layers stay out of 8 bits until it is {QUIET:.0%}"
            )
        found += [self._line(layer) for layer in self.layers if layer.name in kept]
        found += [f"{self.title}: the gate would refuse: {why}" for why in self.outcome.refused]
        if self.outcome.stopped:
            found.append(f"{self.title}: stopped after {SECONDS:.0f} s: {self.outcome.stopped}")
        if not self.outcome.holds:
            found.append(f"{self.title}: no mixture holds the budget")
        if self.advice:
            found.append(f"{self.title}: {self.advice}")
        return found

    def _line(self, layer: Layer) -> str:
        gain = self.outcome.gains.get(layer.name)
        why = layer.rule or "the budget needs it"
        amount = "" if gain is None else f" (takes {gain:.2%} off the error)"
        form = self.outcome.chosen.form
        stays = "stays float" if form == "fp32" else f"stays out of 8 bits ({FORMS[form]})"
        return f"{self.title}: {layer.op} {layer.name!r} {stays}: {why}{amount}"

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {
            "max_drop": self.max_drop,
            "samples": self._samples,
            "measure": self.measure,
            "quality": self.quality,
            "float": {
                "latency_ms": self.float_point.latency_ms if self.is_timed else None,
                "size_bytes": self.float_point.size_bytes,
            },
            "advice": self.advice,
            "timed": self.is_timed,
            "timing": self.timing,
            "on_device": self.clock is None or self.clock.is_device,
            "rules": {y.name: y.rule for y in self.layers if y.rule},
            **self.outcome.to_json(),
        }


def fit(
    quantizer: Quantizer,
    data: SampleSet,
    job: Job,
    report: Report,
    max_drop: float,
    *,
    metric: Metric | None = None,
    samples: Samples | None = None,
    progress: Progress | None = None,
) -> Fitted:
    """Find the layers that one target keeps in float.

    Args:
        quantizer: calibrated.
        data: that candidates are measured on.
        job: the target.
        report: has the model's inputs and outputs.
        max_drop: the budget.
        metric: the user's own measure.
        samples: gathered before, for another target.
        progress: Called with what is being done.
    """
    samples = gather(data, quantizer.model) if samples is None else samples
    if isinstance(metric, TaskMeasure) and not samples.labels:
        raise UsageError(f"metric {metric.name!r} needs labels in the calibration data: {LABELLED}")
    trials = CandidateTrials(quantizer, job, report.inputs, report.outputs, metric)
    whole = samples
    samples = trials.in_time(samples)
    few = samples.few()
    limits = limits_of(job.profile, job.format)
    known = layers(quantizer.units(limits), quantizer.ranges, quantizer.seen.values)
    # Weights alone are stored there: that they stay float costs size, no time.
    inside = bodies.candidates(quantizer.model, limits)
    known += [Layer(n.name or "", n.op_type, 0.0) for n in inside]
    clock = trials.clock

    def notify(what: str, done: float | None) -> None:
        if progress is not None:
            progress(f"{job.title}: {what}", done)

    search = Search(
        known,
        lambda kept: trials.measure(kept, samples, timed=True),
        lambda kept: trials.measure(kept, few, timed=False),
        max_drop,
        # A user's measure is code: what it said before need not be what it says now.
        MeasurementStore(
            key_of(quantizer, job, samples, metric, timed=clock.counts)
            if metric is None or isinstance(metric, TaskMeasure)
            else None
        ),
        notify,
        SECONDS,
        _calibrators(trials, samples, few),
        timed=clock.counts,
        integers_pay=bool(clock.integers),
    )
    outcome, before = _settled(trials, search, samples, report.vectors)
    kinds = (tuple(known), whole, job.title, max_drop, clock)
    judge = Judgement(samples.expected, samples.labels, metric)
    count = len(samples.feeds)
    return Fitted(outcome, before, *kinds, measured=count, measure=judge.measure)


def _calibrators(trials: CandidateTrials, samples: Samples, few: Samples) -> dict[str, Measures]:
    """Return how candidates are measured with other ranges, and with those requested."""
    asked = trials.quantizer.settings.method
    names = ["", *(m for m in METHODS if m != asked), *(f"{asked}*{f}" for f in _NARROWED)]
    some = trials.some(samples)
    measure = trials.measure
    return {
        n: Measures(
            partial(measure, samples=samples, timed=True, calibrator=n),
            partial(measure, samples=few, timed=False, calibrator=n),
            partial(measure, samples=some, timed=False, calibrator=n),
        )
        for n in names
    }


def _settled(
    trials: CandidateTrials, search: Search, samples: Samples, vectors: Sequence[Vector]
) -> tuple[SearchOutcome, Point]:
    """Search until the gate takes the choice too: it judges every vector, not all together.

    Returns:
        What was chosen, and the float model.
    """
    max_drop, asked = search.max_drop, foresee(trials.quantizer.model, vectors)
    refused: list[str] = []
    for _ in range(_TIGHTER):
        outcome = search.run()
        points = _finalists(trials, outcome, samples, search.remembered)
        if not search.timed and outcome.chosen.kept:
            # Nothing is timed again: any that was measured may be the smallest, float among them.
            every = frozenset(y.name for y in search.layers)
            more = (*outcome.points, search.remembered("full", every, search.full))
            points += [p for p in dict.fromkeys(more) if p not in points]
        before, raced = trials.race(samples, points)
        outcome = replace(outcome, points=(*outcome.points, *raced[1:]))
        while raced:
            noise = outcome.most_noise
            costs = search.costs_of_float
            chosen = best(raced, max_drop, timed=search.timed, most_noise=noise, costs=costs)
            why = trials.refusal(chosen, asked)
            if not why:
                return replace(outcome, chosen=chosen, refused=tuple(refused)), before
            refused.append(why)
            # Others are measured against the choice of the search: they go with it.
            raced = [] if chosen is raced[0] else [p for p in raced if p is not chosen]
        search.max_drop /= 2
    every = frozenset(y.name for y in search.layers)
    last = search.remembered("full", every, search.full)
    outcome = replace(outcome, chosen=last, holds=last.bound <= max_drop, refused=tuple(refused))
    return replace(outcome, points=(*outcome.points, last)), before


def _finalists(
    trials: CandidateTrials, outcome: SearchOutcome, samples: Samples, remembered: Remembered
) -> list[Point]:
    """Return the choice, and what else may be as good, smaller or faster."""
    chosen, job = outcome.chosen, trials.job
    found = [chosen]
    kept = frozenset(chosen.kept)
    limits = limits_of(job.profile, job.format)
    for form in limits.fallbacks if kept and trials.changes(kept) else ():
        by = chosen.calibrator
        measure = partial(trials.measure, samples=samples, timed=True, form=form, calibrator=by)
        found.append(remembered(f"full {form} {by}".rstrip(), kept, measure))
    for recipe in _WHOLE if outcome.timed else ():
        if recipe in job.profile.precisions:
            measure = partial(_by_recipe, trials, recipe, samples)
            found.append(remembered(f"full {recipe}", frozenset(), measure))
    return found


def _by_recipe(trials: CandidateTrials, recipe: str, samples: Samples, _: frozenset[str]) -> Point:
    return trials.measure_recipe(recipe, samples)


def best(
    points: list[Point],
    max_drop: float,
    *,
    timed: bool,
    most_noise: float = math.inf,
    costs: Mapping[str, float] | None = None,
) -> Point:
    """Choose the fastest that holds the budget, of those that are as fast the smallest.

    The first is what the search settled on. Weights alone take its place only if they are better
    in time or size and as good in the other: both are what integers are requested. Without times
    the smallest is chosen, see ``search.smallest`` for ``costs``.
    """
    first = points[0]
    good = [p for p in points if p.holds(max_drop, most_noise)]
    fit = [p for p in good if not p.recipe or _replaces(p, first)]
    if first not in good or not fit:
        return first
    if not timed:
        return smallest(fit, costs)
    # A form that is smaller may cost some of the time that integers gained.
    least = min(p.latency_ms for p in fit)
    return min((p for p in fit if p.latency_ms <= ALIKE * least), key=lambda p: p.size_bytes)


def _replaces(alone: Point, first: Point) -> bool:
    """Whether weights alone are faster than integers and no larger, or smaller and no slower.

    Either must be clear: of what is alike, integers are what the device multiplies best.
    """
    faster = ALIKE * alone.latency_ms < first.latency_ms
    smaller = alone.size_bytes < _CLEARLY_SMALLER * first.size_bytes
    alike = alone.size_bytes <= LIKE_SIZE * first.size_bytes
    return (faster and alike) or (smaller and alone.latency_ms <= ALIKE * first.latency_ms)
