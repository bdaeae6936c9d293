"""The engines that run what was written, each where it can do no harm."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

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


@contextmanager
def opened(names: Sequence[str]) -> Iterator[list[Backend]]:
    """Give the backends of these names; their processes end with the block.

    Raises:
        NotAvailableError: a plugin cannot be used.
    """
    if not apart():
        yield [registry.get(name) for name in names]
        return
    with ExitStack() as stack:
        yield [
            stack.enter_context(IsolatedBackend(name, run_s=_PATIENCE_S, load_s=_PATIENCE_S))
            for name in names
        ]
