"""Weights laid out for one machine, in the order in which a step reads them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import IO, Any

import numpy as np

from edgeinfer.convert.llm.adapters import LowRank
from edgeinfer.convert.llm.blocks import Factors, Integers, StoredTensor
from edgeinfer.kernels.defs.gemv import Dot
from edgeinfer.kernels.defs.llm.form import (
    STEP,
    SUPER,
    Form,
    pack,
    pack_factors,
    pack_floats,
    zero_for,
)
from edgeinfer.llm import tape
from edgeinfer.records import dataclass
from edgeinfer.types import Array

LOW_BLOCK, LOW_STEP, LOW_PANEL = 8, 8, 16
"""How adapters' matrices are cut, see ``adapters.c``."""

_PAGE = 4096


@dataclass(frozen=True, slots=True)
class Matrix:
    """A packed matrix.

    Attributes:
        name: its arrays' names begin so.
        form: Form of its weights.
        rows: as they were.
        columns: Columns of it.
        padded: rows with those that fill the last run up.
        arrays: by the names that kernels have for them.
    """

    name: str
    form: Form
    rows: int
    columns: int
    padded: int
    arrays: tuple[str, ...]

    @property
    def arguments(self) -> tuple[str, ...]:
        """As a tape names them."""
        return tuple(f"w:{self.name}.{a}" for a in self.arrays)


