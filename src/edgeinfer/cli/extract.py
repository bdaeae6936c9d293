"""``edgeinfer extract``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgeinfer.cli.names import TARGET_OF_BUNDLE, named
from edgeinfer.cli.output import Output, output_options, size
from edgeinfer.cli.trust import trust_options

if TYPE_CHECKING:
    from edgeinfer.bundle.archive import Bundle
    from edgeinfer.bundle.artifacts import Extracted


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@named(
    "-t", "--target", "targets", type=TARGET_OF_BUNDLE, multiple=True, help="Only for this device."
)
@click.option("--variant", "ids", multiple=True, metavar="ID", help="This one; repeatable.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    metavar="DIR",
    help="Where a folder for each variant goes.",
)
@click.option("-k", "--key", type=click.Path(path_type=Path), help="Key of an encrypted bundle.")
@click.option("--overwrite", is_flag=True, help="Replace folders of these variants.")
@trust_options(runs=False)
@output_options
def extract(
    bundle: Path,
    targets: tuple[str, ...],
    ids: tuple[str, ...],
    output: Path,
    key: Path | None,
    overwrite: bool,
    trust: dict[str, Any],
    out: Output,
) -> None:
    """Write artifacts of BUNDLE as plain files.

    For phones and other tools: the .tflite file, the .mlpackage, the .onnx file or OpenVINO's .xml
    and .bin, with the manifest and the report next to it, in DIR/VARIANT. Without --target and
    --variant all of them. Nothing is run. What is encrypted needs its key and is written in plain.
    """
    from edgeinfer.bundle.archive import Bundle
    from edgeinfer.bundle.artifacts import chosen
    from edgeinfer.bundle.artifacts import extract as extracted

    # Each file is compared with its hash as it is copied.
    with Bundle.open(bundle, key=key, verify=False, **trust) as opened:
        wanted = chosen(opened.manifest, targets=[_name(t) for t in targets], ids=ids)
        found = extracted(opened, output, wanted, overwrite=overwrite)
        opened.keep_counters()
        notes = _notes(found, opened)
    out.result(_data(bundle, found, notes), lambda: _view(found, notes))


def _name(target: str) -> str:
    """Return the name of a target by an alias of it; a bundle may have targets unknown here."""
    from edgeinfer import profiles
    from edgeinfer.errors import ProfileError

    try:
        return profiles.load(target).name
    except ProfileError:
        return target


def _notes(found: tuple[Extracted, ...], bundle: Bundle) -> list[str]:
    from edgeinfer.bundle.trust import level_of

    key, why = bundle.sealed_by, bundle.native.why
    notes = [f"decrypted with key {key}: these files are in plain"] if key else []
    native = [f.variant.id for f in found if level_of(f.variant) == "native"]
    if native and not bundle.native.allowed:
        notes.append(f"{', '.join(native)}: machine code, and {why}")
    if left := dict.fromkeys(name for f in found for name in f.left_out):
        is_one = "is left out: whoever opens it runs it" if len(left) == 1 else ""
        are = is_one or "are left out: whoever opens them runs them"
        notes.append(f"{', '.join(left)} {are}, and {why}")
    notes += [f"{f.variant.id}: {f.variant.unverified}" for f in found if f.variant.unverified]
    notes += [
        f"{f.variant.id}: plain files of fp32: whoever opens them tells the engine to compute in "
        f"{f.variant.computed_in}"
        for f in found
        if f.variant.computed_in
    ]
    return notes


def _data(bundle: Path, found: tuple[Extracted, ...], notes: list[str]) -> dict[str, Any]:
    return {
        "bundle": bundle,
        "variants": [
            {
                "id": f.variant.id,
                "target": f.variant.target,
                "format": f.variant.format,
                "precision": f.variant.precision,
                "size_bytes": f.variant.size_bytes,
                "artifact": f.artifact,
                "files": f.files,
            }
            for f in found
        ],
        "notes": notes,
    }


def _view(found: tuple[Extracted, ...], notes: list[str]) -> Iterator[str]:
    for f in found:
        v = f.variant
        yield f"{f.artifact}  {size(v.size_bytes)}, {v.format} {v.precision} for {v.target}"
    yield from (f"note: {line}" for line in notes)
