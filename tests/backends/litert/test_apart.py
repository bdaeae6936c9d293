import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from edgeinfer.backends.litert import apart
from edgeinfer.backends.litert.apart import Workers, started

pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="needs Linux and two cores",
)


class Worker:
    """A thread that waits."""

    def __init__(self) -> None:
        self._end = threading.Event()
        self.thread = threading.Thread(target=self._end.wait)
        self.thread.start()
        self.number = self.thread.native_id or 0

    @property
    def cores(self) -> set[int]:
        return set(os.sched_getaffinity(self.number))

    def end(self) -> None:
        self._end.set()
        self.thread.join()


@pytest.fixture
def worker() -> Iterator[Worker]:
    one = Worker()
    yield one
    one.end()


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The core that the caller is said to run on; every look looks, and may move."""
    at = [min(os.sched_getaffinity(0))]
    monkeypatch.setattr(apart, "EVERY", 1)
    monkeypatch.setattr(apart, "REST_S", 0.0)
    monkeypatch.setattr(apart, "is_needed", lambda: True)
    monkeypatch.setattr(apart, "_where", lambda: lambda: at[0])
    return at


def _watched(worker: Worker, here: list[int]) -> Workers:
    return Workers(frozenset({worker.number}), lambda: here[0])


def test_a_worker_leaves_the_core_of_its_caller(worker: Worker, here: list[int]) -> None:
    cores = set(os.sched_getaffinity(0))
    workers = _watched(worker, here)
    assert worker.cores == cores
    workers.look()
    assert worker.cores == cores - {min(cores)}
    here[0] = max(cores)
    workers.look()
    assert worker.cores == cores - {max(cores)}
    assert set(os.sched_getaffinity(0)) == cores, "the caller itself goes where it likes"


def test_a_caller_is_looked_for_now_and_then(
    worker: Worker, here: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apart, "EVERY", 4)
    cores = set(os.sched_getaffinity(0))
    workers = _watched(worker, here)
    workers.look()
    here[0] = max(cores)
    seen = []
    for _ in range(4):
        workers.look()
        seen.append(max(cores) in worker.cores)
    assert seen == [True, True, True, False]


def test_callers_on_several_cores_do_not_chase_it(
    worker: Worker, here: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apart, "REST_S", 60.0)
    cores = set(os.sched_getaffinity(0))
    workers = _watched(worker, here)
    for at in (min(cores), max(cores), min(cores), max(cores)):
        here[0] = at
        workers.look()
    assert worker.cores == cores - {min(cores)}


def test_where_others_send_it_is_heeded(worker: Worker, here: list[int]) -> None:
    cores = set(os.sched_getaffinity(0))
    workers = _watched(worker, here)
    workers.look()
    os.sched_setaffinity(worker.number, {min(cores)})
    here[0] = max(cores)
    workers.look()
    assert worker.cores == {min(cores)}
    here[0] = min(cores)
    workers.look()
    assert worker.cores == {min(cores)}, "there is no other that it may run on"


def test_one_that_has_ended_is_forgotten(worker: Worker, here: list[int]) -> None:
    other = Worker()
    cores = set(os.sched_getaffinity(0))
    workers = Workers(frozenset({worker.number, other.number}), lambda: here[0])
    other.end()
    # The system forgets a thread a moment after it was joined.
    while Path(f"/proc/self/task/{other.number}").exists():
        time.sleep(1e-3)
    workers.look()
    here[0] = max(cores)
    workers.look()
    assert worker.cores == cores - {max(cores)}


def test_only_what_the_loading_thread_starts_is_known(here: list[int]) -> None:
    own = "/proc/self/comm"
    with open(own) as file:
        before = file.read()
    made: list[Worker] = []
    with ThreadPoolExecutor(1) as stranger:
        stranger.submit(int).result()
        with started("litert") as workers:
            made.append(stranger.submit(Worker).result())
            made.append(Worker())
        found = workers()
    assert found is not None
    found.look()
    cores = set(os.sched_getaffinity(0))
    theirs, ours = made
    assert ours.cores == cores - {here[0]}
    assert theirs.cores == cores
    with open(f"/proc/self/task/{ours.number}/comm") as file:
        assert file.read().startswith("litert-")
    with open(own) as file:
        assert file.read() == before
    for each in made:
        each.end()


def test_an_engine_without_workers_has_none(here: list[int]) -> None:
    with started("litert") as workers:
        pass
    assert workers() is None


def test_a_failure_inside_leaves_the_name_as_it_was(here: list[int]) -> None:
    with open("/proc/self/comm") as file:
        before = file.read()
    with pytest.raises(ValueError, match="no model"), started("litert"):
        raise ValueError("no model")
    with open("/proc/self/comm") as file:
        assert file.read() == before


def test_real_machines_need_no_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "is_needed", lambda: False)
    with started("litert") as workers:
        one = Worker()
    assert workers() is None
    one.end()


@pytest.mark.parametrize(
    ("told", "needed"),
    [
        ("processor : 0\nflags\t\t: fpu sse2 hypervisor avx2\n", True),
        ("processor : 0\nflags\t\t: fpu sse2 avx2\n", False),
        ("processor : 0\nFeatures\t: fp asimd\n", False),
        ("", False),
    ],
)
def test_a_virtual_machine_is_known_by_its_processor(
    told: str, needed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apart, "text", lambda path: told)
    assert apart.is_needed.__wrapped__() == needed
