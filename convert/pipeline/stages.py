"""The stages of a conversion whose request is checked; the only file that knows their order."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from edgeinfer.backends.base import Artifact, Backend
from edgeinfer.backends.process import isolation
from edgeinfer.bundle.artifacts import ArtifactWriter
from edgeinfer.bundle.made import remember_made
from edgeinfer.bundle.manifest import (
    EngineRequirement,
    FileRecord,
    Manifest,
    StateRecord,
    Variant,
)
from edgeinfer.bundle.trust import HINT, level_of, native_parts
from edgeinfer.bundle.writer import BundleWriter
from edgeinfer.convert.lower.tvm.machines import MACHINES
from edgeinfer.convert.pipeline import engines, rows
from edgeinfer.convert.pipeline.clock import StageClock, Stages, followed
from edgeinfer.convert.pipeline.command import command_of
from edgeinfer.convert.pipeline.described import add_files, check_described, head_in_layout
from edgeinfer.convert.pipeline.engines import EnginePlace, Wanted, place_of
from edgeinfer.convert.pipeline.entry import ExportResult
from edgeinfer.convert.pipeline.front import (
    AlreadyKnown,
    Front,
    PreparedConversion,
    Written,
)
from edgeinfer.convert.pipeline.provenance import SBOM_NAME, oracles, sbom, tools_of
from edgeinfer.convert.pipeline.request import Request
from edgeinfer.convert.pipeline.worker import Worker, can_work_apart
from edgeinfer.convert.quantize.recipe import AUTO, recipe
from edgeinfer.convert.verify import Change, Report, VariantResult, verify_variant
from edgeinfer.convert.verify import layer_table as layers
from edgeinfer.convert.verify.answers import Answer, Vector
from edgeinfer.convert.verify.carried import carried, fitting, room_for, size_of
from edgeinfer.convert.verify.gate import NOT_RUN
from edgeinfer.convert.verify.integer_findings import AUTO_HELPS, doubts, outweighed
from edgeinfer.convert.verify.integer_speed import times_slower
from edgeinfer.errors import (
    ConvertError,
    CrashedError,
    NotAvailableError,
    UsageError,
    VerifyError,
)
from edgeinfer.machine.host import host
from edgeinfer.media.description import Description
from edgeinfer.profiles.schema import Profile, Unit
from edgeinfer.types import Preprocessing

_log = logging.getLogger("edgeinfer")

_VARIANTS = "variants"
UNVERIFIED = "--unverified"


def run_stages(request: Request) -> ExportResult:
    """Read, lower, verify and write."""
    described = request.description or Description()
    front = _front(request)
    kind = ArtifactWriter if request.alone else BundleWriter
    with isolation.all_here(), kind(request.destination, overwrite=request.overwrite) as writer:
        prepared = front.prepare(writer.folder(_VARIANTS))
        made = prepared.report
        check_described(described, made.inputs, made.outputs, request.labels)
        prepared.report.command = command_of(request)
        clock = StageClock(request.progress, prepared.report.seconds, prepared.stages)
        variants = _judged(request, prepared, front, writer, clock)
        clock.stages.expect(0)
        for further in rows.conversions(request):
            variants += _beside(further, prepared.report, writer, clock.stages)
        with clock.stage("write the result"):
            return _finish(request, prepared, variants, writer, described)


def _judged(
    request: Request,
    prepared: PreparedConversion,
    front: Front | Worker,
    writer: BundleWriter,
    clock: StageClock,
) -> list[Variant]:
    """Run what was written, and take into the bundle what is right."""
    report = prepared.report
    wanted = [
        Wanted([e.backend for e in w.lowered.engines], place_of(w.job.profile))
        for w in prepared.written
    ]
    taken: list[Written] = []
    variants: list[Variant] = []
    with closing(engines.in_turn(wanted)) as turns:
        for written, want, backends in zip(prepared.written, wanted, turns, strict=True):
            judged = _verified(written, backends, report, clock, want.place)
            slower = _times_slower(written, backends, judged, report, clock)
            if _is_taken(written, judged, request, report, front, writer, slower):
                taken.append(written)
                _add_layers(written, backends, judged, report, clock)
                own = _adopted(written, judged, writer)
                variants += [*own, *_told(written, own, backends, request, report, clock)]
    _remove_left(prepared.written, taken, writer.folder(_VARIANTS))
    return variants


def _beside(
    request: Request, report: Report, writer: BundleWriter, stages: Stages
) -> list[Variant]:
    """Convert to a further precision, with the vectors and the expected outputs of the first.

    What cannot be written or is wrong is left out, and the report says so.
    """
    if report.expected is None:
        raise VerifyError("internal error: there are no expected outputs")
    front = _front(request)
    own_stages = followed(stages, request)
    there = frozenset(v.id for v in report.variants)
    known = AlreadyKnown(report.vectors, report.expected, report.ranges, own_stages, there)
    try:
        prepared = front.prepare(writer.folder(_VARIANTS), known)
        own_stages = prepared.stages
        clock = StageClock(request.progress, prepared.report.seconds, prepared.stages)
        variants = _judged(request, prepared, front, writer, clock)
    except (ConvertError, UsageError, NotAvailableError) as e:
        report.changes.append(Change("targets", (f"{request.precision} was left out: {e}",)))
        return []
    finally:
        stages.go_on_behind(own_stages)
    own = prepared.report
    prefix = f"{request.precision}: "
    lines = [prefix + line.removeprefix(prefix) for c in own.changes for line in _about(c)]
    report.changes += [Change("targets", tuple(lines))] if lines else []
    report.variants += own.variants
    for target, ids in own.targets.items():
        report.targets.setdefault(target, []).extend(ids)
    for stage, seconds in own.seconds.items():
        report.seconds[stage] = report.seconds.get(stage, 0.0) + seconds
    report.quantization = report.quantization or own.quantization
    # A device judges by the same vectors.
    report.vectors = own.vectors
    consent = recipe(request.precision).consent
    return [replace(v, consent=consent) for v in variants]


def _about(change: Change) -> tuple[str, ...]:
    """Return what a conversion to a further precision says that the first one did not."""
    return change.lines if change.stage in ("targets", "half precision", "quantize") else ()


def _told(
    written: Written,
    variants: Sequence[Variant],
    backends: Sequence[Backend],
    request: Request,
    report: Report,
    clock: StageClock,
) -> list[Variant]:
    """Judge the files in the floats that their engine may be set to compute in.

    What is wrong is left out, and the report says so.
    """
    found: list[Variant] = []
    for kind, checks in written.on_request.items():
        own = [
            v for v in variants if kind in rows.on_request(_of(v, written), v.format, request.also)
        ]
        unit = _of(own[0], written).unit
        with clock.stage(f"verify {written.job.title} in {kind}"):
            result = _run_told(written, kind, backends, report, unit)
        result = replace(result, engines=(*result.engines, *checks))
        if not result.passed:
            line = f"{written.job.title} in {kind} was refused: {result.failure()}"
            report.changes.append(Change("targets", (line,)))
            continue
        for variant in own:
            id = f"{variant.target}-{variant.format}-{kind}"
            is_of_target = host().is_kind(_of(variant, written))
            row = replace(result, id=id, is_of_target=is_of_target)
            report.variants.append(row)
            report.targets.setdefault(variant.target, []).append(id)
            found.append(_as_told(variant, kind, row, unit))
    return found


def _of(variant: Variant, written: Written) -> Profile:
    return next(p for p in written.job.profiles if p.name == variant.target)


def _run_told(
    written: Written, kind: str, backends: Sequence[Backend], report: Report, unit: Unit
) -> VariantResult:
    if report.expected is None:
        raise VerifyError("internal error: there are no expected outputs")
    lowered = written.lowered
    artifact = Artifact(
        *(written.job.format, lowered.files[0], report.inputs, report.outputs, kind, kind)
    )
    return verify_variant(
        f"{written.job.format}-{kind}",
        artifact,
        backends,
        report.vectors,
        report.expected,
        precision=kind,
        size_bytes=sum(f.stat().st_size for f in lowered.files),
        ops=lowered.ops,
        notes=(f"{kind}: the engine is set to compute the fp32 file so; it takes no room",),
        constraints=lowered.constraints,
        device=unit,
    )


def _as_told(variant: Variant, kind: str, result: VariantResult, unit: Unit) -> Variant:
    first = result.engines[:1] if result.is_of_target else ()
    return replace(
        variant,
        id=result.id,
        precision=kind,
        computed_in=kind,
        consent=kind,
        engines=tuple(_tested(replace(e, tested=""), result) for e in variant.engines),
        constraints=variant.constraints
        if unit == "cpu"
        else {**variant.constraints, "device": unit},
        accuracy=result.accuracy(),
        latency_ms=min((ms for e in first for ms in e.latency_ms.values()), default=None),
        unverified=result.unverified,
    )


def _front(request: Request) -> Front | Worker:
    """Return what works on the graph, in a process of its own where that is possible."""
    apart = can_work_apart(request.model, request.example_inputs)
    return Worker(request) if apart else Front(request)


def _verified(
    written: Written,
    backends: Sequence[Backend],
    report: Report,
    clock: StageClock,
    place: EnginePlace,
) -> dict[Profile, VariantResult]:
    """Run one artifact on each of its engines, on the unit of each target that shares it.

    Targets that a result says the same of have the same one.
    """
    if report.expected is None:
        raise VerifyError("internal error: there are no expected outputs")
    job, lowered, artifact = written.job, written.lowered, _artifact(written, report)
    units: dict[Unit, VariantResult] = {}
    found: dict[tuple[Unit, bool], VariantResult] = {}
    judged: dict[Profile, VariantResult] = {}
    with clock.stage(f"verify {job.title}"):
        for profile in job.profiles:
            unit = place.device if profile.machine else profile.unit
            is_of_target = place.emulator is None and host().is_kind(profile)
            id = f"{profile.name}-{job.format}-{lowered.precision}"
            if unit not in units:
                result = verify_variant(
                    id,
                    artifact,
                    backends,
                    report.vectors,
                    report.expected,
                    precision=lowered.precision,
                    size_bytes=sum(f.stat().st_size for f in lowered.files),
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


def _times_slower(
    written: Written,
    backends: Sequence[Backend],
    judged: Mapping[Profile, VariantResult],
    report: Report,
    clock: StageClock,
) -> float | None:
    """Time an artifact of integers against the float model, which is then removed."""
    if written.plain is None:
        return None
    try:
        if not all(result.passed for result in judged.values()):
            return None
        artifact = _artifact(written, report)
        with clock.stage(f"time {written.job.title} against fp32"):
            plain = replace(artifact, path=written.plain, precision="fp32")
            return times_slower(backends, artifact, plain, report.vectors[0].feeds)
    finally:
        shutil.rmtree(written.plain.parent, ignore_errors=True)


def _is_taken(
    written: Written,
    judged: Mapping[Profile, VariantResult],
    request: Request,
    report: Report,
    front: Front | Worker,
    writer: BundleWriter,
    slower: float | None,
) -> bool:
    """Decide whether an artifact goes into the bundle; what nobody requested by name may stay out.

    Raises:
        VerifyError: one that was requested is wrong, or was not run and may not be unverified.
    """
    wrong = next((r for r in judged.values() if not r.passed), None)
    unverified = wrong is not None and request.unverified and wrong.verdict == NOT_RUN
    optional = written.job.optional and not unverified
    if wrong is not None and (written.job.spare or optional):
        line = f"{written.job.title} was left out: {wrong.failure()}"
        report.changes.append(Change("targets", (line,)))
        return False
    results = {r.id: r for r in judged.values()}
    report.variants += results.values()
    for profile, result in judged.items():
        report.targets.setdefault(profile.name, []).append(result.id)
    if report.quantization is not None and request.precision != AUTO:
        lines = [line for r in results.values() for line in doubts(r, report.source_bytes, slower)]
        if lines:
            report.changes.append(Change("targets", tuple(lines)))
    if wrong is not None and not unverified:
        raise _explained(written, report, wrong, front, writer.output)
    return True


def _add_layers(
    written: Written,
    backends: Sequence[Backend],
    judged: Mapping[Profile, VariantResult],
    report: Report,
    clock: StageClock,
) -> None:
    """Put the errors and times of an artifact's layers into the report, where they were requested.

    Only a machine of the target's kind tells times.
    """
    errors = written.errors
    if errors is None:
        return
    backend = next((b for b in backends if b.name == errors.engine), None)
    profile, why_not = None, ""
    with clock.stage(f"time the layers of {written.job.title}"):
        if any(r.is_of_target for r in judged.values()) and backend is not None:
            feeds = report.vectors[errors.vector].feeds
            device = place_of(written.job.profile).device
            profile, why_not = layers.timed(backend, _artifact(written, report), feeds, device)
    for result in judged.values():
        known = (profile, why_not) if result.is_of_target else (None, layers.ELSEWHERE)
        report.layers[result.id] = layers.table(errors, *known)


def _artifact(written: Written, report: Report) -> Artifact:
    job, lowered = written.job, written.lowered
    return Artifact(job.format, lowered.files[0], report.inputs, report.outputs, lowered.precision)


def _remove_left(written: Sequence[Written], taken: Sequence[Written], base: Path) -> None:
    """Remove the files of artifacts that were left out, but for weights that others read there."""
    kept = {file for one in taken for file in one.lowered.files}
    for file in {file for one in written for file in one.lowered.files} - kept:
        file.unlink()
    for one in written:
        if not any(file.is_relative_to(base / one.name) for file in kept):
            shutil.rmtree(base / one.name, ignore_errors=True)


def _adopted(
    written: Written, judged: Mapping[Profile, VariantResult], writer: BundleWriter
) -> list[Variant]:
    """Take an artifact's files into the bundle; one variant for each target that shares it."""
    base = writer.folder(_VARIANTS)
    names = [f.relative_to(base).as_posix() for f in written.lowered.files]
    files = tuple(writer.adopt(f"{_VARIANTS}/{place}") for place in names)
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
        engines=tuple(_tested(e, result) for e in lowered.engines),
        constraints=lowered.constraints,
        accuracy=result.accuracy(),
        latency_ms=min(latencies, default=None),
        stored=lowered.stored,
        unverified=result.unverified,
    )


