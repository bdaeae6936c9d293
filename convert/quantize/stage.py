"""The stage between normalising and lowering: what the conversion asks of the quantizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeinfer.convert.quantize.recipe import AUTO, COREMLTOOLS, Recipe, lowered_as, recipe
from edgeinfer.errors import UsageError

if TYPE_CHECKING:
    import onnx_ir as ir

    from edgeinfer.convert.lower.target import Lowered
    from edgeinfer.convert.pipeline.plan import Job
    from edgeinfer.convert.pipeline.request import Request
    from edgeinfer.convert.quantize.calibration import Quantizer
    from edgeinfer.convert.quantize.rewrite.bodies import Left
    from edgeinfer.convert.quantize.search.layers import Point
    from edgeinfer.convert.verify import Report
    from edgeinfer.media.samples import SampleSet
    from edgeinfer.types import Feeds, Progress, TensorSpec

MOST_BY_COREMLTOOLS = 64
"""Samples that coremltools' calibration runs packages on; the evaluator is slow."""

DEFAULT_DROP = 0.01
"""What ``auto`` may lose by default: one percent."""

_VECTORS = 16
"""Samples of the calibration set that the result is also checked on."""


class QuantizeStage:
    """Quantizes the graph of one conversion, for each of its jobs."""

    def __init__(self, request: Request) -> None:
        """Store the arguments; nothing is read yet."""
        self._request = request
        self.recipe: Recipe = recipe(request.precision)
        self._quantizer: Quantizer | None = None
        self.samples: tuple[Feeds, ...] = ()
        self._normal: ir.Model | None = None
        self._errors: dict[str, list[dict[str, Any]]] = {}
        self._chosen: dict[str, Point] = {}
        self._left: dict[str, tuple[Left, ...]] = {}

    @property
    def lowered_as(self) -> str:
        """The precision that the lowering is requested: integers are in the graph already."""
        return lowered_as(self.recipe.name)

    def data(self, inputs: Sequence[TensorSpec]) -> SampleSet | None:
        """Open the calibration set; None where the recipe needs none.

        Raises:
            UsageError: it is missing or cannot be read.
        """
        from edgeinfer.media.samples import open_data

        request = self._request
        if not self.recipe.is_static and not self._rounds_by_data:
            return None
        given = request.calibration if request.calibration is not None else request.data
        if given is None:
            raise UsageError(
                f"precision {request.precision!r} needs --calibration: a folder of images, "
                "recordings or .npz files, or an .npz file with all samples"
            )
        return open_data(given, inputs, request.preprocessing)

    @property
    def _rounds_by_data(self) -> bool:
        """Whether weights alone are rounded with data in mind: where data was given for it."""
        return self.recipe.is_quantized and self._request.calibration is not None

    @property
    def folder(self) -> Path | None:
        """The calibration folder, where its own files are what to check with."""
        place = self._request.calibration
        if place is None or not place.is_dir():
            return None if place is None or place.suffix.lower() == ".npz" else place
        inner = [p for p in place.iterdir() if p.name[0] != "."]
        return place if not inner or any(p.is_file() for p in inner) else None

    def vectors(self, inputs: Sequence[TensorSpec]) -> list[Feeds] | None:
        """Return some samples to check with, where the calibration data is no plain folder."""
        place = self._request.calibration
        if place is None or self._request.data is not None or self.folder is not None:
            return None
        from edgeinfer.media.samples import open_data

        found = open_data(place, inputs, self._request.preprocessing)
        total = sum(1 for _ in found.feeds())
        wanted = {i * total // min(total, _VECTORS) for i in range(min(total, _VECTORS))}
        return [f for i, f in enumerate(found.feeds()) if i in wanted]

    def prepare(
        self,
        normal: ir.Model,
        report: Report,
        jobs: Sequence[Job],
        progress: Progress | None = None,
        *,
        source: ir.Model | None = None,
    ) -> None:
        """Calibrate, once for all jobs.

        Args:
            normal: the float graph.
            report: has the vectors, and gets what was done.
            jobs: what will be written.
            progress: Called with what is being done.
            source: as it was read, with what training left in it; the data is held against that.

        Raises:
            UsageError: the data is missing, bad and not forced, or a target takes no integers.
            InputError: a sample does not fit the model.
        """
        if not self.recipe.is_quantized:
            return
        if self._request.by_coremltools:
            data = self.data(report.inputs)
            self.samples = tuple(islice(data.feeds(), MOST_BY_COREMLTOOLS)) if data else ()
            report.quantization = {
                "recipe": self.recipe.name,
                "calibrator": COREMLTOOLS,
                "samples": len(self.samples),
                "variants": {},
            }
            return
        from edgeinfer.convert.quantize.calibration import Quantizer, Settings, limits_of
        from edgeinfer.convert.verify.report import Change

        request = self._request
        settings = Settings.of(self.recipe, request.calibrator, force=request.force)
        quantizer = Quantizer(normal, self.recipe, settings)
        limits = [limits_of(j.profile, j.format, self.recipe) for j in jobs]
        data = self.data(report.inputs)
        if data is not None:
            from edgeinfer.convert.quantize.calibrate import first_layer

            real = [v.feeds for v in report.vectors if v.origin.startswith("user:")]
            quantizer.calibrate(
                data,
                limits,
                report.inputs,
                request.preprocessing,
                vectors=real if request.data is not None else (),
                findings=() if source is None else first_layer.findings(source, data.feeds),
                progress=progress,
            )
        self._quantizer, self._normal = quantizer, normal
        if data is not None:
            _judge_real_data_only(report)
        report.quantization = {**quantizer.to_json(), "variants": {}}
        if request.precision == AUTO and data is not None:
            self._search(quantizer, data, report, jobs, progress)
        if data is not None and self.recipe.is_static:
            self._compare_layers(quantizer, data, jobs)
        if quantizer.notes:
            report.changes.append(Change("quantize", tuple(quantizer.notes)))

    def _search(
        self,
        quantizer: Quantizer,
        data: SampleSet,
        report: Report,
        jobs: Sequence[Job],
        progress: Progress | None,
    ) -> None:
        """Find for each job which layers stay float, on the engine of its target."""
        from edgeinfer.convert.quantize.search.budget import fit

        samples = None
        for job in jobs:
            found = fit(
                quantizer,
                data,
                job,
                report,
                DEFAULT_DROP if self._request.max_drop is None else self._request.max_drop,
                metric=self._request.metric,
                samples=samples,
                progress=progress,
            )
            samples = found.samples
            self._chosen[job.title] = found.outcome.chosen
            quantizer.notes += found.lines
            if report.quantization is not None:
                report.quantization.setdefault("search", {})[job.title] = found.to_json()

    def _compare_layers(self, quantizer: Quantizer, data: SampleSet, jobs: Sequence[Job]) -> None:
        from edgeinfer.convert.quantize.calibration import limits_of
        from edgeinfer.convert.quantize.report import layer_errors, summary, to_json

        for job in jobs:
            choice = self._chosen.get(job.title)
            if choice is not None and choice.recipe:
                # Its activations are float: no unit was written.
                continue
            kept = frozenset() if choice is None else frozenset(choice.kept)
            limits = limits_of(job.profile, job.format, self.recipe)
            chosen = quantizer if choice is None else quantizer.by(choice.calibrator)
            errors = layer_errors(chosen, limits, data, kept)
            self._errors[job.title] = to_json(errors)
            quantizer.notes.append(summary(job.title, errors))

    def graph(self, job: Job, model: ir.Model) -> ir.Model:
        """Return a float graph, or a part of it, as a job's engine is to compute it."""
        if self._quantizer is None:
            return model
        from edgeinfer.convert.quantize.calibration import Quantizer, limits_of
        from edgeinfer.convert.quantize.rewrite import bodies

        limits = limits_of(job.profile, job.format, self.recipe)
        choice = self._chosen.get(job.title)
        kept = frozenset[str]()
        if choice is None:
            made = self._quantizer.write(limits, model=self.base(model)).model
        elif choice.recipe:
            other = Quantizer(self.base(model), recipe(choice.recipe), self._quantizer.settings)
            made = other.write(limits).model
        else:
            kept = frozenset(choice.kept)
            quantizer = self._quantizer.by(choice.calibrator)
            base = self.base(model)
            made = quantizer.write(limits, model=base, kept=kept, form=choice.form).model
        if model is self._normal:
            self._left[job.title] = bodies.left(made, limits, kept)
        return made

    def base(self, model: ir.Model) -> ir.Model:
        """Return the float graph that the ranges are of: the same function, evened out."""
        if self._quantizer is not None and model is self._normal:
            return self._quantizer.model
        return model

    def read_back(self, job: Job, lowered: Lowered, report: Report) -> Lowered:
        """Name the precision that the artifact really has, and write its layers into the report."""
        if self.recipe.packing is not None and report.quantization is None:
            report.quantization = {"recipe": self.recipe.name, "variants": {}}
        elif report.quantization is None:
            return lowered
        from edgeinfer.convert.quantize import readback
        from edgeinfer.convert.quantize.rewrite import bodies

        floats = self._left.get(job.title, ())
        if line := bodies.summary(floats):
            lowered = replace(lowered, notes=(*lowered.notes, line))
        found = readback.layers(lowered.files[0], job.format)
        size = sum(f.stat().st_size for f in lowered.files)
        precision = readback.precision_name(found, lowered.precision)
        report.quantization["variants"][job.title] = {
            "precision": precision,
            "weighted_layers": readback.counts(found),
            "bytes": size,
            "source_bytes": report.source_bytes,
            "units": self._errors.get(job.title, []),
            "float_in_bodies": [x.to_json() for x in floats],
            "left": line,
            "layers": [readback.to_json(y) for y in found if y.weights],
        }
        if not found:
            return lowered
        if job.title in self._chosen and self._request.metric is not None:
            precision += "+by_task"
        kinds = ", ".join(f"{n} layers {kind}" for kind, n in readback.counts(found).items())
        sizes = f"{report.source_bytes / 1e6:.2f} MB of weights became {size / 1e6:.2f} MB"
        notes = (f"read back (activations/weights): {kinds or 'no weights'}", sizes)
        return replace(lowered, precision=precision, notes=(*lowered.notes, *notes))


def _judge_real_data_only(report: Report) -> None:
    """Take what was made up for extremes, where there is real data: no range was chosen for it."""
    if any(not v.origin.startswith("synthetic:") for v in report.vectors):
        report.vectors = [
            replace(v, edge=True) if v.origin.startswith("synthetic:") else v
            for v in report.vectors
        ]
