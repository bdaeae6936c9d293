"""Sampling at positions that a run gives."""

from __future__ import annotations

from itertools import product

import numpy as np

from edgeinfer.convert.lower.coreai.builder import Builder
from edgeinfer.convert.lower.coreai.registry import FLOATS, OPS
from edgeinfer.convert.lower.coreai.tensor import Tensor
from edgeinfer.convert.lower.registry import Refusal

_CUBIC = -0.75


@OPS.lower("GridSample", dtypes=FLOATS)
def grid_sample(
    g: Builder, X: Tensor, grid: Tensor, *, align_corners: int, mode: str, padding_mode: str
) -> Tensor:
    """A weighted sum of the elements around each place, which are gathered."""
    mode = mode.removeprefix("bi")
    spatial = X.rank - 2
    if X.sizes is None or grid.sizes is None:
        raise Refusal("dynamic sizes", "dynamic_shape")
    if mode not in ("nearest", "linear", "cubic") or (mode == "cubic" and spatial != 2):
        raise Refusal(f"mode {mode!r} of {spatial} axes")
    sizes, points = X.sizes[2:], grid.sizes[1:-1]
    flat = g.reshape(X, [*X.sizes[:2], -1])
    taps = []
    for axis, size in enumerate(sizes):
        # The last axis of the image comes first in the grid.
        place = g.drop_axes(g.part(grid, -1, spatial - 1 - axis, spatial - axis), [grid.rank - 1])
        place = g.reshape(place, [grid.sizes[0], int(np.prod(points))])
        place = _scaled(g, place, size, bool(align_corners))
        if (mode, padding_mode) != ("cubic", "border"):
            # Cubic weights come from the place itself, in ONNX Runtime and PyTorch.
            place = _inside(g, place, size, padding_mode, bool(align_corners))
        taps.append(_taps(g, place, mode))
    total: Tensor | None = None
    for chosen in product(*taps):
        weight, index = _corner(g, chosen, sizes, padding_mode, bool(align_corners))
        spread = g.expand(g.insert_axes(g.cast(index, np.int32), [1]),
                          [*X.sizes[:2], int(np.prod(points))])  # fmt: skip
        found = g.call("gather_along_axis", flat, spread, np.int32(2))
        part = g.binary("mul", found, g.insert_axes(g.cast(weight, X.dtype), [1]))
        total = part if total is None else g.binary("add", total, part)
    if total is None:
        raise ValueError("a grid has axes")
    return g.reshape(total, [*X.sizes[:2], *points])


def _scaled(g: Builder, place: Tensor, size: int, align: bool) -> Tensor:
    """From -1 .. 1 to positions in the image."""
    if align:
        return g.binary("mul", g.binary("add", place, 1.0), (size - 1) / 2)
    whole = g.binary("mul", g.binary("add", place, 1.0), float(size))
    return g.binary("mul", g.binary("sub", whole, 1.0), 0.5)


def _inside(g: Builder, place: Tensor, size: int, padding: str, align: bool) -> Tensor:
    """Bring a place into the image, as borders and mirrors do."""
    if padding == "border":
        return g.clip(place, 0.0, float(size - 1))
    if padding != "reflection":
        return place
    low, high = (0.0, float(size - 1)) if align else (-0.5, size - 0.5)
    span = high - low
    if span == 0:
        return g.binary("mul", place, 0.0)
    far = g.unary("abs_", g.binary("sub", place, low))
    turns = g.floor(g.binary("mul", far, 1 / span))
    rest = g.binary("sub", far, g.binary("mul", turns, span))
    half = g.binary("mul", turns, 0.5)
    even = g.binary("equal", g.floor(half), half)
    back = g.binary("sub", high, rest)
    return g.select(even, g.binary("add", rest, low), back)


def _taps(g: Builder, place: Tensor, mode: str) -> list[tuple[Tensor, Tensor | None]]:
    """The neighbours of a place along an axis, and what each counts; None is one."""
    if mode == "nearest":
        return [(g.unary("round_", place), None)]
    base = g.floor(place)
    after = g.binary("sub", place, base)
    if mode == "linear":
        before = g.binary("sub", 1.0, after)
        return [(base, before), (g.binary("add", base, 1.0), after)]
    found: list[tuple[Tensor, Tensor | None]] = []
    for step in (-1, 0, 1, 2):
        distance = g.unary("abs_", g.binary("sub", after, float(step)))
        found.append((g.binary("add", base, float(step)), _cubic(g, distance, step in (0, 1))))
    return found


def _cubic(g: Builder, d: Tensor, near: bool) -> Tensor:
    a = _CUBIC
    terms = (a + 2, -(a + 3), 0.0, 1.0) if near else (a, -5 * a, 8 * a, -4 * a)
    made = g.binary("mul", d, terms[0])
    for term in terms[1:3]:
        made = g.binary("mul", g.binary("add", made, term), d)
    return g.binary("add", made, terms[3])


def _corner(
    g: Builder,
    chosen: tuple[tuple[Tensor, Tensor | None], ...],
    sizes: tuple[int, ...],
    padding: str,
    align: bool,
) -> tuple[Tensor, Tensor]:
    """What one combination of neighbours counts, and its place among the flat elements."""
    weight: Tensor | None = None
    index: Tensor | None = None
    for (place, share), size in zip(chosen, sizes, strict=True):
        held = _inside(g, place, size, padding, align)
        bound = g.clip(held, 0.0, float(size - 1))
        counts = share if share is not None else g.const(np.ones((1, 1), place.dtype))
        if padding == "zeros":
            counts = g.select(g.binary("equal", bound, held), counts, 0.0)
        weight = counts if weight is None else g.binary("mul", weight, counts)
        # Positions are counted in integers: half precision ends at 2048.
        whole = g.cast(bound, np.int32)
        index = whole if index is None else g.binary("add", g.binary("mul", index, size), whole)
    if weight is None or index is None:
        raise ValueError("a grid has axes")
    return weight, index
