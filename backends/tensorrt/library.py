"""TensorRT's libraries on this machine, and for what an engine would be built here."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import sys
from pathlib import Path

from edgeinfer.machine.cuda import compute_capability, cuda_devices, driver_version
from edgeinfer.machine.sysfs import text

_MAJORS = (11, 10, 9, 8)
_PACKAGE = "tensorrt_libs"
"""Python packages named ``tensorrt-cu12-libs`` and the like bring a module of this name."""


@functools.cache
def library_version() -> str:
    """Return e.g. ``10.3.0``; empty where no library of TensorRT can be loaded.

    A library of a Python package stays loaded, so that the engine's provider finds it by name.
    """
    for major in _MAJORS:
        library = _opened(major)
        if library is None:
            continue
        ask = library.getInferLibVersion
        ask.restype = ctypes.c_int32
        return version_text(int(ask()))
    return ""


def version_text(number: int) -> str:
    """Spell what the library says of itself.

    ``NV_TENSORRT_VERSION`` is major * 10000 + minor * 100 + patch since TensorRT 10, and was
    major * 1000 + minor * 100 + patch before (NvInferVersion.h).
    """
    unit = 10_000 if number >= 100_000 else 1_000
    return f"{number // unit}.{number % unit // 100}.{number % 100}"


def machine_facts(tensorrt: str, onnxruntime: str = "") -> dict[str, str]:
    """Return what an engine built here fits.

    Args:
        tensorrt: version of the library that builds, or of the plugin that has one inside.
        onnxruntime: version of the engine that asks it to, if that is one.
    """
    devices = cuda_devices()
    kernel = text(Path("/sys/module/nvidia/version")) or text(Path("/etc/nv_tegra_release"))[:80]
    return {
        "TensorRT": tensorrt,
        **({"ONNX Runtime": onnxruntime} if onnxruntime else {}),
        "driver": f"{kernel or 'unknown'} (CUDA {driver_version() or 'unknown'})",
        "device": devices[0].name if devices else "none",
        "compute capability": compute_capability() or "unknown",
    }


def _opened(major: int) -> ctypes.CDLL | None:
    windows = sys.platform == "win32"
    name = f"nvinfer_{major}.dll" if windows else f"libnvinfer.so.{major}"
    if (found := _load(name)) is not None:
        return found
    spec = importlib.util.find_spec(_PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for other in ("libnvinfer_plugin", "libnvonnxparser"):
            _load(str(Path(folder) / f"{other}.so.{major}"))
        if (found := _load(str(Path(folder) / name))) is not None:
            return found
    return None


def _load(name: str) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(name, ctypes.RTLD_GLOBAL)
    except OSError:
        return None
