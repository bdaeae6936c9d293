"""Whose turn it is: in each round of a queue every owner has one place."""

from __future__ import annotations


class Rounds:
    """Rounds of one queue, whose entries run in their order.

    An owner's entries stand one behind the other, the first of them in the round that is under way.
    So who has requested much waits for its own entries, and another one's first runs next.
    """

    def __init__(self) -> None:
        self._now = 0
        self._next: dict[bytes, int] = {}

    def of(self, owner: bytes) -> int:
        """Return the round of the next entry of an owner; for nobody that is the present one."""
        return max(self._now, self._next.get(owner, 0)) if owner else self._now

    def take(self, owner: bytes, number: int) -> None:
        """Note that an entry of an owner has its place in a round."""
        if owner:
            self._next[owner] = number + 1

    def reach(self, number: int) -> None:
        """Note that an entry of a round runs."""
        self._now = max(self._now, number)
