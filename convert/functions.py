"""Machine code around models: what prepares pictures and reads boxes, beside the artifacts.

The same functions serve every model, so a library is made once for an instruction set and kept in
the cache. It needs nothing of TVM's where it runs. Both TVM and a compiler driver are extras: where
one is missing the bundle has no such library, the report says so, and Pillow and NumPy do the work.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from edgeinfer.backends.child import Child, ChildEndedError
from edgeinfer.backends.plain_functions import FOLDER
from edgeinfer.bundle.cache import writable_folder
from edgeinfer.convert.lower.tvm.machines import MACHINES, Machine
from edgeinfer.convert.small import SWITCH
from edgeinfer.errors import NotAvailableError
from edgeinfer.profiles.schema import Profile
from edgeinfer.types import ImageInput, Preprocessing

_BASE = {"x86_64": "x86-64-v3", "aarch64": "cortex-a72"}
"""The oldest instruction set of each architecture that code is made for; later ones gain nothing
here, where bytes are read and written."""

_HERE = "cpu"
_MODULE = "edgeinfer.convert.functions_build"
_TIMEOUT_S = 600
_SOURCES = ("resize.py", "boxes.py", "emit.py")


def libraries(
    profiles: Sequence[Profile], records: Mapping[str, Preprocessing]
) -> tuple[dict[str, Path], list[str]]:
    """Make the libraries that go into a bundle.

    Args:
        profiles: the targets.
        records: of the inputs; only pictures need code.

    Returns:
        Files by their names in the bundle, and what the user is to know.
    """
    if os.environ.get(SWITCH) == "off":
        return {}, []
    if not any(isinstance(record, ImageInput) for record in records.values()):
        return {}, []
    made: dict[str, Path] = {}
    notes: list[str] = []
    for machine in _machines(profiles):
        try:
            made[f"{FOLDER}/{machine.arch}.so"] = library(machine)
        except (NotAvailableError, OSError) as e:
            notes.append(f"no code for pictures on {machine.arch}: Pillow resizes there: {e}")
    return made, notes


def _machines(profiles: Iterable[Profile]) -> list[Machine]:
    """The instruction sets of the targets that run Linux."""
    found: dict[str, Machine] = {}
    for profile in profiles:
        arches = (MACHINES[profile.machine].arch,) if profile.machine else profile.arch
        if profile.name == _HERE:
            arches = tuple(a for a in arches if a == platform.machine())
        for arch in arches if "linux" in profile.os else ():
            if arch in _BASE:
                found[arch] = MACHINES[_BASE[arch]]
    return list(found.values())


def library(machine: Machine) -> Path:
    """Return the library for an instruction set; it is made where it is not in the cache.

    Raises:
        NotAvailableError: TVM or the compiler driver is not installed, or fails.
        OSError: the cache cannot be written.
    """
    if importlib.util.find_spec("tvm") is None:
        raise NotAvailableError("it needs TVM: pip install 'edgeinfer[tvm]'")
    driver = shutil.which(machine.linker)
    if driver is None:
        package = "gcc" if machine.linker == "gcc" else "gcc-aarch64-linux-gnu"
        raise NotAvailableError(f"it needs {machine.linker}: apt-get install {package}")
    folder = writable_folder(FOLDER)
    path = folder / f"{machine.name}-{_key(machine)}.so"
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=folder) as name:
            partial = Path(name, "made.so")
            _build_apart(machine.name, driver, partial)
            os.replace(partial, path)
    return path


def _build_apart(machine: str, driver: str, path: Path) -> None:
    """Make it in another process: the compiler takes 260 MB, and this one may be asked for more."""
    process = Child(_MODULE, keep_errors=True)
    try:
        process.send((machine, driver, str(path)))
        fault = process.receive(_TIMEOUT_S)
    except ChildEndedError as e:
        fault = f"the compiler's process ended: {e.how}"
    except TimeoutError:
        fault = f"no end after {_TIMEOUT_S} s"
    finally:
        process.kill()
    if fault:
        raise NotAvailableError(str(fault))


def _key(machine: Machine) -> str:
    """What a library is made of, as a name."""
    from edgeinfer.kernels import defs

    known = hashlib.sha256(f"{machine} {version('apache-tvm')}".encode())
    for folder in defs.__path__:
        for name in _SOURCES:
            known.update(Path(folder, name).read_bytes())
    for name in ("functions.c", "functions_build.py", "lower/tvm/hosted.py"):
        known.update(Path(__file__).parent.joinpath(name).read_bytes())
    return known.hexdigest()[:16]
