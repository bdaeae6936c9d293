"""A row joined into one value."""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812

from edgeinfer.kernels.defs.emit import (
    Buffer,
    Expr,
    KernelCpu,
    load,
    pieces,
    registers,
    splat,
    store,
)

_STRANDS = 4


def folded(
    cpu: KernelCpu,
    count: int,
    first: float,
    join: Callable[[Expr, Expr], Expr],
    value: Callable[[Expr, int], Expr],
) -> Expr:
    """Join all values of a row into one; a vector holds as many results until the end.

    Args:
        cpu: for the vectors.
        count: values.
        first: what nothing amounts to.
        join: Join of two values, vectors of them too.
        value: gives as many neighbours as requested, from a place on.
    """
    lanes = cpu.lanes
    whole, rest = divmod(count, lanes)
    # One result alone would wait for its last step every time.
    strands = min(_STRANDS, whole)
    held = [_held(lanes, first) for _ in range(strands)]

    def step(at: Expr, buffer: Buffer, width: int) -> None:
        store(buffer, [0], join(load(buffer, [0], width), value(at, width)), width)

    if strands and whole // strands > 1:
        with T.serial(whole // strands) as i:
            for strand, buffer in enumerate(held):
                step((i * strands + strand) * lanes, buffer, lanes)
    elif strands:
        for strand, buffer in enumerate(held):
            step(T.int32(strand * lanes), buffer, lanes)
    for strand in range(whole % strands if strands else 0):
        step(T.int32((whole - whole % strands + strand) * lanes), held[strand], lanes)
    # Each width has memory of its own, which is then a register.
    ends = {}
    for piece in pieces(rest, lanes):
        ends[piece.width] = _held(piece.width, first)
        step(T.int32(whole * lanes + piece.start), ends[piece.width], piece.width)
    return _across(held, ends, lanes, first, join)


def _held(width: int, first: float) -> Buffer:
    made = registers(width)
    store(made, [0], splat(T.float32(first), width), width)
    return made


def _across(
    held: list[Buffer],
    ends: dict[int, Buffer],
    lanes: int,
    first: float,
    join: Callable[[Expr, Expr], Expr],
) -> Expr:
    """Join the elements of all vectors, half by half."""
    width = lanes if held else max(ends)
    now = held[0] if held else ends.pop(width)
    for other in held[1:]:
        store(now, [0], join(load(now, [0], width), load(other, [0], width)), width)
    while width > 1:
        half = width // 2
        whole = load(now, [0], width)
        low, high = (
            tirx.Shuffle([whole], [T.int32(i) for i in range(start, start + half)])
            for start in (0, half)
        )
        least = _held(half, first)
        store(least, [0], join(low, high), half)
        if half in ends:
            store(least, [0], join(load(least, [0], half), load(ends[half], [0], half)), half)
        now, width = least, half
    return T.BufferLoad(now, [0])
