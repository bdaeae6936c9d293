"""``edgeinfer bench``."""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgeinfer.cli.files import check_output, write_bytes
from edgeinfer.cli.models import TRUST_SOURCE, is_bundle, named_model
from edgeinfer.cli.names import BACKEND, named
from edgeinfer.cli.output import Output, Progress, milliseconds, output_options, table, to_json
from edgeinfer.cli.timing import Timing, interleave
from edgeinfer.cli.trust import trust_options
from edgeinfer.errors import BackendError, BundleError, InputError, UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from edgeinfer.bundle.archive import Bundle
    from edgeinfer.cli.pairs import Pairs
    from edgeinfer.types import Array

PLAIN = "plain "

OPS_RUNS = 20


@dataclass(frozen=True, slots=True)
class Row:
    """What was timed.

    Attributes:
        variant: id of the artifact, or the source's file name.
        engine: backend, or ``plain`` and the engine called without edgeinfer.
        version: of the engine.
        device: kind of unit.
        threads: of the engine; None is its own choice.
        remark: what a plain engine does by itself that edgeinfer's rows do not.
    """

    variant: str
    engine: str
    version: str
    device: str
    threads: int | None
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """What can be timed, and what cannot and why."""

    calls: dict[Row, Callable[[], object]]
    failed: list[str]


@click.command()
@click.argument("path", metavar="BUNDLE|MODEL")
@click.argument("inputs", nargs=-1, metavar="[INPUT...]")
@named("-b", "--backend", type=BACKEND, default="all", help="Only this engine; default all.")
@click.option("--threads", default="", metavar="1,2", help="Thread counts; default the engine's.")
@click.option("--runs", type=click.IntRange(1), default=200, show_default=True, help="Of each.")
@click.option(
    "--seconds", type=click.FloatRange(0.01), default=10.0, show_default=True, help="In all."
)
@click.option("--roofline", is_flag=True, help="Place the hot operators below this CPU's limits.")
@click.option("--ops", is_flag=True, help="Say what each operator costs, and where it runs.")
@click.option("--allow-fallback", is_flag=True, help="Let operators run on the CPU, and say which.")
@click.option("-o", "--output", metavar="JSON", help="Save the figures.")
@click.option("--overwrite", is_flag=True, help="Replace a file that is no .json.")
@TRUST_SOURCE
@trust_options()
@output_options
def bench(
    path: str,
    inputs: tuple[str, ...],
    backend: str,
    threads: str,
    runs: int,
    seconds: float,
    roofline: bool,
    ops: bool,
    allow_fallback: bool,
    output: str | None,
    overwrite: bool,
    trust_source: bool,
    trust: dict[str, Any],
    out: Output,
) -> None:
    """Time every artifact on every engine here.

    They run in turns, next to the plain engines called without edgeinfer.

    Without INPUT the first test vector is run. A MODEL is converted for this machine first, and the
    plain engines run the source. Of a language model steps that generate and steps that read are
    timed, and the time to the first token.
    """
    if output is not None:
        check_output(Path(output), ".json", b"{", overwrite=overwrite)
    if not seconds < math.inf:
        raise UsageError(f"--seconds {seconds}: expected a number")
    counts = _threads(threads)
    only = None if backend == "all" else backend
    with out.progress() as progress, contextlib.ExitStack() as stack:
        from edgeinfer.bundle.archive import Bundle
        from edgeinfer.cli import lmbench
        from edgeinfer.cli.pairs import pairs, within
        from edgeinfer.llm.generation import is_language_model
        from edgeinfer.runtime.devices import fingerprint

        counts = [*dict.fromkeys(within(count, out) for count in counts)]
        source = None if is_bundle(Path(path)) else Path(path)
        place = (
            path if source is None else _converted(path, stack, progress, trust_source=trust_source)
        )
        # What was just converted is ours, and nobody could have signed it.
        opening = trust if source is None else {"native": trust["native"]}
        bundle = stack.enter_context(Bundle.open(place, **opening))
        if is_language_model(bundle):
            told = lmbench.bench(bundle, counts[0], progress)
            _save(output, told[0])
            out.result(told[0], lambda: told[1])
            return
        found = pairs(bundle, only)
        feeds = _feeds(bundle, inputs)
        plan = _plan(bundle, found, feeds, counts, source, stack, fallback=allow_fallback)
        timings = interleave(
            plan.calls,
            runs=runs,
            seconds=seconds,
            progress=None if progress is None else lambda done: progress("measure", done),
        )
        machine = fingerprint()
        not_run = [*map(str, found.rejected), *plan.failed]
        limits = _limits(bundle, feeds, counts[0] or 1) if roofline else None
        costs = None
        if ops:
            costs = _costs(bundle, found, feeds, counts[0], fallback=allow_fallback)
    data = {
        "model": path,
        "machine": machine,
        "input": {name: list(array.shape) for name, array in feeds.items()},
        "rows": [{**_fields(row), **_fields(timing)} for row, timing in timings.items()],
        "not_run": not_run,
    }
    if limits is not None:
        data["roofline"] = limits[1]
    if costs is not None:
        data["ops"] = costs[1]
    _save(output, data)
    more = [*(limits[0] if limits else []), *(costs[0] if costs else [])]
    out.result(data, lambda: [*_view(timings, not_run), *more])


def _save(output: str | None, data: dict[str, Any]) -> None:
    if output is not None:
        write_bytes(Path(output), (to_json(data) + "\n").encode(), overwrite=True)


