"""Several fixed shapes requested at once: what is common to them, and each by itself."""

from __future__ import annotations

from collections.abc import Sequence

from edgeinfer.convert.options import Given, Size
from edgeinfer.errors import UsageError

Shape = tuple[int | None, ...]
Sets = tuple[dict[str, tuple[int, ...]], ...]
Ranges = dict[tuple[str, int], tuple[int, int]]
"""Least and greatest size by input name and axis."""


def ranges_of(given: Given) -> Ranges:
    """Return the axes for which a range was given.

    Raises:
        UsageError: a range has no size, or steps.
    """
    found: Ranges = {}
    for name, shapes in given.items():
        listed = [s for s in shapes if s is not None and not isinstance(s, int | range)]
        # Several shapes with a range among them are refused with the sets.
        for axis, size in enumerate(listed[0] if len(listed) == 1 else shapes):
            if not isinstance(size, range):
                continue
            if not size or size.step != 1 or size.start < 1:
                raise UsageError(f"input {name!r}: axis {axis}: no sizes are in {size}")
            found[name, axis] = size[0], size[-1]
    return found


def shape_sets(given: Given) -> tuple[dict[str, Shape], Sets]:
    """Return the sizes that are common to all, and the sets; no set where each input has one shape.

    ``{"x": ((1, 3), (2, 3)), "k": (5,)}`` gives ``{"x": (None, 3), "k": (5,)}`` and two sets. The
    first shapes of all inputs make the first set, and so on; one shape counts for every set.

    Raises:
        UsageError: inputs have different numbers of shapes, a shape among several leaves a size
            open, has another rank, or two sets are equal.
    """
    listed = {name: _listed(shapes) for name, shapes in given.items()}
    counts = {len(shapes) for shapes in listed.values()} - {1}
    if not counts:
        return {name: shapes[0] for name, shapes in listed.items()}, ()
    if len(counts) > 1 or 0 in counts:
        found = ", ".join(f"{name!r} has {len(shapes)}" for name, shapes in listed.items())
        raise UsageError(f"several shapes for an input: every input needs one or as many; {found}")
    sets: list[dict[str, tuple[int, ...]]] = []
    for index in range(counts.pop()):
        one: dict[str, tuple[int, ...]] = {}
        for name, shapes in listed.items():
            shape = shapes[index % len(shapes)]
            sizes = tuple(size for size in shape if isinstance(size, int))
            if len(sizes) != len(shape) or len(sizes) != len(shapes[0]):
                raise UsageError(
                    f"several shapes for an input: {name!r}: each needs a number for every axis"
                )
            one[name] = sizes
        if one in sets:
            raise UsageError(f"several shapes for an input: {one} is given twice")
        sets.append(one)
    common = {
        name: tuple(
            sizes[0] if len(set(sizes)) == 1 else None for sizes in zip(*shapes, strict=True)
        )
        for name, shapes in listed.items()
    }
    return common, tuple(sets)


def _listed(shapes: Sequence[Size] | Sequence[Sequence[Size]]) -> list[Shape]:
    several: list[Shape] = []
    single: list[int | None] = []
    for entry in shapes:
        if entry is None or isinstance(entry, int | range):
            single.append(_fixed(entry))
        else:
            several.append(tuple(_fixed(size) for size in entry))
    if several and single:
        raise UsageError(f"input shape {shapes!r}: expected numbers, or shapes")
    return several or [tuple(single)]


def _fixed(size: Size) -> int | None:
    """A range leaves the size open."""
    return None if isinstance(size, range) else size
