"""How far artifacts are from each other on the same inputs, whoever made them."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np

from edgeinfer.backends import registry
from edgeinfer.backends.base import Artifact, Executable, LoadOptions
from edgeinfer.backends.process import guard
from edgeinfer.bounded import open_file
from edgeinfer.bundle.archive import Bundle
from edgeinfer.bundle.formats import SUFFIXES
from edgeinfer.bundle.manifest import VectorRecord
from edgeinfer.bundle.storage import is_bundle
from edgeinfer.bundle.values import fits
from edgeinfer.errors import BackendError, InputError, NotAvailableError, UsageError
from edgeinfer.llm.generation import is_language_model
from edgeinfer.metrics import Budget, OutputMetrics, budget_for, check, compare, worst
from edgeinfer.records import dataclass
from edgeinfer.runtime.pairs import open_pair, pairs, within
from edgeinfer.runtime.recheck import lost_channels
from edgeinfer.runtime.verification import TIME_LIMIT_S
from edgeinfer.types import Array, Feeds, TensorSpec

_ENGINES = {
    "onnx": ("onnxruntime", "openvino", "reference"),
    "openvino_ir": ("openvino",),
    "tflite": ("litert",),
    "mlprogram": ("coreml", "coreml-reference"),
}
"""Engines of plain files; the first that is here runs them."""


@dataclass(frozen=True, slots=True)
class Input:
    """What both sides are run on.

    Attributes:
        feeds: by name.
        record: Record of the bundle whose test vector it is; None of others.
    """

    feeds: Feeds
    record: VectorRecord | None = None

    def judged(self, precision: str, *sides: Side) -> bool:
        """Whether what comes out is judged: it is no extreme here, and nobody refuses it."""
        if self.record is not None and not self.record.judged_at(precision):
            return False
        return all(fits(side.constraints, self.feeds) for side in sides)

    def budget(self, base: Budget, output: str) -> Budget:
        """Return what an output may lose: more where the oracles themselves part."""
        return base if self.record is None else self.record.budget(base, output)


@dataclass(frozen=True, slots=True)
class Side:
    """An artifact that is open on an engine.

    Attributes:
        name: Name of the file, or of the variant in its bundle.
        path: what the engine opened.
        format: Format of it.
        precision: as its bundle says; empty of a plain file.
        backend: the engine.
        version: Version of the engine.
        executable: open.
        constraints: what its inputs must not hold, as its bundle says.
        vectors: inputs that its bundle has.
        also: variants of other targets that are the same artifact.
    """

    name: str
    path: Path
    format: str
    precision: str
    backend: str
    version: str
    executable: Executable
    constraints: Mapping[str, str] = field(default_factory=dict)
    vectors: tuple[Input, ...] = ()
    also: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Difference:
    """What one artifact gives where another is taken to be right.

    Attributes:
        outputs: the worst over all inputs, by output name.
        breaches: what leaves the budget, one line each; empty where the two are the same.
        first: number of the first input whose outputs leave the budget; 0 where none is alone.
        notes: how inputs and outputs were paired, where their names or layouts differ.
    """

    outputs: Mapping[str, OutputMetrics]
    breaches: tuple[str, ...]
    first: int
    notes: tuple[str, ...]

    @property
    def same(self) -> bool:
        """Whether every output stayed within the budget."""
        return not self.breaches


def open_sides(
    path: Path, stack: ExitStack, *, backend: str | None = None, **opening: Any
) -> tuple[list[Side], list[str]]:
    """Open an artifact, or all those of a bundle that can run here.

    Args:
        path: Path of a bundle or of a plain file.
        stack: closes them.
        backend: only this engine.
        **opening: how a bundle is opened, as ``Bundle.open`` takes it.

    Returns:
        The open ones, and what cannot run here with the reason, one line each.

    Raises:
        BundleError: the bundle is damaged.
        NotAvailableError: nothing of it can run here.
        UsageError: the file is none that an engine opens.
    """
    if not path.exists():
        raise UsageError(f"{path}: no such file")
    if is_bundle(path):
        return _of_bundle(stack.enter_context(Bundle.open(path, **opening)), stack, backend)
    suffix = path.suffix.lower()
    format = next((f for f, own in SUFFIXES.items() if own == suffix), "")
    if format not in _ENGINES:
        known = ", ".join(SUFFIXES[f] for f in _ENGINES)
        raise UsageError(
            f"{path}: expected a bundle, or an artifact that an engine opens ({known}); convert it "
            "first: edgeinfer convert MODEL -t onnxruntime"
        )
    if pipe := pipe_of(path):
        raise UsageError(f"{path}: {pipe} next to it is a device or a pipe; give files")
    reasons = []
    for name in _ENGINES[format] if backend is None else (backend,):
        probe = registry.get(name).probe()
        if not probe.available:
            reasons.append(f"{name}: {probe.reason or 'no device for it is here'}")
            continue
        artifact = Artifact(format, path, (), ())
        executable = guard.load(within(name, TIME_LIMIT_S), artifact, LoadOptions())
        stack.callback(executable.close)
        version = probe.version or ""
        return [Side(path.name, path, format, "", name, version, executable)], []
    raise NotAvailableError(f"{path}: nothing here can run it: {'; '.join(reasons)}")


def _of_bundle(
    bundle: Bundle, stack: ExitStack, backend: str | None
) -> tuple[list[Side], list[str]]:
    if is_language_model(bundle):
        raise UsageError(f"{bundle.location}: language models have no outputs to compare so")
    found = pairs(bundle, backend)
    lacking = [str(r) for r in found.rejected]
    known = zip(bundle.vectors(), bundle.manifest.vectors, strict=True)
    vectors = tuple(Input(dict(feeds), record) for (feeds, _), record in known)
    sides = []
    for candidate in found.candidates:
        pair, variant = candidate.pair, found.variants[candidate.pair.variant]
        try:
            executable = open_pair(bundle, found, candidate, limit_s=TIME_LIMIT_S)
        except BackendError as e:
            lacking.append(f"{pair}: {e}")
            continue
        stack.callback(executable.close)
        path = bundle.paths(variant)[0]
        what = (variant.id, path, variant.format, variant.precision)
        where = (pair.backend, candidate.version, executable)
        also = found.also.get(variant.id, ())
        sides.append(Side(*what, *where, variant.constraints, vectors, also))
    if not sides:
        raise NotAvailableError(f"{bundle.location}: nothing in it can run: {'; '.join(lacking)}")
    return sides, lacking


def coarser(a: str, b: str) -> str:
    """Return the precision that promises less."""
    return min((a, b), key=lambda precision: budget_for(precision).sqnr_db)


def difference(right: Side, other: Side, inputs: Sequence[Input], precision: str) -> Difference:
    """Run both on the same inputs, and hold what one gives against the other.

    Args:
        right: what is taken to be right; inputs and outputs go by its names.
        other: what is judged.
        inputs: by the names of ``right``.
        precision: whose budget every output is held against, as ``verify`` does.

    Raises:
        InputError: one of them does not take these inputs.
        RunError: an engine failed.
        UsageError: their inputs or outputs do not go together, or no input is judged.
    """
    notes: list[str] = []
    outs = _paired("output", right, other, notes)
    expected, actual, numbers = [], [], []
    for number, given in enumerate(inputs):
        if not given.judged(precision, right, other):
            continue
        wanted = right.executable.run(given.feeds)
        made = other.executable.run(adapted(given.feeds, right, other, notes))
        expected.append({own: wanted[own] for own, _ in outs})
        actual.append({own: _as_given(wanted[own], made[o.name], own, notes) for own, o in outs})
        numbers.append(number)
    if not numbers:
        raise UsageError(
            f"{other.name}: of {len(inputs)} inputs none is judged at {precision}, for they are "
            "extremes or hold NaN, infinity or what else an artifact refuses; give --data "
            "without such"
        )
    if left := len(inputs) - len(numbers):
        notes.append(
            f"{left} of {len(inputs)} inputs are not judged: extremes for {precision}, or values "
            "that an artifact refuses"
        )
    breaches: list[str] = []
    beyond: list[int] = []
    metrics: dict[str, OutputMetrics] = {}
    for name, _ in outs:
        base = budget_for(precision).among(e[name] for e in expected)
        each = [compare(e[name], a[name]) for e, a in zip(expected, actual, strict=True)]
        metrics[name] = worst(each)
        for number, one in zip(numbers, each, strict=True):
            where, allowed = f"input {number}, output {name!r}", inputs[number].budget(base, name)
            if lines := check(one, allowed):
                breaches += [f"{where}: {line}" for line in lines]
                beyond.append(number)
            elif lines := check(one, base):
                notes += [f"only within the widened budget: {where}: {line}" for line in lines]
    breaches = breaches or [*lost_channels(expected, actual, budget_for(precision))]
    first = min(beyond, default=numbers[0])
    return Difference(metrics, tuple(breaches), first, tuple(dict.fromkeys(notes)))


def adapted(feeds: Feeds, giver: Side, taker: Side, notes: list[str]) -> dict[str, Array]:
    """Return inputs of one side by the names and in the layouts of another.

    Raises:
        InputError: one fits in neither layout.
        UsageError: the inputs of the two do not go together.
    """
    ins = _paired("input", giver, taker, notes)
    return {theirs.name: _as_taken(feeds[own], own, theirs, notes) for own, theirs in ins}


def _paired(kind: str, right: Side, other: Side, notes: list[str]) -> list[tuple[str, TensorSpec]]:
    """Pair them by name, or by position where the names differ."""
    own, theirs = (
        side.executable.inputs if kind == "input" else side.executable.outputs
        for side in (right, other)
    )
    by_name = {spec.name: spec for spec in theirs}
    if by_name.keys() == {spec.name for spec in own}:
        found = [(spec, by_name[spec.name]) for spec in own]
    elif len(own) == len(theirs):
        found = list(zip(own, theirs, strict=True))
        names = ", ".join(f"{a.name!r} is {b.name!r}" for a, b in found)
        notes.append(f"{kind}s are paired by their order, for their names differ: {names}")
    else:
        listed = [", ".join(map(str, specs)) or "none" for specs in (own, theirs)]
        raise UsageError(
            f"{kind}s of {right.name} and {other.name} do not go together: {listed[0]} and "
            f"{listed[1]}"
        )
    for a, b in found:
        if a.dtype != b.dtype:
            raise UsageError(f"{kind} {a.name!r}: {right.name} has {a}, {other.name} has {b}")
    return [(a.name, b) for a, b in found]


def _as_taken(array: Array, name: str, spec: TensorSpec, notes: list[str]) -> Array:
    """Return an input in the layout that the other side takes: channels first or last.

    Raises:
        InputError: it fits in neither.
    """
    for moved, what in ((array, ""), *_layouts(array)):
        if spec.shape is None or _fits(moved.shape, spec.shape):
            if what:
                notes.append(f"input {name!r} is given with its channels {what}")
            return moved
    raise InputError(name, str(spec), f"{array.dtype}{list(array.shape)}")


def _as_given(wanted: Array, array: Array, name: str, notes: list[str]) -> Array:
    """Return an output in the layout of the side that is right, where another fits it."""
    if not (isinstance(array, np.ndarray) and isinstance(wanted, np.ndarray)):
        return array
    for moved, what in _layouts(array) if array.shape != wanted.shape else ():
        if moved.shape == wanted.shape:
            notes.append(f"output {name!r} is compared with its channels {what}")
            return moved
    return array


def _layouts(array: Array) -> tuple[tuple[Array, str], ...]:
    if array.ndim < 3:
        return ()
    last, first = np.moveaxis(array, 1, -1), np.moveaxis(array, -1, 1)
    return ((np.ascontiguousarray(last), "last"), (np.ascontiguousarray(first), "first"))


def _fits(sizes: tuple[int, ...], dims: Sequence[int | str | None]) -> bool:
    return len(sizes) == len(dims) and all(
        not isinstance(d, int) or d == n for d, n in zip(dims, sizes, strict=True)
    )


def pipe_of(path: Path) -> Path | None:
    """Return a pipe or a device that a model's file takes for one of its own; None for none.

    Whoever opens it may wait without end, and an engine does so with the interpreter's lock held.
    Within a folder all are its own; next to a file those of its name, and those that it names.
    """
    paths = path.rglob("*") if path.is_dir() else path.parent.iterdir()
    odd = [p for p in paths if not (p.is_file() or p.is_dir()) and p.exists()]
    if not odd or path.is_dir():
        return odd[0] if odd else None
    if same := [p for p in odd if p.stem == path.stem]:
        return same[0]
    with open_file(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        return next((p for p in odd if text.find(os.fsencode(p.name)) >= 0), None)
