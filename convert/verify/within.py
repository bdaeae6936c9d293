"""Vectors within what an artifact takes, where all that were made up hold something else.

An engine of 32 bits refuses integers whose sums or products leave it. What nobody said of an input
is made up as 0 to 99, of which six multiply to more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from edgeinfer.bundle.values import INTEGERS, beyond, ends, fits, integer_bounds
from edgeinfer.convert.verify.answers import Vector
from edgeinfer.types import Array


def within(vectors: Sequence[Vector], artifacts: Sequence[Mapping[str, str]]) -> list[Vector]:
    """Return made-up vectors folded into the bounds of artifacts that take no ordinary one.

    What the user gave is never changed: an artifact that refuses all of that is refused.

    Args:
        vectors: that there are.
        artifacts: Constraints of each.
    """
    ordinary = [v for v in vectors if not v.edge]
    if any(not v.origin.startswith("synthetic:") for v in ordinary):
        return []
    refusing = [c for c in artifacts if not any(fits(c, v.feeds) for v in ordinary)]
    found = []
    for vector in ordinary if refusing else ():
        feeds = vector.feeds
        for constraints in refusing:
            bounds = integer_bounds(constraints.get(INTEGERS, "{}"))
            feeds = {n: _folded(a, bounds[n]) if n in bounds else a for n, a in feeds.items()}
        if all(fits(c, feeds) for c in artifacts):
            found.append(Vector(feeds, f"{vector.origin}, within what is taken"))
    return found


def _folded(array: Array, bounds: Sequence[int]) -> Array:
    """Take what lies outside modulo the length of the bounds, from the lower one on."""
    if not beyond(bounds, array):
        return array
    low, high = ends(bounds, array.size)
    if array.dtype.kind == "f":
        return np.clip(array, low, high)
    wide = array.astype(object)
    folded = (wide - low) % (high - low + 1) + low
    return np.where((wide < low) | (wide > high), folded, wide).astype(array.dtype)
