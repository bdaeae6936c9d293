"""The cheapest way to give every variable one of two labels: a minimum cut (Dinic 1970)."""

from __future__ import annotations

from collections import deque

INFINITE = 1 << 62

FIRST, LAST = 0, 1
"""The labels, and the variables whose label they are: 0 always gets FIRST, 1 always LAST."""


class Labelling:
    """Costs between variables; ``solve`` finds labels of the lowest total cost."""

    def __init__(self) -> None:
        # Edges in pairs: an edge and its reverse are ``e`` and ``e ^ 1``.
        self._head: list[int] = []
        self._room: list[int] = []
        self._edges: list[list[int]] = [[], []]

    def variable(self) -> int:
        """Add a variable."""
        self._edges.append([])
        return len(self._edges) - 1

    def cost(self, first: int, last: int, amount: int) -> None:
        """Charge ``amount`` where ``first`` is labelled FIRST and ``last`` is labelled LAST."""
        if amount <= 0 or first == last:
            return
        self._edges[first].append(len(self._head))
        self._head.append(last)
        self._room.append(amount)
        self._edges[last].append(len(self._head))
        self._head.append(first)
        self._room.append(0)

    def solve(self) -> list[int]:
        """Return the label of each variable; LAST where both cost the same."""
        while (levels := self._levels())[LAST] >= 0:
            starts = [0] * len(self._edges)
            while self._push(levels, starts):
                pass
        return [FIRST if level >= 0 else LAST for level in levels]

    def _levels(self) -> list[int]:
        levels = [-1] * len(self._edges)
        levels[FIRST] = 0
        queue = deque([FIRST])
        while queue:
            at = queue.popleft()
            for edge in self._edges[at]:
                to = self._head[edge]
                if self._room[edge] and levels[to] < 0:
                    levels[to] = levels[at] + 1
                    queue.append(to)
        return levels

    def _push(self, levels: list[int], starts: list[int]) -> bool:
        """Send flow along one shortest path; False when there is none left."""
        path: list[int] = []
        at = FIRST
        while at != LAST:
            edges = self._edges[at]
            while starts[at] < len(edges):
                edge = edges[starts[at]]
                if self._room[edge] and levels[self._head[edge]] == levels[at] + 1:
                    break
                starts[at] += 1
            else:
                if not path:
                    return False
                # A dead end: step back and try the next edge there.
                at = self._head[path.pop() ^ 1]
                starts[at] += 1
                continue
            path.append(edge)
            at = self._head[edge]
        amount = min(self._room[e] for e in path)
        for edge in path:
            self._room[edge] -= amount
            self._room[edge ^ 1] += amount
        return True
