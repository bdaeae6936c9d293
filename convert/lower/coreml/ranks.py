"""Shapes of more than five axes, seen as fewer.

Core ML has five. Neighbouring axes that an operator treats alike are one axis to it, and any
permutation is a row of exchanges of two neighbouring blocks, each of which needs four.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from edgeinfer.convert.lower.coreml.tensor import MAX_RANK, Shape
from edgeinfer.convert.lower.registry import Refusal


def merge_axes(shapes: Sequence[Shape]) -> list[list[int]]:
    """Join neighbouring axes along which the same operands are broadcast.

    Raises:
        Refusal: more than five are left, or a size is not known.
    """
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(s)) + tuple(s) for s in shapes]
    if not all(isinstance(size, int) for shape in padded for size in shape):
        raise Refusal(f"rank {rank} of unknown sizes", "unsupported_rank")
    merged: list[list[int]] = [[] for _ in shapes]
    last: tuple[bool, ...] = ()
    for axis in range(rank):
        sizes = [s[axis] for s in padded]
        if max(sizes) == 1:
            continue
        pattern = tuple(s == 1 for s in sizes)
        if merged[0] and pattern == last:
            for row, size in zip(merged, sizes, strict=True):
                row[-1] *= size
        else:
            for row, size in zip(merged, sizes, strict=True):
                row.append(size)
        last = pattern
    if len(merged[0]) > MAX_RANK:
        raise Refusal(f"broadcasts {len(merged[0])} groups of axes", "unsupported_rank")
    return [row or [1] for row in merged]


def merge_perm(shape: Shape, perm: Sequence[int]) -> tuple[list[int], list[int]]:
    """Join axes that stay neighbours and drop those of size 1; returns sizes and permutation."""
    kept = [p for p in perm if shape[p] != 1]
    groups: list[list[int]] = []
    for p in kept:
        if groups and _follows(groups[-1][-1], p, shape):
            groups[-1].append(p)
        else:
            groups.append([p])
    order = sorted(range(len(groups)), key=lambda g: groups[g][0])
    sizes = [math.prod(shape[p] for p in groups[g]) for g in order]
    return sizes, [order.index(g) for g in range(len(groups))]


def _follows(before: int, after: int, shape: Shape) -> bool:
    return after > before and all(shape[a] == 1 for a in range(before + 1, after))


def steps_of(
    sizes: Sequence[int], perm: Sequence[int], limit: int
) -> Iterator[tuple[list[int], list[int]]]:
    """Yield views and permutations of at most ``limit`` axes that make up a permutation."""
    if len(sizes) <= limit:
        yield list(sizes), list(perm)
        return
    now = list(range(len(sizes)))
    for place, axis in enumerate(perm):
        at = now.index(axis)
        if at == place:
            continue
        # Move one axis to its place, over the block between.
        view = [
            math.prod(sizes[a] for a in now[:place]),
            math.prod(sizes[a] for a in now[place:at]),
            sizes[axis],
            math.prod(sizes[a] for a in now[at + 1 :]),
        ]
        yield view, [0, 2, 1, 3]
        now.insert(place, now.pop(at))
