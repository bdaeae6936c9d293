"""Weights of 4 or 8 bits that are scaled by blocks, and their products with a few vectors."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from edgeinfer.convert.lower.tvm.tuned import MARK
from edgeinfer.kernels.defs import ahead, gemv
from edgeinfer.kernels.defs.gemm import PARALLEL_ABOVE
from edgeinfer.records import dataclass
from edgeinfer.types import Array

if TYPE_CHECKING:
    from edgeinfer.convert.lower.tvm.builder import Builder

MOST = 32
"""Vectors up to which weights stay narrow: for more of them floats are multiplied, which wants the
weights in 32 bits."""

MOST_ON_GPU = 8
"""The same on a GPU."""

_MIDDLE = {4: 8, 8: 0}


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """A matrix of whole numbers (N, K), of which runs along K share a scale and a zero.

    Attributes:
        bits: Number of bits of each, 4 or 8.
        q: the numbers: uint8, below 16 with 4 bits; int8 with 8.
        scales: float32, (N, blocks).
        zeros: Zero points, of the numbers' type.
        block: numbers of a run; the last one may be shorter.
        transposed: the tensor that it stands for is (K, N), as the right operand of a product is.
    """

    bits: int
    q: Array
    scales: Array
    zeros: Array
    block: int
    transposed: bool = True

    def floats(self) -> Array:
        """What they stand for, float32 (N, K)."""
        k = self.q.shape[1]
        scales, zeros = (np.repeat(a, self.block, axis=1)[:, :k] for a in (self.scales, self.zeros))
        whole = self.q.astype(np.int32) - zeros
        result: Array = whole.astype(np.float32) * scales
        return result

    def swapped(self) -> Blocks:
        """The same for the tensor with its axes the other way round."""
        return replace(self, transposed=not self.transposed)


def fits(g: Builder, w: Blocks, count: int) -> bool:
    """Whether there is a kernel for as many vectors."""
    if not g.on_cpu:
        # Threads read 32 neighbours at once, and bytes have no zeros.
        known = w.q.shape[1] % gemv.BLOCK == 0 and (w.bits == 4 or not _has_zeros(w))
        return known and w.block % gemv.BLOCK == 0 and 1 <= count <= MOST_ON_GPU
    known = g.machine.name in gemv.DOTS
    return known and w.block % gemv.BLOCK == 0 and 1 <= count <= MOST


def multiplied(g: Builder, x: Any, w: Blocks, count: int, *, rounded: bool = False) -> Any:
    """Multiply vectors (count, K) by the matrix; takes and returns expressions.

    Args:
        g: the graph.
        x: float32.
        w: the matrix.
        count: Number of vectors.
        rounded: vectors may be rounded to 8 bits by the matrix' blocks; else they get 16. On a GPU
            they keep 23.
    """
    if not g.on_cpu:
        return _on_gpu(g, x, w, count)
    dot, (n, k) = gemv.DOTS[g.machine.name], w.q.shape
    form = gemv.ProductForm(
        zeros=_has_zeros(w),
        scales="float16" if _halves(w.scales) else "float32",
        step=w.block if rounded else gemv.BLOCK,
        fine=not rounded,
    )
    if w.bits == 4:
        pack, make = gemv.pack_int4, gemv.gemv_int4
    else:
        pack, make = gemv.pack_int8, gemv.gemv_int8
    kernel = make(dot, n, k, w.block, count, count * n * k >= PARALLEL_ABOVE, form)
    given = [pack(w.q, dot, w.block), gemv.pack_scales(w.scales.astype(form.scales), dot)]
    if form.zeros:
        given.append(gemv.pack_scales(w.zeros, dot))
    return g.tir(kernel, [*(g.expr(g.const(c)) for c in given), x], (count, n))


def _on_gpu(g: Builder, x: Any, w: Blocks, count: int) -> Any:
    from edgeinfer.kernels.defs import gemv_cuda

    n, k = w.q.shape
    form = gemv_cuda.CudaProductForm("float16" if _halves(w.scales) else "float32", _has_zeros(w))
    like = gemv_cuda.Share(ahead=ahead.has(g.machine.cuda))
    share = gemv_cuda.share_for(n, k, count, like)
    kernel = gemv_cuda.gemv(n, k, w.bits, w.block, count, share, form)
    given = [gemv_cuda.pack(w.q, w.bits), w.scales.astype(form.scales)]
    if form.zeros:
        given.append(w.zeros)
    kernel = kernel.with_attrs({MARK: True, "tirx.is_scheduled": True})
    return g.tir(kernel, [*(g.expr(g.const(c)) for c in given), x], (count, n))


def _has_zeros(w: Blocks) -> bool:
    return bool((w.zeros != _MIDDLE[w.bits]).any())


def _halves(scales: Array) -> bool:
    """Whether float16 has every one."""
    with np.errstate(over="ignore"):
        return bool((scales.astype(np.float16).astype(np.float32) == scales).all())


def of_quantized(
    q: Array, scales: Array, zeros: Array | None, axis: int, block: int
) -> Blocks | None:
    """Return a matrix that ``DequantizeLinear`` gives; None for what has no kernel.

    Args:
        q: (rows, columns) of 4 or 8 bits.
        scales: one, one for each place of an axis, or of each block along it.
        zeros: likewise.
        axis: Axis of the scales.
        block: elements along the axis that share a scale; 0 if all across it do.
    """
    kind = q.dtype.name
    if kind not in ("int4", "uint4", "int8", "uint8") or q.ndim != 2 or 0 in q.shape:
        return None
    bits = 4 if kind.endswith("4") else 8
    zeros = np.zeros(scales.shape, q.dtype) if zeros is None else zeros
    # Signed nibbles and unsigned bytes are moved to where the kernels want them.
    move = {"int4": 8, "uint8": -128}.get(kind, 0)
    held = np.uint8 if bits == 4 else np.int8
    whole, none = ((a.astype(np.int16) + move).astype(held) for a in (q, zeros))
    transposed = axis == 0 if block else axis == 1
    if scales.size == 1:
        transposed = True
    by_row = [a.T if transposed and a.ndim == 2 else a for a in (whole, scales, none)]
    n, k = by_row[0].shape
    if not block:
        by_row[1:] = [np.broadcast_to(a.reshape(-1, 1), (n, 1)) for a in by_row[1:]]
        block = -(-k // gemv.BLOCK) * gemv.BLOCK
    if by_row[1].shape != (n, -(-k // block)):
        return None
    return Blocks(bits, by_row[0], by_row[1].astype(np.float32), by_row[2], block, transposed)
