"""How many threads on which cores, of recorded and made-up devices."""

import os
from pathlib import Path
from typing import Any

import pytest

import edgeinfer
from edgeinfer.machine.cores import Cores, on_cores, plan_cores
from edgeinfer.machine.cpu import Cluster, Cpu
from edgeinfer.machine.fingerprint import Facts, read_facts
from edgeinfer.runtime import choice
from tests.machine.recorded import record

PHONE = (
    Cluster("X3", (8,), 2914),
    Cluster("A715", (4, 5, 6, 7), 2367),
    Cluster("A510", (0, 1, 2, 3), 1704),
)
LAPTOP = (Cluster("P", (0, 1), 5000), Cluster("E", (2, 3, 4, 5), 3700))
SERVER = (Cluster("", (0, 1), 3800), Cluster("", (2, 3), 3500))


def test_slow_cores_are_left_out_unless_asked_for() -> None:
    assert plan_cores(None, 9, range(9), PHONE) == Cores(5, (8, 4, 5, 6, 7))
    assert plan_cores(2, 9, range(9), PHONE) == Cores(2, (8, 4))
    assert plan_cores(7, 9, range(9), PHONE) == Cores(7, (8, 4, 5, 6, 7, 0, 1))
    assert plan_cores(None, 6, range(6), LAPTOP) == Cores(2, (0, 1))


def test_cores_of_one_kind_are_alike_whatever_their_best_clock() -> None:
    assert plan_cores(None, 4, range(4), SERVER) == Cores(4)
    assert plan_cores(None, 4, range(4), ()) == Cores(4)
    assert plan_cores(None, 4, range(4), (Cluster("", (0, 1)), Cluster("", (2, 3)))) == Cores(4)


def test_the_quota_of_a_container_holds_whatever_is_asked() -> None:
    assert plan_cores(64, 2, range(64), ()) == Cores(
        2, (), "64 threads were requested, this process may keep 2 CPUs busy"
    )
    assert plan_cores(None, 1, range(9), PHONE) == Cores(1, (8,))
    assert plan_cores(1, 2, range(64), ()) == Cores(1)


def test_only_cores_that_the_process_may_run_on_count() -> None:
    assert plan_cores(None, 4, (0, 1, 2, 3), PHONE) == Cores(4)
    assert plan_cores(None, 3, (0, 1, 4), PHONE) == Cores(1, (4,))


@pytest.mark.parametrize(("name", "threads"), [("pi4", 4), ("pi5", 4), ("phone", None)])
def test_recorded_devices(name: str, threads: int | None, tmp_path: Path) -> None:
    facts = read_facts(record(name, tmp_path), system="Linux", machine="aarch64")
    cpus = [cpu for kind in facts.cpu.clusters for cpu in kind.cpus]
    plan = plan_cores(None, len(cpus) or 4, cpus or range(4), facts.cpu.clusters)
    if threads is not None:
        assert plan == Cores(threads)
    else:
        little = facts.cpu.clusters[-1].cpus
        assert plan.cpus
        assert not set(plan.cpus) & set(little)


def test_a_session_never_gets_more_than_the_process(fakes: Any, make_bundle: Any) -> None:
    fakes.add("fake")
    with edgeinfer.load(make_bundle("fake"), threads=1000) as session:
        report = session.report()
    assert report.threads <= len(os.sched_getaffinity(0))
    assert any("1000 threads were requested" in note for note in report.notes)


def test_engines_load_where_the_fast_cores_are(
    fakes: Any, make_bundle: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = sorted(os.sched_getaffinity(0))
    if len(mine) < 2:
        pytest.skip("one CPU has no slower one next to it")
    fast, slow = mine[-1], mine[:-1]
    cpu = Cpu(
        "two kinds", (), (Cluster("big", (fast,), 3000), Cluster("little", tuple(slow), 1000))
    )
    monkeypatch.setattr(choice, "known_facts", lambda: Facts("linux", "x86_64", cpu))
    fake = fakes.add("fake")
    seen: list[set[int]] = []
    load = fake.load

    def watched(*arguments: Any) -> Any:
        seen.append(os.sched_getaffinity(0))
        return load(*arguments)

    fake.load = watched
    with edgeinfer.load(make_bundle("fake")) as session:
        assert session.report().threads == 1
    assert seen == [{fast}]
    assert sorted(os.sched_getaffinity(0)) == mine


def test_a_core_that_is_gone_changes_nothing() -> None:
    before = os.sched_getaffinity(0)
    with on_cores((4095,)):
        assert os.sched_getaffinity(0) == before
    assert os.sched_getaffinity(0) == before
