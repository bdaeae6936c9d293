"""Files named by a user to the arrays of one or several runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from pathlib import Path
from typing import Protocol

import numpy as np

from edgeinfer.bounded import absence
from edgeinfer.errors import InputError, UsageError
from edgeinfer.media.arrays import lacking, read_arrays
from edgeinfer.media.audio import windows
from edgeinfer.media.image import load_image
from edgeinfer.records import dataclass
from edgeinfer.types import Array, AudioInput, ImageInput, Preprocessing, TensorSpec

BATCH = 16
"""Most images or windows in one run of a model whose batch is free; bounds the memory."""

ARRAY_SUFFIXES = frozenset({".npz", ".npy"})


class FeedSignature(Protocol):
    """What the files are read for; a ``Manifest`` is one."""

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The model's inputs, in order."""
        ...

    @property
    def preprocessing(self) -> dict[str, Preprocessing]:
        """How an image or recording becomes an input, by the input's name."""
        ...


@dataclass(slots=True)
class _Given:
    """What the arguments name: arrays for whole inputs, and media files in order."""

    arrays: dict[str, Array] = field(default_factory=dict)
    media: dict[str, list[Path]] = field(default_factory=dict)


def feeds_for(
    paths: str | Path | Sequence[str | Path], signature: FeedSignature, batch: int = BATCH
) -> dict[str, Array]:
    """Read files into the feeds of exactly one run.

    Raises:
        InputError: they need several runs (``calls_for`` gives them), or a file is not what the
            input takes.
        NotAvailableError: a library that reads the file is missing.
        UsageError: it is not clear which input a file is for.
    """
    calls = calls_for(paths, signature, batch)
    first = next(calls)
    if next(calls, None) is not None:
        names = [str(p) for p in ([paths] if isinstance(paths, (str, Path)) else paths)]
        raise InputError(names[0], "files for one run", "images or windows for several runs")
    return first


def calls_for(
    paths: str | Path | Sequence[str | Path], signature: FeedSignature, batch: int = BATCH
) -> Iterator[dict[str, Array]]:
    """Read files into the feeds of as many runs as the model's batch needs.

    An argument is an ``.npz`` whose arrays are named as the inputs (or ``arr_0``... in their
    order), an ``.npy``, an image or a recording, each optionally as ``name=file``. Images and
    windows of a recording are laid along the batch axis: as many as the model's batch, or up to
    ``batch`` where it is free. Arrays go unchanged into every run.

    Raises:
        InputError: a file is not what the input takes, or does not fill the model's batch.
        NotAvailableError: a library that reads the file is missing.
        UsageError: it is not clear which input a file is for.
    """
    files = [paths] if isinstance(paths, (str, Path)) else list(paths)
    given = _sorted(files, signature)
    specs = {spec.name: spec for spec in signature.inputs}
    streams = {
        name: _batches(media, specs[name], signature.preprocessing[name], batch)
        for name, media in given.media.items()
    }
    if not streams:
        yield given.arrays
        return
    # Each stream is read as it goes, so a thousand images are never in memory together.
    while parts := {name: next(stream, None) for name, stream in streams.items()}:
        ready = {name: part for name, part in parts.items() if part is not None}
        if not ready:
            return
        if len(ready) < len(parts):
            short = next(name for name, part in parts.items() if part is None)
            raise InputError(short, "as many files as the other inputs", "fewer")
        yield {**given.arrays, **ready}


def _sorted(files: Sequence[str | Path], signature: FeedSignature) -> _Given:
    given = _Given()
    for argument in files:
        name, path = _split(argument, signature)
        if path.suffix.lower() in ARRAY_SUFFIXES:
            _take_arrays(given, name, path, signature)
            continue
        target = _media_input(name, path, signature)
        if target in given.arrays:
            raise UsageError(f"{path}: input {target!r} is already given")
        given.media.setdefault(target, []).append(path)
    return given


def _split(argument: str | Path, signature: FeedSignature) -> tuple[str | None, Path]:
    """Split ``name=file``; a name may hold ``=`` itself, and a file that exists wins."""
    text = str(argument)
    names = [s.name for s in signature.inputs if text.startswith(s.name + "=")]
    if names and not (isinstance(argument, Path) or Path(text).exists()):
        name = max(names, key=len)
        return name, Path(text[len(name) + 1 :])
    path = Path(argument)
    if not path.exists() and "=" in text and not isinstance(argument, Path):
        known = ", ".join(repr(s.name) for s in signature.inputs)
        raise UsageError(f"{text!r}: no such file, and no input has this name; inputs: {known}")
    return None, path


