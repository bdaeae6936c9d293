"""``edgeinfer eval``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgeinfer.cli.declared import declared
from edgeinfer.cli.loading import time_limit_option
from edgeinfer.cli.models import measure
from edgeinfer.cli.names import BACKEND, named
from edgeinfer.cli.output import Output, milliseconds, output_options, size, table
from edgeinfer.cli.page import check_page, page_option, write_page
from edgeinfer.cli.shared import also_lines
from edgeinfer.cli.threads import within
from edgeinfer.cli.trust import trust_options
from edgeinfer.runtime.options import SessionOptions

if TYPE_CHECKING:
    from edgeinfer.cli.table import Table
    from edgeinfer.runtime.evaluation import Evaluated, Evaluation


@click.command()
@click.argument("bundle")
@click.argument("data")
@click.option(
    "--metric",
    default="top1",
    show_default=True,
    metavar="NAME",
    help="What is measured: top1, top5, f1, map, cer, wer, cosine, rmse, or FILE.py:NAME.",
)
@named("-b", "--backend", type=BACKEND, help="Only this engine; default every one here.")
@declared(SessionOptions, ("threads", "allow_fallback"))
@time_limit_option(None)
@page_option
@trust_options()
@output_options
def eval(
    bundle: str,
    data: str,
    metric: str,
    backend: str | None,
    threads: int | None,
    allow_fallback: bool,
    time_limit: float | None,
    page: Path | None,
    trust: dict[str, Any],
    out: Output,
) -> None:
    """Measure how right BUNDLE is on DATA, whose answers are known.

    DATA is an .npz file with all samples along the first axis and an array 'labels', or a folder of
    images, recordings or .npz files, whose sub-folders are named as the classes are.

    Every artifact is run on every engine of this device. Exits with 1 when one that can run here
    could not be measured.
    """
    judge = measure(metric)
    check_page(page)
    threads = within(threads, out)
    with out.progress() as progress:
        from edgeinfer.runtime.evaluation import evaluate

        found = evaluate(
            bundle,
            data,
            judge,
            backend=backend,
            threads=threads,
            allow_fallback=allow_fallback,
            time_limit_s=time_limit,
            progress=progress,
            **trust,
        )
    title = found.metric if isinstance(judge, str) else metric
    out.result(_data(found, title), lambda: _view(found, title))
    write_page(page, f"Accuracy of {bundle}", _view(found, title))
    if not found.complete:
        raise click.exceptions.Exit(1)


def _data(found: Evaluation, title: str) -> dict[str, Any]:
    return {
        "bundle": found.bundle,
        "data": found.data,
        "metric": title,
        "samples": found.samples,
        "rows": found.rows,
        "not_run": found.not_run,
        "also": found.also,
    }


def _view(found: Evaluation, title: str) -> Iterator[str | Table]:
    columns = ("variant", "engine", "device", "precision", ">size", f">{title}", ">a sample here")
    yield table(columns, [_row(row) for row in found.rows])
    yield ""
    for row in found.rows:
        if row.problem:
            yield f"{row.variant} on {row.backend}: not measured: {row.problem}"
    yield from also_lines(found.also)
    yield from (f"not run: {rejected}" for rejected in found.not_run)
    count = f"{found.samples} sample" + ("s" if found.samples != 1 else "")
    yield f"{count} on each, {title}: the higher the better"


def _row(row: Evaluated) -> tuple[str, ...]:
    quality = "-" if row.quality is None else f"{row.quality:.4f}"
    return (
        *(row.variant, f"{row.backend} {row.version}", row.device, row.precision),
        *(size(row.size_bytes), quality, milliseconds(row.sample_ms)),
    )
