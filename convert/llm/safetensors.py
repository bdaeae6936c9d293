"""Maps the weights of a Hugging Face folder.

Source: the safetensors format; the package of that name gives NumPy no bfloat16.
"""

from __future__ import annotations

import json
import mmap
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from edgeinfer.convert.llm.blocks import KINDS, Tensor
from edgeinfer.errors import SourceError
from edgeinfer.types import Array

_KINDS = {"F32": "F32", "F16": "F16", "BF16": "BF16"}
_LONGEST = 100 << 20
"""Bytes of a header."""


def read(folder: Path) -> dict[str, Tensor]:
    """Map all ``.safetensors`` files that belong to a model.

    Raises:
        SourceError: there is none, or one is damaged, or has types that are not read; lists all.
    """
    names = _files(folder)
    found: dict[str, Tensor] = {}
    problems: list[str] = []
    for name in names:
        for key, value in _one(folder / name, problems).items():
            if key in found:
                problems.append(f"{name}: {key!r} is in another file too")
            found[key] = value
    if problems:
        raise SourceError(f"{folder}: " + "; ".join(problems))
    return found


def _files(folder: Path) -> list[str]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            names = sorted(
                set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
            )
        except (ValueError, KeyError, AttributeError, TypeError) as e:
            raise SourceError(f"{index}: no index of weights: {e!r}") from e
        outside = [n for n in names if Path(n).name != n]
        if outside:
            raise SourceError(f"{index}: {outside[0]!r} lies outside the folder")
        return names
    names = sorted(p.name for p in folder.glob("*.safetensors"))
    if not names:
        hint = "convert pickled weights to safetensors first: loading them would run their code"
        raise SourceError(f"{folder}: no .safetensors file; {hint}")
    return names


def _one(path: Path, problems: list[str]) -> dict[str, Tensor]:
    try:
        with path.open("rb") as file:
            whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        size = int.from_bytes(whole[:8], "little")
        header = json.loads(bytes(whole[8 : 8 + min(size, _LONGEST)]))
        entries = {k: v for k, v in header.items() if k != "__metadata__"}
        made = {}
        for name, about in entries.items():
            if about["dtype"] not in _KINDS:
                known = ", ".join(_KINDS)
                problems.append(f"{name!r} has type {about['dtype']}; read are: {known}")
                continue
            made[name] = _tensor(whole, 8 + size, about)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
        raise SourceError(f"{path}: a damaged safetensors file: {e}") from e
    return made


def _tensor(whole: memoryview, start: int, about: dict[str, Any]) -> Tensor:
    kind = _KINDS[about["dtype"]]
    shape = tuple(int(n) for n in about["shape"]) or (1,)
    begin, end = (start + int(n) for n in about["data_offsets"])
    line = shape[-1] * KINDS[kind].size_bytes
    size = prod(shape[:-1]) * line
    if not start <= begin <= end <= len(whole) or end - begin != size or min(shape) < 1:
        raise ValueError(f"{about} in {len(whole)} bytes")
    held: Array = np.frombuffer(whole, np.uint8, size, begin).reshape(*shape[:-1], line)
    return Tensor(kind, shape, held)
