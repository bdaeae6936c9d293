"""Machine code around models: what prepares images and audio and reads boxes, next to artifacts.

A library is made once for an instruction set and kept in the cache: the functions for images
serve every model, those for spectrograms every one with the same record. It needs nothing of
TVM's where it runs. Without it Pillow and NumPy do the work, with the same bytes.
"""

from __future__ import annotations

import hashlib
import importlib.util
import platform
import shutil
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from edgeinfer.backends.process.child import Child, ChildEndedError
from edgeinfer.backends.tvm.plain_functions import FOLDER
from edgeinfer.bundle.cache import writable_folder
from edgeinfer.bundle.kept import is_whole, keep
from edgeinfer.bundle.scratch import Scratch
from edgeinfer.convert.lower.tvm.machines import MACHINES, Machine
from edgeinfer.errors import NotAvailableError
from edgeinfer.installed import install
from edgeinfer.media import stages
from edgeinfer.media.spectrogram import function_name, unfit
from edgeinfer.profiles.schema import Profile
from edgeinfer.types import ImageInput, Preprocessing, SpectrogramInput

_BASE = {"x86_64": "x86-64-v3", "aarch64": "cortex-a72"}
"""The oldest instruction set of each architecture that code is made for; later ones gain nothing
here, where bytes are read and written."""

_HERE = "cpu"
_MODULE = "edgeinfer.convert.machine_code.functions_build"
_TIMEOUT_S = 600
_SOURCES = ("resize.py", "boxes.py", "emit.py", "spectrum.py", "fourier.py", "math.py")


def libraries(
    profiles: Sequence[Profile], records: Mapping[str, Preprocessing]
) -> tuple[dict[str, Path], list[str]]:
    """Make the libraries that go into a bundle.

    Args:
        profiles: the targets.
        records: Records of the inputs; images and spectrograms have code.

    Returns:
        Files by their names in the bundle, and what the user is to know.

    Raises:
        NotAvailableError: TVM or a compiler driver is not installed, or fails.
        OSError: the cache cannot be written.
    """
    pictures = any(isinstance(record, ImageInput) for record in records.values())
    sounds = [record for record in records.values() if isinstance(record, SpectrogramInput)]
    notes = [f"spectrograms by NumPy: {reason}" for r in sounds if (reason := unfit(r))]
    # Records that differ in what is done before and behind have one function.
    named = {function_name(record): record for record in sounds if not unfit(record)}
    spectrograms = tuple(named.values())
    if not (pictures or spectrograms):
        return {}, notes
    made: dict[str, Path] = {}
    for machine in _machines(profiles):
        found = library(machine, pictures=pictures, spectrograms=spectrograms)
        made[f"{FOLDER}/{machine.arch}.so"] = found
    return made, notes


def check_able(profiles: Sequence[Profile]) -> None:
    """Refuse to make libraries where that cannot be done.

    Raises:
        NotAvailableError: TVM or a compiler driver is missing.
    """
    for machine in _machines(profiles):
        _driver(machine)


def _driver(machine: Machine) -> str:
    if importlib.util.find_spec("tvm") is None:
        raise NotAvailableError(f"machine code needs TVM: {install('tvm')}")
    driver = shutil.which(machine.linker)
    if driver is None:
        package = "gcc" if machine.linker == "gcc" else "gcc-aarch64-linux-gnu"
        raise NotAvailableError(f"machine code needs {machine.linker}: apt-get install {package}")
    return driver


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


def library(
    machine: Machine, *, pictures: bool = True, spectrograms: Sequence[SpectrogramInput] = ()
) -> Path:
    """Return the library for an instruction set; it is made where it is not in the cache.

    Args:
        machine: the instruction set.
        pictures: it has the functions for images and boxes.
        spectrograms: records that it has a function for each of.

    Raises:
        NotAvailableError: TVM or the compiler driver is not installed, or fails.
        OSError: the cache cannot be written.
    """
    driver = _driver(machine)
    folder = writable_folder(FOLDER)
    what = f"{'pictures' if pictures else ''} {sorted(map(function_name, spectrograms))}"
    path = folder / f"{machine.name}-{_key(machine, what)}.so"
    if not is_whole(path):
        with Scratch(within=folder) as made:
            partial = made / "made.so"
            _build_apart((machine.name, driver, str(partial), pictures, tuple(spectrograms)))
            keep(partial, path)
    return path


def _build_apart(asked: tuple[Any, ...]) -> None:
    """Make it in another process: the compiler takes 260 MB, and this one may be requested more."""
    process = Child(_MODULE, keep_errors=True)
    try:
        process.send(asked)
        fault = process.receive(_TIMEOUT_S, form=str)
    except ChildEndedError as e:
        fault = f"the compiler's process ended: {e.how}"
    except TimeoutError:
        fault = f"no end after {_TIMEOUT_S} s"
    finally:
        process.kill()
    if fault:
        raise NotAvailableError(str(fault))


def _key(machine: Machine, what: str) -> str:
    """What a library is made of, as a name."""
    from edgeinfer.kernels import defs

    known = hashlib.sha256(f"{machine} {version('apache-tvm')} {what}".encode())
    for folder in defs.__path__:
        for name in _SOURCES:
            known.update(Path(folder, name).read_bytes())
    known.update(Path(stages.__file__).read_bytes())
    here = Path(__file__).parent
    written = [here / name for name in ("functions.c", "functions_build.py")]
    written += [here.parent / "lower" / "tvm" / name for name in ("hosted.py", "hosted.h")]
    for path in written:
        known.update(path.read_bytes())
    return known.hexdigest()[:16]
