"""What a package computes, by the reference evaluator, and how near that is to the source model."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tflite_peers.compare import decibels
from benchmarks.tflite_peers.worker import FailedError
from edgeinfer.backends.base import Artifact, LoadOptions
from edgeinfer.backends.coreml_reference.backend import CoreMLReferenceBackend
from edgeinfer.backends.coreml_reference.package import open_package
from edgeinfer.backends.coreml_reference.program import Block
from edgeinfer.errors import EdgeInferError, LoadError

Feeds = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a package did.

    Attributes:
        db: signal to noise of the worst output against the source model.
        said: why there are no numbers; empty if there are.
        gap: whether it was our evaluator that does not know an operation.
    """

    db: float = -100.0
    said: str = ""
    gap: bool = False


def judge(package: Path, feeds: Feeds, want: Feeds) -> Verdict:
    """Run a package once and compare."""
    try:
        executable = CoreMLReferenceBackend().load(
            Artifact("mlprogram", package, (), ()), LoadOptions()
        )
    except LoadError as e:
        return Verdict(said=str(e), gap=True)
    try:
        given = dict(_given(executable.inputs, feeds))
        return Verdict(decibels(executable.run(given), dict(want)))
    except (EdgeInferError, FailedError, ValueError) as e:
        return Verdict(said=f"{type(e).__name__}: {e}"[:200])


def _given(specs: Any, feeds: Feeds) -> Any:
    """Pair inputs by name, by what a name becomes in Core ML, or by order, and convert them."""
    plain = {re.sub(r"[^A-Za-z0-9_]", "_", n): n for n in feeds}
    rest = list(feeds)
    chosen: list[str | None] = []
    for spec in specs:
        base = spec.name.removesuffix("_workaround")
        name = next((n for n in (spec.name, plain.get(base)) if n in rest), None)
        chosen.append(name)
        if name is not None:
            rest.remove(name)
    for spec, name in zip(specs, chosen, strict=True):
        value = np.asarray(feeds[rest.pop(0) if name is None else name])
        kind = np.dtype("bool" if spec.dtype == "bool" else spec.dtype)
        yield spec.name, value.astype(kind)


def operations(package: Path) -> Counter[str]:
    """Count the operations of a package by type, without those that only name constants."""
    found: Counter[str] = Counter()
    _count(open_package(package).function().block, found)
    return found


def _count(block: Block, found: Counter[str]) -> None:
    for operation in block.operations:
        if operation.type != "const":
            found[operation.type] += 1
        for inner in operation.blocks:
            _count(inner, found)


def size_bytes(package: Path) -> int:
    """Size of all files of a package."""
    return sum(p.stat().st_size for p in package.rglob("*") if p.is_file())
