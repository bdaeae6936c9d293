"""In which process an engine runs: the caller's, or one of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

SUPPORTED = os.name == "posix" and bool(sys.executable) and not getattr(sys, "frozen", False)
"""Whether this interpreter can start another like itself with descriptors that it inherits."""

IN_PROCESS = "EDGEINFER_IN_PROCESS"
"""Set it to anything for a debugger: what gets processes of its own then happens in the calling
one, and no time limit can end it."""

TIMEOUT_S = 600
"""The first run of the largest models takes seconds; a child that hangs is a fault of the file."""

_state = {"expendable": False, "untried": False}


def apart() -> bool:
    """Whether what may crash, or never end, gets a process of its own."""
    return SUPPORTED and not os.environ.get(IN_PROCESS)


def is_expendable() -> bool:
    """Whether this process is here so that an engine may end it."""
    return _state["expendable"]


def make_expendable() -> None:
    """Say so."""
    _state["expendable"] = True


@contextmanager
def all_here() -> Iterator[None]:
    """Convert in the block: where the user wants one process, what is written has no trial either.

    A conversion in processes of its own has none, since those that run artifacts are expendable.
    """
    before = _state["untried"]
    _state["untried"] = before or bool(os.environ.get(IN_PROCESS))
    try:
        yield
    finally:
        _state["untried"] = before


def needs_trial() -> bool:
    """Whether a new file is first tried in a process of its own."""
    return not (_state["expendable"] or _state["untried"])