def _tested(engine: EngineRequirement, result: VariantResult) -> EngineRequirement:
    """Note the version that gave the right numbers."""
    found = next((e for e in result.engines if e.backend == engine.backend and e.passed), None)
    return replace(engine, tested=(found and found.version) or "")


def _explained(
    written: Written, report: Report, result: VariantResult, front: Front | Worker, output: Path
) -> VerifyError:
    """Find the first node that goes wrong, save the smallest sub-model that shows it, say so."""
    failed = next((e for e in result.engines if not e.passed and not e.skipped), None)
    if failed is None:
        hint = f"; {UNVERIFIED} writes it all the same and marks it forever as not verified"
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
    prepared: PreparedConversion,
    variants: list[Variant],
    writer: BundleWriter,
    described: Description,
) -> ExportResult:
    report = prepared.report
    kept = _carried(request, report, variants)
    records = {**described.preprocessing, **prepared.preprocessing}
    code, lines = _functions(request, records) if described.head else ({}, [])
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
            undecided=bool(a.undecided or a.overflown),
        )
        for v, a in kept
    )
    judges = [*oracles(), *(e.backend for v in report.variants for e in v.engines if not e.skipped)]
    report.tools = tools_of(report.source, variants, judges, _drivers(variants, code))
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
        labels=tuple(prepared.labels),
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


