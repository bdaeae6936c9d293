"""The part of a conversion that needs the graph: from the source to every artifact, unverified.

It is a function of what was asked and of the source, with no other state, so it can run in this
process or in one of its own (``worker``), and it can be run again to explain what the gate found.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import closing, contextmanager
from dataclasses import field, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeinfer.backends.base import Backend
from edgeinfer.backends.onnxruntime.regions import FORMAT as REGIONS
from edgeinfer.backends.process import bounds
from edgeinfer.convert.late import late
from edgeinfer.convert.lower import target_for
from edgeinfer.convert.lower.target import Lowered, LowerOptions
from edgeinfer.convert.lower.target import Prepared as Ready
from edgeinfer.convert.pipeline import clock, engines
from edgeinfer.convert.pipeline.clock import StageClock, Stages
from edgeinfer.convert.pipeline.engines import Wanted, place_for
from edgeinfer.convert.pipeline.kept import StageFiles
from edgeinfer.convert.pipeline.parts import PartEngine
from edgeinfer.convert.pipeline.plan import Job, plan, refuse
from edgeinfer.convert.pipeline.provenance import oracles, tools_of
from edgeinfer.convert.pipeline.request import HALVES, Request, in_layout
from edgeinfer.convert.pipeline.shape_checks import (
    check_input_ranges,
    check_ranges,
    check_states,
    check_tensors,
)
from edgeinfer.convert.quantize.half.stage import Halves, check_told, is_here
from edgeinfer.convert.quantize.stage import QuantizeStage
from edgeinfer.convert.verify import Change, EngineResult, Finding, Report
from edgeinfer.convert.verify.answers import Expected, Vector
from edgeinfer.convert.verify.gate import HALF
from edgeinfer.convert.verify.ladder import rungs
from edgeinfer.convert.verify.layer_table import NodeErrors
from edgeinfer.convert.verify.within import within
from edgeinfer.errors import EdgeInferError, NotAvailableError, Problem, VerifyError
from edgeinfer.metrics import Budget
from edgeinfer.options import values_of
from edgeinfer.records import dataclass
from edgeinfer.types import Feeds, ImageInput, InputRange, Preprocessing

if TYPE_CHECKING:
    import onnx_ir as ir

    from edgeinfer.convert.sources import Source


@dataclass(frozen=True, slots=True)
class Written:
    """An artifact that nobody has run yet.

    Attributes:
        job: what was requested.
        name: Name of its folder among the variants.
        lowered: its files and what the lowering says of them.
        checks: Checks of its numbers, beyond those of its engines.
        plain: the float model for the same engine, next to the variants' folders, where this
            machine can tell whether integers are faster; whoever has measured removes its folder.
        on_request: Checks in arithmetic that no engine here has, by the floats that an engine may
            be set to compute the files in.
        errors: how far each node is off; None where nobody asked.
    """

    job: Job
    name: str
    lowered: Lowered
    checks: tuple[EngineResult, ...] = ()
    plain: Path | None = None
    on_request: Mapping[str, tuple[EngineResult, ...]] = field(default_factory=dict)
    errors: NodeErrors | None = None


@dataclass(frozen=True, slots=True)
class AlreadyKnown:
    """What a conversion of the same model has found already.

    Attributes:
        vectors: what is run.
        expected: the oracles' answers.
        ranges: what float inputs lie between.
        stages: how far the command is that this conversion is part of.
        variants: ids of the variants that there are.
    """

    vectors: Sequence[Vector]
    expected: Expected
    ranges: Mapping[str, InputRange]
    stages: Stages = field(default_factory=Stages)
    variants: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class PreparedConversion:
    """All that the rest of a conversion needs; the graph is no part of it."""

    report: Report
    written: tuple[Written, ...]
    preprocessing: Mapping[str, Preprocessing] = field(default_factory=dict)
    labels: Sequence[str] = ()
    stages: Stages = field(default_factory=Stages)


_KEPT_BYTES = 32 << 20
"""Weights of a model of which each target's form may stay in memory from the plan to the writing,
while the oracles run."""


class Front:
    """Reads a source and works on its graph."""

    def __init__(self, request: Request) -> None:
        """Read nothing yet; ``prepare`` does."""
        self._asked = request
        self._clock = StageClock(request.progress, stages=clock.foreseen(request))
        self._kept = StageFiles(None if request.keep is None else Path(request.keep))
        self._ranges: dict[str, InputRange] = {}

    def check(self) -> dict[str, list[Problem]]:
        """List what each format of each target cannot express.

        Raises:
            NotAvailableError: what writes some of them is missing; lists that and all problems.
        """
        self._refuse_contradictions()
        model, options = self._normalised.model, self._options
        found: dict[str, list[Problem]] = {}
        missing: dict[str, str] = {}
        for profile in self._request.profiles:
            for format in (*profile.formats, *profile.optional_formats):
                title = f"{profile.name}-{format}"
                try:
                    found[title] = target_for(format).check(model, profile, options)
                except NotAvailableError as e:
                    missing[title] = str(e)
        if missing:
            refuse(missing, found)
        return found

    def _refuse_contradictions(self) -> None:
        from edgeinfer.convert import passes

        if self._source.original is not None:
            return
        from edgeinfer.convert.verify.contradictions import refuse_contradictions

        inputs = passes.input_specs(self._normalised.model)
        refuse_contradictions(self._source.model, inputs, data=self._request.data)

    def prepare(self, variants: Path, known: AlreadyKnown | None = None) -> PreparedConversion:
        """Read, normalise, plan, compute expected outputs, write each artifact into its folder.

        Where something is known no expected output is computed, and artifacts that cannot be
        written are left out.

        Raises:
            SourceError: the model cannot be read.
            UnsupportedError: a target cannot express it; lists every node.
            VerifyError: it does not give the outputs that the user expects.
            OSError: an artifact cannot be written.
        """
        stages = self._clock.stages
        if known is not None:
            self._clock.stages = stages = known.stages
        source, normalised = self._source, self._normalised
        report = self._new_report()
        self._refuse_contradictions()
        check_input_ranges(report.inputs, self._request.input_ranges)
        with self._stage("check the targets"):
            todo = plan(
                normalised.model,
                self._request.profiles,
                self._options,
                integers=self._quantize.recipe.is_quantized,
                alone=self._request.alone,
                keep=weights_bytes(normalised.model) <= _KEPT_BYTES,
            )
        bounds.looked()
        if known is not None:
            todo = replace(todo, jobs=tuple(replace(job, spare=True) for job in todo.jobs))
        request = self._request
        asking = 0 if known is not None else clock.ASKING
        rest = clock.lowering(request, todo.jobs) + clock.judging(request, todo.jobs)
        stages.expect(asking + rest)
        lines = {
            "source": source.notes.lines,
            **normalised.changes,
            "targets": list(todo.notes),
        }
        report.changes.extend(Change(stage, tuple(text)) for stage, text in lines.items() if text)
        check_tensors(normalised.model)
        if known is None:
            self._ask_oracles(report)
        else:
            report.vectors, report.expected = known.vectors, known.expected
            report.ranges = self._ranges = dict(known.ranges)
        if self._quantize.recipe.is_quantized:
            with self._stage("quantize"):
                self._quantize.prepare(
                    normalised.model, report, todo.jobs, self._clock.tell, source=source.model
                )
        ordinary = [v.feeds for v in report.vectors if not v.edge]
        ladder = rungs(ordinary[0], report.ranges) if ordinary else []
        if lines_of_half := self._halves.look(normalised.model, ordinary, ladder):
            report.changes.append(Change("half precision", tuple(lines_of_half)))
        tried = (
            self._lower_or_leave(
                *(job, variants, report, todo.prepared.pop(0)),
                frozenset() if known is None else known.variants,
            )
            for job in todo.jobs
        )
        written = tuple(made for made in tried if made is not None)
        self._answer_within(report, written)
        written, shared = late("pipeline.sharing").share_weights(written)
        if shared:
            report.changes.append(Change("targets", tuple(shared)))
        # What was left out is not run either.
        stages.expect(clock.judging(request, [made.job for made in written]))
        return PreparedConversion(report, written, request.preprocessing, request.labels, stages)

    def explain(
        self, job: Job, engine: str, feeds: Feeds, budget: Budget, folder: Path
    ) -> tuple[Finding, bool]:
        """Find the first node that goes wrong; return what was found and whether it was saved.

        The smallest sub-model that shows the fault is written into the folder, where there is one.
        """
        from edgeinfer.convert.verify.bisect import explain

        self._clock.stages.total = 0
        self._kept = StageFiles(None)
        normal = self._normalised.model
        bounds.looked()
        self._halves.look(normal, [feeds], rungs(feeds, self._ranges))
        place = place_for(job.profile.machine)
        with (
            self._stage(f"look for the fault in {job.title}"),
            closing(engines.in_turn([Wanted([] if engine == HALF else [engine], place)])) as turns,
        ):
            backend = next(iter(next(turns)), None)
            self._quantize.prepare(normal, self._new_report(), [job])
            normal = self._quantize.base(normal)
            finding = explain(normal, feeds, self._part_engine(job, backend), budget)
        saved = bool(finding.save(folder))
        return replace(finding, model=None, inputs={}, expected={}), saved

    def _part_engine(self, job: Job, backend: Backend | None) -> PartEngine:
        return PartEngine(job, backend, self._quantize, self._halves, self._options)

    @cached_property
    def _source(self) -> Source:
        from edgeinfer.convert import sources

        with self._clock.stage("read the model"):
            source = sources.read(
                self._asked.model,
                example_inputs=self._asked.example_inputs,
                dynamic_shapes=self._asked.dynamic_shapes,
                signature=self._asked.signature,
            )
            source.settle_noise(self._asked.random, self._asked.fixed_shapes)
            source.move_channels(self._asked.channels_last, self._asked.channels_first)
            source.take_pixels(self._asked.image_inputs, self._records(source))
            source.exchange_halves([n for n, k in self._asked.io_dtypes.items() if k == HALVES])
            self._kept.model("read", source.model)
            return source

    @cached_property
    def _request(self) -> Request:
        """What was asked; what the source says of itself, where nothing was."""
        from edgeinfer.convert.sources.image_inputs import raw

        asked, source = self._asked, self._source
        records = self._records(source)
        pixels = {n: raw(r) for n in asked.image_inputs if isinstance(r := records[n], ImageInput)}
        return replace(
            asked,
            preprocessing={**records, **pixels},
            labels=asked.labels or source.labels,
        )

    def _records(self, source: Source) -> Mapping[str, Preprocessing]:
        asked = self._asked
        own = in_layout(source.preprocessing, asked.channels_last, asked.channels_first)
        return asked.preprocessing or own

    @cached_property
    def _quantize(self) -> QuantizeStage:
        return QuantizeStage(self._request)

    @cached_property
    def _halves(self) -> Halves:
        return Halves(self._options.precision)

    @cached_property
    def _is_quantized(self) -> bool:
        """Whether integers are the model's own and not requested."""
        asked = self._quantize.recipe.is_quantized
        nodes = self._normalised.model.graph
        # What a run rounds goes either way by its last bit; of the LSTM oracles leave it out.
        kinds = ("QuantizeLinear", "DynamicQuantizeLinear", "DynamicQuantizeLSTM")
        return not asked and any(n.op_type in kinds for n in nodes)

    @cached_property
    def _options(self) -> LowerOptions:
        from edgeinfer.convert import passes

        request, given = self._request, values_of(self._request)
        known = {f.name for f in fields(LowerOptions)} & given.keys()
        own = {
            "precision": self._quantize.lowered_as,
            "recipe": self._quantize.recipe.name,
            "integers": request.whole_ranges(passes.input_specs(self._normalised.model)),
            "one_file": request.alone,
            # Halves are the model's own by now.
            "io_dtypes": {n: k for n, k in request.io_dtypes.items() if k != HALVES},
        }
        return LowerOptions(**{**{name: given[name] for name in known}, **own})

    @cached_property
    def _normalised(self) -> Any:
        from edgeinfer.convert import passes
        from edgeinfer.convert.lower.malformed import refuse_malformed
        from edgeinfer.convert.passes.sizes import check_sizes

        source = self._source
        with self._clock.stage("normalise"):
            shapes = self._request.fixed_shapes
            found = passes.normalise(source.model, input_shapes=shapes or None)
            self._kept.model("normalised", found.model)
            check_sizes(found.model)
            refuse_malformed(found.model)
            check_ranges(found.model, self._request.ranges)
            check_states(found.model, self._request.states)
            return found

    @contextmanager
    def _stage(self, what: str) -> Iterator[None]:
        """Time a stage, and let go of the weights it looked at."""
        from edgeinfer.convert.memory import release_memory

        with self._clock.stage(what):
            yield
            release_memory(self._source.model, self._normalised.model)

    def _new_report(self) -> Report:
        from edgeinfer.convert import passes

        source, normal = self._source, self._normalised.model
        return Report(
            name=self._request.name,
            source=source.record,
            inputs=source.with_layouts(passes.input_specs(normal)),
            outputs=source.with_layouts(passes.output_specs(normal)),
            source_bytes=weights_bytes(source.model),
            ops_before=count_ops(source.model),
            ops_after=count_ops(normal),
            tools=tools_of(source.record, (), oracles(), ()),
            seconds=self._clock.seconds,
        )

    def _ask_oracles(self, report: Report) -> None:
        from edgeinfer.convert.verify.oracles import Oracles
        from edgeinfer.convert.verify.room import check_room
        from edgeinfer.convert.verify.vectors import gather_vectors

        check_room(self._normalised.model)

        model, request = self._source.model, self._request
        with Oracles(
            model, original=self._source.original, time_limit_s=request.time_limit_s
        ) as oracles:
            with self._stage("gather test vectors"):
                gathered = gather_vectors(
                    model,
                    report.inputs,
                    oracles=oracles,
                    preprocessing=request.preprocessing,
                    user_data=request.data,
                    calibration=self._quantize.folder,
                    calibration_data=self._quantize.vectors(report.inputs) or (),
                    shape_sets=request.shape_sets,
                    ranges=request.ranges,
                    declared=request.input_ranges,
                    reach="fp16" in (request.precision, *request.also),
                )
                report.vectors, report.ranges = gathered.vectors, gathered.ranges
                self._ranges = gathered.ranges
            with self._stage("compute expected outputs"):
                report.expected = oracles.expected(report.vectors)
        if report.expected.faults:
            report.changes.append(Change("oracles", report.expected.faults))
        if against := report.expected.contradictions:
            raise VerifyError(
                f"the model does not give the expected outputs, so it is another one or its data "
                f"was prepared in another way: {'; '.join(against)}",
                report.to_json(),
            )

    def _answer_within(self, report: Report, written: Sequence[Written]) -> None:
        """Add vectors for artifacts that refuse all that were made up."""
        from edgeinfer.convert.verify.oracles import Oracles

        more = within(report.vectors, [made.lowered.constraints for made in written])
        if not more or report.expected is None:
            return
        model, limit = self._source.model, self._request.time_limit_s
        with (
            Oracles(model, original=self._source.original, time_limit_s=limit) as oracles,
            self._stage("compute expected outputs again"),
        ):
            found = oracles.expected(more)
        # First, because a device takes its times with the first ones.
        report.vectors = [*more, *report.vectors]
        answers = (*found.answers, *report.expected.answers)
        notes = tuple(dict.fromkeys((*report.expected.notes, *found.notes)))
        report.expected = replace(report.expected, answers=answers, notes=notes)

    def _lower_or_leave(
        self,
        job: Job,
        variants: Path,
        report: Report,
        ready: Ready | None,
        known: AbstractSet[str],
    ) -> Written | None:
        try:
            made = self._lower(job, variants, report, ready)
            precision = made.lowered.precision
            if not any(f"{p.name}-{job.format}-{precision}" in known for p in job.profiles):
                return made
            why = f"nothing in it is other than in {precision}, which is there"
        except EdgeInferError as error:
            if not job.spare:
                raise
            why = str(error)
        shutil.rmtree(variants / self._name(job), ignore_errors=True)
        report.changes.append(Change("targets", (f"{job.title} was left out: {why}",)))
        return None

    def _name(self, job: Job) -> str:
        return f"{job.profile.name}-{job.format}-{self._request.precision}"

    def _lower(self, job: Job, variants: Path, report: Report, ready: Ready | None) -> Written:
        name = self._name(job)
        folder = variants / name
        folder.mkdir()
        target, normal = target_for(job.format), self._normalised.model
        unwritten = [] if ready is None else [ready]

        def write() -> Lowered:
            with self._stage(f"lower {job.title}"):
                graph = self._quantize.graph(job, normal)
                if graph is not normal:
                    self._kept.model(f"given-{name}", graph)
                samples = self._quantize.samples
                if job.format == REGIONS:
                    samples = tuple(v.feeds for v in report.vectors if not v.edge)[:1]
                options = replace(
                    self._halves.options(self._options, job.profile),
                    samples=samples,
                    tell=partial(self._clock.tell, done=None),
                )
                if graph is not normal or replace(options, tell=None) != self._options:
                    # It is not what was planned for.
                    unwritten.clear()
                if unwritten:
                    lowered = unwritten.pop().write(folder)
                else:
                    lowered = target.lower(graph, job.profile, options, folder)
                self._kept.artifact(name, folder)
                lowered = self._quantize.read_back(job, lowered, report)
                return _named(lowered) if self._is_quantized else lowered

        lowered = write()
        checks: tuple[EngineResult, ...] = ()
        if self._halves.asked:
            with self._stage(f"half precision of {job.title}"):
                checks, line = self._halves.check(normal, lowered, report)
                repair = self._halves.repair(normal, lowered, checks, report, job.profile)
            if repair:
                report.changes.append(Change("half precision", (repair,)))
                shutil.rmtree(folder)
                folder.mkdir()
                lowered = write()
                with self._stage(f"half precision of {job.title}"):
                    checks, line = self._halves.check(normal, lowered, report)
            lowered = replace(lowered, notes=(*lowered.notes, line))
        return Written(
            *(job, name, lowered, checks, self._plain(job, variants), self._told(job, report)),
            self._errors(job, lowered, report) if self._request.layers else None,
        )

    def _errors(self, job: Job, lowered: Lowered, report: Report) -> NodeErrors:
        """Find how far each node of the graph is off in the first engine of an artifact."""
        from edgeinfer.convert.verify.layers import errors

        ordinary = [i for i, v in enumerate(report.vectors) if not v.edge]
        vector = next(iter(ordinary), 0)
        names, place = [e.backend for e in lowered.engines], place_for(job.profile.machine)
        with (
            self._stage(f"errors of the layers of {job.title}"),
            closing(engines.in_turn([Wanted(names, place)])) as turns,
        ):
            able = [b for b in next(turns) if b.probe().available]
            if not able:
                return NodeErrors("", vector, (), f"no engine for {job.title} is here")
            normal = self._normalised.model
            graph, made = self._quantize.base(normal), self._quantize.graph(job, normal)
            run = self._part_engine(job, able[0]).run
            found, note = errors(graph, made, report.vectors[vector].feeds, run)
            unit = job.profile.unit
            if not note and unit != place.device:
                note = f"errors are of the {place.device}: none of a {unit}, which it is for"
            return NodeErrors(able[0].name, vector, found, note, place.device)

    def _told(self, job: Job, report: Report) -> dict[str, tuple[EngineResult, ...]]:
        """Judge floats that no engine here computes in; with nothing to say where one does."""
        found: dict[str, tuple[EngineResult, ...]] = {}
        for kind in clock.requested(self._request, job):
            found[kind] = ()
            if not is_here(kind, job.profile, job.format):
                with self._stage(f"{kind} arithmetic of {job.title}"):
                    found[kind] = check_told(self._normalised.model, kind, report)
        return found

    def _plain(self, job: Job, variants: Path) -> Path | None:
        """Write the float model next to one of integers that this machine's engines run."""
        if not clock.is_raced(self._request, job):
            return None
        folder = Path(tempfile.mkdtemp(prefix="fp32-", dir=variants))
        options = replace(self._options, precision="fp32", recipe="fp32", one_file=False)
        try:
            lower = target_for(job.format).lower
            return lower(self._normalised.model, job.profile, options, folder).files[0]
        except EdgeInferError:
            # Integers may be all that the target has; there is nothing to compare them with.
            shutil.rmtree(folder, ignore_errors=True)
            return None


def _named(lowered: Lowered) -> Lowered:
    """Name the precision of an artifact by what its engine computes in."""
    from edgeinfer.convert.quantize import readback

    found = readback.layers(lowered.files[0], lowered.format)
    return replace(lowered, precision=readback.precision_name(found)) if found else lowered


def count_ops(model: ir.Model) -> dict[str, int]:
    """Count operators by type, subgraphs included, most frequent first."""
    counts = Counter(n.op_type for graph in model.graphs() for n in graph)
    return dict(counts.most_common())


def weights_bytes(model: ir.Model) -> int:
    """Return the size of all initializers; none is read."""
    return sum(
        v.const_value.nbytes
        for graph in model.graphs()
        for v in graph.initializers.values()
        if v.const_value is not None
    )
