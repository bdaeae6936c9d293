"""What a step costs on this device, learned from the steps that ran."""

from __future__ import annotations

from bisect import bisect_left

EXACT = 16
"""Up to so many tokens each count has a figure of its own: kernels have widths of 1, 2, 4 and 8."""

_RATE = 0.2
_RATE_OF_MEAN = 0.02
_OUTLIER = 4.0
_FIRST = 3
"""Steps of a size of which the fastest counts: the very first one also makes things ready."""


def _bucket(tokens: int) -> int:
    """Return a token count that shares its figure: exact up to 16, then eight an octave."""
    if tokens <= EXACT:
        return tokens
    grain = 1 << (tokens.bit_length() - 4)
    return (tokens + grain - 1) // grain * grain


class StepCost:
    """Seconds of a step by its tokens and what they look back on.

    A step of ``tokens`` that together look back on ``reach`` positions takes
    ``base[tokens] + slope * reach``. What was not measured yet is taken between its measured
    neighbours; beyond the largest it grows in proportion, which is never too little.
    """

    def __init__(self) -> None:
        self._base: dict[int, float] = {}
        self._known: list[int] = []
        self._seen: dict[int, int] = {}
        self._slope = 0.0
        self._usual_reach = 0.0
        self._skipped = 0

    def measured(self, tokens: int, reach: int, seconds: float) -> None:
        """Learn from a step that ran, by normalised least mean squares (Widrow and Hoff 1960)."""
        bucket = _bucket(tokens)
        rate = _RATE_OF_MEAN if self._usual_reach else 1.0
        self._usual_reach += rate * (reach - self._usual_reach)
        seen = self._seen.get(bucket, 0)
        if seen < _FIRST:
            self._seen[bucket] = seen + 1
            base = max(seconds - self._slope * reach, seconds * 0.1)
            if not seen:
                self._known.insert(bisect_left(self._known, bucket), bucket)
            self._base[bucket] = min(base, self._base.get(bucket, base))
            return
        before = self._base[bucket]
        expected = before + self._slope * reach
        error = seconds - expected
        # One step that the system interrupted says nothing about the next; many say a lot.
        if error > (_OUTLIER - 1) * expected and self._skipped < 3:
            self._skipped += 1
            return
        self._skipped = 0
        scale = max(self._usual_reach, 1.0)
        relative = reach / scale
        change = _RATE * error / (1 + relative * relative)
        self._base[bucket] = max(before + change, 1e-9)
        self._slope = max(0.0, self._slope + change * relative / scale)

    def knows(self, tokens: int) -> bool:
        """Whether a step of about so many tokens was measured, the first one of all left aside."""
        return self._seen.get(_bucket(tokens), 0) > 1

    def seconds(self, tokens: int, reach: int = 0) -> float:
        """Return what a step is expected to take; 0 before anything was measured."""
        return self._at(_bucket(tokens)) + self._slope * reach

    def _at(self, bucket: int) -> float:
        found = self._base.get(bucket)
        if found is not None:
            return found
        known = self._known
        if not known:
            return 0.0
        place = bisect_left(known, bucket)
        if place == 0:
            return self._base[known[0]]
        low = known[place - 1]
        if place == len(known):
            return self._base[low] * bucket / low
        high = known[place]
        share = (bucket - low) / (high - low)
        return self._base[low] * (1 - share) + self._base[high] * share

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
