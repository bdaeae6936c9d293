"""Shapes of more than five axes, seen as fewer.

Core ML has five. Neighbouring axes that an operator treats alike are one axis to it, and any
permutation is a row of exchanges of two neighbouring blocks, each of which needs four.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from edgeinfer.convert.lower.coreml.tensor import MAX_RANK, Shape, Size
from edgeinfer.convert.lower.registry import Refusal


def merge_axes(shapes: Sequence[Shape]) -> list[list[int]]:
    """Join neighbouring axes along which the same operands are broadcast; returns the axes.

    Raises:
        Refusal: more than five are left.
    """
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(s)) + tuple(s) for s in shapes]
    groups: list[list[int]] = []
    last: tuple[bool, ...] = ()
    for axis in range(rank):
        pattern = tuple(_is_wide(s[axis]) for s in padded)
        if not any(pattern):
            continue
        if groups and pattern == last:
            groups[-1].append(axis)
        else:
            groups.append([axis])
        last = pattern
    if len(groups) > MAX_RANK:
        raise Refusal(f"broadcasts {len(groups)} groups of axes", "unsupported_rank")
    return groups or [[0]]


def merge_perm(shape: Shape, perm: Sequence[int]) -> tuple[list[list[int]], list[int]]:
    """Join axes that stay neighbours and drop those of size 1; returns axes and permutation."""
    kept = [p for p in perm if _is_wide(shape[p])]
    groups: list[list[int]] = []
    for p in kept:
        if groups and _follows(groups[-1][-1], p, shape):
            groups[-1].append(p)
        else:
            groups.append([p])
    order = sorted(range(len(groups)), key=lambda g: groups[g][0])
    return [groups[g] for g in order], [order.index(g) for g in range(len(groups))]


def merge_reduced(rank: int, reduced: Sequence[int]) -> tuple[list[list[int]], list[int]]:
    """Join neighbours that are all reduced or all kept; returns axes and which are reduced.

    Raises:
        Refusal: more than five are left.
    """
    groups = [list(axes) for _, axes in groupby(range(rank), lambda axis: axis in reduced)]
    if len(groups) > MAX_RANK:
        raise Refusal(f"reduces {len(groups)} groups of axes", "unsupported_rank")
    return groups, [i for i, axes in enumerate(groups) if axes[0] in reduced]


def _is_wide(size: Size) -> bool:
    return not isinstance(size, int) or size != 1


def _follows(before: int, after: int, shape: Shape) -> bool:
    return after > before and not any(_is_wide(shape[a]) for a in range(before + 1, after))


def steps_of(
    groups: Sequence[list[int]], perm: Sequence[int], limit: int
) -> Iterator[tuple[list[list[int]], list[int]]]:
    """Yield views, by the axes in each, and permutations of up to ``limit`` that make up one."""
    if len(groups) <= limit:
        yield list(groups), list(perm)
        return
    now = list(range(len(groups)))
    for place, axis in enumerate(perm):
        at = now.index(axis)
        if at == place:
            continue
        # Move one axis to its place, over the block between.
        blocks = (now[:place], now[place:at], [axis], now[at + 1 :])
        yield [[a for i in block for a in groups[i]] for block in blocks], [0, 2, 1, 3]
        now.insert(place, now.pop(at))
