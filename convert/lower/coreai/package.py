"""Saving a module as an asset, and reading back what was saved."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from edgeinfer.backends.engines import import_coreai

METADATA = "metadata.json"

CHECKED = (
    "Made by edgeinfer. Its numbers were checked by Apple's coreai-core on a CPU off a Mac, not by "
    "Core AI on a device."
)

_FLOATS = {"f16": "fp16", "f32": "fp32", "f64": "fp64"}


@contextmanager
def building() -> Iterator[Any]:
    """A fresh module in a context of its own."""
    library = import_coreai()
    with library.authoring.Context(), library.ir.Location.unknown():
        yield library.authoring.Module.create()


def save(module: Any, path: Path) -> None:
    """Write an asset; the same module gives the same bytes."""
    authoring = import_coreai().authoring
    module.verify()
    authoring.AIProgram(module).save_asset(path)
    # The library writes the time of day.
    file = path / METADATA
    data = json.loads(file.read_text(encoding="utf-8"))
    data.pop("creationDate", None)
    data["description"] = CHECKED
    file.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def files_of(path: Path) -> tuple[Path, ...]:
    """Files of an asset; the first one names it."""
    found = sorted(p for p in path.rglob("*") if p.is_file())
    return (path / METADATA, *(p for p in found if p.name != METADATA))


def digest(path: Path) -> str:
    """Hash of all files of an asset."""
    whole = hashlib.sha256()
    for file in files_of(path):
        whole.update(file.relative_to(path).as_posix().encode() + b"\0" + file.read_bytes())
    return whole.hexdigest()


def read_back(path: Path) -> tuple[str, dict[str, int]]:
    """Every float type that is computed with, and operator types to counts, as saved."""
    library = import_coreai()
    with library.authoring.Context(), library.ir.Location.unknown():
        program = library.authoring.AIModelAsset.load(path).program
        floats: set[str] = set()
        ops: Counter[str] = Counter()
        _count(program._module._mlir_module.operation, floats, ops)
    names = sorted(_FLOATS[f] for f in floats) or ["int"]
    return "+".join(names), dict(ops)


def _count(operation: Any, floats: set[str], ops: Counter[str]) -> None:
    for inner in _inside(operation):
        name = inner.name.removeprefix("coreai.")
        if name not in ("graph", "constant", "output", "yield", "condition"):
            ops[name] += 1
        kinds = [str(r.type) for r in inner.results]
        floats.update(f for f in _FLOATS for k in kinds if k.endswith(f"{f}>"))
        _count(inner, floats, ops)


def _inside(operation: Any) -> Sequence[Any]:
    return [op.operation for region in operation.regions for block in region for op in block]
