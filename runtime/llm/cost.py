"""What a step costs on this device, learned from the steps that ran."""

from __future__ import annotations

from bisect import bisect_left

EXACT = 16
"""Up to so many tokens each count has a figure of its own: kernels have widths of up to 16."""

_RATE = 0.1
"""Share that a new step has in the figures of its size; the first ones have more."""

_OUTLIER = 4.0
_SPREAD = 0.3
"""Of reaches around their mean: a size whose reaches differ less learns from the others."""

_FIRST = 3
"""Steps of a size of which the fastest counts: the very first one also makes things ready."""


def _bucket(tokens: int) -> int:
    """Return a token count that shares its figure: exact up to 16, then eight an octave."""
    if tokens <= EXACT:
        return tokens
    grain = 1 << (tokens.bit_length() - 4)
    return (tokens + grain - 1) // grain * grain


class _Size:
    """Steps of one size: a line through their times over what they looked back on.

    The line is that of least squares, in which older steps count less and less; where reaches
    hardly differ it is as steep as those of other sizes.
    """

    __slots__ = ("count", "covariance", "reach", "seconds", "skipped", "variance")

    def __init__(self) -> None:
        self.count = self.skipped = 0
        self.reach = self.seconds = self.variance = self.covariance = 0.0

    def add(self, reach: int, seconds: float, steepness: float) -> None:
        if self.count < _FIRST:
            if not self.count or seconds < self.seconds:
                self.reach, self.seconds = float(reach), seconds
            self.count += 1
            return
        expected = self.at(reach, steepness)
        # One step that the system interrupted says nothing about the next; many say a lot.
        if seconds > _OUTLIER * expected and self.skipped < 3:
            self.skipped += 1
            return
        self.skipped = 0
        self.count += 1
        rate = max(_RATE, 1 / self.count)
        by = reach - self.reach
        off = seconds - self.seconds
        self.reach += rate * by
        self.seconds += rate * off
        self.variance += rate * ((1 - rate) * by * by - self.variance)
        self.covariance += rate * ((1 - rate) * by * off - self.covariance)

    def at(self, reach: float, steepness: float) -> float:
        """Return what a step takes; ``steepness`` counts as far as its own is not known."""
        little = _SPREAD * _SPREAD * self.reach * self.reach + 1.0
        own = max((self.covariance + little * steepness) / (self.variance + little), 0.0)
        # A step never takes less for looking back on more.
        return max(self.seconds + own * (reach - self.reach), 0.3 * self.seconds)


class StepCost:
    """Seconds of a step by its tokens and by the positions that they look back on together.

    What was not measured yet is taken between its measured neighbours; beyond the largest it grows
    in proportion, which is never too little.
    """

    def __init__(self) -> None:
        self._sizes: dict[int, _Size] = {}
        self._known: list[int] = []
        self._steepness = 0.0

    def measured(self, tokens: int, reach: int, seconds: float) -> None:
        """Learn from a step that ran."""
        bucket = _bucket(tokens)
        size = self._sizes.get(bucket)
        if size is None:
            size = self._sizes[bucket] = _Size()
            self._known.insert(bisect_left(self._known, bucket), bucket)
        size.add(reach, seconds, self._steepness)
        sizes = self._sizes.values()
        variance = sum(each.variance for each in sizes)
        if variance:
            covariance = sum(each.covariance for each in sizes)
            self._steepness = max(covariance / variance, 0.0)

    def knows(self, tokens: int) -> bool:
        """Whether a step of about so many tokens was measured, the first one of all left aside."""
        size = self._sizes.get(_bucket(tokens))
        return size is not None and size.count > 1

    def seconds(self, tokens: int, reach: int = 0) -> float:
        """Return what a step is expected to take; 0 before anything was measured."""
        bucket = _bucket(tokens)
        size = self._sizes.get(bucket)
        if size is not None:
            return size.at(reach, self._steepness)
        known = self._known
        if not known:
            return 0.0
        place = bisect_left(known, bucket)
        if place == 0:
            return self._of(known[0], bucket, reach)
        low = known[place - 1]
        if place == len(known):
            return self._of(low, bucket, reach) * bucket / low
        high = known[place]
        share = (bucket - low) / (high - low)
        below, above = self._of(low, bucket, reach), self._of(high, bucket, reach)
        return below * (1 - share) + above * share

    def _of(self, size: int, bucket: int, reach: int) -> float:
        """Return what a step of another size takes whose tokens look back equally far."""
        return self._sizes[size].at(reach * size / bucket, self._steepness)

    def most(self, tokens: int, reach: int, more: int, seconds: float, start: int) -> int:
        """Return how many of ``more`` tokens can join a step that must not take longer.

        Args:
            tokens: that are in it already.
            reach: that these look back on.
            more: tokens that wait, of one sequence.
            seconds: the limit.
            start: position of the first of them.
        """
        low, high = 0, more
        while low < high:
            middle = (low + high + 1) // 2
            looked = reach + middle * start + middle * (middle + 1) // 2
            if self.seconds(tokens + middle, looked) <= seconds:
                low = middle
            else:
                high = middle - 1
        return low
