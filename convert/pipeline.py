"""The conversion, stage by stage; the only file that knows the order."""

from __future__ import annotations

import inspect
import json
import logging
import shutil
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgeinfer.backends.base import Artifact, Backend
from edgeinfer.backends.host import host
from edgeinfer.bundle.artifacts import ArtifactWriter, format_of, refuse_artifact
from edgeinfer.bundle.made import remember_made
from edgeinfer.bundle.manifest import FileRecord, Manifest, StateRecord, Variant
from edgeinfer.bundle.trust import HINT, level_of, native_parts
from edgeinfer.bundle.writer import BundleWriter
from edgeinfer.convert import engines, functions
from edgeinfer.convert.described import add_files, check_described, head_in_layout, records_for
from edgeinfer.convert.engines import Place, Wanted, place_of
from edgeinfer.convert.front import Clock, Front, Prepared, Progress, Written
from edgeinfer.convert.llm.source import is_llm
from edgeinfer.convert.lower import target_for
from edgeinfer.convert.lower.target import LowerOptions
from edgeinfer.convert.lower.tvm.machines import MACHINES
from edgeinfer.convert.provenance import SBOM_NAME, oracles, sbom, tools_of
from edgeinfer.convert.quantize.quality import Metric
from edgeinfer.convert.quantize.recipe import AUTO, STORED, lowered_as, recipe
from edgeinfer.convert.quantize.task_metrics import Named
from edgeinfer.convert.request import Request, check_request, precision_for, resolve_profiles
from edgeinfer.convert.shape_sets import Given, check_ranges, ranges_of, shape_sets
from edgeinfer.convert.verify import Change, Report, VariantResult, verify_variant
from edgeinfer.convert.verify.carried import carried
from edgeinfer.convert.verify.doubts import AUTO_HELPS, doubts
from edgeinfer.convert.verify.gate import NOT_RUN
from edgeinfer.convert.worker import Worker, can_work_apart
from edgeinfer.errors import CrashedError, Problem, UsageError, VerifyError
from edgeinfer.media.description import Description
from edgeinfer.profiles.schema import Profile, Unit
from edgeinfer.types import Feeds, Preprocessing

_log = logging.getLogger("edgeinfer")

_VARIANTS = "variants"
UNVERIFIED = "--unverified"


@dataclass(frozen=True, slots=True)
class ExportResult:
    """A finished conversion.

    Attributes:
        path: the bundle, or the plain artifact that was asked for instead.
        manifest: what is in it.
        report: what was changed, measured and checked.
        files: the plain artifact and what lies beside it; empty where a bundle was written.
    """

    path: Path
    manifest: Manifest
    report: Report
    files: tuple[Path, ...] = ()

    def __repr__(self) -> str:
        count = len(self.manifest.variants)
        return f"<ExportResult {self.path}: {self.report.verdict}, {count} variants>"

    def _repr_html_(self) -> str:
        """Show the report in a notebook."""
        return self.report._repr_html_()


