"""Vectors rounded to 8 bits by blocks of 32, once for all products that take them."""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812

from edgeinfer.kernels.defs.emit import Buffer, Expr, KernelCpu, function, load, splat, store
from edgeinfer.kernels.defs.fold import folded
from edgeinfer.kernels.defs.llm.form import STEP
from edgeinfer.kernels.defs.llm.steps import (
    SPAN,
    TOKENS,
    across,
    added,
    between,
    held,
    larger,
    span_of,
)
from edgeinfer.kernels.defs.rows import sweep

_FULL = 127
_LEAST = 1e-35
"""Below it, 127 over a value need not be a number."""


def rounded_buffers(columns: int) -> dict[str, tuple[tuple[int, ...], str]]:
    """What rounded vectors consist of, by name.

    ``words`` holds four neighbours each, ``scales`` what they are multiplied by, ``starts`` the
    sums of the integers of each half block and ``sums`` these times the scale.
    """
    blocks = columns // STEP
    return {
        "words": ((TOKENS, blocks, STEP // 4), "int32"),
        "scales": ((TOKENS, blocks), "float32"),
        "starts": ((TOKENS, blocks, 2), "int32"),
        "sums": ((TOKENS, blocks, 2), "float32"),
    }


def norm_round(cpu: KernelCpu, columns: int, epsilon: float | None) -> tirx.PrimFunc:
    """Round tokens to 8 bits, normed by their root mean square where an epsilon is given.

    The kernel takes ``x`` (tokens, columns), with a norm ``w`` (columns), the buffers of
    ``rounded_buffers``, with a norm ``n`` (tokens, columns) for its result, and ``span`` of tokens.
    """
    rounded = rounded_buffers(columns)
    normed = {"w": ((columns,), "float32")} if epsilon is not None else {}
    kept = {"n": ((TOKENS, columns), "float32")} if epsilon is not None else {}
    buffers = {
        "x": ((TOKENS, columns), "float32"),
        **normed,
        **rounded,
        **kept,
        "span": ((SPAN,), "int32"),
    }

    def body(*given: Buffer) -> None:
        named = dict(zip(buffers, given, strict=True))
        first, end = span_of(named["span"])
        with between(first, end) as token:
            source = named["x"]
            if epsilon is not None:
                normalise(cpu, columns, epsilon, named["x"], named["w"], named["n"], token)
                source = named["n"]
            with T.serial(columns // STEP) as block:
                round_block(cpu, source, named, token, block)

    return function("norm_round", buffers, body)


def normalise(
    cpu: KernelCpu,
    columns: int,
    epsilon: float,
    x: Buffer,
    weight: Buffer,
    into: Buffer,
    token: Expr,
) -> None:
    """Norm a row by its root mean square."""
    factor = inverse_root(cpu, columns, epsilon, lambda at, width: load(x, [token, at], width))

    def write(at: Expr, width: int) -> None:
        value = load(x, [token, at], width) * splat(T.BufferLoad(factor, [0]), width)
        store(into, [token, at], value * load(weight, [at], width), width)

    sweep(cpu, columns, write)


def inverse_root(
    cpu: KernelCpu, columns: int, epsilon: float, value: Callable[[Expr, int], Expr]
) -> Buffer:
    """One over the root of the mean of squares."""

    def square(at: Expr, width: int) -> Expr:
        return value(at, width) * value(at, width)

    total = held(folded(cpu, columns, 0.0, lambda a, b: a + b, square))
    mean = T.BufferLoad(total, [0]) * T.float32(1 / columns)
    return held(T.float32(1) / tirx.sqrt(mean + T.float32(epsilon)))


def round_block(
    cpu: KernelCpu, source: Buffer, into: dict[str, Buffer], token: Expr, block: Expr
) -> None:
    """Round 32 neighbours against the largest of them."""
    lanes = min(cpu.lanes, STEP // 2)
    starts = range(0, STEP, lanes)
    values = [held(load(source, [token, block * STEP + s], lanes), lanes) for s in starts]
    zero = splat(T.float32(0), lanes)

    def size(value: Buffer) -> Expr:
        one = load(value, [0], lanes)
        return tirx.Max(one, zero - one)

    most = size(values[0])
    for value in values[1:]:
        most = tirx.Max(most, size(value))
    largest = held(across(most, lanes, larger))
    bound = T.BufferLoad(largest, [0])
    scale = held(bound * T.float32(1 / _FULL))
    inverse = held(tirx.Select(bound > T.float32(_LEAST), T.float32(_FULL) / bound, T.float32(0)))
    T.buffer_store(into["scales"], T.BufferLoad(scale, [0]), [token, block])
    wholes = []
    for start, value in zip(starts, values, strict=True):
        nearest = tirx.nearbyint(load(value, [0], lanes) * splat(T.BufferLoad(inverse, [0]), lanes))
        whole = held(tirx.Cast(f"int32x{lanes}", nearest), lanes, "int32")
        wholes.append(whole)
        small = tirx.Cast(f"int8x{lanes}", load(whole, [0], lanes))
        words = tirx.reinterpret(_words(lanes // 4), small)
        store(into["words"], [token, block, start // 4], words, lanes // 4)
    halves = len(wholes) // 2
    for half in (0, 1):
        parts = wholes[half * halves : (half + 1) * halves]
        total = load(parts[0], [0], lanes)
        for part in parts[1:]:
            total = total + load(part, [0], lanes)
        whole = held(across(total, lanes, added, "int32"), 1, "int32")
        T.buffer_store(into["starts"], T.BufferLoad(whole, [0]), [token, block, half])
        value = tirx.Cast("float32", T.BufferLoad(whole, [0])) * T.BufferLoad(scale, [0])
        T.buffer_store(into["sums"], value, [token, block, half])


def _words(count: int) -> str:
    return "int32" if count == 1 else f"int32x{count}"
