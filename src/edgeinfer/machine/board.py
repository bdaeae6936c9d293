"""Which board or computer this is, and what its vendor put on it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from edgeinfer.machine.sysfs import printed, text
from edgeinfer.records import dataclass

_JETPACK = {"32": "4", "34": "5", "35": "5", "36": "6", "38": "7", "39": "7"}
"""L4T release to JetPack: https://developer.nvidia.com/embedded/jetpack-archive. JetPack 7.2, for
Orin too, is L4T 39.2."""

_JETSON_SM = {
    "tegra210": "5.3",
    "tegra186": "6.2",
    "tegra194": "7.2",
    "tegra234": "8.7",
    "tegra264": "11.0",
}
"""Chip in the device tree to compute capability: https://developer.nvidia.com/cuda-gpus. Thor was
10.1 until CUDA 13 renamed it to 11.0."""

_NVIDIA, _DISPLAYS = "0x10de", ("0x0300", "0x0302")
"""Vendor, and the classes of VGA and 3D controllers: https://pci-ids.ucw.cz."""

_LIBRARIES = ("usr/lib/aarch64-linux-gnu", "usr/lib/x86_64-linux-gnu", "usr/lib64", "usr/lib")


@dataclass(frozen=True, slots=True)
class Board:
    """What is known of the computer itself.

    Attributes:
        model: e.g. ``Raspberry Pi 5 Model B Rev 1.0``; empty when unknown.
        family: ``raspberry-pi``, ``jetson``, ``android``, ``apple`` or empty.
        system: name and version of the operating system; empty when unknown.
        jetpack: major version, e.g. ``6``; empty when this is no Jetson.
        l4t: Jetson Linux release, e.g. ``36.4.3``.
    """

    model: str = ""
    family: str = ""
    system: str = ""
    jetpack: str = ""
    l4t: str = ""


@dataclass(frozen=True, slots=True)
class Gpu:
    """An NVIDIA GPU, as the driver's management library tells or, without it, the system's files.

    Attributes:
        name: its own name.
        compute_capability: e.g. ``8.7``; empty when unknown.
        driver: version of the kernel driver; empty when unknown.
        cuda: version of the toolkit found; empty without one.
        tensorrt: version of TensorRT's library found; empty without one.
        memory_mb: Megabytes of memory of its own; 0 when unknown, and where it shares the
            machine's.
        free_mb: Free megabytes of that, now; None when unknown.
        celsius: its temperature now; None when unknown.
        power_limit_w: set by the owner; None when unknown or as the maker set it.
        complaints: what slows it down now.
    """

    name: str
    compute_capability: str = ""
    driver: str = ""
    cuda: str = ""
    tensorrt: str = ""
    memory_mb: int = 0
    free_mb: int | None = None
    celsius: float | None = None
    power_limit_w: int | None = None
    complaints: tuple[str, ...] = ()


def read_board(root: Path) -> Board:
    """Read a Linux or Android system.

    Args:
        root: Root of the file system.
    """
    model = text(root / "proc/device-tree/model")
    system = _release(text(root / "etc/os-release"))
    if properties := _properties(text(root / "system/build.prop")):
        return _android(properties)
    if l4t := _l4t(root):
        return Board(model, "jetson", system, _JETPACK.get(l4t.split(".")[0], ""), l4t)
    if model.startswith("Raspberry Pi"):
        return Board(model, "raspberry-pi", system)
    if _chip(root):
        return Board(model, "jetson", system)
    vendor = text(root / "sys/class/dmi/id/sys_vendor")
    product = text(root / "sys/class/dmi/id/product_name")
    return Board(model or f"{vendor} {product}".strip(), "", system)


def getprop() -> str:
    """Return what an Android system tells programs, which may not read its files; else nothing."""
    return printed("getprop")


def android_board(reported: str) -> Board:
    """Describe an Android device.

    Args:
        reported: output of ``getprop``.
    """
    return _android(dict(re.findall(r"(?m)^\[([\w.]+)\]: \[(.*)\]\r?$", reported)))


def _android(properties: Mapping[str, str]) -> Board:
    """Apps see the product's own properties, the file has those of the system image."""

    def known(*names: str) -> str:
        return next(filter(None, (properties.get(name) for name in names)), "")

    maker = known("ro.product.manufacturer", "ro.product.system.manufacturer")
    product = known("ro.product.model", "ro.product.system.model")
    version = known("ro.build.version.release", "ro.system.build.version.release")
    return Board(f"{maker} {product}".strip(), "android", f"Android {version}".strip())


