"""Products of 4-bit and 8-bit weights, and what they must give, in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from edgeinfer.kernels.defs import gemv
from edgeinfer.types import Array
from tests.kernels.placed import misaligned

PLAIN = gemv.ProductForm()


@dataclass(frozen=True, slots=True)
class Product:
    """One size; the numbers are random, with the extremes that narrow sums overflow on.

    Attributes:
        bits: of a weight.
        shape: rows and columns of the weights.
        block: weights that share a scale.
        vectors: that are multiplied.
        form: zeros, scales, and how vectors are rounded.
    """

    bits: int
    shape: tuple[int, int]
    block: int
    vectors: int
    form: gemv.ProductForm = PLAIN

    def kernel(self, dot: gemv.Dot) -> Any:
        """The kernel for a CPU."""
        make = gemv.gemv_int4 if self.bits == 4 else gemv.gemv_int8
        return make(dot, *self.shape, self.block, self.vectors, form=self.form)

    def operands(self, dot: gemv.Dot) -> list[Array]:
        """What the kernel takes before its result, each at an odd place."""
        q, scales, zeros, x = self._numbers()
        pack = gemv.pack_int4 if self.bits == 4 else gemv.pack_int8
        factors = [scales, zeros] if self.form.zeros else [scales]
        packed = [pack(q, dot, self.block), *(gemv.pack_scales(f, dot) for f in factors), x]
        return [misaligned(a) for a in packed]

    def expected(self) -> Array:
        """The result, of vectors rounded as the kernel rounds them."""
        q, scales, zeros, x = self._numbers()
        whole = q.astype(np.float64) - (8 if self.bits == 4 else 0)
        if self.form.zeros:
            whole = q - self._wide(zeros)
        wanted = x.astype(np.float64) if self.form.fine else _rounded(x, self.form.step)
        result: Array = wanted @ (whole * self._wide(scales)).T
        return result

    def _wide(self, factors: Array) -> Array:
        return np.repeat(factors.astype(np.float64), self.block, axis=1)[:, : self.shape[1]]

    def _numbers(self) -> tuple[Array, Array, Array, Array]:
        rng, (n, k) = np.random.default_rng(0), self.shape
        low, high = (0, 16) if self.bits == 4 else (-128, 128)
        q = rng.integers(low, high, (n, k)).astype(np.uint8 if self.bits == 4 else np.int8)
        q[0] = low
        q[min(1, n - 1)] = high - 1
        scales = (rng.random((n, -(-k // self.block))) * 0.02).astype(self.form.scales)
        zeros = rng.integers(low, high, scales.shape).astype(q.dtype)
        x = rng.standard_normal((self.vectors, k)).astype(np.float32)
        x[0, :32] = 0 if k > 32 else x[0, :32]
        x[0, 32 : min(k, 64)] = 3
        return q, scales, zeros, x


def _rounded(x: Array, size: int) -> Array:
    """What vectors are after rounding to 8 bits by blocks."""
    count, k = x.shape
    blocks = np.pad(x.astype(np.float64), ((0, 0), (0, -k % size))).reshape(-1, size)
    step = np.abs(blocks).max(1, keepdims=True) / 127
    rounded: Array = np.round(blocks / np.where(step == 0, 1, step)) * step
    return rounded.reshape(count, -1)[:, :k]
