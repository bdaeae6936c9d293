"""``edgeinfer join``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from edgeinfer.cli.names import TARGET_OF_BUNDLE, named
from edgeinfer.cli.output import Output, output_options, size, table
from edgeinfer.cli.trust import trust_options
from edgeinfer.errors import UsageError

if TYPE_CHECKING:
    from edgeinfer.cli.table import Table
    from edgeinfer.convert.join import JoinedPackage

COLUMNS = ("function", "precision", ">alone", ">vectors", ">error", "bundle")


@click.command()
@click.argument("bundles", nargs=-1, required=True, metavar="NAME=BUNDLE...")
@click.option("-o", "--output", required=True, metavar="PACKAGE", help="NAME.mlpackage.")
@named("-t", "--target", type=TARGET_OF_BUNDLE, default="", help="Whose package, of several.")
@click.option("--overwrite", is_flag=True, help="Replace an existing package.")
@trust_options(runs=False)
@output_options
def join(
    bundles: tuple[str, ...],
    output: str,
    target: str,
    overwrite: bool,
    trust: dict[str, Any],
    out: Output,
) -> None:
    """Make one Core ML package with several functions.

    Such as prefill and decode: each BUNDLE gives its Core ML package, which becomes the function
    NAME; the first one is the default. Weights that are equal lie in the package once. Every
    function is run on the test vectors of its bundle before the package is written. Needs
    --deployment iOS18 or newer.
    """
    named = {}
    for argument in bundles:
        name, sign, place = argument.partition("=")
        if not sign or not name or not place or name in named:
            raise UsageError(f"{argument!r}: expected NAME=BUNDLE, each name once")
        named[name] = place
    with out.progress() as progress:
        if progress is not None:
            progress("join the packages", None)
        from edgeinfer.convert.join import join as joined

        result = joined(named, output, target=target, overwrite=overwrite, trust=trust)
    out.result(_data(result), lambda: _view(result))


def _data(result: JoinedPackage) -> dict[str, Any]:
    return {
        "package": result.path,
        "size_bytes": result.size_bytes,
        "functions": [
            {
                "name": f.name,
                "bundle": f.bundle,
                "precision": f.precision,
                "size_bytes": f.size_bytes,
                "vectors": f.vectors,
                "metrics": f.metrics.to_json(),
            }
            for f in result.functions
        ],
    }


def _view(result: JoinedPackage) -> Iterator[str | Table]:
    alone = sum(f.size_bytes for f in result.functions)
    yield f"{result.path}  {size(result.size_bytes)} ({size(alone)} in packages of their own)"
    yield ""
    rows = [
        (
            *(f.name, f.precision, size(f.size_bytes), str(f.vectors)),
            *(f"{f.metrics.max_rel:.1e}", f.bundle),
        )
        for f in result.functions
    ]
    yield table(COLUMNS, rows)
    yield "note: evaluated, not run on Apple hardware"
