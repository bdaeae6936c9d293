"""A process that hangs is told from one that gets no processor."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from tests.patience import Patience

OWN_S = 0.4
Forked = Callable[[Callable[[], object]], int]

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="processes tell what they do in /proc on Linux only"
)


@pytest.fixture
def forked() -> Iterator[Forked]:
    """Return what begins a process, which ends with all that it began."""
    begun: list[int] = []

    def begin(do: Callable[[], object]) -> int:
        child = _fork(do)
        os.setpgid(child, child)
        begun.append(child)
        return child

    yield begin
    for number in begun:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(number, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(number, 0)


def _fork(do: Callable[[], object]) -> int:
    child = os.fork()
    if child == 0:
        do()
        os._exit(0)
    return child


def _sleep() -> None:
    while True:
        signal.pause()


def _spin() -> None:
    while True:
        pass


def _wait_for_one() -> None:
    os.waitpid(_fork(_sleep), 0)


def _ends_in_time(child: int) -> bool:
    patience = Patience(child, OWN_S)
    while not patience.is_over():
        if os.waitpid(child, os.WNOHANG)[0]:
            return True
        time.sleep(0.002)
    return False


@pytest.mark.parametrize("hang", [_sleep, _spin, _wait_for_one])
def test_one_that_hangs_is_found(forked: Forked, hang: Callable[[], object]) -> None:
    assert not _ends_in_time(forked(hang))


def test_one_that_waits_for_a_processor_is_not_taken_for_one_that_hangs(forked: Forked) -> None:
    core = min(os.sched_getaffinity(0))
    until = time.monotonic() + 3 * OWN_S

    def starve() -> None:
        os.sched_setaffinity(0, {core})
        os.nice(19)
        while time.monotonic() < until:
            pass

    def compete() -> None:
        os.sched_setaffinity(0, {core})
        _spin()

    for _ in range(3):
        forked(compete)
    assert _ends_in_time(forked(starve))
    assert time.monotonic() > until


def test_its_time_is_given_again_for_each_event(forked: Forked) -> None:
    patience = Patience(forked(_sleep), OWN_S)
    until = time.monotonic() + 2 * OWN_S
    while time.monotonic() < until:
        patience.renew()
        assert not patience.is_over()
        time.sleep(0.002)
