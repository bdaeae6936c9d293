"""Guesses of what comes next, to be verified several tokens a step.

A guess is accepted only where it is the token that would have been chosen anyway, so guesses change
how fast a text comes and never the text.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgeinfer.runtime.llm.cost import StepCost

LONGEST = 8
"""Tokens guessed at once."""

_ORDER = (4, 3, 2)
_START = 0.6
_RATE = 0.15


class Lookup:
    """Guesses by copying what followed the last few tokens before (prompt lookup).

    Source: Saxena 2023, prompt lookup decoding.
    """

    def __init__(self) -> None:
        self._after: dict[tuple[int, ...], int] = {}
        self._read = 0

    def guess(self, tokens: Sequence[int], count: int) -> list[int]:
        """Return up to ``count`` tokens that may follow ``tokens``, which only ever grow."""
        end = len(tokens)
        # What ends at the last token has no successor yet, and must not find itself.
        for place in range(self._read, end - 1):
            for order in _ORDER:
                if place + 1 >= order:
                    self._after[tuple(tokens[place + 1 - order : place + 1])] = place + 1
        self._read = max(self._read, end - 1)
        for order in _ORDER:
            if end >= order:
                at = self._after.get(tuple(tokens[end - order : end]))
                if at is not None:
                    return self._copy(tokens, at, count)
        return []

    @staticmethod
    def _copy(tokens: Sequence[int], at: int, count: int) -> list[int]:
        """Return what follows; where it reaches the end, it repeats what it has copied."""
        found = list(tokens[at : at + count])
        period = len(tokens) - at
        while len(found) < count:
            found.append(found[len(found) - period])
        return found


class Acceptance:
    """How often guesses of one sequence came true, the last ones counting most."""

    def __init__(self) -> None:
        self.rate = _START

    def seen(self, accepted: int, guessed: int) -> None:
        """Learn: of ``guessed`` tokens in a row the first ``accepted`` came true."""
        for _ in range(accepted):
            self.rate += _RATE * (1 - self.rate)
        if accepted < guessed:
            self.rate -= _RATE * self.rate


def worthwhile(
    rates: Sequence[float],
    lengths: Sequence[int],
    tokens: int,
    reach: int,
    cost: StepCost,
    most: int,
) -> list[int]:
    """Say how many guessed tokens of each sequence to verify in this step.

    The ones most likely to be accepted come first; as many are taken as give the most tokens a
    second.

    Args:
        rates: Rates of acceptance, by sequence.
        lengths: tokens guessed, by sequence.
        tokens: in the step without guesses.
        reach: positions that these look back on.
        cost: Cost of steps.
        most: guessed tokens that still fit into the step.
    """
    offers = sorted(
        (
            (rate ** (place + 1), which)
            for which, rate in enumerate(rates)
            for place in range(lengths[which])
        ),
        key=lambda offer: -offer[0],
    )[:most]
    counts = [0] * len(rates)
    sequences = max(len(rates), 1)
    gained = 0.0
    best, best_speed = 0, sequences / max(cost.seconds(tokens, reach), 1e-12)
    for place, (likely, _) in enumerate(offers, 1):
        gained += likely
        if not cost.knows(tokens + place):
            # Never measured: try it once, where it could pay at all.
            if gained >= 0.5 * place:
                best = place
            break
        speed = (sequences + gained) / max(cost.seconds(tokens + place, reach), 1e-12)
        if speed > best_speed:
            best, best_speed = place, speed
    for _, which in offers[:best]:
        counts[which] += 1
    return counts
