"""``edgeinfer compare``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgeinfer.cli.names import BUDGET, named
from edgeinfer.cli.output import Output, output_options, table
from edgeinfer.cli.page import check_page, page_option, write_page
from edgeinfer.cli.shared import also_lines
from edgeinfer.cli.trust import trust_options

if TYPE_CHECKING:
    from edgeinfer.cli.table import Table
    from edgeinfer.comparisons import Comparison


@click.command()
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option(
    "--data", type=click.Path(path_type=Path), metavar="NPZ|DIR", help="Inputs to compare with."
)
@named("--precision", type=BUDGET, help="Whose budget decides; default the coarser of both.")
@page_option
@trust_options()
@output_options
def compare(
    a: Path,
    b: Path,
    data: Path | None,
    precision: str | None,
    page: Path | None,
    trust: dict[str, Any],
    out: Output,
) -> None:
    """Compare B with A on the same inputs, whoever made them.

    A and B are bundles or artifacts: .onnx, .tflite, .xml with its .bin, .mlpackage. What A gives
    is taken to be right: of a bundle its most precise artifact that runs here. Of a bundle B every
    artifact is compared. Inputs are those of --data, of a bundle's test vectors, or made up as
    convert does.

    Exits with 1 when an output of B leaves the budget; where both are graphs that name their values
    alike, the first node is named that does.
    """
    check_page(page)
    with out.progress() as progress:
        from edgeinfer import comparisons

        found = comparisons.compare(a, b, data, precision=precision, progress=progress, **trust)
    out.result(found.as_json(), lambda: _view(found))
    write_page(page, f"{b} against {a}", _view(found))
    if not found.same:
        raise click.exceptions.Exit(1)


def _view(found: Comparison) -> Iterator[str | Table]:
    yield f"right: {found.right} on {found.engine} {found.version}"
    lines = [
        (
            *(row.name, f"{row.engine} {row.version}", output, row.budget),
            "equal" if metrics.max_rel == 0 else f"{metrics.max_rel:.1e}",
            "exact" if metrics.sqnr_db == float("inf") else f"{metrics.sqnr_db:.0f} dB",
            "same" if row.same else "DIFFERENT",
        )
        for row in found.rows
        for output, metrics in row.outputs.items()
    ]
    yield table(("compared", "engine", "output", "budget", ">error", ">signal", "verdict"), lines)
    yield ""
    for row in found.rows:
        why = (row.why,) if row.why else ()
        yield from (f"{row.name}: {line}" for line in (*row.notes, *row.breaches, *why))
    yield from also_lines(found.also)
    yield from (f"not run: {line}" for line in found.not_run)
    off = sum(not row.same for row in found.rows)
    inputs = f"{found.inputs} inputs {found.origin}"
    if off and "made up" in inputs:
        yield "these inputs are like no data: --data FILE.npz compares on your own"
    verdict = f"{off} of {len(found.rows)} DIFFERENT" if off else "the same within budget"
    yield f"{inputs}: {verdict}"
