"""NVIDIA GPUs as the driver's management library tells: memory, heat, power, what slows them down.

It comes with the driver of a PC or server. A Jetson before JetPack 7 has none, and its GPU is on
the chip: ``board`` reads that from files.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator
from typing import Any

from edgeinfer.machine.board import Gpu

_NAME_BYTES = 96
_TEMPERATURE_OF_GPU = 0
_REASONS = {
    0x0000000000000004: "the power limit caps the clock",
    0x0000000000000008: "the hardware slows the clock down",
    0x0000000000000020: "it is too hot: the driver slows the clock down",
    0x0000000000000040: "it is too hot: the hardware slows the clock down",
    0x0000000000000080: "the power supply slows the clock down",
}
"""``nvmlClocksEventReason…`` of nvml.h; idleness and what a user set himself are no complaints."""


class _Memory(ctypes.Structure):
    """``nvmlMemory_t``, in bytes."""

    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


@contextlib.contextmanager
def library() -> Iterator[Any | None]:
    """Yield the library, ready; None where it is not or where there is no driver for it.

    It holds megabytes for as long as it is ready, which nobody needs after it has answered.
    """
    try:
        found = ctypes.CDLL("nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1")
    except OSError:
        yield None
        return
    if found.nvmlInit_v2():
        yield None
        return
    try:
        yield found
    finally:
        found.nvmlShutdown()


def read_nvml(nvml: Any | None) -> tuple[Gpu, ...]:
    """Return what the library tells; what it cannot tell of one stays unknown.

    Args:
        nvml: the library, or None.
    """
    count = ctypes.c_uint()
    if nvml is None or not _asked(nvml, "nvmlDeviceGetCount_v2", ctypes.byref(count)):
        return ()
    driver = _text(nvml, "nvmlSystemGetDriverVersion")
    found = []
    for index in range(count.value):
        handle = ctypes.c_void_p()
        place = ctypes.c_uint(index), ctypes.byref(handle)
        if _asked(nvml, "nvmlDeviceGetHandleByIndex_v2", *place):
            found.append(_gpu(nvml, handle, driver))
    return tuple(found)


def _asked(nvml: Any, name: str, *arguments: Any) -> bool:
    """Call a function, and say whether this driver has it and it could answer."""
    function = getattr(nvml, name, None)
    return function is not None and function(*arguments) == 0


def _gpu(nvml: Any, handle: ctypes.c_void_p, driver: str) -> Gpu:
    major, minor, memory = ctypes.c_int(), ctypes.c_int(), _Memory()
    parts = ctypes.byref(major), ctypes.byref(minor)
    knows = _asked(nvml, "nvmlDeviceGetCudaComputeCapability", handle, *parts)
    succeeded = _asked(nvml, "nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
    celsius, reasons = ctypes.c_uint(), ctypes.c_ulonglong()
    of_gpu = ctypes.c_uint(_TEMPERATURE_OF_GPU), ctypes.byref(celsius)
    warm = _asked(nvml, "nvmlDeviceGetTemperature", handle, *of_gpu)
    slowed = _asked(
        nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", handle, ctypes.byref(reasons)
    )
    bits = reasons.value if slowed else 0
    return Gpu(
        _text(nvml, "nvmlDeviceGetName", handle) or "NVIDIA GPU",
        f"{major.value}.{minor.value}" if knows else "",
        driver,
        memory_mb=memory.total >> 20 if succeeded else 0,
        free_mb=memory.free >> 20 if succeeded else None,
        celsius=float(celsius.value) if warm else None,
        power_limit_w=_lowered_limit(nvml, handle),
        complaints=tuple(words for bit, words in _REASONS.items() if bits & bit),
    )


def _lowered_limit(nvml: Any, handle: ctypes.c_void_p) -> int | None:
    """Return the power limit where its owner set another than the maker, in watts."""
    limits = []
    for name in ("nvmlDeviceGetPowerManagementLimit", "nvmlDeviceGetPowerManagementDefaultLimit"):
        milliwatts = ctypes.c_uint()
        if not _asked(nvml, name, handle, ctypes.byref(milliwatts)):
            return None
        limits.append(milliwatts.value)
    return None if limits[0] == limits[1] else round(limits[0] / 1000)


def _text(nvml: Any, name: str, *arguments: Any) -> str:
    buffer = ctypes.create_string_buffer(_NAME_BYTES)
    succeeded = _asked(nvml, name, *arguments, buffer, ctypes.c_uint(_NAME_BYTES))
    return buffer.value.decode(errors="replace") if succeeded else ""
