"""A CUDA driver that keeps a device's memory on the host: copies, streams and recorded graphs."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest

from edgeinfer.machine import cuda


def _number(value: Any) -> int:
    return int(getattr(value, "value", value) or 0)


class Driver:
    """What ``backends.cuda`` calls.

    Attributes:
        calls: names, in order.
        failing: the name of a call that fails; empty for none.
        memory: pieces of the device, by address.
        recorded: work of a graph that is being recorded; None outside of one.
        launches: of graphs.
    """

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.failing = ""
        self.memory: dict[int, Any] = {}
        self.recorded: list[Callable[[], None]] | None = None
        self.launches = 0
        self._graphs: dict[int, list[Callable[[], None]]] = {}
        self._next = 100

    def __getattr__(self, name: str) -> Callable[..., int]:
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*arguments: Any) -> int:
            self.calls.append(name)
            if name == self.failing:
                return 2
            work = getattr(self, f"_do_{name}", None)
            return 0 if work is None else int(work(*arguments) or 0)

        return call

    def enqueue(self, work: Callable[[], None]) -> None:
        """Do work of a stream, or note it for the graph that is being recorded."""
        if self.recorded is None:
            work()
        else:
            self.recorded.append(work)

    def _do_cuMemAlloc_v2(self, target: Any, size: Any) -> None:  # noqa: N802
        # Not zeros: what nobody has written must not look right.
        piece = ctypes.create_string_buffer(b"\x55" * _number(size), _number(size))
        target._obj.value = ctypes.addressof(piece)
        self.memory[target._obj.value] = piece

    def _do_cuMemFree_v2(self, address: Any) -> None:  # noqa: N802
        del self.memory[_number(address)]

    def _do_cuStreamCreate(self, target: Any, flags: Any) -> None:  # noqa: N802
        self._next += 1
        target._obj.value = self._next

    def _do_cuMemcpyHtoDAsync_v2(self, to: Any, source: Any, size: Any, _: Any) -> None:  # noqa: N802
        ctypes.memmove(_number(to), _number(source), _number(size))

    def _do_cuMemcpyDtoHAsync_v2(self, to: Any, source: Any, size: Any, _: Any) -> None:  # noqa: N802
        ctypes.memmove(_number(to), _number(source), _number(size))

    def _do_cuStreamBeginCapture_v2(self, stream: Any, mode: Any) -> None:  # noqa: N802
        self.recorded = []

    def _do_cuStreamEndCapture(self, stream: Any, target: Any) -> None:  # noqa: N802
        self._next += 1
        target._obj.value = self._next
        self._graphs[self._next] = self.recorded or []
        self.recorded = None

    def _do_cuGraphInstantiateWithFlags(self, target: Any, graph: Any, flags: Any) -> None:  # noqa: N802
        target._obj.value = _number(graph)

    def _do_cuGraphLaunch(self, graph: Any, stream: Any) -> None:  # noqa: N802
        self.launches += 1
        for work in self._graphs[_number(graph)]:
            work()


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    """A driver in the place of the system's."""
    found = Driver()
    monkeypatch.setattr(cuda, "_driver", lambda: found)
    return found
