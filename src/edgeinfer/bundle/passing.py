"""Problems of a machine, which pass, apart from those of a model, which stay."""

from __future__ import annotations

import re

_PASSING = (
    # Of memory: NumPy's, C++'s, the kernel's and our own words; a process killed for it.
    r"out of memory|memory runs out|bad_alloc|bad allocation|unable to allocate|not enough memory"
    r"|(cannot|can't|could not|failed to) allocate|failed to allocate memory|allocation failed"
    r"|held in memory|memoryerror|std::length_error|enomem"
    # Of a disk.
    r"|no space left|disk quota|input/output error|read-only file system|stale file handle"
    # Of permissions and of what a process may have at once.
    r"|permission denied|operation not permitted|too many open files|resource temporarily"
    r"|cannot unpack|no process could be started|could not be opened anew"
    # Of time: a busy machine.
    r"|no answer for|no end after|timed out|did not end"
)


def is_passing(problem: str) -> bool:
    """Whether a problem is one of memory, disk, time or permission: gone when its cause is."""
    return bool(problem and re.search(_PASSING, problem, re.IGNORECASE))
