"""NVIDIA devices, asked from the driver itself, which needs no toolkit and no engine."""

from __future__ import annotations

import ctypes
import sys

from edgeinfer.backends.base import Device

_NAME_BYTES = 256


def cuda_devices() -> tuple[Device, ...]:
    """Return the devices that the driver offers; empty without a driver or a device."""
    driver = _driver()
    count = ctypes.c_int()
    if driver is None or driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return ()
    return tuple(Device("gpu", _name(driver, index), index) for index in range(count.value))


def _driver() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return None


def _name(driver: ctypes.CDLL, index: int) -> str:
    handle = ctypes.c_int()
    buffer = ctypes.create_string_buffer(_NAME_BYTES)
    failed = driver.cuDeviceGet(ctypes.byref(handle), index) or driver.cuDeviceGetName(
        buffer, _NAME_BYTES, handle
    )
    return f"CUDA device {index}" if failed else buffer.value.decode(errors="replace")
