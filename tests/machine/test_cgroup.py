"""How many CPUs a process may keep busy."""

from __future__ import annotations

import os

import pytest

from edgeinfer.machine import cgroup


@pytest.mark.parametrize(("quota", "cpus"), [(0.5, 1), (1.5, 1), (2.0, 2), (64.0, 4), (None, 4)])
def test_a_quota_counts_whole_cpus(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, cpus: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)), raising=False)
    monkeypatch.setattr(cgroup, "cpu_quota", lambda _: quota)
    assert cgroup.available_cpus() == cpus
