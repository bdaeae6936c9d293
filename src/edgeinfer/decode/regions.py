"""A map of how likely each pixel is text, to rotated boxes (Liao et al. 2020, sec. 3.4).

What differs from the code published with it: regions are those of pixels that touch, also at
corners, without the outlines of holes, and a box is widened by moving its four sides, which is what
offsetting its outline and boxing that again amounts to.
"""

from __future__ import annotations

import math

import numpy as np

from edgeinfer.errors import RunError
from edgeinfer.heads import FindText
from edgeinfer.media.geometry import ImagePlacement
from edgeinfer.records import dataclass
from edgeinfer.results import Text
from edgeinfer.types import Array

_LEAST_SOURCE = 3
"""Pixels of the source; what is not higher or wider cannot be read."""
_MOST_RUNS = 200_000
"""Of pixels side by side; a page full of small print has a tenth."""
_MOST_LOOKS = 32
"""Times that each pixel of a map may lie in boxes."""
_MOST_CUT = 8
"""Times that each pixel of the image may lie in lines, each of which is cut out of it."""
_SAME_LINE = 10
"""Pixels between the tops of two boxes of one line of text."""


@dataclass(frozen=True, slots=True)
class TurnedBox:
    """A rectangle.

    Attributes:
        middle: x, y.
        axis: unit vector along ``sides[0]``.
        sides: lengths.
    """

    middle: Array
    axis: Array
    sides: tuple[float, float]

    @property
    def corners(self) -> Array:
        """Its corners (4, 2), clockwise where y goes down."""
        along, across = self.axis, np.array([-self.axis[1], self.axis[0]])
        a, b = along * self.sides[0] / 2, across * self.sides[1] / 2
        return np.asarray(self.middle + np.stack([-a - b, a - b, a + b, b - a]))

    def widened(self, distance: float) -> TurnedBox:
        """Move every side outwards."""
        first, second = self.sides
        return TurnedBox(self.middle, self.axis, (first + 2 * distance, second + 2 * distance))


def find_text(output: Array, head: FindText, placement: ImagePlacement) -> list[Text]:
    """Find lines of text in one image, from top to bottom.

    Args:
        output: (1, 1, height, width), 0..1.
        head: thresholds.
        placement: Placement of the image in the model's input.

    Returns:
        Texts that only have a score and corners.

    Raises:
        RunError: the map looks like no text, and would take long.
    """
    chances = np.asarray(output, np.float32).reshape(output.shape[-2:])
    bitmap = chances > head.threshold
    if head.dilate:
        bitmap = _dilated(bitmap)
    stretch = np.asarray(placement.size) / np.asarray(chances.shape[::-1])
    found = []
    left, left_there = _MOST_LOOKS * chances.size, _MOST_CUT * math.prod(placement.source)
    for points in regions(bitmap)[: head.most]:
        box = smallest_box(points)
        if min(box.sides) < head.least_side:
            continue
        left -= int(np.ptp(box.corners, axis=0).prod())
        if left < 0:
            raise RunError("head: the regions of the map lie in each other; no text does")
        score = mean_inside(chances, box.corners)
        if score < head.box_threshold:
            continue
        area, around = box.sides[0] * box.sides[1], 2 * sum(box.sides)
        box = box.widened(area * head.unclip / around)
        if min(box.sides) < head.least_side + 2:
            continue
        corners = _in_picture(placement.to_source(box.corners * stretch), placement.source)
        if corners is not None:
            left_there -= int(np.ptp(corners, axis=0).prod())
            if left_there < 0:
                raise RunError("head: lines of text lie in each other; no text does")
            found.append(Text("", score, tuple((float(x), float(y)) for x, y in corners)))
    return in_reading_order(found)


def regions(bitmap: Array) -> list[Array]:
    """Return the pixels of each region as points (n, 2): x, y; from top to bottom.

    Pixels that touch, also at a corner, are one region. Runs of each row are joined to those of the
    row before; a run's first name is that of its oldest neighbour.

    Raises:
        RunError: there are more runs than any text has.
    """
    padded = np.pad(bitmap.astype(np.int8), ((0, 0), (1, 1)))
    change = np.diff(padded, axis=1)
    rows, starts = np.nonzero(change == 1)
    if len(rows) > _MOST_RUNS:
        raise RunError(f"head: the map has {len(rows)} runs of pixels, at most {_MOST_RUNS}")
    ends = np.nonzero(change == -1)[1]
    roots = np.arange(len(rows))
    heads = np.searchsorted(rows, np.arange(bitmap.shape[0] + 1))
    for row in range(1, bitmap.shape[0]):
        above, here = heads[row - 1], heads[row]
        for run in range(here, heads[row + 1]):
            while above < here and ends[above] < starts[run]:
                above += 1
            other = above
            while other < here and starts[other] <= ends[run]:
                _join(roots, other, run)
                other += 1
    names = np.array([_root(roots, run) for run in range(len(roots))], dtype=np.int64)
    order = names.argsort(kind="stable")
    cuts = np.flatnonzero(np.diff(names[order])) + 1
    return [_ends_of(rows[part], starts[part], ends[part]) for part in _parts(order, cuts)]


