"""``edgeinfer bench``."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgeinfer.bundle.consent import allowed
from edgeinfer.bundle.scratch import Scratch
from edgeinfer.cli.declared import declared
from edgeinfer.cli.device import device_option
from edgeinfer.cli.files import check_output, write_bytes
from edgeinfer.cli.loading import time_limit_option
from edgeinfer.cli.models import TRUST_SOURCE, named_model
from edgeinfer.cli.names import BACKEND, named
from edgeinfer.cli.output import Output, milliseconds, output_options, size, table, to_json
from edgeinfer.cli.page import check_page, page_option, write_page
from edgeinfer.cli.shared import also_lines
from edgeinfer.cli.threads import within
from edgeinfer.cli.trust import TRUST_FILES, trust_options
from edgeinfer.errors import BundleError, UsageError
from edgeinfer.runtime.options import SessionOptions
from edgeinfer.types import Progress

if TYPE_CHECKING:
    from edgeinfer.bundle.archive import Bundle
    from edgeinfer.bundle.manifest import Variant
    from edgeinfer.cli.table import Table
    from edgeinfer.machine.energy import Taken
    from edgeinfer.runtime.comparison import Row, TimingResult
    from edgeinfer.runtime.timing import Timing
    from edgeinfer.types import Array

PLAIN = "plain "

EQUAL = {
    "computes in bfloat16": "so does what convert --precision bf16 makes, within its budget",
    "threads spin between runs": "without --engine-defaults no threads spin between runs",
}
"""What makes a plain engine with its own defaults and edgeinfer equal, by what the engine does."""

OPS_RUNS = 20

_TIMES = (">threads", ">median", ">p95", ">spread", ">runs")


@click.command()
@click.argument("path", metavar="BUNDLE|MODEL")
@click.argument("inputs", nargs=-1, metavar="[INPUT...]")
@named("-b", "--backend", type=BACKEND, default="all", help="Only this engine; default all.")
@click.option(
    "--threads", default="", metavar="1,2", help="Thread counts to try; default the engine's."
)
@click.option(
    "--runs", type=click.IntRange(1), default=200, show_default=True, help="Runs per engine."
)
@click.option(
    "--seconds",
    type=click.FloatRange(0.01),
    default=10.0,
    show_default=True,
    help="Total time limit.",
)
@click.option("--roofline", is_flag=True, help="Compare hot operators with this CPU's limits.")
@click.option("--ops", is_flag=True, help="Report the time of each operator and where it runs.")
@click.option(
    "--engine-defaults", is_flag=True, help="Run the plain engines as they come, not like for like."
)
@declared(SessionOptions, ("allow", "allow_fallback"))
@time_limit_option(None)
@click.option("-o", "--output", metavar="JSON", help="Save the figures.")
@click.option("--overwrite", is_flag=True, help="Replace a file that is no .json.")
@page_option
@TRUST_SOURCE
@trust_options()
@output_options
@device_option("path", "inputs", *TRUST_FILES, output=("output", ".json", b"{"))
def bench(
    path: str,
    inputs: tuple[str, ...],
    backend: str,
    threads: str,
    runs: int,
    seconds: float,
    roofline: bool,
    ops: bool,
    engine_defaults: bool,
    allow: tuple[str, ...],
    allow_fallback: bool,
    time_limit: float | None,
    output: str | None,
    overwrite: bool,
    page: Path | None,
    trust_source: bool,
    trust: dict[str, Any],
    out: Output,
) -> None:
    """Time every artifact on every engine here.

    They run in turns, next to the plain engines called without edgeinfer.

    Without INPUT the first test vector is run. A MODEL is converted for this machine first, and the
    plain engines run the source. Variants that a session takes only where they are allowed are
    timed too: of those that --allow does not name it reports what they would gain. Of a language
    model steps that generate and steps that read are timed, and the time to the first token.
    """
    permitted = allowed(allow or None)
    counts = _checked(output, seconds, threads, overwrite=overwrite)
    check_page(page)
    from edgeinfer.bundle.storage import is_bundle

    with out.progress() as progress, contextlib.ExitStack() as stack:
        from edgeinfer.bundle.archive import Bundle
        from edgeinfer.cli import lmbench
        from edgeinfer.llm.generation import is_language_model
        from edgeinfer.machine.energy import Watch
        from edgeinfer.machine.fingerprint import fingerprint
        from edgeinfer.runtime.comparison import bench as compared
        from edgeinfer.runtime.select import also

        counts = [*dict.fromkeys(within(count, out) for count in counts)]
        source = None if is_bundle(Path(path)) else Path(path)
        place = (
            path if source is None else _converted(path, stack, progress, trust_source=trust_source)
        )
        # What was just converted is ours, and nobody could have signed it.
        opening = trust if source is None else {"native": trust["native"]}
        bundle = stack.enter_context(Bundle.open(place, **opening))
        if is_language_model(bundle):
            _show(out, output, page, path, *lmbench.bench(bundle, counts[0], progress))
            return
        feeds = _feeds(bundle, inputs)
        with Watch() as watch:
            timed = compared(
                bundle,
                feeds,
                backend=backend,
                threads=counts,
                runs=runs,
                seconds=seconds,
                allow_fallback=allow_fallback,
                source=source,
                engine_defaults=engine_defaults,
                time_limit_s=time_limit,
                progress=None if progress is None else lambda done: progress("measure", done),
            )
        machine = fingerprint(ask_driver=True)
        limits = _limits(bundle, feeds, counts[0] or 1) if roofline else None
        asked = (bundle, backend, feeds, counts[0])
        costs = _costs(*asked, fallback=allow_fallback) if ops else None
        same = also(bundle.manifest.variants)
        known = {v.id: _made(v, same.get(v.id, ())) for v in bundle.manifest.variants}
    data = {
        "model": path,
        "machine": machine,
        **_timed_data(timed, known),
        "taken": watch.taken,
        **({} if limits is None else {"roofline": limits[1]}),
        **({} if costs is None else {"ops": costs[1]}),
    }
    more = [*(limits[0] if limits else []), *(costs[0] if costs else [])]
    shown = [*_view(timed, permitted, known), *_heat(watch.taken), *more]
    _show(out, output, page, path, data, shown)


def _timed_data(timed: TimingResult, known: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {
        "input": timed.shapes,
        "gains": timed.gains(),
        "rows": [
            {**_fields(row), **_fields(timing), **known.get(row.variant, {})}
            for row, timing in timed.rows.items()
        ],
        "not_run": timed.not_run,
    }


def _made(variant: Variant, also: tuple[str, ...]) -> dict[str, Any]:
    """Return an artifact's size, its largest error when it was made, and who else has it."""
    errors = [m["max_rel"] for m in variant.accuracy.values() if "max_rel" in m]
    return {"size_bytes": variant.size_bytes, "max_rel": max(errors, default=None), "also": also}