def _carried(
    request: Request, report: Report, variants: Sequence[Variant]
) -> list[tuple[Vector, Answer]]:
    """Choose the test vectors that travel, and say where they are not all, or too large."""
    sizes = {file.path: file.size_bytes for v in variants for file in v.files}
    room = room_for([*sizes.values()])
    answers = [fitting(a, room) for a in (report.expected.answers if report.expected else ())]
    hardest = {i for v in report.variants for i in v.hardest}
    kept_vectors = carried(report.vectors, answers, room, hardest)
    if len(kept_vectors) < len(report.vectors):
        line = (
            f"{len(kept_vectors)} of {len(report.vectors)} test vectors are in the bundle, so that "
            "they do not outweigh the model; all were checked here"
        )
        report.changes.append(Change("targets", (line,)))
    kept = [(report.vectors[i], answers[i]) for i in kept_vectors]
    # Integers are requested for their size.
    if report.quantization is not None and request.precision != AUTO:
        total = sum(sizes.values())
        given = request.data is not None
        if warning := outweighed(total, size_of(kept), report.source_bytes, given):
            report.changes.append(Change("targets", (warning,)))
    return kept


def _functions(
    request: Request, records: Mapping[str, Preprocessing]
) -> tuple[dict[str, Path], list[str]]:
    from edgeinfer.convert.machine_code import functions

    if "functions" not in request.machine_code:
        return {}, []
    return functions.libraries(request.profiles, records)


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
