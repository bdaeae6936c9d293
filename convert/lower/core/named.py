"""Axes that a node names, and the refusal of what has no meaning for any engine."""

from __future__ import annotations

from collections.abc import Iterable

from edgeinfer.convert.lower.registry import Refusal


class MalformedRefusal(Refusal):
    """Raised for operands or attributes that mean nothing: no target has a way around it."""


def named_axes(axes: Iterable[int], rank: int) -> list[int]:
    """Count axes from the front.

    Raises:
        MalformedRefusal: one does not exist, or is named twice.
    """
    named = [int(axis) for axis in axes]
    if any(not -rank <= axis < rank for axis in named):
        raise MalformedRefusal(f"axes={named} of a tensor of rank {rank}")
    found = [axis % rank for axis in named]
    if len(set(found)) < len(found):
        raise MalformedRefusal(f"axes={named} name one twice")
    return found