class Packer:
    """Writes ``weights.bin``.

    Args:
        file: that it writes.
        dot: Product of the processor.
    """

    def __init__(self, file: IO[bytes], dot: Dot) -> None:
        self.file, self.dot = file, dot
        self.arrays: dict[str, tape.Array] = {}
        self._digest = hashlib.sha256()

    @property
    def digest(self) -> str:
        """Of everything so far."""
        return self._digest.hexdigest()

    def vector(self, name: str, values: Array) -> str:
        """Keep a vector of float32; returns its name on a tape."""
        self._write(name, np.ascontiguousarray(values, np.float32), tape.ALIGNMENT)
        return f"w:{name}"

    def low_ranks(self, stem: str, pairs: Mapping[str, LowRank]) -> dict[str, tape.PackedLowRank]:
        """Keep an adapter's parts of one product: first all that is read before it."""
        made, later = {}, {}
        for name, pair in pairs.items():
            low, high, rank, scale = _low_rank(pair)
            one = tape.PackedLowRank(f"{stem}.{name}.a", f"{stem}.{name}.b", rank, scale)
            self._write(one.a, low, tape.ALIGNMENT)
            made[name], later[one.b] = one, high
        for place, high in later.items():
            self._write(place, high, tape.ALIGNMENT)
        return made

    def matrix(self, name: str, parts: list[StoredTensor | Integers]) -> Matrix:
        """Keep matrices of one form, one below the other."""
        values = [as_stored(p) for p in parts]
        form = self.form(values[0])
        rows = sum(len(v.values) if isinstance(v, Integers) else len(v) for v in values)
        padded = -(-rows // self.dot.rows) * self.dot.rows
        first = values[0]
        columns = first.values.shape[1] if isinstance(first, Integers) else first.shape[1]
        if isinstance(first, Integers):
            whole = joined([v for v in values if isinstance(v, Integers)])
            arrays = self.integers(_filled(whole, padded), form)
        else:
            stacked = np.concatenate([v for v in values if not isinstance(v, Integers)])
            arrays = {"w": self.floats(np.pad(stacked, ((0, padded - rows), (0, 0))))}
        for part, array in arrays.items():
            self._write(f"{name}.{part}", array, _PAGE if part == "w" else tape.ALIGNMENT)
        return Matrix(name, form, rows, columns, padded, tuple(arrays))

    def form(self, value: Integers | Array) -> Form:
        """How a matrix is kept."""
        return form_of(value, self.dot)

    def same_form(self, parts: list[StoredTensor]) -> bool:
        """Whether matrices can be one; only a few rows of each are looked at."""
        forms = {self.form(as_stored(p.rows(slice(0, 1)))) for p in parts}
        return len(forms) == 1 and len({p.kind for p in parts}) == 1

    def integers(self, whole: Integers, form: Form) -> dict[str, Array]:
        """Arrays of a matrix of integers, by the names that kernels have for them."""
        return _packed(whole, form, self.dot)

    def floats(self, whole: Array) -> Array:
        """Floats, or the bits of bfloat16, as kernels read them."""
        return pack_floats(whole, self.dot)

    def _write(self, name: str, array: Array, alignment: int) -> None:
        self.file.write(bytes(-self.file.tell() % alignment))
        offset = self.file.tell()
        self.arrays[name] = tape.Array(array.dtype.name, array.shape, offset)
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        self._digest.update(name.encode())
        self._digest.update(data)
        self.file.write(data)


def _low_rank(pair: LowRank) -> tuple[Array, Array, int, float]:
    """``A`` and ``B`` in float16 as ``adapters.c`` has them, their rank and what scales both."""
    rank, columns = pair.low.shape
    more = -rank % LOW_BLOCK
    low, one = _as_halves(np.pad(pair.low, ((0, more), (0, 0))))
    high, other = _as_halves(np.pad(pair.high, ((0, 0), (0, more))))
    low = low.reshape(-1, LOW_BLOCK, columns // LOW_STEP, LOW_STEP).swapaxes(1, 2)
    high = high.reshape(-1, LOW_PANEL, rank + more).swapaxes(1, 2)
    return low, high, rank + more, pair.scale * 2.0 ** -(one + other)


def _as_halves(values: Array) -> tuple[Array, int]:
    """Float16 of numbers times a power of two that brings them near its largest; its exponent."""
    most = float(np.abs(values).max())
    power = 15 - math.frexp(most)[1] if most else 0
    return np.ldexp(values, power).astype(np.float16), power


def as_stored(part: StoredTensor | Integers) -> Integers | Array:
    """Integers, or floats as they are stored; bfloat16 as its bits."""
    if isinstance(part, Integers):
        return part
    if (integers := part.integers()) is not None:
        return integers
    kinds: dict[str, Any] = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}
    flat = np.ascontiguousarray(part.data.reshape(part.shape[0], -1))
    return np.asarray(flat.view(kinds[part.kind]))


def form_of(value: Integers | Array, dot: Dot) -> Form:
    """How a matrix is kept."""
    if not isinstance(value, Integers):
        kind = {"float32": "float32", "float16": "float16", "uint16": "bfloat16"}[value.dtype.name]
        return Form(32 if kind == "float32" else 16, floats=kind)
    levels = value.high - value.low + 1
    bits = next((b for b in (4, 5, 6) if levels <= 1 << b), 8)
    offset = "" if value.offsets is None else _kind(value.offsets, value.group)
    scale = _kind(value.scales, value.group)
    return Form(bits, zero_for(dot, bits, value.low), value.group, scale, offset)


def _kind(factors: Factors, group: int) -> str:
    if factors.codes is not None:
        return "codes" if factors.share * group == SUPER else "float32"
    return "float16" if factors.numbers.dtype == np.float16 else "float32"


def joined(parts: list[Integers]) -> Integers:
    """Matrices of one form, one below the other."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    offsets = [p.offsets for p in parts]
    return replace(
        first,
        values=np.concatenate([p.values for p in parts]),
        scales=_joined_factors([p.scales for p in parts]),
        offsets=_joined_factors([o for o in offsets if o is not None]) if first.offsets else None,
    )


def _joined_factors(parts: list[Factors]) -> Factors:
    codes = [p.codes for p in parts if p.codes is not None]
    return Factors(
        np.concatenate([p.numbers for p in parts]),
        np.concatenate(codes) if codes else None,
        parts[0].share,
    )


def _filled(whole: Integers, rows: int) -> Integers:
    more = rows - len(whole.values)
    if not more:
        return whole

    def fill(array: Array) -> Array:
        return np.pad(array, ((0, more), (0, 0)))

    def factors(f: Factors) -> Factors:
        return Factors(fill(f.numbers), None if f.codes is None else fill(f.codes), f.share)

    offsets = None if whole.offsets is None else factors(whole.offsets)
    return replace(whole, values=fill(whole.values), scales=factors(whole.scales), offsets=offsets)


def _packed(whole: Integers, form: Form, dot: Dot) -> dict[str, Array]:
    made = {"w": pack(whole.values, form, dot)}
    for name, kind, factors in (("s", form.scale, whole.scales), ("m", form.offset, whole.offsets)):
        if factors is None:
            continue
        if kind == "codes" and factors.codes is not None:
            made[name] = pack_factors(factors.codes, dot)
            made[f"{name}d"] = pack_factors(factors.numbers, dot)
        elif kind == "float16":
            made[name] = pack_factors(factors.numbers, dot)
        else:
            made[name] = pack_factors(factors.float32(), dot)
    return made


def rounded(weights: Array, bits: int, block: int, *, minima: bool = False) -> Integers:
    """Round floats (rows, columns) to integers with a float16 scale for each block.

    Of the scales that are near the one by which the largest weight of a block just fits, each
    block takes the one with the least square error.

    Args:
        weights: float32.
        bits: 4 or 8.
        block: neighbours that share a scale, a multiple of 32.
        minima: weights of a block also share an offset.
    """
    rows, columns = weights.shape
    size = block if columns % block == 0 else STEP
    parts = weights.reshape(rows, -1, size)
    if minima:
        return _rounded_between(parts, bits, size)
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    at = np.abs(parts).argmax(-1, keepdims=True)
    # The side that has one level more takes the largest weight.
    largest = np.take_along_axis(parts, at, -1)
    best = np.full(parts.shape[:2], np.inf, np.float32)
    scales = np.zeros(parts.shape[:2], np.float16)
    values = np.zeros(parts.shape, np.int8)
    for share in _SHARES if bits < 8 else (1.0,):
        found = (largest[..., 0] / np.float32(low * share)).astype(np.float16)
        wide = found.astype(np.float32)[..., None]
        with np.errstate(divide="ignore", invalid="ignore"):
            steps = np.where(wide != 0, parts / wide, 0)
        near = np.clip(np.rint(steps), low, high)
        error = np.square(near * wide - parts).sum(-1)
        better = error < best
        best = np.where(better, error, best)
        scales = np.where(better, found, scales)
        values = np.where(better[..., None], near, values).astype(np.int8)
    return Integers(values.reshape(rows, columns), low, high, size, Factors(scales))


_SHARES = (1.0, 0.95, 0.9, 0.875, 0.85, 1.05)


def _rounded_between(parts: Array, bits: int, size: int) -> Integers:
    high = (1 << bits) - 1
    low = parts.min(-1)
    offsets = low.astype(np.float16)
    scales = ((parts.max(-1) - offsets.astype(np.float32)) / high).astype(np.float16)
    wide = scales.astype(np.float32)[..., None]
    with np.errstate(divide="ignore", invalid="ignore"):
        steps = np.where(wide != 0, (parts - offsets.astype(np.float32)[..., None]) / wide, 0)
    values = np.clip(np.rint(steps), 0, high).astype(np.int8)
    flat = values.reshape(len(values), -1)
    return Integers(flat, 0, high, size, Factors(scales), Factors(offsets))
