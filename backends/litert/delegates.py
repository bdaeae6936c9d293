"""Delegates: shared libraries that run operators of a ``.tflite`` file on a GPU or an NPU."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from edgeinfer.backends.base import Device, DeviceKind
from edgeinfer.errors import LoadError

DELEGATES: dict[str, tuple[DeviceKind, str]] = {
    "gpu": ("gpu", "tensorflowlite_gpu_delegate"),
    "nnapi": ("npu", "nnapi_external_delegate"),
    "edgetpu": ("npu", "edgetpu"),
    "qnn": ("npu", "QnnTFLiteDelegate"),
    "ethosu": ("npu", "ethosu_delegate"),
    "vx": ("npu", "vx_delegate"),
    "armnn": ("npu", "armnnDelegate"),
}
"""Delegates by name: the kind of unit and the shared library, without ``lib`` and ``.so``."""

_LOADER = Path("/etc/ld.so.cache")
"""Names the libraries that Linux's loader finds, one by one."""

_ALWAYS = ("/lib", "/usr/lib", "/lib64", "/usr/lib64")
"""Where it looks for others."""


def delegates_here() -> list[Device]:
    """Return the units whose delegate's library is on this machine."""
    devices: list[Device] = []
    for name, (kind, library) in DELEGATES.items():
        if _place(library):
            index = sum(d.kind == kind for d in devices)
            devices.append(Device(kind, f"delegate {name}", index))
    return devices


def library_of(name: str, device: DeviceKind) -> str:
    """Return the delegate's library: the one named, or the first of the device's kind."""
    if not name and device == "cpu":
        return ""
    here = {n: _place(lib) for n, (kind, lib) in DELEGATES.items() if kind == device}
    if not name:
        return next(library for library in here.values() if library)
    if name in DELEGATES:
        if name not in here:
            raise LoadError(f"litert: delegate {name!r} runs on a {DELEGATES[name][0]}")
        if not here[name]:
            raise LoadError(f"litert: delegate {name!r}: no library {DELEGATES[name][1]!r} here")
        return here[name]
    if "/" in name or "." in name:
        return name
    raise LoadError(f"litert: no delegate is named {name!r}; there are {', '.join(DELEGATES)}")


@cache
def _place(library: str) -> str:
    """Find a shared library once; empty if it is not here."""
    file = f"lib{library}.so"
    try:
        listed = _LOADER.read_bytes()
    except OSError:
        pass
    else:
        # To look further starts compilers: 0.3 s for seven libraries that a machine seldom has.
        folders = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
        if file.encode() not in listed and not any(
            found.startswith(file) for folder in (*folders, *_ALWAYS) for found in _files(folder)
        ):
            return ""
    from ctypes.util import find_library

    return find_library(library) or ""


@cache
def _files(folder: str) -> list[str]:
    try:
        return os.listdir(folder) if folder else []
    except OSError:
        return []
