"""Samples with or without labels: read as they go, so that they may be larger than the memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np

from edgeinfer.errors import InputError, UsageError
from edgeinfer.media.arrays import lacking
from edgeinfer.records import dataclass
from edgeinfer.types import Array, Feeds, Preprocessing, TensorSpec

LABELS = "labels"
"""Name of the array of an ``.npz`` that holds one class number for each sample."""

_ROWS = 8
"""Samples of a free batch axis that one run takes."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One run.

    Attributes:
        feeds: by input name.
        origin: file and place in it.
        labels: Labels of each row where known: a class, a text, or an array such as boxes.
    """

    feeds: dict[str, Array]
    origin: str
    labels: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class SampleSet:
    """Samples, to be gone through any number of times."""

    samples: Callable[[], Iterator[Sample]]
    origin: str = "data"

    def feeds(self) -> Iterator[dict[str, Array]]:
        """Yield the inputs of each run."""
        for sample in self.samples():
            yield sample.feeds


@dataclass(frozen=True, slots=True)
class _Signature:
    inputs: tuple[TensorSpec, ...]
    preprocessing: dict[str, Preprocessing] = field(default_factory=dict)


def open_data(
    data: Path | Sequence[Feeds],
    inputs: Sequence[TensorSpec],
    preprocessing: Mapping[str, Preprocessing] | None = None,
    *,
    called: str = "calibration",
) -> SampleSet:
    """Open a set of samples.

    Args:
        data: a folder of images, recordings or ``.npz`` files, whose sub-folders are classes;
            one ``.npz`` whose arrays hold all samples along their first axis; or feeds.
        inputs: Inputs of the model.
        preprocessing: how an image or a recording becomes an input.
        called: what the samples are for, in messages.

    Raises:
        UsageError: there is nothing, or nothing that can be read.
        InputError: an array does not fit its input.
    """
    signature = _Signature(tuple(inputs), dict(preprocessing or {}))
    if not isinstance(data, Path):
        given = list(data)
        if not given:
            raise UsageError(f"the {called} data holds no sample")
        return SampleSet(lambda: _from_feeds(given, signature), "feeds")
    if data.is_dir():
        files = _files(data)
        if not files:
            raise UsageError(f"{called} folder {data} is empty")
        return SampleSet(lambda: _from_folder(data, files, signature), str(data))
    if data.suffix.lower() != ".npz":
        what = "expected a folder or an .npz file" if data.exists() else "no such file or folder"
        raise UsageError(f"{called} data {data}: {what}")
    if not data.is_file():
        raise UsageError(f"{called} data {data}: no such file")
    return SampleSet(lambda: _from_arrays(data, signature), str(data))


def _files(folder: Path) -> list[Path]:
    found = (p for p in folder.rglob("*") if p.is_file())
    return sorted(p for p in found if not any(x[0] == "." for x in p.relative_to(folder).parts))


def _from_feeds(given: Sequence[Feeds], signature: _Signature) -> Iterator[Sample]:
    for index, feeds in enumerate(given):
        yield from _split(feeds, signature, f"sample {index}")


def _from_arrays(path: Path, signature: _Signature) -> Iterator[Sample]:
    from edgeinfer.media import read_arrays

    yield from _split(read_arrays(path), signature, path.name)


def _from_folder(folder: Path, files: list[Path], signature: _Signature) -> Iterator[Sample]:
    from edgeinfer.media import calls_for

    for path in files:
        inner = path.relative_to(folder)
        name = inner.as_posix()
        if path.suffix.lower() == ".npz":
            yield from _from_arrays(path, signature)
            continue
        label = (inner.parts[0],) if len(inner.parts) > 1 else ()
        for index, feeds in enumerate(calls_for(path, signature, 1)):
            _check_complete(feeds, signature, name)
            yield Sample(feeds, f"{name}#{index}" if index else name, label)


def _check_complete(feeds: Feeds, signature: _Signature, origin: str) -> None:
    for spec in signature.inputs:
        if spec.name not in feeds:
            raise InputError(spec.name, str(spec), lacking(feeds, origin))


def _split(arrays: Feeds, signature: _Signature, origin: str) -> Iterator[Sample]:
    """Cut arrays that hold several samples along their first axis into runs."""
    known = {s.name for s in signature.inputs}
    for name in arrays:
        if name not in known and name != LABELS:
            listed = ", ".join(sorted(map(repr, known)))
            raise InputError(name, f"one of the model's inputs {listed}", f"this name in {origin}")
    _check_complete(arrays, signature, origin)
    cuts = {s.name: _cut(np.asarray(arrays[s.name]), s, origin) for s in signature.inputs}
    counts = {len(c) for c in cuts.values() if c is not None}
    if len(counts) > 1:
        sizes = ", ".join(f"{n!r}: {len(c)}" for n, c in cuts.items() if c is not None)
        raise InputError(origin, "as many samples for each input", sizes)
    total = counts.pop() if counts else 1
    labels = _one_each(np.asarray(arrays[LABELS])) if LABELS in arrays else None
    if labels is not None:
        _check_labels(len(labels), cuts, signature, origin)
    each = _labels(labels, cuts, total)
    for index in range(total):
        feeds = {
            s.name: np.asarray(arrays[s.name]) if (c := cuts[s.name]) is None else c[index]
            for s in signature.inputs
        }
        yield Sample(feeds, f"{origin}#{index}" if total > 1 else origin, next(each))


def _check_labels(
    count: int, cuts: Mapping[str, list[Array] | None], signature: _Signature, origin: str
) -> None:
    """Refuse labels that are not one for each sample; a fixed batch may have one for all of it."""
    for spec in signature.inputs:
        cut = cuts[spec.name]
        if cut is None:
            continue
        rows = sum(map(len, cut))
        fixed = spec.shape is not None and spec.shape != () and isinstance(spec.shape[0], int)
        if count != rows and not (fixed and count == len(cut)):
            raise InputError(LABELS, f"one for each of {rows} samples", f"{count} in {origin}")
        return


def _one_each(labels: Array) -> list[Any]:
    """Return the label of each sample; arrays of several numbers stay arrays."""
    if labels.ndim < 2 or labels.size == len(labels):
        return list(labels.ravel().tolist())
    return list(labels)


def _labels(
    labels: list[Any] | None, cuts: Mapping[str, list[Array] | None], total: int
) -> Iterator[tuple[Any, ...]]:
    """Yield the labels of each run."""
    cut = next((c for c in cuts.values() if c is not None), None)
    if labels is None or cut is None:
        yield from [tuple(labels or ())] * total
        return
    one_a_row = len(labels) == sum(map(len, cut))
    start = 0
    for part in cut:
        end = start + (len(part) if one_a_row else 1)
        yield tuple(labels[start:end])
        start = end


def _cut(array: Array, spec: TensorSpec, origin: str) -> list[Array] | None:
    """Return the runs an array holds; None where it is the same in every run.

    Raises:
        InputError: it fits neither one run nor several.
    """
    dtype = "string" if array.dtype.kind in "OSUT" else array.dtype.name
    received = f"{dtype}{list(array.shape)} in {origin}"
    if dtype != spec.dtype:
        raise InputError(spec.name, str(spec), received)
    shape = spec.shape
    if shape is None:
        return None
    if array.ndim == len(shape) + 1 and _fits(array.shape[1:], shape):
        # A run of a single number is an array too: engines refuse NumPy's numbers.
        return [np.asarray(a) for a in array]
    if array.ndim != len(shape) or not _fits(array.shape[1:], shape[1:]):
        raise InputError(spec.name, str(spec), received)
    if not shape:
        return None
    first, rows = shape[0], array.shape[0]
    if isinstance(first, int):
        if rows == first:
            return None
        if first == 0 or rows % first:
            raise InputError(spec.name, str(spec), received)
        return [array[i : i + first] for i in range(0, rows, first)]
    return [array[i : i + _ROWS] for i in range(0, rows, _ROWS)] if rows else []


def _fits(sizes: tuple[int, ...], dims: Sequence[int | str | None]) -> bool:
    return all(not isinstance(d, int) or d == n for d, n in zip(dims, sizes, strict=True))
