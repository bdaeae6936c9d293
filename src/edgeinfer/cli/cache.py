"""``edgeinfer cache``."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgeinfer.cli.output import Output, output_options, size, table
from edgeinfer.errors import OutputError

if TYPE_CHECKING:
    from edgeinfer.cli.table import Table


@click.group()
def cache() -> None:
    """Show or empty the cache of bundles, measurements and engines."""


@cache.command("list")
@output_options
def list_(out: Output) -> None:
    """Show what is in the cache."""
    from edgeinfer.bundle.cache import cache_root

    root = cache_root()
    entries = [{"name": p.name, "size_bytes": _size(p)} for p in _entries(root)]
    bundles = [_unpacked(p) for p in sorted(root.glob("bundles/*"))]
    data = {"folder": root, "entries": entries, "bundles": bundles}
    out.result(data, lambda: _view(root, entries, bundles))


@cache.command()
@output_options
def clear(out: Output) -> None:
    """Remove everything in it: bundles are unpacked, backends measured, engines built again."""
    from edgeinfer.bundle.cache import cache_root

    root = cache_root()
    entries = _entries(root)
    freed = sum(map(_size, entries))
    for entry in entries:
        try:
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        except FileNotFoundError:
            continue  # another process was quicker
        except OSError as e:
            again = "; another process writes there: try again when it has ended"
            why = again if e.errno == errno.ENOTEMPTY else ""
            raise OutputError(f"{entry}: cannot be removed: {e.strerror or e}{why}") from e
    data = {"folder": root, "removed": len(entries), "freed_bytes": freed}
    out.result(data, lambda: [f"{root}: {size(freed)} freed"])


def _entries(root: Path) -> list[Path]:
    """List what edgeinfer put there; anything else in a folder of the user's choice stays.

    Raises:
        OutputError: others could have put it there, or a link in the folder's place.
    """
    from edgeinfer.bundle.cache import exposure, owner

    try:
        problem = exposure(root, root, owners={owner()})
    except OSError:
        return []
    if problem:
        raise OutputError(f"{root}: {problem}: nothing there is taken for edgeinfer's cache")
    return [p for p in sorted(root.glob("*")) if _is_ours(p)] if root.is_dir() else []


def _is_ours(path: Path) -> bool:
    from edgeinfer.bundle.cache import FOLDERS

    # A lock that is removed while it is held could be held twice.
    known = FOLDERS - {"locks"}
    return path.name in known or path.name.startswith("history-")


def _size(path: Path) -> int:
    files = [path] if path.is_file() else path.rglob("*")
    total = 0
    for file in files:
        try:
            total += file.lstat().st_size if not file.is_dir() else 0
        except FileNotFoundError:
            continue  # removed by another process in the meantime
    return total


def _unpacked(folder: Path) -> dict[str, Any]:
    """Describe an unpacked bundle, whose folder is named by its contents."""
    variants = sorted(p.name for p in folder.glob("variants/*"))
    return {"digest": folder.name, "variants": variants, "size_bytes": _size(folder)}


def _view(
    root: Path, entries: list[dict[str, Any]], bundles: list[dict[str, Any]]
) -> Iterator[str | Table]:
    if not entries:
        yield f"{root}: empty"
        return
    yield f"{root}:"
    yield table(("entry", ">size"), [(e["name"], size(e["size_bytes"])) for e in entries])
    if bundles:
        yield ""
        yield table(
            ("unpacked bundle", ">size", "artifacts"),
            [
                (b["digest"][:12], size(b["size_bytes"]), ", ".join(b["variants"]) or "-")
                for b in bundles
            ],
        )
