"""How many threads an engine gets, and on which cores: never more than this process may use."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence

from edgeinfer.machine.cgroup import available_cpus
from edgeinfer.machine.cpu import Cluster
from edgeinfer.records import dataclass

_FAST = 0.8
"""Share of the fastest core's speed from which one counts as fast: cores of one kind differ a
little by the clock that each may reach."""


@dataclass(frozen=True, slots=True)
class Cores:
    """Threads of an engine.

    Attributes:
        threads: how many.
        cpus: where they run, fast ones first; empty where all cores are alike.
        note: what was requested and is not given; empty where nothing was.
    """

    threads: int
    cpus: tuple[int, ...] = ()
    note: str = ""


def plan_cores(
    asked: int | None, may_use: int, allowed: Sequence[int], clusters: Sequence[Cluster]
) -> Cores:
    """Say how many threads and on which cores; a function of its arguments alone.

    Fast cores come first. Where nothing is requested, slow ones are left out: a step that is split
    evenly waits for its slowest part.

    Args:
        asked: threads; None leaves it to this.
        may_use: CPUs that this process may keep busy, its container's quota heeded.
        allowed: CPUs that it may run on.
        clusters: kinds of cores, fastest first.
    """
    here = [(_speed(kind), [cpu for cpu in kind.cpus if cpu in allowed]) for kind in clusters]
    here = [(speed, cpus) for speed, cpus in here if cpus]
    most = max((speed for speed, _ in here), default=0)
    fast = [cpu for speed, cpus in here if speed >= _FAST * most for cpu in cpus]
    slow = [cpu for speed, cpus in here if speed < _FAST * most for cpu in cpus]
    threads = may_use if asked is None else min(asked, may_use)
    note = ""
    if asked is not None and threads < asked:
        cpus = "1 CPU" if may_use == 1 else f"{may_use} CPUs"
        note = f"{asked} threads were requested, this process may keep {cpus} busy"
    if not slow:
        return Cores(threads, (), note)
    if asked is None:
        threads = min(threads, len(fast))
    return Cores(threads, tuple([*fast, *slow][:threads]), note)


def _speed(kind: Cluster) -> int:
    return kind.capacity or kind.max_mhz or 0


def cores_here(asked: int | None, clusters: Sequence[Cluster]) -> Cores:
    """Plan for this process, as it may run now."""
    may_use = available_cpus()
    if hasattr(os, "sched_getaffinity"):
        allowed: Sequence[int] = sorted(os.sched_getaffinity(0))
    else:
        allowed = range(os.cpu_count() or 1)
    return plan_cores(asked, may_use, allowed, clusters)


@contextlib.contextmanager
def on_cores(cpus: Sequence[int]) -> Iterator[None]:
    """Have threads that are started inside run on some cores; the caller's own are as before after.

    Engines start their workers when they load, and a thread inherits where it may run.
    """
    if not cpus or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, cpus)
    except OSError:
        # A core that was switched off meanwhile, or a system that forbids it.
        yield
        return
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
