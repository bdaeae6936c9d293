"""The team of threads in a library of kernels; see ``convert/llm/team.c``."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from edgeinfer.errors import LoadError, NotAvailableError, RunError
from edgeinfer.types import Array

PHASE = np.dtype(
    [
        ("main", "<u8"),
        ("arguments", "<u8"),
        ("before", "<u8"),
        ("arguments_before", "<u8"),
        ("late", "<u8"),
        ("count", "<i4"),
        ("count_before", "<i4"),
        ("items", "<i4"),
        ("chunk", "<i4"),
        ("extra", "<i4"),
        ("zero", "<i4"),
    ]
)
"""A phase as the library has it."""

SPAN = 16
"""Numbers of 32 bits from one span to the next; a thread has two."""

_SPINS = 20000
"""Looks for the next step before a thread sleeps: some tens of microseconds."""

TILES = "amx_tile"
"""The feature of a processor whose state a process has to ask for."""

_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18
"""Numbers of Linux on x86-64; see Documentation/arch/x86/xstate.rst."""


def ask_for_tiles() -> None:
    """Ask the system to let this process and its children use AMX tiles.

    Raises:
        NotAvailableError: it does not.
    """
    system = ctypes.CDLL(None, use_errno=True)
    asked = map(ctypes.c_long, (_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA))
    if system.syscall(*asked):
        why = os.strerror(ctypes.get_errno())
        raise NotAvailableError(f"the system does not let this process use AMX tiles: {why}")


class Team:
    """Threads that run tapes, the caller's own among them.

    Args:
        path: Path of the library.
        threads: how many.
        phases: Phases of a tape, at most.

    Attributes:
        library: Library of the kernels.
        best: Address of the phase that looks for the largest logits.

    Raises:
        LoadError: the library cannot be loaded.
        NotAvailableError: memory or threads lack.
    """

    def __init__(self, path: Path, threads: int, phases: int) -> None:
        try:
            library = ctypes.CDLL(str(path))
        except OSError as e:
            raise LoadError(f"{path}: {e}") from e
        library.team_new.restype = library.team_spans.restype = ctypes.c_void_p
        library.team_new.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long]
        for name in ("team_spans", "team_free"):
            getattr(library, name).argtypes = [ctypes.c_void_p]
        library.team_free.restype = None
        library.team_run.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_int, ctypes.c_void_p]
        self.library, self.threads = library, threads
        self._run = library.team_run
        self.best = self.function("logits_best", "")
        self._team = library.team_new(threads, phases, _SPINS)
        if not self._team:
            raise NotAvailableError(f"a team of {threads} threads cannot be started here")

    def function(self, kernel: str, stem: str = "__tvm_ffi_") -> int:
        """Address of a kernel, or of a function in C, whose names have no stem.

        Raises:
            LoadError: the library has none of that name.
        """
        try:
            symbol = self.library[stem + kernel]
        except AttributeError as e:
            raise LoadError(f"the library of kernels lacks {kernel!r}") from e
        return int(ctypes.cast(symbol, ctypes.c_void_p).value or 0)

    def spans(self) -> list[tuple[int, int]]:
        """Addresses of each thread's spans."""
        base, size = self.library.team_spans(self._team), SPAN * 4
        return [(base + 2 * t * size, base + (2 * t + 1) * size) for t in range(self.threads)]

    def set_rows(self, spans: Iterable[tuple[int, int]], length: int) -> None:
        """Tell all threads the length of a table's row."""
        for pair in spans:
            for place in pair:
                ctypes.cast(place, ctypes.POINTER(ctypes.c_int32))[3] = length

    def run(self, phases: int, count: int, times: Array | None = None) -> None:
        """Run a tape.

        Args:
            phases: Address of its phases, of ``PHASE``.
            count: how many.
            times: (phases,) float64, added to in microseconds.

        Raises:
            RunError: a kernel failed.
        """
        given = None if times is None else times.ctypes.data
        if self._run(self._team, phases, count, given):
            raise RunError("a kernel of the language model failed")

    def close(self) -> None:
        """End the threads."""
        team, self._team = self._team, None
        if team:
            self.library.team_free(team)
