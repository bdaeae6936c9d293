"""The conversion, stage by stage; the only file that knows the order."""

from __future__ import annotations

import importlib.metadata
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir

from edgeinfer.backends import registry
from edgeinfer.backends.base import Artifact, LoadOptions
from edgeinfer.bundle.manifest import FileRecord, Manifest, Variant
from edgeinfer.bundle.writer import BundleWriter
from edgeinfer.convert import passes, sources
from edgeinfer.convert.lower import target_for
from edgeinfer.convert.lower.target import Lowered, LowerOptions
from edgeinfer.convert.memory import release_memory
from edgeinfer.convert.plan import Job, plan
from edgeinfer.convert.request import Request, check_request, resolve_profiles
from edgeinfer.convert.verify import (
    Change,
    Oracles,
    Report,
    VariantResult,
    explain,
    make_vectors,
    verify_variant,
)
from edgeinfer.errors import Problem, VerifyError
from edgeinfer.types import Array, Feeds, Preprocessing

Progress = Callable[[str, float | None], None]
"""Called with what is being done and, where it is known, how much of it is done (0..1)."""

TOOLS = ("edgeinfer", "numpy", "onnx", "onnx-ir", "onnxruntime", "openvino", "torch")


@dataclass(frozen=True, slots=True)
class ExportResult:
    """A finished conversion.

    Attributes:
        path: the bundle.
        manifest: what is in it.
        report: what was changed, measured and checked.
    """

    path: Path
    manifest: Manifest
    report: Report


