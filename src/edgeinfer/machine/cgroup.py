"""What a container or a service may use of the machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from edgeinfer.machine.sysfs import indices, number, text
from edgeinfer.records import dataclass

_NO_LIMIT = 1 << 60
"""Version 1 writes a number near 2^63 for "no limit"."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of this process's control group and all above it.

    Attributes:
        cpus: share of CPUs by quota, e.g. 1.5; None without a quota.
        cpu_list: CPUs it may run on; empty means all.
        memory_bytes: None without a limit.
        memory_used_bytes: Used by the group that has the limit; None when unknown.
    """

    cpus: float | None = None
    cpu_list: tuple[int, ...] = ()
    memory_bytes: int | None = None
    memory_used_bytes: int | None = None


def read_limits(root: Path) -> Limits:
    """Read control groups of version 1 or 2.

    Args:
        root: Root of the file system.
    """
    memory: list[tuple[int, int | None]] = []
    cpus: tuple[int, ...] = ()
    for folder in _folders(root, "memory"):
        for limit, usage in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            value = number(folder / limit)
            if value is not None and value < _NO_LIMIT:
                memory.append((value, number(folder / usage)))
    for folder in _folders(root, "cpuset"):
        names = ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus")
        cpus = cpus or next(filter(None, (indices(text(folder / n)) for n in names)), ())
    # The tightest limit counts: the one with the least left.
    least = min(memory, key=lambda m: m[0] - (m[1] or 0), default=(None, None))
    return Limits(cpu_quota(root), cpus, *least)


def available_cpus() -> int:
    """Return how many CPUs this process may keep busy: its affinity and its cgroup's quota.

    A quota of 1.5 CPUs gives one: two threads would both stand still for a quarter of the time.
    """
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    quota = cpu_quota(Path("/"))
    return max(1, count if quota is None else min(count, int(quota)))


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """The group's folder and all above it, of version 2 and of version 1."""
    base = root / "sys/fs/cgroup"
    for line in text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and controller not in controllers.split(","):
            continue
        top = base / controller if controllers else base
        # Inside a container its own group is mounted at the top, whatever its path outside.
        parts = [p for p in path.split("/") if p and p != ".."]
        for length in range(len(parts), 0, -1):
            yield top.joinpath(*parts[:length])
    yield base
    yield base / controller


def cpu_quota(root: Path) -> float | None:
    """Return the share of CPUs that this process may use, e.g. 1.5; None without a quota."""
    folders = _folders(root, "cpu")
    return min((quota for folder in folders for quota in _quota(folder)), default=None)


def _quota(folder: Path) -> Iterator[float]:
    quota, _, period = text(folder / "cpu.max").partition(" ")
    if quota.isdigit() and period.isdigit() and int(period):
        yield int(quota) / int(period)
    old, span = number(folder / "cpu.cfs_quota_us"), number(folder / "cpu.cfs_period_us")
    if old is not None and span and old > 0:
        yield old / span