def export(
    model: Any,
    output: str | Path | None = None,
    *,
    targets: Sequence[str] = ("cpu",),
    precision: str = "",
    input_shapes: Given | None = None,
    preprocessing: Mapping[str, Preprocessing] | None = None,
    description: Description | None = None,
    labels: Sequence[str] = (),
    data: str | Path | Sequence[Feeds] | None = None,
    calibration: str | Path | None = None,
    calibrator: str = "mse",
    max_drop: float | None = None,
    metric: str | Metric | None = None,
    force: bool = False,
    example_inputs: Any = None,
    dynamic_shapes: Any = None,
    compress_weights: bool = False,
    signature: str | None = None,
    random: str = "",
    channels_last: Sequence[str] = (),
    channels_first: Sequence[str] = (),
    states: Mapping[str, str] | None = None,
    pictures: Sequence[str] = (),
    classifier: bool = False,
    deployment: str = "",
    integers: Mapping[str, tuple[int, int]] | None = None,
    input_ranges: Mapping[str, tuple[float, float]] | None = None,
    io_dtypes: str | Mapping[str, str] = "",
    unverified: bool = False,
    records: Sequence[str] = (),
    name: str | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> ExportResult:
    """Convert a model for one or more targets, check every artifact, and write one bundle.

    An output that ends with ``.onnx``, ``.xml``, ``.tflite``, ``.mlpackage`` or ``.aimodel`` is
    written as that plain artifact, after the same checks, with its report and manifest beside it.

    Args:
        model: see ``sources.read``: a path, an ONNX model, a PyTorch module or program; or a
            language model: a GGUF file or a Hugging Face folder.
        output: the bundle, default ``<name>.edge``; a slash at the end asks for a folder. Or the
            one artifact.
        targets: names of device profiles, paths of ``.toml`` profiles, or ``all``.
        precision: recipe, e.g. ``fp32``, ``fp16``, ``static_wi8_ai8`` or ``auto``; of a language
            model ``w4``, ``w8``, ``fp16``, ``bf16`` or ``fp32``. Empty is ``fp32``, and of a
            language model what its weights are.
        input_shapes: sizes to fix, by input name; None keeps an axis as declared, ``range(1, 9)``
            bounds it. Several shapes for an input are all in the result: as signatures of one
            ``.tflite`` file, as the only shapes of a Core ML package, as open sizes elsewhere.
        preprocessing: how a picture or a recording becomes an input, by input name.
        description: of a pipeline file (``edgeinfer.media.parse_description``): the same and what
            the outputs mean; instead of ``preprocessing``.
        labels: class names in the order of the output's last axis.
        data: inputs to check with, and expected outputs where given: ``.npz``, folder or dicts.
        calibration: folder of pictures or recordings (needs ``preprocessing``), or an ``.npz`` of
            all samples: integers take their ranges from it, and the result is checked with it.
        calibrator: how ranges are chosen: ``minmax``, ``percentile``, ``entropy`` or ``mse``.
        max_drop: share of the float model's quality that ``precision="auto"`` may lose.
        metric: how quality is measured: ``top1``, ``top5``, ``f1``, ``map``, ``cer``, ``wer``,
            ``cosine`` or ``rmse`` of the labels, or a function from outputs of all runs and labels
            of all samples to a number that is higher the better it is; without it top-1 where
            labels are known, else agreement with the float model.
        force: calibrate with data that is judged bad.
        example_inputs: for a module: a tuple, or a dict by parameter name.
        dynamic_shapes: for a module: ``{"x": {0: "batch"}}``.
        compress_weights: store float weights as fp16 where the format computes in fp32 anyway.
        signature: of a ``.tflite`` file with several: which one.
        random: what takes the place of random numbers that the model draws: ``input``, ``zero``
            (their mean), or a seed, whose numbers are the same in every run.
        channels_last: names of inputs and outputs that are to have their channels on the last axis
            instead of the second, in every variant: a bundle has one signature.
        channels_first: the reverse.
        states: outputs by the inputs that they feed in the next run. Sessions pass them on by
            themselves; Core ML packages for iOS18 and later keep them inside.
        pictures: inputs that take pixels as they are: what makes numbers of them, by the record in
            ``preprocessing``, moves into the model. Core ML packages take images there.
        classifier: Core ML packages name the class, by ``labels``.
        deployment: oldest system that is to open Core ML packages, e.g. ``iOS18``.
        integers: lowest and highest value of integer inputs by name, for Core ML packages, whose
            integers have 32 bits; other values are refused when they run.
        input_ranges: lowest and highest value of inputs by name: what test vectors reach, what half
            precision is judged for, and beyond which sessions warn or refuse.
        io_dtypes: ``int8``, ``uint8`` or ``int16``: what the ``.tflite`` files take and give for
            floats, with the scales of the operators next to them; by name for some only, with the
            others' under ``""``. The bundle's inputs and outputs stay floats.
        unverified: write artifacts also where nothing here can run them, no engine and no emulator;
            the bundle says so of each for ever.
        records: files of kernels that ``edgeinfer tune`` measured, beside those that are shipped.
        name: of the bundle; default the model's.
        overwrite: replace an existing bundle.
        progress: told what is being done.

    Raises:
        SourceError: the model cannot be read.
        UnsupportedError: a target cannot express it; lists every node.
        VerifyError: an artifact left its accuracy budget; only the failing sub-model was written.
        UsageError: the request contradicts itself.
        OutputError: the bundle cannot be written.
    """
    if is_llm(model):
        if format_of(output):
            refuse_artifact(str(output), "a language model is written as a bundle")
        return _language_model(dict(locals()))
    described = description or Description()
    request = check_request(
        model,
        output,
        targets=targets,
        precision=precision or "fp32",
        name=name,
        labels=labels or described.labels,
        compress_weights=compress_weights,
        signature=signature,
        random=random,
        channels_last=channels_last,
        channels_first=channels_first,
        states=states,
        pictures=pictures,
        classifier=classifier,
        deployment=deployment,
        integers=integers,
        input_ranges=input_ranges,
        io_dtypes=io_dtypes,
        unverified=unverified,
        records=records,
        input_shapes=input_shapes,
        preprocessing=records_for(described, preprocessing),
        data=data,
        calibration=calibration,
        calibrator=calibrator,
        force=force,
        max_drop=max_drop,
        metric=metric,
    )
    front = _front(model, request, progress, example_inputs, dynamic_shapes)
    kind = ArtifactWriter if request.alone else BundleWriter
    with kind(request.destination, overwrite=overwrite) as writer:
        prepared = front.prepare(writer.folder(_VARIANTS))
        check_described(described, prepared.report.inputs, prepared.report.outputs)
        clock = Clock(progress, prepared.report.seconds, prepared.stages)
        wanted = [
            Wanted([e.backend for e in w.lowered.engines], place_of(w.job.profile))
            for w in prepared.written
        ]
        variants: list[Variant] = []
        with closing(engines.in_turn(wanted)) as turns:
            for written, want, backends in zip(prepared.written, wanted, turns, strict=True):
                judged = _verified(written, backends, prepared.report, clock, want.place)
                if _is_taken(written, judged, request, prepared.report, front, writer):
                    variants += _adopted(written, judged, writer)
        with clock.stage("write the result"):
            return _finish(request, prepared, variants, writer, described)


def _front(
    model: Any, request: Request, progress: Progress | None, examples: Any, sizes: Any
) -> Front | Worker:
    """Return what works on the graph, in a process of its own where that is possible."""
    if not _is_code(request.metric) and can_work_apart(model, examples):
        return Worker(model, request, progress, dynamic_shapes=sizes)
    return Front(model, request, progress, example_inputs=examples, dynamic_shapes=sizes)


_TAKEN = ("targets", "precision", "name", "unverified", "overwrite", "progress")
"""What language models heed of a request."""


def _language_model(given: Mapping[str, Any]) -> ExportResult:
    """Convert a language model, which goes a way of its own.

    Raises:
        UsageError: something is asked for that says nothing to language models; lists all.
    """
    from edgeinfer.convert.llm import pipeline as llm

    defaults = {n: p.default for n, p in inspect.signature(export).parameters.items()}
    rest = given.keys() - {"model", "output", *_TAKEN}
    idle = sorted(n for n in rest if given[n] != defaults[n] and given[n])
    if idle:
        raise UsageError(f"a language model is asked for; it heeds nothing of {', '.join(idle)}")
    asked = {name: given[name] for name in _TAKEN}
    asked["precision"] = asked["precision"] or STORED
    return llm.export(Path(given["model"]), given["output"], **asked)


def _is_code(metric: Metric | None) -> bool:
    """Whether a measure is the user's own: another process may not know it."""
    return metric is not None and not isinstance(metric, Named)


def check(
    model: Any,
    *,
    targets: Sequence[str] = ("cpu",),
    precision: str = "fp32",
    input_shapes: Given | None = None,
    example_inputs: Any = None,
    dynamic_shapes: Any = None,
    signature: str | None = None,
    deployment: str = "",
    integers: Mapping[str, tuple[int, int]] | None = None,
) -> dict[str, list[Problem]]:
    """Say what would keep a model from converting, by ``<target>-<format>``, before converting it.

    Raises:
        SourceError: the model cannot be read.
    """
    from edgeinfer.convert import passes, sources
    from edgeinfer.convert.verify.contradictions import refuse_contradictions

    chosen = resolve_profiles(targets)
    precision = precision_for(chosen, precision)
    source = sources.read(
        model, example_inputs=example_inputs, dynamic_shapes=dynamic_shapes, signature=signature
    )
    common, sets = shape_sets(input_shapes or {})
    normal = passes.normalise(source.model, input_shapes=common or None).model
    if source.original is None:
        refuse_contradictions(source.model, passes.input_specs(normal))
    ranges = ranges_of(input_shapes or {})
    check_ranges(normal, ranges)
    options = LowerOptions(
        precision=lowered_as(precision),
        shape_sets=sets,
        ranges=ranges,
        recipe=recipe(precision).name,
        deployment=deployment,
        integers=integers or {},
    )
    return {
        f"{profile.name}-{format}": target_for(format).check(normal, profile, options)
        for profile in chosen
        for format in (*profile.formats, *profile.optional_formats)
    }


def _verified(
    written: Written, backends: Sequence[Backend], report: Report, clock: Clock, place: Place
) -> dict[Profile, VariantResult]:
    """Run one artifact on each of its engines, on the unit of each target that shares it.

    Targets that a result says the same of have the same one.
    """
    if report.expected is None:
        raise VerifyError("the oracles were not asked")
    job, lowered = written.job, written.lowered
    artifact = Artifact(
        job.format, lowered.files[0], report.inputs, report.outputs, lowered.precision
    )
    units: dict[Unit, VariantResult] = {}
    found: dict[tuple[Unit, bool], VariantResult] = {}
    judged: dict[Profile, VariantResult] = {}
    for profile in job.profiles:
        unit = place.device if profile.machine else profile.unit
        is_of_target = place.emulator is None and host().is_kind(profile)
        id = f"{profile.name}-{job.format}-{lowered.precision}"
        with clock.stage(f"verify {job.title}"):
            if unit not in units:
                result = verify_variant(
                    id,
                    artifact,
                    backends,
                    report.vectors,
                    report.expected,
                    precision=lowered.precision,
                    ops=lowered.ops,
                    notes=(*lowered.notes, place.note) if place.note else lowered.notes,
                    constraints=lowered.constraints,
                    device=unit,
                    timed=place.emulator is None,
                )
                result = replace(result, engines=(*result.engines, *written.checks))
                notes = filter(None, (*result.notes, result.unverified))
                units[unit] = replace(result, notes=tuple(notes))
        known = found.setdefault(
            (unit, is_of_target), replace(units[unit], id=id, is_of_target=is_of_target)
        )
        judged[profile] = known
    return judged


def _is_taken(
    written: Written,
    judged: Mapping[Profile, VariantResult],
    request: Request,
    report: Report,
    front: Front | Worker,
    writer: BundleWriter,
) -> bool:
    """Decide whether an artifact goes into the bundle; what nobody asked for by name may stay out.

    Raises:
        VerifyError: one that was asked for is wrong, or was not run and may not be unverified.
    """
    wrong = next((r for r in judged.values() if not r.passed), None)
    unverified = wrong is not None and request.unverified and wrong.verdict == NOT_RUN
    optional = written.job.optional and not unverified
    if wrong is not None and (written.job.spare or optional):
        _leave(written, wrong, report, writer)
        return False
    results = {r.id: r for r in judged.values()}
    report.variants += results.values()
    if report.quantization is not None and request.precision != AUTO:
        lines = [line for r in results.values() for line in doubts(r, report.source_bytes)]
        if lines:
            report.changes.append(Change("targets", tuple(lines)))
    if wrong is not None and not unverified:
        raise _explained(written, report, wrong, front, writer.output)
    return True


def _leave(written: Written, result: VariantResult, report: Report, writer: BundleWriter) -> None:
    """Leave an artifact out that nobody asked for by name, and say why."""
    shutil.rmtree(writer.folder(_VARIANTS) / written.name, ignore_errors=True)
    line = f"{written.job.title} was left out: {result.failure()}"
    report.changes.append(Change("targets", (line,)))


def _adopted(
    written: Written, judged: Mapping[Profile, VariantResult], writer: BundleWriter
) -> list[Variant]:
    """Take an artifact's files into the bundle; one variant for each target that shares it."""
    base = writer.folder(_VARIANTS)
    places = [f.relative_to(base).as_posix() for f in written.lowered.files]
    files = tuple(writer.adopt(f"{_VARIANTS}/{place}") for place in places)
    return [_variant(profile, written, judged[profile], files) for profile in written.job.profiles]


def _variant(
    profile: Profile, written: Written, result: VariantResult, files: tuple[FileRecord, ...]
) -> Variant:
    job, lowered = written.job, written.lowered
    # Another engine that stands in for the device's own takes a time of its own, as does another
    # machine's processor.
    first = result.engines[:1] if result.is_of_target else ()
    latencies = [ms for engine in first for ms in engine.latency_ms.values()]
    return Variant(
        id=f"{profile.name}-{job.format}-{lowered.precision}",
        target=profile.name,
        format=job.format,
        precision=lowered.precision,
        files=files,
        engines=lowered.engines,
        constraints=lowered.constraints,
        accuracy=result.accuracy(),
        latency_ms=min(latencies, default=None),
        stored=lowered.stored,
        unverified=result.unverified,
    )


def _explained(
    written: Written, report: Report, result: VariantResult, front: Front | Worker, output: Path
) -> VerifyError:
    """Find the first node that goes wrong, save the smallest sub-model that shows it, say so."""
    failed = next((e for e in result.engines if not e.passed and not e.skipped), None)
    if failed is None:
        hint = f"; {UNVERIFIED} writes it all the same and marks it for ever as not verified"
        return VerifyError(f"{result.id}: {result.failure()}{hint}", report.to_json())
    worst = next((o.vector for o in failed.outputs if o.vector is not None), 0)
    folder = output.with_name(f"{output.name}.failing")
    feeds = report.vectors[worst].feeds
    try:
        finding, saved = front.explain(written.job, failed.backend, feeds, result.budget, folder)
    except CrashedError as e:
        return VerifyError(f"{result.id}: {result.failure()}; no node named: {e}", report.to_json())
    report.findings[result.id] = finding
    place = f"; the smallest failing sub-model is in {folder}" if saved else ""
    if report.vectors[worst].reach:
        place += "; nobody said what the inputs hold: --input-range NAME=LO:HI or --data does"
    if report.quantization is not None and report.quantization.get("recipe") != AUTO:
        place += f"; {AUTO_HELPS}"
    node = f"first diverging node {finding.op} {finding.node!r}" if finding.node else finding.note
    return VerifyError(f"{result.id}: {result.failure()}; {node}{place}", report.to_json())


def _finish(
    request: Request,
    prepared: Prepared,
    variants: list[Variant],
    writer: BundleWriter,
    described: Description,
) -> ExportResult:
    report = prepared.report
    answers = report.expected.answers if report.expected else ()
    hardest = {i for v in report.variants for i in v.hardest}
    places = carried(report.vectors, answers, sum(v.size_bytes for v in variants), hardest)
    if len(places) < len(report.vectors):
        line = (
            f"{len(places)} of {len(report.vectors)} test vectors are in the bundle, so that they "
            "do not outweigh the model; all were checked here"
        )
        report.changes.append(Change("targets", (line,)))
    records = {**described.preprocessing, **prepared.preprocessing}
    code, lines = functions.libraries(request.profiles, records) if described.head else ({}, [])
    if lines:
        report.changes.append(Change("targets", tuple(lines)))
    vectors = tuple(
        writer.add_vector(
            report.inputs,
            report.outputs,
            v.feeds,
            a.outputs,
            v.origin,
            spread=a.spread,
            edge=v.edge,
            undecided=bool(a.undecided),
        )
        for v, a in ((report.vectors[i], answers[i]) for i in places)
    )
    judges = [e.backend for v in report.variants for e in v.engines if not e.skipped]
    drivers = _drivers(variants, code)
    report.tools = tools_of(report.source, variants, [*oracles(), *judges], drivers)
    extra = (
        writer.add_bytes("report.json", _json(report.to_json())),
        writer.add_bytes("report.html", report.to_html().encode()),
        *add_files(described, writer),
        *(writer.add_file(name, path) for name, path in code.items()),
    )
    rest = [*(v.file for v in vectors), *extra]
    bill = sbom(request.name, report.source, report.tools, variants, rest)
    extra = (*extra, writer.add_bytes(SBOM_NAME, _json(bill)))
    manifest = Manifest(
        name=request.name,
        inputs=report.inputs,
        outputs=report.outputs,
        variants=tuple(variants),
        vectors=vectors,
        source=report.source,
        preprocessing=records,
        labels=prepared.labels,
        tools=report.tools,
        extra_files=extra,
        ranges=report.ranges,
        states=tuple(StateRecord(i, o) for i, o in request.states.items()),
        made_on=str(host()),
        head=head_in_layout(
            described.head, report.outputs, request.channels_last, request.channels_first
        ),
    )
    return finished(writer, manifest, report)


def _drivers(variants: Sequence[Variant], code: Mapping[str, Path]) -> list[str]:
    """Name the compilers that linked what is machine code."""
    native = [v.constraints for v in variants if level_of(v) == "native"]
    kinds = {(c.get("arch", ""), c.get("os", "linux")) for c in native}
    kinds |= {(Path(name).stem, "linux") for name in code}
    return sorted({m.linker for m in MACHINES.values() if (m.arch, m.system) in kinds})


def finished(writer: BundleWriter, manifest: Manifest, report: Report) -> ExportResult:
    """Write the bundle, and note that this machine made it; or write the one artifact."""
    made = ExportResult(writer.finish(manifest), manifest, report, writer.files)
    if made.files:
        return made
    if (problem := remember_made(writer.digest)) and native_parts(manifest):
        _log.warning(
            "%s: cannot be noted as made here (%s), so its machine code will not run: %s",
            *(made.path, problem, HINT),
        )
    return made


def _json(data: object) -> bytes:
    return (json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()
