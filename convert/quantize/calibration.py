"""From a float graph and data to one graph with scales for each target."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import field, replace
from typing import Any

import onnx_ir as ir

from edgeinfer.convert.passes.share_duplicates import ShareInitializers
from edgeinfer.convert.quantize.calibrate.histogram import Histogram
from edgeinfer.convert.quantize.calibrate.judge import DataFinding, DataVerdict, judge
from edgeinfer.convert.quantize.calibrate.observe import Observation, channel_axis, observe
from edgeinfer.convert.quantize.calibrate.ranges import Range, choose
from edgeinfer.convert.quantize.recipe import METHODS, Method, Recipe
from edgeinfer.convert.quantize.rewrite import bodies, fallback, qdq, same_norms, weight_only
from edgeinfer.convert.quantize.rewrite.correct import corrected_biases
from edgeinfer.convert.quantize.rewrite.equalise import equalise_layers, normalised_products, smooth
from edgeinfer.convert.quantize.rewrite.qdq import WrittenScales
from edgeinfer.convert.quantize.rewrite.rounding import (
    Grid,
    Rounding,
    fit,
    grids,
    kept_apart,
    merged,
    output_error,
    substituted,
    thinned,
)
from edgeinfer.convert.quantize.rewrite.shared_weights import APART, SHARED
from edgeinfer.convert.quantize.search.rules import apart, crowded, ends
from edgeinfer.convert.quantize.units import Unit, lay_out, observed
from edgeinfer.convert.verify.kinds import guess_kind
from edgeinfer.errors import UsageError
from edgeinfer.media.samples import SampleSet
from edgeinfer.profiles.schema import FLOAT8, Profile, Quantization
from edgeinfer.records import dataclass
from edgeinfer.types import Feeds, Preprocessing, Progress, TensorSpec

_WRITTEN = {False: "integers", True: "floats of 8 bits"}

_TRIED = 16
"""Samples by which rounding by data is compared with the nearest."""

_BOUNDED = frozenset({"Sigmoid", "HardSigmoid", "Softmax", "Tanh"})
"""Operators whose results end at known numbers: narrower ranges would cut answers off."""

_NEEDLESS = 1e-5
"""Share of the outputs' energy that may be wrong without weights being rounded by data."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How to calibrate.

    Attributes:
        method: the calibrator.
        force: use data that the judge refuses.
        correct_bias: shift biases by what rounded weights add on average.
        equalise: even out the weights of convolutions in a row, and move outliers of activations
            into weights.
        round_weights: with the data in mind, where that is better than to the nearest.
    """

    method: Method = "mse"
    force: bool = False
    correct_bias: bool = True
    equalise: bool = True
    round_weights: bool = True

    @classmethod
    def of(cls, recipe: Recipe, method: Method, *, force: bool = False) -> Settings:
        """Return what suits a recipe.

        Floats of 8 bits have no even steps: their range is that of the data, and what is known of
        the rounding of integers does not hold for them.
        """
        if not recipe.is_float:
            return cls(method=method, force=force)
        return cls(method="minmax", force=force, correct_bias=False, round_weights=False)


@dataclass(slots=True)
class Quantizer:
    """One float graph, one recipe, one data set; every target takes its scales from here.

    Attributes:
        model: normalised, float; equalised in ``calibrate``.
        recipe: what is requested.
        settings: how.
        verdict: what the judge said of the data; None where none is needed.
        ranges: by name of a value.
        seen: what was observed.
        rounding: weights that are not rounded to the nearest, by what they are rounded to.
        notes: lines for the report.
        lengths: Lengths of the vectors that are normalised, by name of the normalisation.
    """

    model: ir.Model
    recipe: Recipe
    settings: Settings = field(default_factory=Settings)
    verdict: DataVerdict | None = None
    ranges: dict[str, Range] = field(default_factory=dict)
    seen: Observation = field(default_factory=Observation)
    rounding: dict[Grid, Rounding] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    lengths: dict[str, Histogram] = field(default_factory=dict)

    def calibrate(
        self,
        data: SampleSet,
        limits: Sequence[Quantization],
        inputs: Sequence[TensorSpec],
        preprocessing: Mapping[str, Preprocessing] | None = None,
        *,
        vectors: Sequence[Feeds] = (),
        findings: Sequence[DataFinding] = (),
        progress: Progress | None = None,
    ) -> None:
        """Judge the data, run it through the float model once, and choose every range.

        Args:
            data: calibration samples.
            limits: Limits of every target the graph is written for.
            inputs: Inputs of the model.
            preprocessing: how an image or a recording becomes an input.
            vectors: real inputs that the result will be judged on.
            findings: Findings of others about the data.
            progress: Called with what is being done.

        Raises:
            UsageError: the data is bad and not forced, or holds NaN.
            InputError: a sample does not fit the model.
        """
        self.verdict = judge(
            data,
            inputs,
            preprocessing,
            vectors=vectors,
            force=self.settings.force,
            extra=findings,
            media=[
                s.name
                for s in inputs
                if guess_kind(s, (preprocessing or {}).get(s.name)).name in ("image", "audio")
            ],
        )
        self.verdict.check()
        if self.verdict.numbers["samples"] == 0:
            raise UsageError("the calibration data holds no sample")
        self.notes += self.verdict.lines()
        if not self.recipe.is_static:
            self._round_weights(data, limits, progress)
            return
        total = self._samples()
        if self.settings.equalise:
            self._equalise(data, limits, kept_apart(data.feeds, total, _TRIED))

        def notify(count: int) -> None:
            if progress is not None:
                progress("calibrate", min(1.0, count / total))

        self._look(data.feeds, limits, notify)
        self.notes.append(
            f"{len(self.ranges)} ranges from {total} samples by {self.settings.method}"
        )
        self._round_weights(data, limits, progress)

    def _round_weights(
        self, data: SampleSet, limits: Sequence[Quantization], progress: Progress | None
    ) -> None:
        """Round weights with the data in mind; go back to the nearest where outputs are no better.

        The outputs are those of samples that are spread over the data.
        """
        if not self.settings.round_weights:
            return

        def notify(share: float) -> None:
            if progress is not None:
                progress("round weights", share)

        feeds, total = thinned(data.feeds, self._samples())
        samples = kept_apart(feeds, total, _TRIED)
        for limit in limits:
            wanted = grids(self.model, self.recipe, limit)
            fresh = [g for g in wanted if g not in self.rounding]
            if not fresh:
                continue
            nearest = self.write(limit).model
            (before,) = output_error(self.model, (nearest,), samples)
            if before <= _NEEDLESS:
                self.notes.append(
                    f"weights are rounded to the nearest: {before:.2g} of the outputs' energy is "
                    "wrong, which leaves nothing to gain"
                )
                continue
            for grid in fresh:
                self.rounding[grid] = fit(
                    self.model, wanted[grid], grid, feeds, samples=total, notify=notify
                )
            if not any(self.rounding[g].weights for g in fresh):
                continue
            better = self.write(limit).model
            (after,) = output_error(self.model, (better,), samples)
            if after < before:
                self.notes += [self.rounding[g].line() for g in fresh if self.rounding[g].weights]
                self.notes.append(
                    f"error of the outputs with these weights: {after:.3g} of their energy, "
                    f"{before:.3g} with the nearest"
                )
            else:
                self.rounding.update((g, Rounding()) for g in fresh)
                self.notes.append(
                    "weights are rounded to the nearest: rounding by data did not help the outputs"
                )

    def _samples(self) -> int:
        return 0 if self.verdict is None else int(self.verdict.numbers["samples"])

    def _look(
        self,
        feeds: Callable[[], Iterator[Feeds]],
        limits: Sequence[Quantization],
        notify: Callable[[int], None] | None = None,
    ) -> None:
        """Run samples through the float model once, and choose every range."""
        units = [u for lim in limits for u in lay_out(self.model, lim).units]
        values = observed(units)
        axes = {u.reads[0].name or "": channel_axis(u) for u in units if u.kind == "weighted"}
        model, lengths = self.model, dict[str, str]()
        if any(lim.same_bits for lim in limits):
            model, lengths = same_norms.watched(self.model)
        names = [*values, *lengths.values()]
        self.seen = observe(model, names, axes, feeds, ends=ends(units), progress=notify)
        self.lengths = {x: self.seen.values.pop(name) for x, name in lengths.items()}
        self.ranges = {n: self._range(n, values[n]) for n in values}

    def _equalise(
        self, data: SampleSet, limits: Sequence[Quantization], samples: Sequence[Feeds]
    ) -> None:
        """Even out weights and move outliers into them, each where the outputs gain by it."""
        model = self.model.clone()
        if pairs := equalise_layers(model):
            self._take(
                model, f"weights evened out between {pairs} pairs of convolutions", limits, samples
            )
        model = self.model.clone()
        if names := normalised_products(model):
            seen = observe(model, names, dict.fromkeys(names, -1), data.feeds)
            if count := smooth(model, seen.channels):
                what = f"outliers moved into weights behind {count} normalisations"
                self._take(model, what, limits, samples)

    def _take(
        self, model: ir.Model, what: str, limits: Sequence[Quantization], samples: Sequence[Feeds]
    ) -> None:
        """Go on with a rewritten model if its integers are nearer to the float model's outputs."""
        before = after = 0.0
        for limit in limits:
            written = [self._on(m, limit, samples) for m in (self.model, model)]
            errors = output_error(self.model, written, samples)
            before, after = before + errors[0], after + errors[1]
        numbers = f"error of the outputs {after:.3g} of their energy, {before:.3g} without"
        if after < before:
            self.model = model
            self.notes.append(f"{what}: {numbers}")
        else:
            self.notes.append(f"not done, for it does not pay: {what}: {numbers}")

    def _on(self, model: ir.Model, limit: Quantization, samples: Sequence[Feeds]) -> ir.Model:
        """Write another model with ranges of a few samples."""
        settings = replace(self.settings, equalise=False, round_weights=False)
        trial = Quantizer(model, self.recipe, settings)
        trial._look(lambda: iter(samples), [limit])
        return trial.write(limit).model

    def by(self, calibrator: str) -> Quantizer:
        """Return the same with other ranges; nothing is run again.

        Args:
            calibrator: one of ``METHODS``, which may be followed by ``*`` and a factor that narrows
                its ranges; empty for the one that was requested.
        """
        name, _, factor = calibrator.partition("*")
        method = next((m for m in METHODS if m == name), self.settings.method)
        narrow = float(factor or 1.0)
        if method == self.settings.method and narrow == 1.0:
            return self
        found = self.ranges
        if method != self.settings.method:
            found = {n: choose(self.seen.values[n], method) for n in self.ranges}
        whole = {
            v.name for n in self.model.graph if n.op_type in _BOUNDED for v in n.outputs if v.name
        }
        ranges = {
            n: r if n in whole else Range(narrow * r.low, narrow * r.high) for n, r in found.items()
        }
        return replace(self, settings=replace(self.settings, method=method), ranges=ranges)

    def _range(self, name: str, value: ir.Value) -> Range:
        try:
            return choose(self.seen.values[name], self.settings.method)
        except UsageError as e:
            maker = value.producer()
            where = f"{maker.op_type} {maker.name!r}" if maker is not None else "the input"
            raise UsageError(f"value {name!r} of {where}: {e}") from e

    def write(
        self,
        limits: Quantization,
        *,
        model: ir.Model | None = None,
        kept: AbstractSet[str] = frozenset(),
        form: str = "fp32",
    ) -> WrittenScales:
        """Write the graph for one target.

        Args:
            limits: Limits of the target.
            model: a part of the float graph to write instead of all of it.
            kept: names of units that stay float.
            form: what weighted ones among them become instead, see ``fallback.FORMS``.
        """
        source = self.model if model is None else model
        rounded = merged(self.rounding, grids(source, self.recipe, limits), kept)
        if not self.recipe.is_static:
            alone = weight_only.write(
                substituted(source, rounded),
                self.recipe,
                kept=kept,
                whole_blocks=limits.whole_blocks,
                flat=limits.flat,
                positive_blocks=limits.positive_blocks,
                smaller_blocks=limits.smaller_blocks,
                half_blocks=limits.half_blocks,
                recurrent=limits.recurrent,
                late_tables=limits.late_tables,
            )
            bodies.store_bodies(alone.model, limits, kept=kept, half=self.recipe.half)
            return alone
        kept, units = self._known(source, limits, kept)
        biases = {}
        if self.settings.correct_bias:
            biases = corrected_biases(units, self.seen.channels, limits, rounded)
        written = qdq.write(
            substituted(source, {n: a for n, a in rounded.items() if n not in kept}),
            limits,
            self.ranges,
            bits=self.recipe.activations,
            kept=kept,
            biases=biases,
            lengths=self.lengths,
        )
        fallback.apply(written.model, kept, form, limits, self.ranges)
        if limits.activations != FLOAT8:
            bodies.store_bodies(written.model, limits, kept=kept)
        ShareInitializers(SHARED, APART)(written.model)
        return written

    def units(self, limits: Quantization) -> list[Unit]:
        """Return what a target computes with integers unless a search keeps it float."""
        return self._known(self.model, limits, frozenset())[1]

    def _known(
        self, model: ir.Model, limits: Quantization, kept: AbstractSet[str]
    ) -> tuple[AbstractSet[str], list[Unit]]:
        """Keep in float what no range was measured for, and what joins unlike ranges.

        A part of a graph has other borders, so that some ranges were not measured.
        """
        while True:
            layout = lay_out(model, limits, kept)
            units = layout.units
            unknown = {u.name for u in units if not observed([u]).keys() <= self.ranges.keys()}
            joins = crowded(layout, self.ranges, self.seen.spreads, self.recipe.activations)
            joins |= apart(units, self.ranges)
            self.notes += [line for line in joins.values() if line not in self.notes]
            if not unknown and not joins:
                return kept, units
            kept = kept | unknown | joins.keys()

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready data for the report."""
        return {
            "recipe": self.recipe.name,
            "calibrator": self.settings.method if self.recipe.is_static else None,
            "rounded_by_data": sum(len(r.weights) for r in self.rounding.values()),
            "bias_correction": self.settings.correct_bias and self.recipe.is_static,
            "data": None if self.verdict is None else self.verdict.to_json(),
            "ranges": {n: [r.low, r.high] for n, r in self.ranges.items()},
        }


def limits_of(profile: Profile, format: str, recipe: Recipe | None = None) -> Quantization:
    """Return what a target's engine computes with integers, or with floats of 8 bits.

    Raises:
        UsageError: the profile does not say.
    """
    floats = recipe is not None and recipe.is_float
    for limits in profile.quantization:
        if limits.format == format and (limits.activations == FLOAT8) == floats:
            return limits
    raise UsageError(
        f"target {profile.name!r} does not say how {_WRITTEN[floats]} are written in format "
        f"{format!r}: its profile names no table of quantization for it"
    )
