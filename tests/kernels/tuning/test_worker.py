"""Processes that may be lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from edgeinfer.kernels.tuning.worker import LostError, Worker


@pytest.fixture
def worker() -> Iterator[Worker]:
    found = Worker("tests.kernels.tuning.faulty", "me")
    yield found
    found.close()


def test_an_error_is_told_and_the_process_stays(worker: Worker) -> None:
    name, pid = worker.ask("hello", seconds=30)
    assert name == "me"
    with pytest.raises(ValueError, match="as asked"):
        worker.ask("fail", seconds=30)
    assert worker.ask("hello", seconds=30) == ("me", pid)


def test_a_crash_and_a_hang_cost_one_question_each(worker: Worker) -> None:
    _, first = worker.ask("hello", seconds=30)
    with pytest.raises(LostError, match="SIGSEGV"):
        worker.ask("crash", seconds=30)
    name, second = worker.ask("hello", seconds=30)
    assert (name, second != first) == ("me", True)
    with pytest.raises(LostError, match=r"no answer for 0\.3 s"):
        worker.ask("hang", seconds=0.3)
    name, third = worker.ask("hello", seconds=30)
    assert (name, third != second) == ("me", True)
