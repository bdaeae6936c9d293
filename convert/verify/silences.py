"""Which witness gave no answer, why, and what judges in its place."""

from __future__ import annotations

from collections import Counter
from typing import Literal

Role = Literal["answer", "near", "shaken", "overflow", "defined", "rounding", "vote"]

_INSTEAD: dict[Role, str] = {
    "near": "these draws do not say what rounding alone decides",
    "shaken": "these draws do not say what the last bits of scores decide",
    "overflow": "float64 alone judges where float32 is left",
    "defined": "no rounded evaluation confirms float64, so others vote",
    "rounding": "the distance of both oracles says what rounding moves",
    "vote": "it has no vote",
}
"""By what was asked; who gives no answer itself is named next to the answers."""


class Silences:
    """Counts them, in the order in which they came."""

    def __init__(self) -> None:
        self._count: Counter[tuple[Role, str, str]] = Counter()
        self._broken: Counter[str] = Counter()

    def add(self, role: Role, witness: str, why: str, *, broke: bool) -> None:
        """Note one.

        Args:
            role: What was requested.
            witness: Whose answer is missing.
            why: Half a sentence.
            broke: Whether it failed at what it should do, rather than lacks an operator, a type,
                time or an installation.
        """
        if broke:
            self._broken[f"{witness} failed: {why}"] += 1
        if role in _INSTEAD:
            self._count[role, witness, why] += 1

    @property
    def lines(self) -> list[str]:
        """What was not answered, a sentence each."""
        return [
            f"{witness} gave no answer {_times(count)} ({why}): {_INSTEAD[role]}"
            for (role, witness, why), count in self._count.items()
        ]

    @property
    def faults(self) -> list[str]:
        """What failed that should not, a sentence each."""
        return [
            f"an oracle is broken: {line} ({_times(count)}); what else judged is in the report"
            for line, count in self._broken.items()
        ]


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
