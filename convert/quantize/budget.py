"""``--precision auto``: the search for one target, from samples to sentences for the report."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeinfer.convert.quantize.rules import layers
from edgeinfer.convert.quantize.search import Layer, Memory, Outcome, Point, Search
from edgeinfer.convert.quantize.task_metrics import Named
from edgeinfer.convert.quantize.trial import Samples, Trials, gather, key_of
from edgeinfer.convert.quantize.units import lay_out

if TYPE_CHECKING:
    from edgeinfer.convert.plan import Job
    from edgeinfer.convert.quantize.calibrate import Progress, Quantizer
    from edgeinfer.convert.quantize.data import CalibrationSet
    from edgeinfer.convert.quantize.quality import Metric
    from edgeinfer.convert.verify import Report


@dataclass(frozen=True, slots=True)
class Fitted:
    """A finished search.

    Attributes:
        outcome: what it settled on.
        float_point: the float model on the same engine.
        layers: what could stay float.
        samples: what was run, for the next target.
        title: of the job.
        max_drop: the budget.
    """

    outcome: Outcome
    float_point: Point
    layers: tuple[Layer, ...]
    samples: Samples
    title: str
    max_drop: float

    @property
    def lines(self) -> list[str]:
        """Sentences for the report."""
        chosen, before = self.outcome.chosen, self.float_point
        kept = set(chosen.kept)
        found = [
            f"{self.title}: {len(kept)} of {len(self.layers)} layers stay float: drop "
            f"{chosen.drop:.2%} of {self.max_drop:.2%} allowed, {chosen.latency_ms:.2f} ms "
            f"(float {before.latency_ms:.2f} ms), {chosen.size_bytes / 1e6:.2f} MB "
            f"(float {before.size_bytes / 1e6:.2f} MB), {len(self.outcome.points)} candidates"
        ]
        for layer in self.layers:
            if layer.name in kept:
                gain = self.outcome.gains.get(layer.name)
                why = layer.rule or "the budget needs it"
                amount = "" if gain is None else f" (takes {gain:.2%} off the error)"
                found.append(f"{self.title}: {layer.op} {layer.name!r} stays float: {why}{amount}")
        if not self.outcome.holds:
            found.append(f"{self.title}: no mixture holds the budget")
        if chosen.latency_ms > before.latency_ms:
            found.append(
                f"{self.title}: integers are slower than float on this engine "
                f"({chosen.latency_ms:.2f} ms against {before.latency_ms:.2f} ms); fp32 is faster"
            )
        return found

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {
            "max_drop": self.max_drop,
            "samples": len(self.samples.feeds),
            "float": {
                "latency_ms": self.float_point.latency_ms,
                "size_bytes": self.float_point.size_bytes,
            },
            "rules": {y.name: y.rule for y in self.layers if y.rule},
            **self.outcome.to_json(),
        }


def fit(
    quantizer: Quantizer,
    data: CalibrationSet,
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
        progress: told what is being done.
    """
    from edgeinfer.convert.quantize.calibrate import limits_of

    samples = gather(data, quantizer.model) if samples is None else samples
    few = samples.few()
    trials = Trials(quantizer, job, report.inputs, report.outputs, metric)
    units = lay_out(quantizer.model, limits_of(job.profile, job.format)).units
    known = layers(units, quantizer.ranges)

    def told(what: str, done: float | None) -> None:
        if progress is not None:
            progress(f"{job.title}: {what}", done)

    search = Search(
        known,
        lambda kept: trials.measure(kept, samples, timed=True),
        lambda kept: trials.measure(kept, few, timed=False),
        max_drop,
        # A user's measure is code: what it said before need not be what it says now.
        Memory(
            memory_file(key_of(quantizer, job, samples, metric))
            if metric is None or isinstance(metric, Named)
            else None
        ),
        told,
    )
    outcome = search.run()
    before, latency = trials.measure_float(samples, frozenset(outcome.chosen.kept))
    outcome = replace(outcome, chosen=replace(outcome.chosen, latency_ms=latency))
    return Fitted(outcome, before, tuple(known), samples, job.title, max_drop)


def memory_file(key: str) -> Path:
    """Return the place of a search's measurements."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("edgeinfer")) / "search" / f"{key}.json"
