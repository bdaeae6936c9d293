"""The time of an artifact of integers against the float model's, on one engine of this machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

from edgeinfer.backends.base import Artifact, Backend, Executable, LoadOptions, Timed, able
from edgeinfer.backends.process import guard
from edgeinfer.errors import BackendError
from edgeinfer.types import Feeds

_PAIRS = 15
_PATIENCE_S = 2.0


def times_slower(
    backends: Sequence[Backend], artifact: Artifact, plain: Artifact, feeds: Feeds
) -> float | None:
    """Return how many times as long as the float model's a run takes; None where nothing says it.

    The two take turns, so that whatever else the machine does slows both.

    Args:
        backends: that run both; the first one that is here and keeps time is asked.
        artifact: Artifact of integers.
        plain: the float model for the same engine.
        feeds: Feeds of each run.
    """
    engine = next(
        (b for b in backends if b.probe().available and b.capabilities().keeps_time), None
    )
    if engine is None:
        return None
    opened: list[Executable] = []
    try:
        for one in (artifact, plain):
            executable = guard.load(engine, one, LoadOptions(), check_answers=False)
            opened.append(executable)
        return _ratio(opened[0], opened[1], feeds)
    except BackendError:
        # The gate has said what is to be said of the artifact; a time alone is missing.
        return None
    finally:
        for executable in opened:
            executable.close()


def _ratio(first: Executable, second: Executable, feeds: Feeds) -> float:
    pairs: list[float] = []
    until = time.perf_counter() + _PATIENCE_S
    for executable in (first, second):
        executable.run(feeds)
    while len(pairs) < _PAIRS and (len(pairs) < 3 or time.perf_counter() < until):
        pairs.append(_seconds(first, feeds) / max(_seconds(second, feeds), 1e-9))
    return statistics.median(pairs)


def _seconds(executable: Executable, feeds: Feeds) -> float:
    start = time.perf_counter()
    executable.run(feeds)
    wall = time.perf_counter() - start
    return executable.last_run_s if able(executable, Timed) else wall
