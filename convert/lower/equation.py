"""Equations of Einstein sums."""

from __future__ import annotations

from collections.abc import Sequence

from edgeinfer.convert.lower.registry import Refusal

Labels = tuple[str, ...]
"""A name for each axis."""


def parse(equation: str, ranks: Sequence[int]) -> tuple[list[Labels], Labels]:
    """Return the labels of each operand and of the result; those of an ellipsis are numbers.

    Raises:
        Refusal: the equation does not fit the operands.
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    parts = left.split(",")
    if len(parts) != len(ranks):
        raise Refusal(f"equation {equation!r} for {len(ranks)} operands")
    wide = 0
    operands = []
    for part, rank in zip(parts, ranks, strict=True):
        count = rank - len(part.replace("...", ""))
        if count < 0 or (count and "..." not in part):
            raise Refusal(f"equation {equation!r}: {part!r} for {rank} axes")
        wide = max(wide, count)
        operands.append(_labels(part, count))
    if arrow:
        return operands, _labels(right, wide)
    letters = [n for labels in operands for n in labels if n.isalpha()]
    return operands, (
        *_labels("...", wide),
        *(n for n in sorted(set(letters)) if letters.count(n) == 1),
    )


def _labels(part: str, count: int) -> Labels:
    before, dots, after = part.partition("...")
    # Broadcast axes align at the right, so they are counted from there.
    middle = [str(i) for i in range(count - 1, -1, -1)] if dots else []
    return (*before, *middle, *after)
