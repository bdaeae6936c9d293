"""What a process that works for another one tells it, and asks it for, meanwhile.

Whoever works there need not know whether anybody listens: where nobody does, messages are dropped.
"""

from __future__ import annotations

from typing import Any, Protocol


class Line(Protocol):
    """Reaches the other process."""

    def tell(self, kind: str, *content: Any) -> None:
        """Tell it."""

    def ask(self, kind: str, *content: Any) -> Any:
        """Tell it, and wait for what it says to that."""


_state: dict[str, Line | None] = {"line": None}


def announce(line: Line) -> None:
    """Set what takes each message: its kind, and what belongs to it."""
    _state["line"] = line


def line() -> Line | None:
    """Return it; None where nobody listens."""
    return _state["line"]


def tell(kind: str, *content: Any) -> None:
    """Tell whoever listens."""
    if (to := line()) is not None:
        to.tell(kind, *content)