def _checked(
    output: str | None, seconds: float, threads: str, *, overwrite: bool
) -> list[int | None]:
    """Refuse what makes no sense before anything is loaded; return the thread counts."""
    if output is not None:
        check_output(Path(output), ".json", b"{", overwrite=overwrite)
    if not seconds < math.inf:
        raise UsageError(f"--seconds {seconds}: expected a number")
    return _threads(threads)


def _heat(taken: Taken) -> Iterator[str]:
    """Say how warm the hottest zone became, and what power was drawn, where the kernel tells."""
    highest = taken.celsius_highest
    if highest:
        zone = max(highest, key=lambda name: highest[name])
        before = taken.celsius_before.get(zone, highest[zone])
        yield f"temperature: {before:.0f} °C before, {highest[zone]:.0f} at most ({zone})"
    if taken.watts:
        results = ", ".join(f"{watts:.3g} W ({name})" for name, watts in taken.watts.items())
        yield f"power while measuring: {results}"
    yield from (f"note: {line}" for line in taken.complaints)


def _show(
    out: Output,
    output: str | None,
    page: Path | None,
    path: str,
    data: dict[str, Any],
    shown: Iterable[str | Table],
) -> None:
    """Print the figures, and write the files that were requested."""
    parts = [*shown]
    if output is not None:
        write_bytes(Path(output), (to_json(data) + "\n").encode(), overwrite=True)
    out.result(data, lambda: parts)
    write_page(page, f"Times of {path}", parts)


