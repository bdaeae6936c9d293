"""The engines that run what was written, each where it can do no harm."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from contextlib import ExitStack

from edgeinfer.backends import child, registry
from edgeinfer.backends.base import Backend
from edgeinfer.backends.isolated import IsolatedBackend

IN_PROCESS = "EDGEINFER_IN_PROCESS"
"""Set it to anything to debug a conversion: all of it then happens in the calling process."""

_PATIENCE_S = 600.0
"""For loading and for one run: an engine that hangs fails the gate."""


def apart() -> bool:
    """Whether parts of a conversion get processes of their own."""
    return child.SUPPORTED and not os.environ.get(IN_PROCESS)


def in_turn(wanted: Sequence[Sequence[str]]) -> Generator[list[Backend], None, None]:
    """Give the backends of each artifact; their processes end when the next are asked for.

    Those of the next artifact start while the one at hand is run. Close the iterator.

    Raises:
        NotAvailableError: a plugin cannot be used.
    """
    if not apart():
        for names in wanted:
            yield [registry.get(name) for name in names]
    elif wanted:
        yield from _apart(wanted)


def _apart(wanted: Sequence[Sequence[str]]) -> Generator[list[Backend], None, None]:
    with ExitStack() as next_ends:
        upcoming = _started(wanted[0], next_ends)
        for names in (*wanted[1:], ()):
            with next_ends.pop_all():
                current, upcoming = upcoming, _started(names, next_ends)
                yield current


def _started(names: Sequence[str], ends: ExitStack) -> list[Backend]:
    backends = [IsolatedBackend(name, run_s=_PATIENCE_S, load_s=_PATIENCE_S) for name in names]
    for backend in backends:
        ends.enter_context(backend).start()
    return [*backends]
