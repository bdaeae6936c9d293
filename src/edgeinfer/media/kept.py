"""What is computed once for each size of image, in so many bytes and no more.

Whoever sends images chooses their sizes: a bound of entries says nothing of what they take.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Protocol, TypeVar

from edgeinfer import forks


class Sized(Protocol):
    """An object that says how many bytes its arrays take."""

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        ...


T = TypeVar("T", bound=Sized)

MOST = 8 << 20
"""Bytes that are kept of the answers of one function; one image is resized by some 50 kB."""


def by_bytes(made: Callable[..., T]) -> Callable[..., T]:
    """Keep the answers of a function of hashable arguments, those last asked for, up to ``MOST``.

    Threads may call it; a larger answer than that is not kept.
    """
    kept, lock, total = OrderedDict[Hashable, T](), forks.lock(), 0

    @functools.wraps(made)
    def found(*args: Hashable, **more: Hashable) -> T:
        nonlocal total
        key = (args, *more.items())
        with lock:
            if (known := kept.get(key)) is not None:
                kept.move_to_end(key)
                return known
        new = made(*args, **more)
        with lock:
            # Another thread may have made the same meanwhile.
            if new.nbytes <= MOST and key not in kept:
                kept[key] = new
                total += new.nbytes
            while total > MOST:
                total -= kept.popitem(last=False)[1].nbytes
        return new

    return found
