"""Maps the weights of a Hugging Face folder.

Source: the safetensors format; the package of that name gives NumPy no bfloat16.
"""

from __future__ import annotations

import itertools
import mmap
from collections.abc import Iterable, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from edgeinfer.bounded import leads_out, open_file, parse_json, read_bounded
from edgeinfer.convert.llm.blocks import KINDS, MOST_TENSORS, StoredTensor
from edgeinfer.errors import SourceError
from edgeinfer.types import Array

_KINDS = {"F32": "F32", "F16": "F16", "BF16": "BF16"}
_LONGEST = 100 << 20
"""Bytes of a header."""


_MOST_LISTED = 20
"""Files that one error names."""

_MOST_AXES = 8
"""Of a tensor; the product of many large sizes takes time that grows with their square."""


def read(folder: Path, names: Sequence[str] = ()) -> dict[str, StoredTensor]:
    """Map ``.safetensors`` files: those named, or all that belong to a model.

    Raises:
        SourceError: there is none, or one is damaged, or has types that are not read; lists all.
    """
    names = names or _files(folder)
    # Of any name: an index lists what it likes.
    check_links(folder, names)
    found: dict[str, StoredTensor] = {}
    problems: list[str] = []
    for name in names:
        for key, value in _one(folder / name, problems).items():
            if key in found:
                problems.append(f"{name}: {key!r} is in another file too")
            found[key] = value
    if problems:
        raise SourceError(f"{folder}: " + "; ".join(problems))
    return found


def check_links(folder: Path, names: Iterable[str]) -> None:
    """Refuse a folder that would carry a file from elsewhere into what is made of it.

    Raises:
        SourceError: names all that do.
    """
    if out := [name for name in names if leads_out(folder / name, folder)]:
        listed = ", ".join(map(repr, out[:_MOST_LISTED]))
        raise SourceError(f"{folder}: links that lead out of the folder: {listed}; copy the files")


def _files(folder: Path) -> list[str]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            raw = read_bounded(index, _LONGEST).decode("utf-8")
            names = sorted(set(parse_json(raw)["weight_map"].values()))
        except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as e:
            raise SourceError(f"{index}: no index of weights: {e!r}") from e
        outside = [n for n in names if n in ("", ".", "..") or Path(n).name != n]
        if outside:
            raise SourceError(f"{index}: {outside[0]!r} lies outside the folder")
        return names
    names = sorted(p.name for p in folder.glob("*.safetensors"))
    if not names:
        hint = "convert pickled weights to safetensors first: loading them would run their code"
        raise SourceError(f"{folder}: no .safetensors file; {hint}")
    return names


_COUNTED = "position_ids"
"""0, 1 and so on, in 64 bits, which older files keep."""


def _one(path: Path, problems: list[str]) -> dict[str, StoredTensor]:
    try:
        with open_file(path) as file:
            whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        size, entries = _header(whole)
        made = {}
        for name, about in entries.items():
            if name.endswith(_COUNTED):
                continue
            if about["dtype"] not in _KINDS:
                known = ", ".join(_KINDS)
                problems.append(f"{name!r} has type {about['dtype']}; read are: {known}")
                continue
            made[name] = _tensor(whole, 8 + size, about)
        _check_apart(entries)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise SourceError(f"{path}: a damaged safetensors file: {e}") from e
    return made


def _header(whole: memoryview) -> tuple[int, dict[str, Any]]:
    """Return the header's bytes, and what it says of each tensor."""
    size = int.from_bytes(whole[:8], "little")
    if size > min(_LONGEST, len(whole) - 8):
        raise ValueError(f"a header of {size} bytes in a file of {len(whole)}")
    header = parse_json(bytes(whole[8 : 8 + size]))
    if len(header) > MOST_TENSORS:
        raise ValueError(f"{len(header)} tensors, at most {MOST_TENSORS} are read")
    return size, {k: v for k, v in header.items() if k != "__metadata__"}


def _check_apart(entries: dict[str, Any]) -> None:
    """Refuse tensors that share bytes: a small file would be a large model."""
    spans = sorted((*about["data_offsets"], name) for name, about in entries.items())
    for (_, end, one), (begin, _, other) in itertools.pairwise(spans):
        if begin < end:
            raise ValueError(f"{one!r} and {other!r} share bytes")


def _tensor(whole: memoryview, start: int, about: dict[str, Any]) -> StoredTensor:
    kind = _KINDS[about["dtype"]]
    if not all(type(n) is int for n in (*about["shape"], *about["data_offsets"])):
        raise ValueError(f"sizes and offsets are integers, not {str(about)[:80]}")
    if len(about["shape"]) > _MOST_AXES:
        raise ValueError(f"a tensor of {len(about['shape'])} axes, at most {_MOST_AXES} are read")
    shape = tuple(about["shape"]) or (1,)
    begin, end = (start + n for n in about["data_offsets"])
    line = shape[-1] * KINDS[kind].size_bytes
    size = prod(shape[:-1]) * line
    if not start <= begin <= end <= len(whole) or end - begin != size or min(shape) < 1:
        raise ValueError(f"{str(about)[:120]} in {len(whole)} bytes")
    held: Array = np.frombuffer(whole, np.uint8, size, begin).reshape(*shape[:-1], line)
    return StoredTensor(kind, shape, held)
