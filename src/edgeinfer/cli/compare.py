"""``edgeinfer compare``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgeinfer.cli.names import BUDGET, named
from edgeinfer.cli.output import Output, output_options, table
from edgeinfer.cli.page import check_page, page_option, write_page
from edgeinfer.cli.trust import trust_options
from edgeinfer.errors import EdgeInferError, UsageError

if TYPE_CHECKING:
    from edgeinfer.cli.table import Table
    from edgeinfer.runtime.difference import Difference, Input, Side
    from edgeinfer.types import Feeds


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
    from edgeinfer.runtime import difference

    check_page(page)
    with ExitStack() as stack, out.progress() as progress:
        rights, _ = difference.open_sides(a, stack, **trust)
        others, not_run = difference.open_sides(b, stack, **trust)
        right = _most_precise(rights)
        if progress is not None:
            progress("gather inputs", None)
        inputs, origin = _inputs(right, others, data)
        rows = []
        for number, other in enumerate(others):
            if progress is not None:
                progress(f"compare {other.name}", number / len(others))
            asked = (precision, precision) if precision else (_precision(right), _precision(other))
            name = difference.coarser(*asked)
            found = difference.difference(right, other, inputs, name)
            node = "" if found.same else _node(right, other, inputs[found.first].feeds, name)
            rows.append((other, name, found, node))
    same = all(found.same for _, _, found, _ in rows)
    result = {
        "same": same,
        "right": {"name": right.name, "engine": right.backend, "version": right.version},
        "inputs": len(inputs),
        "origin": origin,
        "rows": [_data(*row) for row in rows],
        "not_run": not_run,
    }
    given = f"{len(inputs)} inputs {origin}"
    out.result(result, lambda: _view(right, rows, not_run, given))
    write_page(page, f"{b} beside {a}", _view(right, rows, not_run, given))
    if not same:
        raise click.exceptions.Exit(1)


def _most_precise(sides: list[Side]) -> Side:
    from edgeinfer.metrics import budget_for

    if len(sides) == 1:
        return sides[0]
    return max(sides, key=lambda side: budget_for(_precision(side)).sqnr_db)


def _precision(side: Side) -> str:
    """Return what a bundle says, or what is found in a plain file."""
    if side.precision:
        return side.precision
    try:
        from edgeinfer.convert.quantize.readback_apart import precision_of
    except ModuleNotFoundError as e:
        raise UsageError(
            f"{side.path}: what precision it has only the converter can tell: give --precision"
        ) from e
    return precision_of(side.path, side.format)


def _inputs(right: Side, others: list[Side], data: Path | None) -> tuple[list[Input], str]:
    """Return inputs by the names of the side that is right, and where they are from."""
    from edgeinfer.media.samples import open_data
    from edgeinfer.runtime.difference import Input, adapted

    if data is not None:
        given = open_data(data, right.executable.inputs, called="comparison")
        found = [Input(feeds) for feeds in given.feeds()]
        if not found:
            raise UsageError(f"comparison data {data} holds no sample")
        return found, f"of {data}"
    for side in (right, *others):
        if side.vectors:
            made = [replace(v, feeds=adapted(v.feeds, side, right, [])) for v in side.vectors]
            return made, f"of {side.name}"
    from edgeinfer.convert.verify.divergence import READABLE, made_inputs

    for side in (right, *others):
        if side.path.suffix in READABLE:
            names = [spec.name for spec in side.executable.inputs]
            # A reader may take other names of a file than its engine, never another order.
            own = [
                feeds
                if feeds.keys() == set(names)
                else dict(zip(names, feeds.values(), strict=True))
                for feeds in made_inputs(side.path)
            ]
            taken = [Input(adapted(feeds, side, right, [])) for feeds in own]
            return taken, f"made up for {side.name}"
    raise UsageError(
        f"{right.path}: inputs are made up for .onnx and .tflite files, and neither is one: give "
        "--data FILE.npz"
    )


def _node(right: Side, other: Side, feeds: Feeds, precision: str) -> str:
    """Name the first diverging node, or say why there is none to name."""
    try:
        from edgeinfer.convert.verify.divergence import READABLE, first_divergence
        from edgeinfer.metrics import budget_for
    except ModuleNotFoundError:
        return "no node named: the converter reads graphs, and it is not installed here"
    for side in (right, other):
        if side.path.suffix not in READABLE:
            return f"no node named: {side.path.name} is no graph that is read here"
    try:
        found = first_divergence(right.path, other.path, feeds, budget_for(precision))
    except EdgeInferError as e:
        return f"no node named: {e}"
    if found.node:
        return f"first diverging node {found.op} {found.node!r}: {'; '.join(found.breaches)}"
    if not found.compared:
        return "no node named: the two graphs have no value of the same name"
    return (
        f"no node named: all {found.compared} values that have one name in both are within the "
        "budget, computed without the engines' optimisation"
    )


def _data(side: Side, precision: str, found: Difference, node: str) -> dict[str, Any]:
    return {
        "name": side.name,
        "engine": side.backend,
        "version": side.version,
        "budget": precision,
        "same": found.same,
        "outputs": found.outputs,
        "breaches": found.breaches,
        "node": node,
        "notes": found.notes,
    }


def _view(
    right: Side,
    rows: list[tuple[Side, str, Difference, str]],
    not_run: list[str],
    inputs: str,
) -> Iterator[str | Table]:
    yield f"right: {right.name} on {right.backend} {right.version}"
    lines = [
        (
            *(side.name, f"{side.backend} {side.version}", output, precision),
            "equal" if metrics.max_rel == 0 else f"{metrics.max_rel:.1e}",
            "exact" if metrics.sqnr_db == float("inf") else f"{metrics.sqnr_db:.0f} dB",
            "same" if found.same else "DIFFERENT",
        )
        for side, precision, found, _ in rows
        for output, metrics in found.outputs.items()
    ]
    yield table(("compared", "engine", "output", "budget", ">error", ">signal", "verdict"), lines)
    yield ""
    for side, _, found, node in rows:
        yield from (f"{side.name}: {line}" for line in (*found.notes, *found.breaches))
        if node:
            yield f"{side.name}: {node}"
    yield from (f"not run: {line}" for line in not_run)
    off = sum(not found.same for _, _, found, _ in rows)
    if off and "made up" in inputs:
        yield "these inputs are like no data: --data FILE.npz compares on your own"
    yield f"{inputs}: {f'{off} of {len(rows)} DIFFERENT' if off else 'the same within budget'}"
