"""Work that is recorded as a CUDA graph: the driver's calls, with a driver that notes them."""

import ctypes
import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from edgeinfer.errors import RunError
from edgeinfer.machine import cuda
from edgeinfer.machine.cuda import Recording, Transfers


class Driver:
    """Notes calls; one of them may fail."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.failing = ""

    def __getattr__(self, name: str) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            self.calls.append(name)
            for made in arguments[:2]:
                target = getattr(made, "_obj", None)
                if name != self.failing and isinstance(target, ctypes.c_void_p):
                    target.value = 7
            return 999 if name == self.failing else 0

        return call


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    found = Driver()
    monkeypatch.setattr(cuda, "_driver", lambda: found)
    return found


def test_work_is_done_once_and_then_recorded(driver: Driver) -> None:
    streams: list[int] = []

    def work(stream: int) -> None:
        streams.append(stream)
        driver.calls.append("work")

    recording = Recording(work, Transfers(0))
    assert streams == [7, 7]
    kept = [c for c in driver.calls if c not in ("cuCtxSetCurrent", "cuDeviceGet")]
    assert kept[1:] == [
        "cuStreamCreate",
        "work",
        "cuStreamSynchronize",
        "cuStreamBeginCapture_v2",
        "work",
        "cuStreamEndCapture",
        "cuGraphInstantiateWithFlags",
        "cuGraphDestroy",
    ]
    driver.calls.clear()
    array = np.zeros(3, np.float32)
    recording.to_device(64, array)
    recording.start()
    recording.to_host(array, 64)
    recording.wait()
    assert [c for c in driver.calls if c != "cuCtxSetCurrent"] == [
        "cuMemcpyHtoDAsync_v2",
        "cuGraphLaunch",
        "cuMemcpyDtoHAsync_v2",
        "cuStreamSynchronize",
    ]
    recording.close()
    recording.close()
    assert driver.calls.count("cuGraphExecDestroy") == 1
    assert driver.calls.count("cuStreamDestroy_v2") == 1


def test_code_stays_loaded_as_long_as_it_is_recorded(driver: Driver) -> None:
    def work(stream: int) -> None:
        """Stand in for a function of a library."""

    kept, recording = weakref.ref(work), Recording(work, Transfers(0))
    del work
    gc.collect()
    recording.start()
    assert kept() is not None
    del recording
    gc.collect()
    assert kept() is None


def test_nothing_is_copied_of_an_array_without_elements(driver: Driver) -> None:
    recording = Recording(lambda stream: None, Transfers(0))
    driver.calls.clear()
    recording.to_device(64, np.zeros((0, 2), np.float32))
    recording.to_host(np.zeros((0, 2), np.float32), 64)
    assert driver.calls == []


def test_what_the_driver_refuses_is_told_and_the_stream_let_go(driver: Driver) -> None:
    driver.failing = "cuGraphInstantiateWithFlags"
    with pytest.raises(RunError, match=r"cuGraphInstantiateWithFlags.*999"):
        Recording(lambda stream: None, Transfers(0))
    assert "cuStreamDestroy_v2" in driver.calls


def test_work_that_fails_while_it_is_recorded_ends_the_recording(driver: Driver) -> None:
    times: list[int] = []

    def work(stream: int) -> None:
        times.append(stream)
        if len(times) == 2:
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        Recording(work, Transfers(0))
    assert "cuStreamEndCapture" in driver.calls
    assert "cuStreamDestroy_v2" in driver.calls


def test_pages_are_let_go_before_their_memory_also_where_nobody_closes(driver: Driver) -> None:
    transfers = Transfers(0)
    array = np.zeros(3, np.float32)
    transfers.pin(array)
    alive = weakref.ref(array)
    del array
    assert alive() is not None
    driver.calls.clear()
    del transfers
    assert driver.calls == [
        "cuCtxSetCurrent",
        "cuMemHostUnregister",
        "cuDevicePrimaryCtxRelease_v2",
    ]
    assert alive() is None


def test_closing_twice_lets_go_once(driver: Driver) -> None:
    transfers = Transfers(0)
    transfers.close()
    transfers.close()
    assert driver.calls.count("cuDevicePrimaryCtxRelease_v2") == 1
