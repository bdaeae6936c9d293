"""Objects that keep their number from frame to frame: ByteTrack (Zhang et al. 2022).

>>> from edgeinfer.tasks import Detector                        # doctest: +SKIP
>>> from edgeinfer.tracking import Tracker                      # doctest: +SKIP
>>> tracker = Tracker()                                         # doctest: +SKIP
>>> with Detector("yolo.edge") as detector:                     # doctest: +SKIP
...     for frame in frames:
...         for found in tracker.update(detector.detect(frame)):
...             print(found.track, found.label, found.box)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from edgeinfer.errors import UsageError
from edgeinfer.records import dataclass
from edgeinfer.results import Detection
from edgeinfer.types import Array

_POSITION, _VELOCITY = 1 / 20, 1 / 160
"""How far a box is off and how much its motion changes in one image, in heights of it."""

_MOST = 1000
"""Boxes of an image, the surest, and objects out of sight, the last seen: time grows with both."""

_SECOND, _FIRST_SEEN, _SAME = 0.5, 0.7, 0.15
"""Most that one less the overlap may be: of faint boxes, of objects seen once, of duplicates."""


class Tracker:
    """Numbers objects; one tracker a video.

    Boxes at or above ``sure`` are matched first, by how far they overlap where the objects are
    expected; what is left is matched with fainter boxes, which begin no object. A class does not
    decide: a detector may see the same object as another class.

    Args:
        sure: score from which a box begins an object.
        faint: score above which a box still goes on with one.
        patience: images for which an object may be out of sight.
        match: most that one less the overlap times the score may be for a box to be an object's.

    Raises:
        UsageError: an argument is out of its range.
    """

    def __init__(
        self, *, sure: float = 0.25, faint: float = 0.1, patience: int = 30, match: float = 0.8
    ) -> None:
        if not 0 <= faint <= sure <= 1 or patience < 0 or not 0 < match <= 1:
            given = f"sure={sure}, faint={faint}, patience={patience}, match={match}"
            wanted = "0 <= faint <= sure <= 1, patience of at least 0, and match above 0, at most 1"
            raise UsageError(f"Tracker: expected {wanted}; received {given}")
        self._sure, self._faint, self._patience, self._match = sure, faint, patience, match
        self._tracks: list[_Track] = []
        self._picture = 0
        self._given = 0

    def update(self, detections: Sequence[Detection]) -> list[Detection]:
        """Take what was found in the next image.

        Args:
            detections: all of them, the faint ones too: give the head a low threshold.

        Returns:
            Those that belong to an object, with its number as ``track``. An object that appears
            after the first image is reported from its second box on.
        """
        self._picture += 1
        if len(detections) > _MOST:
            detections = sorted(detections, key=lambda d: -d.score)[:_MOST]
        sound = [d for d in detections if d.box[2] > d.box[0] and d.box[3] > d.box[1]]
        sure = [d for d in sound if d.score >= self._sure]
        faint = [d for d in sound if self._faint < d.score < self._sure]
        known = [t for t in self._tracks if t.confirmed]
        new = [t for t in self._tracks if not t.confirmed]
        _predict(known)
        rest = self._matched(known, sure, self._match)
        unseen = [t for t in known if t.seen < self._picture and not t.lost]
        self._matched(unseen, faint, _SECOND, weighted=False)
        for track in unseen:
            track.lost = track.seen < self._picture
        rest = self._matched(new, rest, _FIRST_SEEN)
        new = [t for t in new if t.seen == self._picture]
        for track in new:
            track.confirmed = True
        began = [self._begun(detection) for detection in rest]
        patient = [t for t in known if self._picture - t.seen <= self._patience]
        if len(patient) > _MOST:
            patient = sorted(patient, key=lambda t: -t.seen)[:_MOST]
        self._tracks = _without_duplicates([*patient, *new, *began], self._picture)
        shown = [t for t in self._tracks if t.confirmed and t.seen == self._picture]
        return [replace(t.detection, track=t.number) for t in shown]

    def _begun(self, detection: Detection) -> _Track:
        self._given += 1
        state, spread = _first(_measured(detection))
        confirmed = self._picture == 1
        return _Track(
            self._given, state, spread, detection, self._picture, self._picture, confirmed
        )

    def _matched(
        self, tracks: list[_Track], found: list[Detection], most: float, *, weighted: bool = True
    ) -> list[Detection]:
        """Give each track its box; return the boxes that are left."""
        if not tracks or not found:
            return found
        boxes = np.array([d.box for d in found])
        alike = _overlaps(_boxes(tracks), boxes)
        if weighted:
            alike = alike * np.array([d.score for d in found])
        pairs = assign(1 - alike, most)
        if pairs:
            rows, columns = (list(part) for part in zip(*pairs, strict=True))
            _correct([tracks[i] for i in rows], [found[j] for j in columns], self._picture)
        taken = {column for _, column in pairs}
        return [d for j, d in enumerate(found) if j not in taken]


@dataclass(slots=True)
class _Track:
    """An object.

    Attributes:
        number: its number.
        state: middle x and y, width over height, height, and how they change: (8,).
        spread: covariance of the state: (8, 8).
        detection: the last one.
        seen: image of it.
        since: image of the first one.
        confirmed: whether it was seen twice, or in the first image.
        lost: whether it is out of sight.
    """

    number: int
    state: Array
    spread: Array
    detection: Detection
    seen: int
    since: int
    confirmed: bool
    lost: bool = False


def _measured(detection: Detection) -> Array:
    left, top, right, bottom = detection.box
    height = bottom - top
    return np.array([(left + right) / 2, (top + bottom) / 2, (right - left) / height, height])


def _boxes(tracks: Sequence[_Track]) -> Array:
    x, y, ratio, height = np.array([t.state[:4] for t in tracks]).T
    half = ratio * height / 2
    return np.stack([x - half, y - height / 2, x + half, y + height / 2], axis=1)


def _overlaps(some: Array, others: Array) -> Array:
    """Return intersection over union of each pair: (n, m)."""
    low = np.maximum(some[:, np.newaxis, :2], others[:, :2])
    high = np.minimum(some[:, np.newaxis, 2:], others[:, 2:])
    both = (high - low).clip(0.0, None).prod(axis=2)
    areas = [(boxes[:, 2:] - boxes[:, :2]).prod(axis=1) for boxes in (some, others)]
    return np.asarray(both / (areas[0][:, np.newaxis] + areas[1] - both))


_MOVES = np.eye(8) + np.eye(8, k=4)
"""One image on, each of the four numbers has changed by its velocity."""


def _deviations(heights: Array, position: float, velocity: float, ratio: float) -> Array:
    """Return standard deviations of a state for each height: (n, 8)."""
    same = np.ones_like(heights)
    where, move = position * _POSITION * heights, velocity * _VELOCITY * heights
    return np.stack([where, where, ratio * same, where, move, move, 1e-5 * same, move], axis=1)


def _first(measured: Array) -> tuple[Array, Array]:
    """Return state and covariance of an object that was just seen."""
    state = np.concatenate([measured, np.zeros(4)])
    return state, np.diag(_deviations(measured[3:], 2, 10, 1e-2)[0] ** 2)


def _predict(tracks: Sequence[_Track]) -> None:
    """Move on by one image, by a Kalman filter of constant velocity."""
    if not tracks:
        return
    heights = np.array([t.state[3] for t in tracks])
    noise = _deviations(heights, 1, 1, 1e-2) ** 2
    for track, added in zip(tracks, noise, strict=True):
        if track.lost:
            track.state[7] = 0.0
        track.state = _MOVES @ track.state
        track.spread = _MOVES @ track.spread @ _MOVES.T + np.diag(added)


def _correct(tracks: Sequence[_Track], found: Sequence[Detection], picture: int) -> None:
    """Take a box for each object into its state."""
    for track, detection in zip(tracks, found, strict=True):
        noise = _deviations(track.state[3:4], 1, 0, 1e-1)[0, :4] ** 2
        seen = track.spread[:4, :4] + np.diag(noise)
        gain = np.linalg.solve(seen, track.spread[:4]).T
        track.state = track.state + gain @ (_measured(detection) - track.state[:4])
        track.spread = track.spread - gain @ seen @ gain.T
        track.detection, track.seen, track.lost = detection, picture, False


def _without_duplicates(tracks: list[_Track], picture: int) -> list[_Track]:
    """Leave out the younger of an object in sight and one out of sight that lie at one place."""
    seen = [t for t in tracks if not t.lost]
    lost = [t for t in tracks if t.lost]
    if not seen or not lost:
        return tracks
    gone: set[int] = set()
    for i, j in zip(*np.nonzero(1 - _overlaps(_boxes(seen), _boxes(lost)) < _SAME), strict=True):
        one, other = seen[i], lost[j]
        older = one.seen - one.since > other.seen - other.since
        gone.add((other if older else one).number)
    return [t for t in tracks if t.number not in gone]


def assign(costs: Array, most: float) -> list[tuple[int, int]]:
    """Match rows with columns so that the sum of costs is least.

    Each row and each column has one partner or none; having none costs half of ``most`` for either,
    so that no pair costs more than it.

    Args:
        costs: (rows, columns).
        most: cost of a pair.

    Returns:
        Pairs of row and column, by row.

    Source: Jonker and Volgenant 1987.
    """
    rows, columns = costs.shape
    # A row without a partner takes a column of its own, for which it pays what both would.
    alone = np.where(np.eye(rows, dtype=bool), most, np.inf)
    full = np.concatenate([costs, alone], axis=1)
    owner = np.full(columns + rows, -1)
    row_price, column_price = np.zeros(rows), np.zeros(columns + rows)
    for row in range(rows):
        _augment(full, row, owner, row_price, column_price)
    pairs = [(int(owner[c]), c) for c in range(columns) if owner[c] >= 0]
    return sorted(pair for pair in pairs if costs[pair] <= most)


def _augment(costs: Array, row: int, owner: Array, row_price: Array, column_price: Array) -> None:
    """Give one more row a column, by the shortest path through columns that others have."""
    count = costs.shape[1]
    least, before = np.full(count, np.inf), np.full(count, -1)
    done = np.zeros(count, bool)
    column, current = -1, row
    distance = 0.0
    while True:
        through = distance + costs[current] - row_price[current] - column_price
        shorter = ~done & (through < least)
        least[shorter], before[shorter] = through[shorter], column
        column = int(np.where(done, np.inf, least).argmin())
        distance = float(least[column])
        done[column] = True
        if owner[column] < 0:
            break
        current = int(owner[column])
    passed = done & (owner >= 0)
    row_price[row] += distance
    row_price[owner[passed]] += distance - least[passed]
    column_price[passed] -= distance - least[passed]
    while column >= 0:
        previous = int(before[column])
        owner[column] = row if previous < 0 else owner[previous]
        column = previous


__all__ = ["Tracker", "assign"]
