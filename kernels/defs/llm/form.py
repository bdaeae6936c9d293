"""How integer weights lie in memory for one kind of processor."""

from __future__ import annotations

import numpy as np

from edgeinfer.kernels.defs.gemv import DOTS, Dot
from edgeinfer.records import dataclass
from edgeinfer.types import Array

STEP = 32
"""Weights of a row that are multiplied together; vectors share a scale by so many."""

SUPER = 256
"""Weights of a row that share the outer one of two scales."""


@dataclass(frozen=True, slots=True)
class Form:
    """What weights consist of.

    Attributes:
        bits: Number of bits of a weight: 4, 5, 6 or 8; 16 and 32 are floats.
        zero: what a stored weight of zero holds.
        group: neighbours along a row that share a scale: 16, or a multiple of 32.
        scale: ``float16`` or ``float32`` for each group, or ``codes``: int8 for each group times
            a float16 for each 256.
        offset: likewise what is added to weights; empty for nothing.
        floats: ``float16``, ``bfloat16`` or ``float32`` where weights are these; then nothing of
            the above but bits counts.
    """

    bits: int
    zero: int = 0
    group: int = STEP
    scale: str = "float16"
    offset: str = ""
    floats: str = ""

    @property
    def label(self) -> str:
        """Its name in names of kernels."""
        if self.floats:
            return self.floats
        parts = [f"b{self.bits}z{self.zero}g{self.group}", _SHORT[self.scale], _SHORT[self.offset]]
        return "".join(parts)

    def buffers(self, rows: int, columns: int, side: int) -> dict[str, tuple[tuple[int, ...], str]]:
        """What kernels take of a matrix, by name.

        Args:
            rows: Rows of the matrix; those that fill the last run up among them.
            columns: Columns of the matrix.
            side: rows that lie side by side.
        """
        runs = rows // side
        if self.floats:
            kind = "uint16" if self.floats == "bfloat16" else self.floats
            return {"w": ((runs, columns, side), kind)}
        made: dict[str, tuple[tuple[int, ...], str]] = {
            "w": ((runs, columns // STEP, self.bits, side * 4), "uint8"),
        }
        for name, kind in (("s", self.scale), ("m", self.offset)):
            if kind == "codes":
                made[name] = ((runs, -(-columns // self.group), side), "int8")
                made[f"{name}d"] = ((runs, -(-columns // SUPER), side), "float16")
            elif kind:
                made[name] = ((runs, -(-columns // self.group), side), kind)
        return made


_SHORT = {"": "", "float16": "h", "float32": "f", "codes": "c"}


def dot_of(machine: str) -> Dot:
    """How a machine of ``DOTS`` multiplies in kernels of language models.

    What multiplies two vectors at an instruction multiplies one alone at the older one, which such
    machines have too; weights lie as that one takes them.
    """
    dot = DOTS[machine]
    return Dot("sdot", dot.rows, dot.together) if dot.name == "smmla" else dot


def zero_for(dot: Dot, bits: int, low: int) -> int:
    """What a weight of zero is stored as.

    Eight bits keep their sign where instructions take two factors with one, or where it is moved.
    """
    if bits < 8:
        return -low
    return 128 if dot.name.startswith("vnni") else 0


def pack(values: Array, form: Form, dot: Dot) -> Array:
    """Lay integers out for a processor.

    Args:
        values: (rows, columns) int8, rows a multiple of the processor's.
        form: Form of the weights.
        dot: Product of the processor.

    Returns:
        (rows / side, columns / 32, bits, side * 4) uint8. The first four vectors hold nibbles of
        four neighbours of each row, weights ``k`` in the low and ``k + 16`` in the high half. What
        is above 4 bits of the eight vectors that they become lies in those behind: with 5 bits the
        bit of vector ``j`` at ``j``, with 6 two bits of vector ``j`` at ``2 (j mod 4)``.
    """
    rows, columns = values.shape
    stored = (values.astype(np.int16) + form.zero).astype(np.uint8)
    # (runs, side, steps, eight vectors, four neighbours) to (runs, steps, vectors, side * 4).
    parts = stored.reshape(rows // dot.rows, dot.rows, columns // STEP, 8, 4)
    vectors = np.ascontiguousarray(parts.transpose(0, 2, 3, 1, 4)).reshape(
        rows // dot.rows, columns // STEP, 8, dot.rows * 4
    )
    if form.bits == 8:
        return vectors
    low = vectors & 15
    made = [low[:, :, :4] | (low[:, :, 4:] << 4)]
    high = vectors >> 4
    if form.bits == 5:
        plane = np.zeros_like(high[:, :, 0])
        for j in range(8):
            plane |= high[:, :, j] << j
        made.append(plane[:, :, None])
    if form.bits == 6:
        for first in (0, 4):
            plane = np.zeros_like(high[:, :, 0])
            for j in range(4):
                plane |= high[:, :, first + j] << 2 * j
            made.append(plane[:, :, None])
    return np.ascontiguousarray(np.concatenate(made, axis=2))


def pack_factors(factors: Array, dot: Dot) -> Array:
    """Lay (rows, groups) out as (rows / side, groups, side)."""
    rows, groups = factors.shape
    parts = factors.reshape(rows // dot.rows, dot.rows, groups).transpose(0, 2, 1)
    return np.ascontiguousarray(parts)


def pack_floats(values: Array, dot: Dot) -> Array:
    """Lay floats (rows, columns) out as (rows / side, columns, side)."""
    return pack_factors(values, dot)