def _costs(
    bundle: Bundle, backend: str, feeds: dict[str, Array], threads: int | None, *, fallback: bool
) -> tuple[list[str | Table], dict[str, Any]]:
    """Profile every artifact on every engine, with the first of the thread counts."""
    from edgeinfer.cli import operators
    from edgeinfer.runtime.inputs import InputCheck
    from edgeinfer.runtime.pairs import pairs

    found = pairs(bundle, None if backend == "all" else backend)
    checked = dict(InputCheck(bundle.manifest.inputs)(feeds))
    results, silent = operators.profiles(
        bundle, found, checked, threads, fallback=fallback, runs=OPS_RUNS
    )
    return [*operators.view(results, silent)], operators.to_data(results, silent)


def _limits(
    bundle: Bundle, feeds: dict[str, Array], threads: int
) -> tuple[list[str], dict[str, Any]]:
    """Measure this CPU, and place the operators of the bundle's first ONNX artifact below it."""
    from edgeinfer.cli.roofline import lines, measure, place, to_data

    variant = next((v for v in bundle.manifest.variants if v.format == "onnx"), None)
    if variant is None:
        raise BundleError(f"{bundle.location}: --roofline reads an ONNX artifact, and none is here")
    roof = measure(threads)
    with Scratch() as folder:
        found = place(bundle.paths(variant)[0], feeds, roof, folder)
    return lines(roof, found), to_data(roof, found)


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
    from edgeinfer.convert.pipeline.entry import export

    named = named_model(model, trust_source=trust_source)
    folder = stack.enter_context(Scratch())
    place = f"{folder}/model.edge"
    export(named.model, place, targets=("cpu",), progress=progress, **named.arguments())
    return place


def _feeds(bundle: Bundle, inputs: tuple[str, ...]) -> dict[str, Array]:
    if inputs:
        from edgeinfer.media import feeds_for

        return feeds_for(inputs, bundle.manifest)
    from edgeinfer.runtime.comparison import first_vector

    return first_vector(bundle)


def _size_and_error(made: dict[str, Any]) -> tuple[str, str]:
    error = made.get("max_rel")
    return size(made["size_bytes"]) if made else "", "" if error is None else f"{error:.1e}"


def _fastest(timed: TimingResult, permitted: frozenset[str]) -> Iterator[str]:
    """Name the fastest of what a session takes."""
    taken = [
        (t.median_ms, row)
        for row, t in timed.rows.items()
        if not row.engine.startswith(PLAIN) and (not row.consent or row.consent in permitted)
    ]
    if len(taken) > 1:
        ms, row = min(taken, key=lambda pair: pair[0])
        found = f"{row.variant} on {row.engine}, {milliseconds(ms)}"
        yield f"fastest for a session in these turns: {found}"


def _advice(kind: str, factor: float) -> str:
    return f"allow {kind}" if factor > 1 else "nothing would be gained by allowing it"


def _fields(value: Row | Timing) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__slots__}


def _view(
    timed: TimingResult, permitted: frozenset[str], known: dict[str, dict[str, Any]]
) -> Iterator[str | Table]:
    columns = ("model", "engine", ">size", ">error", *_TIMES, "")
    yield table(
        columns,
        [
            (
                *(row.variant, row.engine, *_size_and_error(known.get(row.variant, {}))),
                row.threads or "auto",
                milliseconds(t.median_ms),
                milliseconds(t.p95_ms),
                f"{t.spread:.0%}",
                t.runs,
                row.remark or (f"needs --allow {row.consent}" if row.consent else ""),
            )
            for row, t in timed.rows.items()
        ],
    )
    from edgeinfer.machine.host import host

    yield f"times are of this machine: {host()}"
    yield from _fastest(timed, permitted)
    shown = dict.fromkeys(row.variant for row in timed.rows)
    yield from also_lines({n: known[n]["also"] for n in shown if known.get(n, {}).get("also")})
    yield from (f"not run: {line}" for line in timed.not_run)
    for kind, factor in timed.gains().items():
        if kind not in permitted:
            yield f"note: {kind} is {factor:.3g}x as fast here; {_advice(kind, factor)}"
    remarks = {row.remark for row in timed.rows}
    yield from (f"note: {line}" for text, line in EQUAL.items() if text in remarks)
    if any(row.engine.startswith(PLAIN) for row in timed.rows) and not remarks - {""}:
        yield (
            "plain engines compute as edgeinfer does, and their threads do not spin between runs; "
            "--engine-defaults runs them as they come"
        )
