"""NVIDIA's management library, played by Python: its functions fill what they are handed."""

import ctypes
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.machine.board import Gpu
from edgeinfer.machine.fingerprint import fingerprint, read_facts
from edgeinfer.machine.nvml import library, read_nvml
from tests.machine.recorded import record

H100: dict[str, Any] = {
    "name": "NVIDIA H100 80GB HBM3",
    "capability": (9, 0),
    "memory": (81559 << 20, 80000 << 20),
    "celsius": 41,
    "limit": 700000,
    "usual": 700000,
    "reasons": 0x1,
}
UNKNOWN = 3
"""``NVML_ERROR_NOT_SUPPORTED``."""


class Library:
    """What nvml.h declares, as far as it is called; ``lacks`` names functions that fail."""

    def __init__(self, *gpus: dict[str, Any], lacks: str = "", driver: str = "580.65.06") -> None:
        self.gpus, self.lacks, self.driver = gpus, lacks, driver

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml"):
            raise AttributeError(name)
        if self.lacks and self.lacks in name:
            return lambda *_: UNKNOWN
        return getattr(self, "_" + name.removeprefix("nvml").removesuffix("_v2"))

    def _gpu(self, handle: ctypes.c_void_p) -> dict[str, Any]:
        return self.gpus[(handle.value or 1) - 1]

    def _DeviceGetCount(self, count: Any) -> int:  # noqa: N802
        count._obj.value = len(self.gpus)
        return 0

    def _SystemGetDriverVersion(self, buffer: Any, size: ctypes.c_uint) -> int:  # noqa: N802
        assert size.value >= 80
        buffer.value = self.driver.encode()
        return 0

    def _DeviceGetHandleByIndex(self, index: ctypes.c_uint, handle: Any) -> int:  # noqa: N802
        handle._obj.value = index.value + 1
        return 0

    def _DeviceGetName(self, handle: Any, buffer: Any, size: ctypes.c_uint) -> int:  # noqa: N802
        assert size.value >= 96
        buffer.value = self._gpu(handle)["name"].encode()
        return 0

    def _DeviceGetCudaComputeCapability(self, handle: Any, major: Any, minor: Any) -> int:  # noqa: N802
        major._obj.value, minor._obj.value = self._gpu(handle)["capability"]
        return 0

    def _DeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:  # noqa: N802
        memory._obj.total, memory._obj.free = self._gpu(handle)["memory"]
        return 0

    def _DeviceGetTemperature(self, handle: Any, sensor: Any, celsius: Any) -> int:  # noqa: N802
        assert sensor.value == 0
        celsius._obj.value = self._gpu(handle)["celsius"]
        return 0

    def _DeviceGetCurrentClocksThrottleReasons(self, handle: Any, reasons: Any) -> int:  # noqa: N802
        reasons._obj.value = self._gpu(handle)["reasons"]
        return 0

    def _DeviceGetPowerManagementLimit(self, handle: Any, limit: Any) -> int:  # noqa: N802
        limit._obj.value = self._gpu(handle)["limit"]
        return 0

    def _DeviceGetPowerManagementDefaultLimit(self, handle: Any, limit: Any) -> int:  # noqa: N802
        limit._obj.value = self._gpu(handle)["usual"]
        return 0


PLAIN = Gpu(H100["name"], "9.0", "580.65.06", memory_mb=81559, free_mb=80000, celsius=41.0)


def test_two_gpus_one_of_them_slowed_down() -> None:
    slow = {**H100, "limit": 350000, "reasons": 0x4 | 0x20, "celsius": 88}
    first, second = read_nvml(Library(H100, slow))
    assert first == PLAIN
    assert (second.power_limit_w, second.celsius) == (350, 88.0)
    assert second.complaints == (
        "the power limit caps the clock",
        "it is too hot: the driver slows the clock down",
    )


@pytest.mark.parametrize(
    ("lacks", "expected"),
    [
        ("Name", replace(PLAIN, name="NVIDIA GPU")),
        ("DriverVersion", replace(PLAIN, driver="")),
        ("Capability", replace(PLAIN, compute_capability="")),
        ("MemoryInfo", replace(PLAIN, memory_mb=0, free_mb=None)),
        ("Temperature", replace(PLAIN, celsius=None)),
        ("ThrottleReasons", PLAIN),
        ("PowerManagement", PLAIN),
    ],
)
def test_what_a_driver_cannot_tell_is_unknown(lacks: str, expected: Gpu) -> None:
    assert read_nvml(Library(H100, lacks=lacks)) == (expected,)


def test_without_devices_or_library_there_is_nothing() -> None:
    assert read_nvml(None) == ()
    assert read_nvml(Library(H100, lacks="Count")) == ()
    assert read_nvml(Library()) == ()
    # An old driver lacks functions altogether.
    assert read_nvml(object()) == ()


def test_it_adds_to_a_recorded_server_and_leaves_a_jetson_alone(tmp_path: Path) -> None:
    root = record("x86-server", tmp_path / "server")
    (root / "usr/local/cuda").mkdir(parents=True)
    (root / "usr/local/cuda/version.json").write_text('{"cuda": {"version": "13.0.0"}}')
    found = read_facts(root, system="Linux", machine="x86_64", nvml=Library(H100))
    assert found.gpus == (replace(PLAIN, cuda="13.0.0"),)
    jetson = record("orin-nano", tmp_path / "orin")
    found = read_facts(jetson, system="Linux", machine="aarch64", nvml=Library(H100))
    assert [gpu.name for gpu in found.gpus] == ["tegra234 (integrated)"]


def test_the_key_is_the_same_with_and_without_it_but_for_a_lowered_limit(tmp_path: Path) -> None:
    root = record("x86-server", tmp_path)

    def key(nvml: Any) -> str:
        facts = read_facts(root, system="Linux", machine="x86_64", nvml=nvml)
        return fingerprint(facts).key("gpu")

    assert key(None) == key(Library(H100)) == key(Library({**H100, "celsius": 80}))
    assert key(Library({**H100, "limit": 350000})) != key(None)
    assert key(Library(H100, driver="590.10")) != key(None)


def test_this_machine_tells_or_does_not() -> None:
    with library() as found:
        gpus = read_nvml(found)
    for gpu in gpus:
        assert gpu.memory_mb > 0
        assert gpu.driver
    if gpus:
        assert [gpu.name for gpu in read_facts().gpus] == [gpu.name for gpu in gpus]


def test_the_library_is_ended_once_it_has_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds memory until then, which a server would keep for good."""
    calls: list[str] = []

    class Ending(Library):
        def _Init(self) -> int:  # noqa: N802
            calls.append("begun")
            return 0

        def _Shutdown(self) -> int:  # noqa: N802
            calls.append("ended")
            return 0

    monkeypatch.setattr(ctypes, "CDLL", lambda _: Ending(H100))
    facts = read_facts(Path("/"), system="Linux", machine="x86_64")
    assert [gpu.name for gpu in facts.gpus][:1] == [read_nvml(Library(H100))[0].name]
    assert calls == ["begun", "ended"]
