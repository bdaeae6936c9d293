"""How often Python looks for garbage: seldom in processes that are ours alone, not in imports."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


def look_seldom() -> None:
    """Look among new objects when there are 10,000, not 700: a tenth of the time of a conversion.

    Nearly all that is made stays: modules, graphs, what is known of them.
    """
    gc.set_threshold(10_000, 20, 20)


@contextmanager
def collector_paused() -> Iterator[None]:
    """Import large packages without looking for garbage among what stays: a tenth of their time.

    A process that has frozen what it imported before never looks among this either.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if gc.get_freeze_count():
            gc.freeze()
        if was_enabled:
            gc.enable()
