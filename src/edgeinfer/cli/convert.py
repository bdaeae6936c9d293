"""``edgeinfer convert``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from edgeinfer.cli.after import next_lines
from edgeinfer.cli.config import CONFIGURED, config_options
from edgeinfer.cli.declared import declared, given, listed
from edgeinfer.cli.models import TRUST_SOURCE, measure, named_model
from edgeinfer.cli.output import Output, milliseconds, output_options, size, table, together
from edgeinfer.cli.sections import Sectioned
from edgeinfer.convert import options
from edgeinfer.convert.options import ConvertOptions
from edgeinfer.options import Section

if TYPE_CHECKING:
    from edgeinfer.cli.table import Table
    from edgeinfer.convert.pipeline.entry import ExportResult
    from edgeinfer.convert.verify import EngineResult, VariantResult
    from edgeinfer.metrics import Budget

PRINTED = Section("Output", "edgeinfer convert model.onnx -t cpu --json", ("as_json", "quiet"))
TRUSTED = Section("Trust", "edgeinfer convert model.pt2 -t cpu --trust-source", ("trust_source",))
SECTIONS = (*listed(ConvertOptions, options.SECTIONS), TRUSTED, CONFIGURED, PRINTED)

COLUMNS = (
    *("variant", "precision", ">size", "checked by", "on", ">error", ">budget"),
    *("verdict", ">median here"),
)


@click.command(cls=Sectioned, sections=SECTIONS)
@click.argument("model")
@declared(ConvertOptions)
@TRUST_SOURCE
@output_options
@config_options
def convert(model: str, trust_source: bool, out: Output, **words: Any) -> None:
    """Convert MODEL, check it, and write one bundle.

    MODEL is an .onnx, .pt2 or .tflite file, or file.py:callable for a PyTorch module: the callable
    returns the module, its example inputs and, if any, its dynamic shapes; that runs the code of
    the file, with everything you may do. Or it is a language model: a .gguf file or a Hugging Face
    folder, whose weights stay as they are unless --precision says w4, w8, fp16, bf16 or fp32.

    TARGET is a name that `edgeinfer targets` lists, the path of a .toml profile, or "all".

    FILE is a bundle, NAME.edge by default, or one plain artifact where its name ends with .onnx,
    .xml (OpenVINO), .tflite, .mlpackage (Core ML) or .aimodel (Core AI).
    """
    source = named_model(model, trust_source=trust_source)
    asked = given(ConvertOptions, words)
    asked |= {"metric": measure(asked["metric"]), "name": asked["name"] or source.stem}
    with out.progress(lines=True) as progress:
        if progress is not None:
            progress("load the converter", None)
        from edgeinfer.convert.pipeline.entry import export

        with _kept(asked["keep"]):
            result = export(source.model, **asked, **source.arguments(), progress=progress)
    out.result(_data(result), lambda: _view(result))


@contextmanager
def _kept(folder: Path | None) -> Iterator[None]:
    """Say of an interrupted conversion that the graphs of its stages stay."""
    try:
        yield
    except KeyboardInterrupt:
        if folder is None:
            raise
        raise KeyboardInterrupt(f"nothing was written but the stages in {folder}") from None


def _data(result: ExportResult) -> dict[str, Any]:
    report = result.report
    return {
        "bundle": None if result.files else result.path,
        "files": result.files,
        "size_bytes": _size(result),
        "name": result.manifest.name,
        "inputs": result.manifest.inputs,
        "outputs": result.manifest.outputs,
        "variants": [
            {
                "id": v.id,
                "target": v.target,
                "format": v.format,
                "precision": v.precision,
                "size_bytes": v.size_bytes,
                "latency_ms": v.latency_ms,
                "accuracy": v.accuracy,
                "engines": [e.backend for e in v.engines],
            }
            for v in result.manifest.variants
        ],
        "checks": [_check(v, e, report.machine.arch) for v in report.variants for e in v.engines],
        "vectors": [v.origin for v in report.vectors],
        "changes": {c.stage: list(c.lines) for c in report.changes},
        "seconds": report.seconds,
        "next": list(next_lines(result)),
    }


def _check(variant: VariantResult, engine: EngineResult, arch: str) -> dict[str, Any]:
    return {
        "variant": variant.id,
        "backend": engine.backend,
        "version": engine.version,
        "device": engine.device,
        "verdict": _verdict(variant, engine, arch),
        "passed": engine.passed,
        "skipped": engine.skipped,
        "latency_ms": engine.latency_ms if _counts(variant, engine) else {},
        "outputs": {o.name: o.metrics for o in engine.outputs},
        "notes": {o.name: o.note for o in engine.outputs if o.note},
    }


def _view(result: ExportResult) -> Iterator[str | Table]:
    report = result.report
    yield f"{result.path}  {size(_size(result))}"
    yield ""
    yield table(
        COLUMNS, [_row(v, e, report.machine.arch) for v in report.variants for e in v.engines]
    )
    yield ""
    before, after = sum(report.ops_before.values()), sum(report.ops_after.values())
    seconds = sum(report.seconds.values())
    count = len(report.vectors)
    vectors = f"{count} test vector" + ("s" if count != 1 else "")
    counted = [e for v in report.variants for e in v.engines if _counts(v, e)]
    if any(e.latency_ms for e in counted):
        yield f"times are medians on this machine: {report.machine}"
    elif counted:
        yield f"made on {report.machine}, nothing was timed"
    else:
        yield f"made on {report.machine}: no time here is the target's"
    operators = f"{before} operator" + ("s" if before != 1 else "")
    simplified = f"{operators}, {after} after simplification; " if before else ""
    yield f"{simplified}{vectors}; {seconds:.1f} s"
    for variant in report.variants:
        if not before:
            yield from (f"note: {line}" for line in variant.notes)
        for engine in variant.engines:
            if engine.skipped:
                where = f"{engine.backend} ({engine.device})"
                yield f"note: {variant.id} was not run on {where}: {engine.skipped}"
    noted = together(
        (f"{variant.id} on {engine.backend}", f"{', '.join(map(repr, names))} {text}")
        for variant in report.variants
        for engine in variant.engines
        for text, names in _noted(engine).items()
    )
    yield from (f"note: {line}" for line in noted)
    for stage in ("source", "oracles", "targets"):
        for change in report.changes:
            if change.stage == stage:
                yield from (f"note: {line}" for line in change.lines)
    yield from (f"note: {line}" for line in _quantized(report.quantization or {}))
    yield from _where(result)
    yield from next_lines(result)


def _noted(engine: EngineResult) -> dict[str, list[str]]:
    """Return what is said of outputs, with their names."""
    found: dict[str, list[str]] = {}
    for output in engine.outputs:
        if output.note:
            found.setdefault(output.note, []).append(output.name)
    return found


def _where(result: ExportResult) -> Iterator[str]:
    """Say where the report is, and of a plain artifact what else was written and what was not."""
    if not result.files:
        yield f"full report: edgeinfer inspect {quote(str(result.path))} --report report.html"
        return
    if any(f.path.startswith("pipeline/") for f in result.manifest.extra_files):
        yield "note: files of its pipeline are in bundles only: -o NAME.edge, then extract"
    yield f"next to it: {', '.join(f.name for f in result.files[1:])}"


def _quantized(found: Mapping[str, Any]) -> Iterator[str]:
    """Say what is wrong with the calibration data, and what the search for a budget leaves open."""
    data = found.get("data") or {}
    if data.get("forced") and data.get("level") == "refused":
        yield "calibration data was REFUSED and used by --force: the numbers prove little"
    for finding in data.get("findings", ()):
        if finding["level"] != "note":
            yield f"calibration data: {finding['text']}"
    for title, variant in found.get("variants", {}).items():
        if variant.get("left"):
            yield f"{title}: {variant['left']}"
    for title, search in found.get("search", {}).items():
        yield f"{title}: {search['quality']}"
        if not search["holds"]:
            yield f"{title}: no mixture holds the budget"
        if search["advice"]:
            yield f"{title}: {search['advice']}"
        if not search["on_device"]:
            yield f"{title}: {search['timing']}"


def _row(variant: VariantResult, engine: EngineResult, arch: str) -> tuple[str, ...]:
    first = (variant.id, variant.precision, size(variant.size_bytes), engine.backend, engine.device)
    if engine.skipped:
        return (*first, "-", "-", engine.verdict, "-")
    error, budget = criterion(engine, variant.budget)
    time = milliseconds(_latency(engine)) if _counts(variant, engine) else "-"
    return (*first, error, budget, _verdict(variant, engine, arch), time)


def _verdict(variant: VariantResult, engine: EngineResult, arch: str) -> str:
    from edgeinfer.metrics import verdict_on

    of_target = variant.is_of_target
    return verdict_on(engine.verdict, stands_in=engine.stands_in, is_of_target=of_target, arch=arch)


def _counts(variant: VariantResult, engine: EngineResult) -> bool:
    """Whether a time that was taken here says something of the target."""
    return variant.is_of_target and not engine.stands_in


def criterion(engine: EngineResult, plain: Budget) -> tuple[str, str]:
    """Return the figure that decided, and what it was held against.

    That is the largest error, or the signal-to-error ratio where only that left the plain budget.
    """
    wide = [o for o in engine.outputs if o.widened is not None]
    if wide and all(o.metrics.max_rel <= plain.max_rel for o in wide):
        worst = min(wide, key=lambda o: o.metrics.sqnr_db)
        if worst.widened is not None and worst.metrics.sqnr_db < plain.sqnr_db:
            return f"{worst.metrics.sqnr_db:.0f} dB", f"{worst.widened.sqnr_db:.0f} dB (widened)"
    return worst_error(engine), applied_budget(engine, plain)


def applied_budget(engine: EngineResult, plain: Budget) -> str:
    """Return the budget by which the output with the largest error passed."""
    if not engine.outputs:
        return f"{plain.max_rel:.0e}"
    worst = max(engine.outputs, key=lambda o: o.metrics.max_rel)
    if worst.metrics.max_rel > plain.max_rel and worst.widened is not None:
        return f"{worst.widened.max_rel:.1e} (widened)"
    floor = plain.max_abs if worst.floor is None else worst.floor
    if worst.metrics.max_rel > plain.max_rel and worst.metrics.max_abs <= floor:
        return f"{floor:.0e} absolute"
    return f"{plain.max_rel:.0e}"


def worst_error(engine: EngineResult) -> str:
    """Return the largest error of an engine's outputs, relative to each output's largest value."""
    if not engine.outputs:
        return "-"
    largest = max(o.metrics.max_rel for o in engine.outputs)
    differ = sum(o.metrics.mismatches for o in engine.outputs)
    if differ:
        return f"{differ} elements differ"
    return "equal" if largest == 0 else f"{largest:.1e}"


def _latency(engine: EngineResult) -> float | None:
    return min((engine.latency_ms or {}).values(), default=None)


def _size(result: ExportResult) -> int:
    if result.files:
        return result.manifest.variants[0].size_bytes
    path = result.path
    files = path.rglob("*") if path.is_dir() else (path,)
    return sum(f.stat().st_size for f in files if f.is_file())
