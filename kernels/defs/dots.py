"""Sums of products of bytes by the instructions of a processor, four neighbours to a lane.

Each takes pairs of weights and vectors, what the sums begin with, lanes, and the weights' bits.
"""

from __future__ import annotations

from tvm import tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812

from edgeinfer.kernels.defs.emit import Expr

Pairs = list[tuple[Expr, Expr]]


def vnni(pairs: Pairs, first: Expr, rows: int, bits: int) -> Expr:
    """Four products and their sum at an instruction of AVX-512 VNNI or AVX-VNNI."""
    whole = first
    for weight, value in pairs:
        left, right = weight, value
        if bits == 8:
            # One factor has to be unsigned: signs move from the weight to the vector.
            left, right = _signs_moved(weight, value, rows)
        whole = T.call_llvm_pure_intrin(
            f"int32x{rows}",
            # LLVM's name for all widths; what is written is AVX-VNNI where the CPU has only that.
            f"llvm.x86.avx512.vpdpbusd.{rows * 32}",
            whole,
            left,
            right,
        )
    return whole


def _signs_moved(weight: Expr, value: Expr, rows: int) -> tuple[Expr, Expr]:
    zero = T.broadcast(tirx.const(0, "int8"), rows * 4)
    below = weight < zero
    return tirx.Select(below, zero - weight, weight), tirx.Select(below, zero - value, value)


def avx2(pairs: Pairs, first: Expr, rows: int, bits: int) -> Expr:
    """Pairs of products in 16 bits: eight of 15 times 127 twice still fit; one of 128 does."""
    halves = f"int16x{rows * 2}"
    ones = T.broadcast(tirx.const(1, "int16"), rows * 2)
    sums: list[Expr] = []
    for weight, value in pairs:
        left, right = weight, value
        if bits == 8:
            left, right = _signs_moved(weight, value, rows)
        sums.append(T.call_llvm_pure_intrin(halves, "llvm.x86.avx2.pmadd.ub.sw", left, right))
    if bits == 4:
        while len(sums) > 1:
            sums = [a + b for a, b in zip(sums[::2], sums[1::2], strict=True)]
    whole = first
    for one in sums:
        wide = T.call_llvm_pure_intrin(f"int32x{rows}", "llvm.x86.avx2.pmadd.wd", one, ones)
        whole = whole + wide
    return whole


def sdot(pairs: Pairs, first: Expr, rows: int, bits: int) -> Expr:
    """Likewise of 64-bit Arm."""
    whole = first
    for weight, value in pairs:
        # Nibbles are below 16: as bytes with a sign they are the same.
        signed = tirx.reinterpret(f"int8x{rows * 4}", weight) if bits == 4 else weight
        whole = T.call_llvm_pure_intrin(
            f"int32x{rows}", "llvm.aarch64.neon.sdot.v4i32.v16i8", whole, signed, value
        )
    return whole