def smallest_box(points: Array) -> TurnedBox:
    """Return the rectangle of least area around points: one side lies on the hull's outline."""
    outline = hull(points)
    if len(outline) == 1:
        return TurnedBox(outline[0], np.array([1.0, 0.0]), (0.0, 0.0))
    edges = np.diff(outline, axis=0, append=outline[:1])
    axes = edges / np.hypot(edges[:, 0], edges[:, 1])[:, np.newaxis]
    across = np.stack([-axes[:, 1], axes[:, 0]], axis=1)
    along, aside = outline @ axes.T, outline @ across.T
    low = np.stack([along.min(axis=0), aside.min(axis=0)], axis=1)
    high = np.stack([along.max(axis=0), aside.max(axis=0)], axis=1)
    sides = high - low
    best = int(sides.prod(axis=1).argmin())
    middle = (low[best] + high[best]) / 2
    centre = middle[0] * axes[best] + middle[1] * across[best]
    return TurnedBox(centre, axes[best], (float(sides[best, 0]), float(sides[best, 1])))


def hull(points: Array) -> Array:
    """Return the convex hull (n, 2), counter-clockwise where y goes up (Andrew 1979)."""
    ordered = np.unique(np.asarray(points, np.float64), axis=0)
    if len(ordered) < 3:
        return ordered
    halves = []
    for part in (ordered, ordered[::-1]):
        chain: list[Array] = []
        for point in part:
            while len(chain) > 1 and _turn(chain[-2], chain[-1], point) <= 0:
                chain.pop()
            chain.append(point)
        halves.append(np.array(chain[:-1]))
    return np.concatenate(halves)


def mean_inside(values: Array, corners: Array) -> float:
    """Return the mean of the pixels whose centres lie in a convex polygon; its outline counts."""
    low = np.floor(corners.min(axis=0)).astype(int).clip(0)
    high = np.ceil(corners.max(axis=0)).astype(int).clip(None, np.array(values.shape[::-1]) - 1)
    x, y = np.arange(low[0], high[0] + 1), np.arange(low[1], high[1] + 1)[:, np.newaxis]
    inside = np.ones((len(y), len(x)), bool)
    for (x0, y0), (x1, y1) in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        inside &= (x1 - x0) * (y - y0) - (y1 - y0) * (x - x0) >= -1e-6
    part = values[low[1] : high[1] + 1, low[0] : high[0] + 1]
    return float(part[inside].mean(dtype=np.float64)) if inside.any() else 0.0


def in_reading_order(texts: list[Text]) -> list[Text]:
    """Sort lines from top to bottom, those of one height from left to right."""
    rest = sorted(texts, key=lambda text: (text.corners[0][1], text.corners[0][0]))
    for i in range(1, len(rest)):
        for j in range(i, 0, -1):
            (x0, y0), (x1, y1) = rest[j - 1].corners[0], rest[j].corners[0]
            if abs(y1 - y0) >= _SAME_LINE or x1 >= x0:
                break
            rest[j - 1], rest[j] = rest[j], rest[j - 1]
    return rest


def _in_picture(corners: Array, size: tuple[int, int]) -> Array | None:
    """Order corners from the top left clockwise and move them into the image."""
    by_x = corners[corners[:, 0].argsort(kind="stable")]
    left, right = (half[half[:, 1].argsort(kind="stable")] for half in (by_x[:2], by_x[2:]))
    ordered = np.stack([left[0], right[0], right[1], left[1]])
    inside = ordered.clip(0.0, np.asarray(size) - 1.0)
    width = np.hypot(*(inside[0] - inside[1]))
    height = np.hypot(*(inside[0] - inside[3]))
    return inside if int(min(width, height)) > _LEAST_SOURCE else None


def _dilated(bitmap: Array) -> Array:
    """Add the pixels right of, below and diagonally behind those that are set."""
    padded = np.pad(bitmap, ((1, 0), (1, 0)))
    return np.asarray(padded[1:, 1:] | padded[:-1, 1:] | padded[1:, :-1] | padded[:-1, :-1])


def _turn(a: Array, b: Array, c: Array) -> float:
    return float((b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0]))


def _root(roots: Array, run: int) -> int:
    while roots[run] != run:
        roots[run] = roots[roots[run]]
        run = int(roots[run])
    return run


def _join(roots: Array, first: int, second: int) -> None:
    a, b = _root(roots, first), _root(roots, second)
    roots[max(a, b)] = min(a, b)


def _parts(order: Array, cuts: Array) -> list[Array]:
    return [part for part in np.split(order, cuts) if len(part)]


def _ends_of(rows: Array, starts: Array, ends: Array) -> Array:
    """Return the first and last pixel of every run: all that a hull needs."""
    first, last = np.stack([starts, rows], axis=1), np.stack([ends - 1, rows], axis=1)
    return np.concatenate([first, last])