def _costs(
    bundle: Bundle, found: Pairs, feeds: dict[str, Array], threads: int | None, *, fallback: bool
) -> tuple[list[str | Table], dict[str, Any]]:
    """Profile every artifact on every engine, with the first of the thread counts."""
    from edgeinfer.cli import operators
    from edgeinfer.runtime.inputs import InputCheck

    checked = dict(InputCheck(bundle.manifest.inputs)(feeds))
    told, silent = operators.profiles(
        bundle, found, checked, threads, fallback=fallback, runs=OPS_RUNS
    )
    return [*operators.view(told, silent)], operators.to_data(told, silent)


def _limits(
    bundle: Bundle, feeds: dict[str, Array], threads: int
) -> tuple[list[str], dict[str, Any]]:
    """Measure this CPU, and place the operators of the bundle's first ONNX artifact below it."""
    from edgeinfer.cli import roofline

    variant = next((v for v in bundle.manifest.variants if v.format == "onnx"), None)
    if variant is None:
        raise BundleError(f"{bundle.location}: --roofline reads an ONNX artifact, and none is here")
    roof = roofline.measure(threads)
    with tempfile.TemporaryDirectory(prefix="edgeinfer-") as folder:
        found = roofline.place(bundle.paths(variant)[0], feeds, roof, Path(folder))
    return roofline.lines(roof, found), roofline.to_data(roof, found)


def _threads(text: str) -> list[int | None]:
    from edgeinfer.backends.checks import MOST_THREADS

    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() and 0 < int(part) <= MOST_THREADS for part in parts):
        raise UsageError(f"--threads {text!r}: expected numbers like 1,2, at most {MOST_THREADS}")
    counts: list[int | None] = [int(part) for part in dict.fromkeys(parts)]
    return counts or [None]


def _converted(
    model: str, stack: contextlib.ExitStack, progress: Progress | None, *, trust_source: bool
) -> str:
    from edgeinfer.convert.pipeline import export

    named = named_model(model, trust_source=trust_source)
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="edgeinfer-"))
    place = f"{folder}/model.edge"
    export(named.model, place, targets=("cpu",), progress=progress, **named.arguments())
    return place


def _feeds(bundle: Bundle, inputs: tuple[str, ...]) -> dict[str, Array]:
    if inputs:
        from edgeinfer.media import feeds_for

        return feeds_for(inputs, bundle.manifest)
    first = next(bundle.vectors(), None)
    if first is None:
        raise BundleError(f"{bundle.location}: has no test vectors; give an INPUT")
    return first[0]


def _plan(
    bundle: Bundle,
    found: Pairs,
    feeds: dict[str, Array],
    counts: list[int | None],
    source: Path | None,
    stack: contextlib.ExitStack,
    *,
    fallback: bool,
) -> Plan:
    from edgeinfer.backends.onnxruntime_regions import FORMAT as REGIONS
    from edgeinfer.cli.pairs import fallen, open_pair
    from edgeinfer.cli.plain import ENGINES, plain_call
    from edgeinfer.runtime.inputs import InputCheck

    checked = dict(InputCheck(bundle.manifest.inputs)(feeds))
    plan = Plan({}, [])
    plain: set[tuple[str, Path, int | None]] = set()
    for candidate in found.candidates:
        pair = candidate.pair
        for threads in counts:
            row = Row(pair.variant, pair.backend, candidate.version, pair.device, threads)
            try:
                executable = open_pair(bundle, found, candidate, threads, fallback=fallback)
                stack.callback(executable.close)
                if warning := fallen(executable):
                    plan.failed.append(f"{pair}: warning: {warning}")
                plan.calls[row] = _running(executable.run, checked)
            except BackendError as e:
                plan.failed.append(f"{pair}: {e}")
            variant = found.variants[pair.variant]
            if source is None and variant.format == REGIONS:
                # Without edgeinfer there is no such graph.
                continue
            artifact = source or bundle.paths(variant)[0]
            if pair.backend not in ENGINES or (pair.backend, artifact, threads) in plain:
                continue
            plain.add((pair.backend, artifact, threads))
            name = source.name if source else pair.variant
            values = [checked[spec.name] for spec in bundle.manifest.inputs]
            try:
                call, remark = plain_call(pair.backend, artifact, values, threads)
                row = Row(*(name, PLAIN + pair.backend, candidate.version, "cpu", threads), remark)
                plan.calls[row] = call
            except BackendError as e:
                plan.failed.append(str(e))
    _drop_failing(plan)
    return plan


def _running(run: Callable[[dict[str, Array]], object], feeds: dict[str, Array]) -> Any:
    return lambda: run(feeds)


def _drop_failing(plan: Plan) -> None:
    """Run each once; what cannot run this input is told, not timed."""
    for row, call in list(plan.calls.items()):
        try:
            call()
        except InputError:
            raise
        # Plain engines raise their own classes.
        except Exception as e:
            plan.failed.append(f"{row.variant} on {row.engine}: {' '.join(str(e).split())}")
            del plan.calls[row]
    if not plan.calls:
        raise BackendError(f"nothing could be run: {'; '.join(plan.failed)}")


def _fields(value: Row | Timing) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__slots__}


def _view(timings: dict[Row, Timing], not_run: list[str]) -> Iterator[str | Table]:
    columns = ("model", "engine", ">threads", ">median", ">p95", ">spread", ">runs", "")
    ordered = sorted(timings.items(), key=lambda item: item[1].median_ms)
    yield table(
        columns,
        [
            (
                row.variant,
                row.engine,
                row.threads or "auto",
                milliseconds(t.median_ms),
                milliseconds(t.p95_ms),
                f"{t.spread:.0%}",
                t.runs,
                row.remark,
            )
            for row, t in ordered
        ],
    )
    yield from (f"not run: {line}" for line in not_run)