def _take_arrays(given: _Given, name: str | None, path: Path, signature: FeedSignature) -> None:
    arrays = read_arrays(path)
    names = [spec.name for spec in signature.inputs]
    if names and not arrays:
        raise InputError(names[0], str(signature.inputs[0]), lacking(arrays, str(path)))
    if path.suffix.lower() == ".npy" or (name is not None and len(arrays) == 1):
        free = [n for n in names if n not in given.arrays and n not in given.media]
        if name is None and len(free) != 1:
            raise UsageError(f"{path}: which input is it for? write NAME={path}; inputs: {names}")
        arrays = {name if name is not None else free[0]: next(iter(arrays.values()))}
    elif name is not None:
        raise InputError(name, "one array", f"{len(arrays)} in {path}")
    elif list(arrays) == [f"arr_{i}" for i in range(len(names))] and not set(arrays) & set(names):
        arrays = dict(zip(names, arrays.values(), strict=True))
    for key, array in arrays.items():
        if key not in names:
            wanted = f"an input of the model ({', '.join(map(repr, names)) or 'it has none'})"
            raise InputError(key, wanted, f"an unknown name in {path}")
        if key in given.arrays or key in given.media:
            raise UsageError(f"{path}: input {key!r} is already given")
        given.arrays[key] = array


def _media_input(name: str | None, path: Path, signature: FeedSignature) -> str:
    readable = {
        n for n, r in signature.preprocessing.items() if isinstance(r, (ImageInput, AudioInput))
    }
    if not path.is_file():
        raise UsageError(f"{path}: {absence(path)}")
    if name is not None and name not in readable:
        raise UsageError(
            f"{path}: input {name!r} has no image or audio record; give an .npz or .npy, or convert"
            " the model again with --preprocessing"
        )
    if name is None and not readable:
        raise UsageError(
            f"{path}: no .npz or .npy, and no input of the model takes images or recordings; give"
            " an .npz with arrays named as inputs, or convert the model again with --preprocessing"
        )
    if name is None and len(readable) > 1:
        names = sorted(readable)
        raise UsageError(f"{path}: which input is it for? write NAME={path}; inputs: {names}")
    return name if name is not None else next(iter(readable))


def _batches(
    paths: list[Path], spec: TensorSpec, record: Preprocessing, batch: int
) -> Iterator[Array]:
    """Yield what one run takes; consecutive parts share a run while they fit and match in shape."""
    fixed = spec.shape[0] if spec.shape and isinstance(spec.shape[0], int) else None
    waiting: list[Array] = []
    for path in paths:
        for part in _parts(path, spec, record):
            if not has_batch(spec, record):
                yield part[0]
                continue
            if waiting and waiting[0].shape != part.shape:
                yield _joined(waiting, fixed, spec)
                waiting = []
            waiting.append(part)
            if len(waiting) == (fixed or batch):
                yield np.concatenate(waiting)
                waiting = []
    if waiting:
        yield _joined(waiting, fixed, spec)


def _joined(parts: list[Array], fixed: int | None, spec: TensorSpec) -> Array:
    if fixed is not None and len(parts) != fixed:
        received = f"{len(parts)} of one size"
        raise InputError(spec.name, f"images or windows in groups of {fixed}", received)
    return np.concatenate(parts)


def _parts(path: Path, spec: TensorSpec, record: Preprocessing) -> Iterator[Array]:
    """Yield one array of batch 1 for an image, or for each window of a recording."""
    rank = None if spec.shape is None else len(spec.shape)
    if isinstance(record, ImageInput):
        yield image_of_rank(load_image(path, record, spec.dtype), spec, record, rank)
        return
    if not isinstance(record, AudioInput):
        raise UsageError(f"{path}: input {spec.name!r} takes {record.kind}; give an .npz or .npy")
    if spec.dtype not in ("float32", "float64", "float16"):
        raise UsageError(f"{path}: input {spec.name!r} is {spec.dtype}; a recording is float")
    for window in windows(path, record):
        yield _audio_of_rank(window[np.newaxis].astype(spec.dtype, copy=False), spec, rank)


def has_batch(spec: TensorSpec, record: Preprocessing) -> bool:
    """Whether images or windows for this input lie along its first axis."""
    if spec.shape is None or isinstance(record, AudioInput):
        return spec.shape is None or len(spec.shape) > 1
    if len(spec.shape) == 3 and isinstance(record, ImageInput) and record.color == "GRAY":
        return not isinstance(spec.shape[0], int) or spec.shape[0] == 1
    return len(spec.shape) > 3


def image_of_rank(array: Array, spec: TensorSpec, record: ImageInput, rank: int | None) -> Array:
    """Return a prepared image with as many axes as the input has.

    Raises:
        InputError: it has axes that an image has not.
    """
    channel = 1 if record.layout == "NCHW" else 3
    grey = record.color == "GRAY"
    if rank in (None, 4) or (rank == 3 and not has_batch(spec, record)):
        return array
    if grey and rank in (2, 3):
        return array.squeeze(channel)
    raise InputError(spec.name, f"{rank} axes", "an image, which has 4 with batch and channels")


def _audio_of_rank(window: Array, spec: TensorSpec, rank: int | None) -> Array:
    if rank in (None, 1, 2):
        return window
    if rank == 3 and spec.shape is not None and 1 in spec.shape[1:]:
        return window[:, :, np.newaxis] if spec.shape[2] == 1 else window[:, np.newaxis, :]
    raise InputError(spec.name, str(spec), "a recording, which has 2 axes: batch and samples")
