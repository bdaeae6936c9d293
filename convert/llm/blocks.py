"""Element types of weight files: what their bytes hold, as integers, scales and offsets.

A weight is ``value * scale + offset``. Neighbours along a row share a scale, and where the type has
them an offset; both may be a small integer times a number that more neighbours share. All products
and sums are of float32, in this order, as the definition has them.

Source: ggml's ``ggml-common.h`` and ``ggml-quants.c``, MXFP4 by the Open Compute Project's
Microscaling Formats 1.0; the tests compare each type with the ``gguf`` package.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgeinfer.records import dataclass
from edgeinfer.types import Array

_SUPER = 256
"""Weights of a block of the K types."""

_CHUNK = 1 << 24
"""Weights that are decoded at once."""


@dataclass(frozen=True, slots=True)
class Factors:
    """Scales or offsets of groups.

    Attributes:
        numbers: (rows, groups / share) float16 or float32.
        codes: (rows, groups) int8 that they are multiplied by; None for nothing.
        share: groups that share a number.
    """

    numbers: Array
    codes: Array | None = None
    share: int = 1

    def float32(self) -> Array:
        """(rows, groups)."""
        wide = np.repeat(self.numbers.astype(np.float32), self.share, axis=1)
        return wide if self.codes is None else wide * self.codes.astype(np.float32)

    def rows(self, order: Array) -> Factors:
        """Some of the rows."""
        codes = None if self.codes is None else self.codes[order]
        return Factors(self.numbers[order], codes, self.share)


@dataclass(frozen=True, slots=True)
class Integers:
    """A matrix of small integers.

    Attributes:
        values: (rows, columns) int8.
        low: no value is below.
        high: no value is above.
        group: neighbours along a row that share a scale.
        scales: Scales of the groups.
        offsets: likewise; None for none.
    """

    values: Array
    low: int
    high: int
    group: int
    scales: Factors
    offsets: Factors | None = None

    def float32(self) -> Array:
        """The weights, (rows, columns)."""
        rows, columns = self.values.shape
        found = self.values.reshape(rows, -1, self.group).astype(np.float32)
        found *= self.scales.float32()[:, :, None]
        if self.offsets is not None:
            found += self.offsets.float32()[:, :, None]
        return found.reshape(rows, columns)

    def rows(self, order: Array) -> Integers:
        """Some of the rows."""
        offsets = None if self.offsets is None else self.offsets.rows(order)
        taken = self.values[order], self.low, self.high, self.group
        return Integers(*taken, self.scales.rows(order), offsets)


@dataclass(frozen=True, slots=True)
class BlockType:
    """An element type.

    Attributes:
        block: weights that are stored together.
        size_bytes: Size in bytes of a block.
        decode: blocks (rows, blocks, bytes) to integers; None for floats.
    """

    block: int
    size_bytes: int
    decode: Callable[[Array], Integers] | None = None


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Weights as a file has them, mapped until they are read.

    Attributes:
        kind: name of the element type, one of ``KINDS``.
        shape: the last axis lies together.
        data: uint8; as the shape, but bytes along the last axis.
    """

    kind: str
    shape: tuple[int, ...]
    data: Array

    def float32(self) -> Array:
        """The weights."""
        kind = KINDS[self.kind]
        if kind.decode is None:
            return _floats(self.data, self.kind).reshape(self.shape)
        flat = self.data.reshape(-1, self.data.shape[-1])
        found = np.empty((flat.shape[0], self.shape[-1]), np.float32)
        step = max(1, _CHUNK // self.shape[-1])
        for at in range(0, flat.shape[0], step):
            found[at : at + step] = self._decoded(flat[at : at + step]).float32()
        return found.reshape(self.shape)

    def integers(self) -> Integers | None:
        """The matrix as it is stored; None for floats."""
        if KINDS[self.kind].decode is None:
            return None
        return self._decoded(self.data.reshape(-1, self.data.shape[-1]))

    def rows(self, order: Array | slice) -> StoredTensor:
        """Some of the first axis."""
        data = self.data[order]
        return StoredTensor(self.kind, (data.shape[0], *self.shape[1:]), data)

    def _decoded(self, flat: Array) -> Integers:
        kind = KINDS[self.kind]
        if kind.decode is None:
            raise TypeError(f"{self.kind}: blocks are not decoded; callers ask first")
        return kind.decode(flat.reshape(flat.shape[0], -1, kind.size_bytes))


def _floats(data: Array, kind: str) -> Array:
    flat = np.ascontiguousarray(data)
    if kind == "F32":
        return flat.view(np.float32)
    if kind == "F16":
        return flat.view(np.float16).astype(np.float32)
    return (flat.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _half(part: Array) -> Array:
    """Two bytes along the last axis as float16."""
    return np.ascontiguousarray(part).view(np.float16)[..., 0]


def _flat(values: Array) -> Array:
    return np.ascontiguousarray(values.reshape(values.shape[0], -1))


def _halves(part: Array) -> Array:
    """Nibbles, the low ones first."""
    return np.concatenate([part & 15, part >> 4], axis=-1).astype(np.int8)


def _fifth(part: Array) -> Array:
    """The bits of four bytes, each where a nibble's fifth bit is."""
    return (np.unpackbits(part, axis=-1, bitorder="little") << 4).astype(np.int8)


def _q4_0(b: Array) -> Integers:
    return Integers(_flat(_halves(b[..., 2:]) - 8), -8, 7, 32, Factors(_half(b[..., :2])))


def _q4_1(b: Array) -> Integers:
    scales, offsets = Factors(_half(b[..., :2])), Factors(_half(b[..., 2:4]))
    return Integers(_flat(_halves(b[..., 4:])), 0, 15, 32, scales, offsets)


def _q5_0(b: Array) -> Integers:
    values = (_halves(b[..., 6:]) | _fifth(b[..., 2:6])) - 16
    return Integers(_flat(values), -16, 15, 32, Factors(_half(b[..., :2])))


def _q5_1(b: Array) -> Integers:
    values = _halves(b[..., 8:]) | _fifth(b[..., 4:8])
    scales, offsets = Factors(_half(b[..., :2])), Factors(_half(b[..., 2:4]))
    return Integers(_flat(values), 0, 31, 32, scales, offsets)


def _q8_0(b: Array) -> Integers:
    values = _flat(b[..., 2:].view(np.int8))
    return Integers(values, -128, 127, 32, Factors(_half(b[..., :2])))


def _planes(part: Array, bits: int, run: int) -> Array:
    """Small numbers of which a run of bytes holds the first ``run`` in its lowest bits, and so on.

    Args:
        part: (..., bytes).
        bits: Number of bits of a number.
        run: bytes that belong together.
    """
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    runs = part.reshape(*part.shape[:-1], -1, 1, run) >> shifts
    return (runs & ((1 << bits) - 1)).reshape(*part.shape[:-1], -1)


def _q2_k(b: Array) -> Integers:
    packed, d = b[..., :16], b[..., 80:84]
    scales = Factors(_half(d[..., :2]), _flat(packed & 15).astype(np.int8), 16)
    offsets = Factors(-_half(d[..., 2:]), _flat(packed >> 4).astype(np.int8), 16)
    values = _planes(b[..., 16:80], 2, 32).astype(np.int8)
    return Integers(_flat(values), 0, 3, 16, scales, offsets)


def _q3_k(b: Array) -> Integers:
    high = _planes(b[..., :32], 1, 32) ^ 1
    values = _planes(b[..., 32:96], 2, 32).astype(np.int8) - (high << 2).astype(np.int8)
    packed = b[..., 96:108]
    low = np.concatenate([packed[..., :8] & 15, packed[..., :8] >> 4], axis=-1)
    codes = (low | (_planes(packed[..., 8:], 2, 4) << 4)).astype(np.int8) - 32
    return Integers(_flat(values), -4, 3, 16, Factors(_half(b[..., 108:]), _flat(codes), 16))


def _scale_min(packed: Array) -> tuple[Array, Array]:
    """Eight scales and eight offsets of 6 bits in twelve bytes."""
    first, second, rest = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scales = np.concatenate([first & 63, (rest & 15) | ((first >> 2) & 48)], axis=-1)
    offsets = np.concatenate([second & 63, (rest >> 4) | ((second >> 2) & 48)], axis=-1)
    return _flat(scales.astype(np.int8)), _flat(offsets.astype(np.int8))


def _with_minima(b: Array, values: Array, high: int) -> Integers:
    scales, offsets = _scale_min(b[..., 4:16])
    share = _SUPER // 32
    return Integers(
        _flat(values),
        0,
        high,
        32,
        Factors(_half(b[..., :2]), scales, share),
        Factors(-_half(b[..., 2:4]), offsets, share),
    )


def _q4_k(b: Array) -> Integers:
    return _with_minima(b, _planes(b[..., 16:], 4, 32).astype(np.int8), 15)


def _q5_k(b: Array) -> Integers:
    high = _planes(b[..., 16:48], 1, 32) << 4
    return _with_minima(b, (_planes(b[..., 48:], 4, 32) | high).astype(np.int8), 31)


def _q6_k(b: Array) -> Integers:
    low, high = _planes(b[..., :128], 4, 64), _planes(b[..., 128:192], 2, 32)
    values = (low | (high << 4)).astype(np.int8) - 32
    codes = _flat(b[..., 192:208].view(np.int8))
    return Integers(_flat(values), -32, 31, 16, Factors(_half(b[..., 208:]), codes, 16))


_NONLINEAR = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8
)


def _iq4_nl(b: Array) -> Integers:
    values = _NONLINEAR[_halves(b[..., 2:])]
    return Integers(_flat(values), -127, 113, 32, Factors(_half(b[..., :2])))


def _iq4_xs(b: Array) -> Integers:
    high = np.ascontiguousarray(b[..., 2:4]).view(np.uint16)
    shifts = np.arange(0, 16, 2, dtype=np.uint16)
    low = np.stack([b[..., 4:8] & 15, b[..., 4:8] >> 4], axis=-1).reshape(*b.shape[:-1], 8)
    codes = (low | (((high >> shifts) & 3) << 4).astype(np.uint8)).astype(np.int8) - 32
    runs = b[..., 8:].reshape(*b.shape[:-1], 8, 16)
    values = _NONLINEAR[_halves(runs)]
    share = _SUPER // 32
    scales = Factors(_half(b[..., :2]), _flat(codes), share)
    return Integers(_flat(values), -127, 113, 32, scales)


_E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
"""Twice the values; the scale is halved."""


def _mxfp4(b: Array) -> Integers:
    exponents = b[..., 0].astype(np.uint32)
    normal = np.maximum(exponents, 1) - 1 << 23
    bits = np.where(exponents < 2, np.uint32(0x00200000) << exponents % 2, normal)
    scales = Factors(bits.astype(np.uint32).view(np.float32))
    return Integers(_flat(_E2M1[_halves(b[..., 1:])]), -12, 12, 32, scales)


MOST_TENSORS = 100_000
"""Tensors of a file; each takes some hundreds of bytes besides its own."""

KINDS: dict[str, BlockType] = {
    "F32": BlockType(1, 4),
    "F16": BlockType(1, 2),
    "BF16": BlockType(1, 2),
    "Q4_0": BlockType(32, 18, _q4_0),
    "Q4_1": BlockType(32, 20, _q4_1),
    "Q5_0": BlockType(32, 22, _q5_0),
    "Q5_1": BlockType(32, 24, _q5_1),
    "Q8_0": BlockType(32, 34, _q8_0),
    "Q2_K": BlockType(_SUPER, 84, _q2_k),
    "Q3_K": BlockType(_SUPER, 110, _q3_k),
    "Q4_K": BlockType(_SUPER, 144, _q4_k),
    "Q5_K": BlockType(_SUPER, 176, _q5_k),
    "Q6_K": BlockType(_SUPER, 210, _q6_k),
    "IQ4_NL": BlockType(32, 18, _iq4_nl),
    "IQ4_XS": BlockType(_SUPER, 136, _iq4_xs),
    "MXFP4": BlockType(32, 17, _mxfp4),
}
"""By name."""
