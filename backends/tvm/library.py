"""The file of the format ``tvm``: a shared library, and behind it what a loader must know first.

::

    ELF shared library │ zeros │ weights, each at a multiple of 64 │ JSON │ length │ magic

An operating system's loader ignores what stands behind the library. So a file can be described,
and refused, before any of its code is mapped; and weights are mapped, not copied. Apple's libraries
are signed and have nothing behind them: the rest is a file of its own next to them.
"""

from __future__ import annotations

import json
import mmap
import platform
import struct
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from edgeinfer.bounded import parse_json
from edgeinfer.errors import LoadError
from edgeinfer.records import dataclass
from edgeinfer.types import Array, TensorSpec

ENTRY = "edgeinfer_run"
"""The function of a library that runs the whole model on given outputs."""

ALIGNMENT = 64
PAGE = 4096

DEVICES = ("cpu", "gpu")
KINDS = ("direct", "vm", "regions", "functions", "llm")

_MAGIC = b"edgetvm1"
_TAIL = struct.Struct("<Q8s")
_ELF, _ELF_MACHINE = b"\x7fELF", {62: "x86_64", 183: "aarch64"}
_MACH, _MACH_CPU = b"\xcf\xfa\xed\xfe", {0x0100000C: "aarch64"}
_BESIDE = ".weights"
_LONGEST = 64 << 20


@dataclass(frozen=True, slots=True)
class Weight:
    """A constant tensor in the file."""

    dtype: str
    shape: tuple[int, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class Library:
    """What the file says of itself.

    Attributes:
        kind: ``direct`` is one function over fixed shapes, ``vm`` a program of TVM's machine,
            ``regions`` are operators for ONNX Runtime, ``functions`` stand around a model, ``llm``
            are the steps of a language model.
        arch: Architecture of the CPU, read from the library itself.
        system: ``linux`` or ``macos``, likewise.
        machine: the instruction set the code was made for.
        features: what the CPU must have, as Linux names it.
        device: ``cpu`` or ``gpu``.
        parallel: whether any of it runs on several threads.
        inputs: Inputs of the model.
        outputs: Outputs of the model.
        weights: constants that the function takes behind the inputs.
        tvm: version that made it.
        memory: element types and numbers of what the function takes behind the weights, for
            intermediate results.
    """

    kind: str
    arch: str
    system: str
    machine: str
    features: tuple[str, ...]
    device: str
    parallel: bool
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    weights: tuple[Weight, ...]
    tvm: str
    memory: tuple[tuple[str, int], ...] = ()


def append(path: Path, about: Mapping[str, Any], weights: Sequence[Array]) -> tuple[Path, ...]:
    """Write weights and description behind a library, or next to it; return all files."""
    records: list[dict[str, Any]] = []
    into = _data_file(path)
    with into.open("wb" if into != path else "r+b") as file:
        file.seek(0, 2)
        _pad(file, PAGE)
        for array in weights:
            _pad(file, ALIGNMENT)
            shape = list(array.shape)
            records.append({"dtype": array.dtype.name, "shape": shape, "offset": file.tell()})
            file.write(np.ascontiguousarray(array).tobytes())
        text = json.dumps({**about, "weights": records}, sort_keys=True).encode()
        file.write(text)
        file.write(_TAIL.pack(len(text), _MAGIC))
    return (path,) if into == path else (path, into)


def _data_file(path: Path) -> Path:
    """Where weights and description of a library are."""
    with path.open("rb") as file:
        return path.with_suffix(_BESIDE) if file.read(4) == _MACH else path


def _pad(file: Any, multiple: int) -> None:
    file.write(bytes(-file.tell() % multiple))


def read(path: Path) -> Library:
    """Read a file's description; none of its code is mapped.

    Raises:
        LoadError: it is no such file, or damaged.
    """
    try:
        with path.open("rb") as file:
            head = file.read(20)
        described = _data_file(path)
        size = described.stat().st_size
        with described.open("rb") as file:
            file.seek(max(0, size - _TAIL.size))
            tail = file.read(_TAIL.size)
            if len(head) < 20 or head[:4] not in (_ELF, _MACH) or tail[8:] != _MAGIC:
                raise LoadError(f"tvm refuses {path}: it is no library that edgeinfer wrote")
            length = _TAIL.unpack(tail)[0]
            if length > min(size, _LONGEST):
                raise LoadError(f"tvm refuses {path}: its description is damaged")
            file.seek(size - _TAIL.size - length)
            about = parse_json(file.read(length))
            if about["kind"] not in KINDS or about["device"] not in DEVICES:
                raise LoadError(
                    f"tvm refuses {path}: it is {about['kind']!r} for {about['device']!r}, which "
                    "this version does not know: another version of edgeinfer made it; convert the "
                    "model again, or update edgeinfer here"
                )
            return _library(about, head, size)
    except KeyError as error:
        raise LoadError(
            f"tvm refuses {path}: its description lacks {error}: another version of edgeinfer made "
            "it; convert the model again"
        ) from error
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise LoadError(f"tvm refuses {path}: its description is damaged: {error!r}") from error


def _library(about: dict[str, Any], head: bytes, size: int) -> Library:
    weights = tuple(
        Weight(str(np.dtype(w["dtype"])), _sizes(w["shape"]), int(w["offset"]))
        for w in about["weights"]
    )
    for weight in weights:
        end = weight.offset + np.dtype(weight.dtype).itemsize * int(np.prod(weight.shape))
        if weight.offset < 0 or weight.offset % ALIGNMENT or end > size:
            raise ValueError("a weight lies outside the file")
    return Library(
        kind=about["kind"],
        arch=_arch(head),
        system="linux" if head[:4] == _ELF else "macos",
        machine=str(about["machine"]),
        features=tuple(map(str, about["features"])),
        device=about["device"],
        parallel=bool(about["parallel"]),
        inputs=_specs(about["inputs"]),
        outputs=_specs(about["outputs"]),
        weights=weights,
        tvm=str(about["tvm"]),
        memory=tuple(
            (np.dtype(kind).name, *_sizes([count])) for kind, count in about.get("memory", ())
        ),
    )


def _arch(head: bytes) -> str:
    if head[:4] == _ELF:
        return _ELF_MACHINE.get(struct.unpack_from("<H", head, 18)[0], "unknown")
    return _MACH_CPU.get(struct.unpack_from("<I", head, 4)[0], "unknown")


def _sizes(shape: Sequence[Any]) -> tuple[int, ...]:
    sizes = tuple(int(s) for s in shape)
    if any(s < 0 for s in sizes):
        raise ValueError("a negative size")
    return sizes


def _specs(items: Sequence[Mapping[str, Any]]) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(
            str(i["name"]),
            str(i["dtype"]),
            tuple(d if d is None or isinstance(d, int) else str(d) for d in i["shape"]),
        )
        for i in items
    )


