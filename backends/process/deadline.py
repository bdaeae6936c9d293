"""A time limit on what cannot be interrupted: the process that waits ends the one that works.

What calls an engine says so here. In a process that is worked in for another one, that one learns
of it, and ends this one when the time is up. In any other process nothing happens: whoever is the
user's own process is not ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from edgeinfer.backends.process.channel import tell


@contextmanager
def deadline(seconds: float, what: str) -> Iterator[None]:
    """Let what is done inside take so long, where somebody can end it.

    Args:
        seconds: that it may take.
        what: for the message to the user.
    """
    tell("limit", seconds, what)
    try:
        yield
    finally:
        tell("limit", None, what)
