"""TVM: the functions that a program of its virtual machine calls, timed as it calls them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from edgeinfer.backends.engines import import_tvm_runtime
from edgeinfer.backends.operators import (
    Operator,
    OperatorProfile,
    Role,
    role_of,
    timed,
    undisturbed,
)

ONE_FUNCTION = (
    "a library over fixed shapes is one function, and TVM's runtime has no clock inside of it; "
    "the same model with an open size is a program whose functions are timed"
)

_BUILTIN = "vm.builtin."
_ROLES: dict[str, Role] = {
    "transpose": "transpose",
    "vm.builtin.copy": "copy",
    "vm.builtin.to_device": "copy",
    "cast": "convert",
}


class FunctionWatch:
    """Called by the machine before and after each function."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, float]] = []
        # When each function under way began, and what functions inside of it took.
        self._open: list[list[float]] = []

    def __call__(
        self, function: Any, name: str, before: bool, result: Any, *arguments: Any
    ) -> None:
        """Note the moment; a function's own time is without what it calls."""
        if before:
            self._open.append([time.perf_counter(), 0.0])
            return
        end = time.perf_counter()
        start, inside = self._open.pop()
        if self._open:
            self._open[-1][1] += end - start
        self.steps.append((str(name), (end - start - inside) * 1e6))


def profile(machine: Any, run: Callable[[], object], unit: str, *, runs: int) -> OperatorProfile:
    """Run a program with TVM's instrument set.

    Args:
        machine: the module that the program was opened as.
        run: runs it once.
        unit: where it runs.
        runs: to time.
    """
    warm = max(1, runs // 4)
    timed(run, warm)
    plain_us = float(np.median(timed(run, runs)))
    watch = FunctionWatch()
    machine["set_instrument"](import_tvm_runtime().convert(watch))
    timed(run, warm)
    spent, recorded = [], []
    for _ in range(runs):
        watch.steps.clear()
        spent += timed(run, 1)
        recorded.append(list(watch.steps))
    kept = undisturbed(spent)
    operators = _operators([recorded[i] for i in kept], unit)
    whole_us = float(np.mean([spent[i] for i in kept]))
    note = "times of functions hold what telling of them costs, about a microsecond each"
    if unit != "cpu":
        note = "on a GPU these are times to start the work"
    return OperatorProfile("TVM's instrument", operators, runs, whole_us, plain_us, note)


def _operators(runs: list[list[tuple[str, float]]], unit: str) -> tuple[Operator, ...]:
    """Put the runs together; a program that decides by data calls more in one than in another."""
    totals: dict[str, list[float]] = {}
    for place, steps in enumerate(runs):
        for name, us in steps:
            totals.setdefault(name, [0.0] * len(runs))[place] += us
    return tuple(
        Operator(name, name.removeprefix(_BUILTIN), unit, float(np.mean(us)), "", _role(name))
        for name, us in totals.items()
    )


def _role(name: str) -> Role:
    if name.startswith(_BUILTIN) and name not in _ROLES:
        return "manage"
    return role_of(name.rstrip("0123456789_"), _ROLES)
