"""Processes that may be lost."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from edgeinfer.kernels.tuning import worker as worker_module
from edgeinfer.kernels.tuning.relay import Relay
from edgeinfer.kernels.tuning.worker import LostError, TuningWorker


@pytest.fixture
def worker() -> Iterator[TuningWorker]:
    found = TuningWorker("tests.kernels.tuning.faulty", "me")
    yield found
    found.close()


def test_an_error_is_told_and_the_process_stays(worker: TuningWorker) -> None:
    name, pid = worker.ask("hello", seconds=30)
    assert name == "me"
    with pytest.raises(ValueError, match="as asked"):
        worker.ask("fail", seconds=30)
    assert worker.ask("hello", seconds=30) == ("me", pid)


def test_a_crash_and_a_hang_cost_one_question_each(worker: TuningWorker) -> None:
    _, first = worker.ask("hello", seconds=30)
    with pytest.raises(LostError, match="SIGSEGV"):
        worker.ask("crash", seconds=30)
    name, second = worker.ask("hello", seconds=30)
    assert (name, second != first) == ("me", True)
    with pytest.raises(LostError, match=r"no answer for 0\.3 s"):
        worker.ask("hang", seconds=0.3)
    name, third = worker.ask("hello", seconds=30)
    assert (name, third != second) == ("me", True)


@pytest.mark.parametrize(
    ("how", "kind", "said"),
    [
        ("crash", ConnectionError, "ended before it was ready: .*SIGSEGV"),
        ("hang", ConnectionError, r"not ready after 0\.5 s"),
        ("fail", ValueError, "as asked"),
    ],
)
def test_what_does_not_start_is_no_fault_of_the_question(
    how: str, kind: type[Exception], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "_START_S", 0.0)
    found = TuningWorker("tests.kernels.tuning.faulty", how)
    seconds = 0.5 if how == "hang" else 30.0
    # Twice: what did not get ready is not asked the next time either.
    for _ in range(2):
        with pytest.raises(kind, match=said):
            found.ask("hello", seconds=seconds)
    found.close()


def test_a_place_where_nobody_is_is_told_at_once() -> None:
    pytest.importorskip("tvm", reason="apache-tvm is not installed")
    from edgeinfer.kernels.tuning import measure

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for device in (f"127.0.0.1:{port}", f"127.0.0.1:{port}/board"):
        with Relay(device) as relay, pytest.raises(ConnectionError, match=f"{device}: .*refused"):
            measure._connected(relay.address)