def stored(dtype: str) -> str:
    """Return the element type that a library's functions take for a tensor's: bits for bfloat16."""
    return "uint16" if dtype == "bfloat16" else dtype


def describe(specs: Sequence[TensorSpec]) -> list[dict[str, Any]]:
    """Return inputs or outputs as the description holds them."""
    return [{"name": s.name, "dtype": s.dtype, "shape": list(s.shape or ())} for s in specs]


def map_weights(path: Path, library: Library) -> list[Array]:
    """Map the weights of a file; the arrays are read-only and keep the mapping alive."""
    if not library.weights:
        return []
    with _data_file(path).open("rb") as file:
        whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return [
        np.frombuffer(whole, w.dtype, int(np.prod(w.shape)), w.offset).reshape(w.shape)
        for w in library.weights
    ]


def check_machine(path: Path, about: Library) -> None:
    """Refuse code that this CPU does not understand, before any of it is mapped.

    Raises:
        LoadError: it is for another architecture, or uses instructions that this CPU lacks.
    """
    # macOS has another word for it.
    here = {"arm64": "aarch64"}.get(platform.machine(), platform.machine())
    system = {"darwin": "macos"}.get(sys.platform, sys.platform)
    if (about.arch, about.system) != (here, system):
        code = f"{about.arch} and {about.system}"
        raise LoadError(f"tvm refuses {path}: it is code for {code}, this is {here} and {system}")
    known = cpu_features()
    lacking = [f for f in about.features if f not in known]
    if known and lacking:
        raise LoadError(
            f"tvm refuses {path}: it is code for {about.machine}; this CPU lacks "
            f"{', '.join(lacking)}"
        )


@cache
def cpu_features() -> frozenset[str]:
    """What Linux says this CPU has; empty where it does not say."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()
