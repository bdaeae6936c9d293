"""``edgeinfer build``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from edgeinfer.cli.names import BACKEND, named
from edgeinfer.cli.output import Output, output_options, size, table
from edgeinfer.cli.trust import trust_options
from edgeinfer.errors import UsageError

if TYPE_CHECKING:
    from edgeinfer.backends.base import ShapeRange
    from edgeinfer.cli.table import Table
    from edgeinfer.runtime.prebuilt_engines import PrebuiltEngine

_SHAPES = re.compile(r"(?P<name>.+)=(?P<shapes>[0-9]+(?:[,:][0-9]+)*)")


@click.command()
@click.argument("bundle")
@named("-b", "--backend", type=BACKEND, help="Only this engine; default every one here.")
@click.option(
    "--shape",
    "shapes",
    multiple=True,
    metavar="X=1,3,224,224:4,...:8,...",
    help="Smallest, usual and largest shape of an input with open sizes; one shape is all three.",
)
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    help="Option of the engine that --backend names, e.g. workspace_mb=512; NAME= takes it back.",
)
@click.option("--check", "check_only", is_flag=True, help="Only say which engines are current.")
@trust_options()
@output_options
def build(
    bundle: str,
    backend: str | None,
    shapes: tuple[str, ...],
    options: tuple[str, ...],
    check_only: bool,
    trust: dict[str, Any],
    out: Output,
) -> None:
    """Build the engines of BUNDLE for this device, ahead of the first load.

    TensorRT compiles a model for one device, driver and version of itself, which takes minutes. The
    engines are kept in the cache folder; those that are current are left as they are. Shapes and
    options are remembered for later loads.

    Exits with 1 when an engine cannot be built or, with --check, is not current; with 3 when no
    backend that builds engines is here.
    """
    from edgeinfer.bundle.archive import Bundle
    from edgeinfer.runtime.prebuilt_engines import build_engines

    wanted, named = dict(map(_shape, shapes)), dict(map(_option, options))
    with out.progress() as progress, Bundle.open(bundle, **trust) as opened:
        found = build_engines(
            opened,
            backend=backend,
            shapes=wanted,
            options=named,
            check_only=check_only,
            progress=progress,
        )
    bad = any(b.state in ("failed", "stale") for b in found)
    out.result({"current": not bad, "engines": found}, lambda: _view(found))
    if bad:
        raise click.exceptions.Exit(1)


def _shape(text: str) -> tuple[str, ShapeRange]:
    match = _SHAPES.fullmatch(text)
    parts = [] if match is None else match["shapes"].split(":")
    if match is None or len(parts) not in (1, 3):
        raise UsageError(
            f"--shape {text}: expected NAME=SHAPE or NAME=SMALLEST:USUAL:LARGEST, sizes separated "
            "by commas"
        )
    found = [tuple(int(n) for n in part.split(",")) for part in parts]
    return match["name"], (found[0], found[-1] if len(found) == 1 else found[1], found[-1])


def _option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise UsageError(f"--option {text}: expected NAME=VALUE")
    return name, value


def _view(found: tuple[PrebuiltEngine, ...]) -> Iterator[str | Table]:
    rows = [
        (b.variant, b.backend, b.state, f"{b.seconds:.1f} s" if b.seconds else "-", _bytes(b))
        for b in found
    ]
    yield table(("variant", "backend", "engine", ">took", ">size"), rows)
    yield from (f"{b.variant}: {b.detail}" for b in found if b.detail)


def _bytes(built: PrebuiltEngine) -> str:
    return size(built.size_bytes) if built.size_bytes else "-"
