"""Results that are not there yet, in a world of forks."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from edgeinfer import forks
from edgeinfer.errors import RunError

T = TypeVar("T")


class Pending(Future[T]):
    """A future that never keeps a forked process waiting, where nobody settles it."""

    def __init__(self) -> None:
        super().__init__()
        # What it is settled with, as the base class keeps it behind a lock of the parent's. A call
        # that settles it would hold it, and so its outputs, until the collector comes.
        self._known: tuple[Callable[..., None], Any] | None = None
        forks.watch(self)

    def set_result(self, result: T) -> None:
        """As the base class."""
        self._known = Future.set_result, result
        super().set_result(result)

    def set_exception(self, exception: BaseException | None) -> None:
        """As the base class."""
        self._known = Future.set_exception, exception
        super().set_exception(exception)

    def forked(self) -> None:
        """Keep what is known, else be an error; who waits and is called back is in the parent."""
        known = self._known
        super().__init__()
        if known is not None:
            settle, value = known
            settle(self, value)
            return
        super().set_exception(
            RunError("it runs in the process that this one was forked from: run it here")
        )
