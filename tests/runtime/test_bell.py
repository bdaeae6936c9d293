"""A loop is woken once for all calls that come before it has been."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from edgeinfer.runtime.bell import Bell


def test_a_loop_is_woken_once_for_many_calls() -> None:
    woken: list[Callable[[], None]] = []
    loop: Any = SimpleNamespace(call_soon_threadsafe=woken.append)
    bell, called = Bell(loop), list[int]()
    for turn in range(2):
        for number in range(16):
            bell.ring(lambda n=number: called.append(n))  # type: ignore[misc]
        assert len(woken) == turn + 1
        woken[turn]()
        assert called == [*range(16)] * (turn + 1)


def test_a_closed_loop_is_let_be() -> None:
    def closed(_: Any) -> None:
        raise RuntimeError("Event loop is closed")

    loop: Any = SimpleNamespace(call_soon_threadsafe=closed)
    Bell(loop).ring(lambda: None)
