"""Weights laid out for the matrix units of NVIDIA GPUs; see ``step.cu``."""

from __future__ import annotations

from typing import IO

import numpy as np

from edgeinfer.convert.llm.blocks import Integers
from edgeinfer.convert.llm.cuda_code import KINDS, Loads
from edgeinfer.convert.llm.pack import Packer, form_of
from edgeinfer.kernels.defs.gemv import Dot
from edgeinfer.kernels.defs.llm.form import STEP, Form
from edgeinfer.llm.gpu import TILE
from edgeinfer.types import Array

DOT = Dot("mma", TILE)


class CudaPacker(Packer):
    """Writes ``weights.bin`` for GPUs.

    Weights of 5 and 6 bits are kept in 8; scales that are a code times a number as their product.
    """

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file, DOT)

    def form(self, value: Integers | Array) -> Form:
        """How a matrix is kept."""
        form = form_of(value, self.dot)
        if not isinstance(value, Integers):
            return form
        kinds = {form.scale, form.offset} - {""}
        scale = "float16" if kinds == {"float16"} else "float32"
        bits = 4 if form.bits == 4 else 8
        zero = -value.low if bits == 4 else 128
        return Form(bits, zero, form.group, scale, scale if form.offset else "")

    def integers(self, whole: Integers, form: Form) -> dict[str, Array]:
        """Arrays of a matrix of integers, by the names that kernels have for them."""
        made = {"w": tiles((whole.values.astype(np.int16) + form.zero).astype(np.uint8))}
        if form.bits == 4:
            made["w"] = nibbles(made["w"])
        for name, factors in (("s", whole.scales), ("m", whole.offsets)):
            if factors is not None:
                made[name] = pairs(factors.float32().astype(form.scale))
        return made

    def floats(self, whole: Array) -> Array:
        """Floats, or the bits of bfloat16, as kernels read them."""
        return tiles(whole)


def loads(form: Form) -> Loads:
    """How kernels read weights of a form."""
    if form.floats:
        return Loads(KINDS[form.floats])
    return Loads(form.bits, form.scale, bool(form.offset), form.group % STEP != 0)


def tiles(values: Array) -> Array:
    """Lay (rows, columns) out as (rows / 16, columns / 32, threads, 16).

    Thread ``4 g + t`` of a warp has, for each of two products of 16 columns, four pairs of
    neighbours: of rows ``g`` and ``g + 8`` from column ``4 t`` on, then of both two further.
    """
    rows, columns = values.shape
    both = np.ascontiguousarray(values).view(f"uint{16 * values.itemsize}")
    parts = both.reshape(rows // TILE, 2, 8, columns // STEP, 2, 4, 2)
    order = np.ascontiguousarray(parts.transpose(0, 3, 2, 5, 4, 6, 1))
    return order.view(values.dtype).reshape(rows // TILE, columns // STEP, 32, 16)


def nibbles(values: Array) -> Array:
    """Lay (…, 16) of 4 bits out as (…, 2) words: first numbers of pairs in the low half."""
    parts = values.reshape(*values.shape[:-1], 2, 2, 2, 2)
    halves = parts[..., 0, :] | parts[..., 1, :] << 4
    order = np.ascontiguousarray(halves.swapaxes(-1, -2))
    return order.reshape(*values.shape[:-1], 8).view("<u4")


def pairs(factors: Array) -> Array:
    """Lay (rows, groups) out as (rows / 16, groups, 8, 2): rows ``g`` and ``g + 8``."""
    rows, groups = factors.shape
    parts = factors.reshape(rows // TILE, 2, 8, groups).transpose(0, 3, 2, 1)
    return np.ascontiguousarray(parts)