def read_gpus(root: Path, reported: Sequence[Gpu] = ()) -> tuple[Gpu, ...]:
    """Read which NVIDIA GPUs there are; a Jetson's is on its chip and has no PCI entry.

    Args:
        root: Root of the file system.
        reported: what the driver's management library knows of those that are no Jetson's.
    """
    if chip := _chip(root):
        found: Sequence[Gpu] = (Gpu(f"{chip} (integrated)", _JETSON_SM[chip], _driver(root)),)
    elif not (found := reported):
        cards = sorted((root / "proc/driver/nvidia/gpus").glob("*/information"))
        found = [Gpu(name, "", _driver(root)) for name in filter(None, map(_card, cards))]
    if not found:
        return ()
    cuda, tensorrt = _cuda(root), _tensorrt(root)
    return tuple(replace(gpu, cuda=cuda, tensorrt=tensorrt) for gpu in found)


def idle_nvidia(root: Path) -> bool:
    """Whether an NVIDIA GPU is on the bus though no driver of it is loaded.

    Args:
        root: Root of the file system.
    """
    if _driver(root) or _chip(root):
        return False
    devices = (root / "sys/bus/pci/devices").glob("*")
    return any(
        text(d / "vendor") == _NVIDIA and text(d / "class").startswith(_DISPLAYS) for d in devices
    )


def _release(content: str) -> str:
    name = _line(content, "PRETTY_NAME=")
    return name.removeprefix('"').partition('"')[0]


def _line(content: str, start: str) -> str:
    """Return what follows on the first line that starts so; empty where there is none."""
    found = (line for line in content.splitlines() if line.startswith(start))
    return next(found, "").removeprefix(start)


def _properties(content: str) -> dict[str, str]:
    return dict(re.findall(r"(?m)^([\w.]+)=(.*)$", content)) if content else {}


def _l4t(root: Path) -> str:
    """``# R36 (release), REVISION: 4.3, GCID: …`` is L4T 36.4.3."""
    found = text(root / "etc/nv_tegra_release")
    match = found and re.search(r"R(\d+) \(release\), REVISION: ([\d.]+)", found)
    return f"{match[1]}.{match[2]}" if match else ""


def _chip(root: Path) -> str:
    """The Tegra chip of the device tree; its list of names is separated by zero bytes."""
    names = text(root / "proc/device-tree/compatible").split("\0")
    chips = [n.removeprefix("nvidia,") for n in names if n.startswith("nvidia,tegra")]
    return next((c for c in chips if c in _JETSON_SM), "")


def _driver(root: Path) -> str:
    found = text(root / "proc/driver/nvidia/version")
    match = re.search(r"Kernel Module(?: for \w+)?\s+(?:for \w+\s+)?([\d.]+)", found)
    return match[1] if match else text(root / "sys/module/nvidia/version")


def _card(information: Path) -> str:
    match = re.search(r"(?m)^Model:\s*(.+)$", text(information))
    return match[1].strip() if match else ""


def _cuda(root: Path) -> str:
    try:
        found = json.loads(text(root / "usr/local/cuda/version.json"))
        return str(found["cuda"]["version"])
    except (ValueError, KeyError, TypeError):
        return ""


def _tensorrt(root: Path) -> str:
    """The highest version among the names ``libnvinfer.so.10.3.0``."""
    return max(_versions(root), key=lambda v: [int(p) for p in v.split(".")], default="")


def _versions(root: Path) -> Iterator[str]:
    for folder in _LIBRARIES:
        for path in (root / folder).glob("libnvinfer.so.*"):
            match = re.fullmatch(r"libnvinfer\.so\.(\d+(?:\.\d+)*)", path.name)
            if match:
                yield match[1]


def memory_mb(root: Path) -> int:
    """Return the machine's memory; 0 when unknown.

    Args:
        root: Root of the file system.
    """
    return (_kilobytes(root, "MemTotal:") or 0) >> 10


def free_bytes(root: Path) -> int | None:
    """Return what the kernel believes can be taken without swapping; None when unknown.

    Args:
        root: Root of the file system.
    """
    found = _kilobytes(root, "MemAvailable:")
    return None if found is None else found << 10


def _kilobytes(root: Path, key: str) -> int | None:
    value = _line(text(root / "proc/meminfo"), key).removesuffix("kB").strip()
    return int(value) if value.isdecimal() else None
