"""Which engines are here, from the history where nothing that decides it has changed.

To ask an engine takes importing it: tenths of a second and tens of megabytes for each that is
installed, also where another one runs the model.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from edgeinfer.backends.base import Backend, Probe, ProbedForCpu, able
from edgeinfer.machine.fingerprint import Fingerprint
from edgeinfer.runtime.profiledb import ProfileDB

if TYPE_CHECKING:
    from edgeinfer.bundle.manifest import Variant
    from edgeinfer.machine.device import DeviceKind

PACKAGES = {"onnxruntime": "onnxruntime", "openvino": "openvino", "litert": "ai_edge_litert"}
"""Backend to the package that its probe imports; others are always asked. None is fragile."""

_UNITS = ("/dev", "/dev/dri", "/dev/accel", "/etc/OpenCL/vendors")
"""Folders in which drivers show their devices."""

_DEVICE_FILES = ("nvidia", "card", "render", "accel", "mali", "kgsl", "apex")

_VARIABLES = ("CUDA_", "NVIDIA_", "OV_", "OPENVINO_", "ZE_", "ONEAPI_", "OCL_", "LD_LIBRARY_PATH")
"""Starts of variables that change what an engine finds."""


def wanted(variants: Iterable[Variant], unit: DeviceKind | None) -> dict[str, bool]:
    """Return which engines could run variants, and whether each could on the CPU alone.

    Args:
        variants: that may run.
        unit: the only one to run them on; None leaves it to them.
    """
    units: dict[str, set[str | None]] = {}
    for variant in variants:
        for engine in variant.engines:
            named = unit or variant.constraints.get("device")
            units.setdefault(engine.backend, set()).add(named)
    return {name: kinds == {"cpu"} for name, kinds in units.items()}


def known(name: str, machine: Fingerprint, history: ProfileDB) -> Probe | None:
    """Return what a backend found here before; it is not imported, nor is its engine.

    None where nothing is remembered, where something it depends on has changed, and where the
    package is imported anyway.
    """
    stamp = _stamp(name, machine)
    return history.probe(name, stamp) if stamp else None


def probe(
    backend: Backend, machine: Fingerprint, history: ProfileDB, *, for_cpu: bool = False
) -> Probe:
    """Return what a backend finds here, from the history if its package is not imported yet.

    Only engines that could be used are remembered, and only as long as the package's files, the
    devices, the libraries and the variables that engines look at stay as they were.

    Args:
        backend: that is asked.
        machine: this one.
        history: what was found before.
        for_cpu: nothing could run on another unit: then no driver of one is started, as far as the
            backend can do without, and nothing is remembered.
    """
    stamp = _stamp(backend.name, machine)
    if stamp and (remembered := history.probe(backend.name, stamp)):
        return remembered
    if for_cpu and able(backend, ProbedForCpu):
        return backend.probe_cpu()
    found = backend.probe()
    if stamp and found.available:
        history.put_probe(found, stamp)
    return found


def _stamp(name: str, machine: Fingerprint) -> str:
    """Return what an engine's answer depends on; empty where that is not known."""
    package = PACKAGES.get(name)
    if package is None or package in sys.modules:
        return ""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return ""
    file = Path(spec.origin)
    try:
        # Every way to install changes one of these, also those that keep the time of the wheel.
        files = [_identity(place) for place in (file, file.parent, file.parent.parent)]
    except OSError:
        return ""
    units = [
        sorted(n for n in _listed(folder) if folder != "/dev" or n.startswith(_DEVICE_FILES))
        for folder in _UNITS
    ]
    libraries = [_identity(p) for p in (Path("/etc/ld.so.cache"),) if p.exists()]
    variables = sorted((k, v) for k, v in os.environ.items() if k.startswith(_VARIABLES))
    parts = (str(file), sys.version, machine.key("gpu"), files, units, libraries, variables)
    return json.dumps(parts)


def _identity(path: Path) -> tuple[int, ...]:
    found = path.stat()
    return (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
