"""``edgeinfer check``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from edgeinfer.cli.models import TRUST_SOURCE, input_shapes, integer_bounds, named_model
from edgeinfer.cli.names import DEPLOYMENT, PRECISION, TARGET, TARGETS, named
from edgeinfer.cli.output import Output, output_options, table

if TYPE_CHECKING:
    from edgeinfer.cli.table import Table
    from edgeinfer.errors import Problem


@click.command()
@click.argument("model")
@named("-t", "--target", "targets", type=TARGET, multiple=True, required=True, help=TARGETS)
@named("--precision", type=PRECISION, default="fp32", show_default=True, help="Asked for.")
@click.option("--input-shape", "shapes", multiple=True, metavar="X=1,3,224,?", help="Fix sizes.")
@named("--deployment", type=DEPLOYMENT, default="", help="Core ML: the oldest system.")
@click.option("--integers", multiple=True, metavar="X=0..9", help="Core ML: what an input holds.")
@TRUST_SOURCE
@output_options
def check(
    model: str,
    targets: tuple[str, ...],
    precision: str,
    shapes: tuple[str, ...],
    deployment: str,
    integers: tuple[str, ...],
    trust_source: bool,
    out: Output,
) -> None:
    """List every node that a target cannot express.

    Nothing is converted. Exits with 1 when a target would refuse the model; a format that a target
    calls optional is left out of a bundle and does not count.
    """
    named = named_model(model, trust_source=trust_source)
    sizes = input_shapes(shapes)
    with out.progress() as progress:
        if progress is not None:
            progress("read the model", None)
        from edgeinfer.convert.pipeline import entry

        found = entry.check(
            named.model,
            targets=targets,
            precision=precision,
            input_shapes=sizes or None,
            deployment=deployment,
            integers=integer_bounds(integers),
            **named.arguments(),
        )
    optional = _optional(targets)
    clean = not any(problems for key, problems in found.items() if key not in optional)
    data = {"convertible": clean, "targets": found, "optional": sorted(optional)}
    out.result(data, lambda: _view(found, optional))
    if not clean:
        raise click.exceptions.Exit(1)


def _optional(targets: tuple[str, ...]) -> set[str]:
    from edgeinfer.convert.pipeline.request import resolve_profiles

    return {f"{p.name}-{f}" for p in resolve_profiles(targets) for f in p.optional_formats}


def _view(found: dict[str, list[Problem]], optional: set[str]) -> Iterator[str | Table]:
    for target, problems in found.items():
        if not problems:
            yield f"{target}: everything converts"
            continue
        count = f"{len(problems)} node" + ("s" if len(problems) > 1 else "")
        remark = " (optional, would be left out)" if target in optional else ""
        yield f"{target}: {count} cannot be expressed{remark}"
        rows = [(p.op, p.node, p.reason, p.detail, p.hint) for p in problems]
        yield table(("operator", "node", "reason", "detail", "what helps"), rows)