def export(
    model: Any,
    output: str | Path | None = None,
    *,
    targets: Sequence[str] = ("cpu",),
    precision: str = "fp32",
    input_shapes: Mapping[str, Sequence[int | None]] | None = None,
    preprocessing: Mapping[str, Preprocessing] | None = None,
    labels: Sequence[str] = (),
    data: str | Path | Sequence[Feeds] | None = None,
    calibration: str | Path | None = None,
    example_inputs: Any = None,
    dynamic_shapes: Any = None,
    compress_weights: bool = False,
    name: str | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> ExportResult:
    """Convert a model for one or more targets, check every artifact, and write one bundle.

    Args:
        model: see ``sources.read``: a path, an ONNX model, a PyTorch module or program.
        output: the bundle; default ``<name>.edge``. A slash at the end asks for a folder.
        targets: names of device profiles, paths of ``.toml`` profiles, or ``all``.
        precision: recipe, e.g. ``fp32`` or ``fp16``.
        input_shapes: sizes to fix, by input name; None keeps an axis as declared.
        preprocessing: how a picture or a recording becomes an input, by input name.
        labels: class names in the order of the output's last axis.
        data: inputs to check with, and expected outputs where given: ``.npz``, folder or dicts.
        calibration: folder of pictures or recordings to check with; needs ``preprocessing``.
        example_inputs: for a module: a tuple, or a dict by parameter name.
        dynamic_shapes: for a module: ``{"x": {0: "batch"}}``.
        compress_weights: store float weights as fp16 where the format computes in fp32 anyway.
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
    request = check_request(
        model,
        output,
        targets=targets,
        precision=precision,
        name=name,
        labels=labels,
        compress_weights=compress_weights,
        input_shapes=input_shapes,
        preprocessing=preprocessing,
        data=data,
        calibration=calibration,
    )
    clock = _Clock(progress)
    with BundleWriter(request.destination, overwrite=overwrite) as writer:
        with clock.stage("read the model"):
            source = sources.read(
                model, example_inputs=example_inputs, dynamic_shapes=dynamic_shapes
            )
        return _convert(source, request, writer, clock)


def check(
    model: Any,
    *,
    targets: Sequence[str] = ("cpu",),
    precision: str = "fp32",
    input_shapes: Mapping[str, Sequence[int | None]] | None = None,
    example_inputs: Any = None,
    dynamic_shapes: Any = None,
) -> dict[str, list[Problem]]:
    """Say what would keep a model from converting, by ``<target>-<format>``, before converting it.

    Raises:
        SourceError: the model cannot be read.
    """
    chosen = resolve_profiles(targets)
    source = sources.read(model, example_inputs=example_inputs, dynamic_shapes=dynamic_shapes)
    normal = passes.normalise(source.model, input_shapes=input_shapes).model
    options = LowerOptions(precision=precision)
    return {
        f"{profile.name}-{format}": target_for(format).check(normal, profile, options)
        for profile in chosen
        for format in (*profile.formats, *profile.optional_formats)
    }


class _Clock:
    """Tells the user what is being done and remembers how long it took."""

    def __init__(self, progress: Progress | None) -> None:
        self.seconds: dict[str, float] = {}
        self.models: list[ir.Model] = []
        """Models whose weights are let go of after each stage."""
        self._progress = progress

    @contextmanager
    def stage(self, what: str) -> Iterator[None]:
        if self._progress is not None:
            self._progress(what, None)
        start = time.perf_counter()
        yield
        release_memory(*self.models)
        self.seconds[what] = self.seconds.get(what, 0.0) + time.perf_counter() - start


def _convert(
    source: sources.Source, request: Request, writer: BundleWriter, clock: _Clock
) -> ExportResult:
    with clock.stage("normalise"):
        normalised = passes.normalise(source.model, input_shapes=request.input_shapes or None)
    normal = normalised.model
    clock.models += [source.model, normal]
    options = LowerOptions(request.precision, request.compress_weights)
    with clock.stage("check the targets"):
        todo = plan(normal, request.profiles, options)
    inputs, outputs = passes.input_specs(normal), passes.output_specs(normal)
    report = Report(
        name=request.name,
        source=source.record,
        inputs=inputs,
        outputs=outputs,
        source_bytes=weights_bytes(source.model),
        ops_before=count_ops(source.model),
        ops_after=count_ops(normal),
        tools=tool_versions(),
        seconds=clock.seconds,
    )
    changes = {"source": source.notes.lines, **normalised.changes, "targets": list(todo.notes)}
    report.changes.extend(Change(stage, tuple(lines)) for stage, lines in changes.items() if lines)
    with Oracles(source.model) as oracles:
        with clock.stage("gather test vectors"):
            report.vectors = make_vectors(
                source.model,
                inputs,
                oracles=oracles,
                preprocessing=request.preprocessing,
                user_data=request.data,
                calibration=request.calibration,
            )
        with clock.stage("ask the oracles"):
            report.expected = oracles.expected(report.vectors)
    if against := report.expected.contradictions:
        raise VerifyError(
            f"the model does not give the expected outputs, so it is another one or its data "
            f"was prepared in another way: {'; '.join(against)}",
            report.to_json(),
        )
    variants: list[Variant] = []
    for job in todo.jobs:
        variants.extend(_make(job, normal, options, report, writer, clock))
    return _finish(source, request, report, variants, writer)


def _make(
    job: Job,
    normal: ir.Model,
    options: LowerOptions,
    report: Report,
    writer: BundleWriter,
    clock: _Clock,
) -> list[Variant]:
    """Lower and verify one artifact; return one variant for each target that shares it.

    Raises:
        VerifyError: it left its budget; the failing sub-model lies beside the output.
    """
    if report.expected is None:
        raise VerifyError("the oracles were not asked")
    base = f"variants/{job.profile.name}-{job.format}-{options.precision}"
    folder = writer.folder(base)
    with clock.stage(f"lower {job.title}"):
        lowered = target_for(job.format).lower(normal, job.profile, options, folder)
    with clock.stage(f"verify {job.title}"):
        result = verify_variant(
            f"{job.profile.name}-{job.format}-{lowered.precision}",
            Artifact(job.format, lowered.files[0], report.inputs, report.outputs),
            [registry.get(e.backend) for e in lowered.engines],
            report.vectors,
            report.expected,
            precision=lowered.precision,
            ops=lowered.ops,
            notes=lowered.notes,
            constraints=lowered.constraints,
        )
    report.variants.append(result)
    if not result.passed:
        with clock.stage(f"look for the fault in {job.title}"):
            raise _explained(job, normal, options, report, result, writer.output)
    files = tuple(writer.adopt(f"{base}/{f.relative_to(folder).as_posix()}") for f in lowered.files)
    return [_variant(target, job, lowered, result, files) for target in job.targets]


def _variant(
    target: str, job: Job, lowered: Lowered, result: VariantResult, files: tuple[FileRecord, ...]
) -> Variant:
    latencies = [ms for e in result.engines for ms in (e.latency_ms or {}).values()]
    return Variant(
        id=f"{target}-{job.format}-{lowered.precision}",
        target=target,
        format=job.format,
        precision=lowered.precision,
        files=files,
        engines=lowered.engines,
        constraints=lowered.constraints,
        accuracy=result.accuracy(),
        latency_ms=min(latencies, default=None),
    )


def _explained(
    job: Job,
    normal: ir.Model,
    options: LowerOptions,
    report: Report,
    result: VariantResult,
    output: Path,
) -> VerifyError:
    """Find the first node that goes wrong, save the smallest sub-model that shows it, say so."""
    target, profile = target_for(job.format), job.profile
    failed = next(e for e in result.engines if not e.passed and not e.skipped)
    backend = registry.get(failed.backend)

    def lower_and_run(model: ir.Model, feeds: Feeds) -> dict[str, Array]:
        with tempfile.TemporaryDirectory(prefix="edgeinfer-") as temporary:
            folder = Path(temporary)
            lowered = target.lower(model, profile, options, folder)
            specs = passes.input_specs(model), passes.output_specs(model)
            artifact = Artifact(job.format, lowered.files[0], *specs)
            executable = backend.load(artifact, LoadOptions())
            try:
                return executable.run(feeds)
            finally:
                executable.close()

    worst = next((o.vector for o in failed.outputs if o.vector is not None), 0)
    finding = explain(normal, report.vectors[worst].feeds, lower_and_run, result.budget)
    report.findings[result.id] = finding
    folder = output.with_name(f"{output.name}.failing")
    saved = finding.save(folder)
    place = f"; the smallest failing sub-model is in {folder}" if saved else ""
    node = f"first diverging node {finding.op} {finding.node!r}" if finding.node else finding.note
    return VerifyError(f"{result.id}: {result.failure()}; {node}{place}", report.to_json())


def _finish(
    source: sources.Source,
    request: Request,
    report: Report,
    variants: list[Variant],
    writer: BundleWriter,
) -> ExportResult:
    vectors = tuple(
        writer.add_vector(
            report.inputs,
            report.outputs,
            v.feeds,
            a.outputs,
            v.origin,
            spread=a.spread,
            edge=v.edge,
        )
        for v, a in zip(
            report.vectors, report.expected.answers if report.expected else (), strict=True
        )
    )
    extra = (
        writer.add_bytes("report.json", _json(report.to_json())),
        writer.add_bytes("report.html", report.to_html().encode()),
    )
    manifest = Manifest(
        name=request.name,
        inputs=report.inputs,
        outputs=report.outputs,
        variants=tuple(variants),
        vectors=vectors,
        source=source.record,
        preprocessing=request.preprocessing,
        labels=request.labels,
        tools=report.tools,
        extra_files=extra,
    )
    return ExportResult(writer.finish(manifest), manifest, report)


def _json(data: object) -> bytes:
    return (json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


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


def tool_versions() -> dict[str, str]:
    """Return the versions of the packages that take part in a conversion, as far as installed."""
    found = {}
    for package in TOOLS:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
