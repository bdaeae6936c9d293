"""Keeps what an encrypted bundle holds out of the core files of a process that fails."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

_FILTER = Path("/proc/self/coredump_filter")


def keep_out_of_core_dumps() -> None:
    """Let this process, and those that it starts, leave no memory in core files from now on.

    A limit of one byte, unlike none at all, also holds where the system pipes core files to a
    program. On Linux the kernel also knows which memory a core file has: none. The process stays
    readable for debuggers and children of the same user, through which engines that run apart open
    its files in memory.

    Source: core(5); fs/coredump.c of Linux.
    """
    if sys.platform == "win32":
        return
    import resource

    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    soft = 1 if hard == resource.RLIM_INFINITY or hard >= 1 else 0
    resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))
    # Other systems have no such file; the limit stands there.
    with contextlib.suppress(OSError):
        _FILTER.write_text("0")


def wipe(secret: bytearray) -> None:
    """Overwrite a secret where it lies."""
    secret[:] = bytes(len(secret))
