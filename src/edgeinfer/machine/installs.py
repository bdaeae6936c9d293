"""How to get an engine on this very device: one line that works here, or why there is none.

What there are wheels of was looked up for the versions named below; a device with another C
library, Python or architecture needs another line than a PC. Lines for Jetsons were not run on one.
"""

from __future__ import annotations

import shlex
import sys
import sysconfig
from pathlib import Path

from edgeinfer.installed import anew, package
from edgeinfer.machine.facts import Facts
from edgeinfer.records import dataclass

Version = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Python:
    """An interpreter.

    Attributes:
        version: e.g. ``(3, 11)``.
        command: that starts it.
        libc: Libc of the system, e.g. ``(2, 36)`` of glibc; empty where that says nothing.
        musl: whether the C library is musl.
        managed: whether the system's own packages forbid pip here (PEP 668).
    """

    version: Version
    command: str = "python3"
    libc: Version = ()
    musl: bool = False
    managed: bool = False


@dataclass(frozen=True, slots=True)
class Wheels:
    """What is published of an engine.

    Attributes:
        package: what to ask pip for.
        version: that the table was made of.
        linux: least glibc, by architecture.
        others: systems and architectures beyond Linux.
        pythons: oldest and newest version; empty for any.
    """

    package: str
    version: str
    linux: dict[str, Version]
    others: frozenset[tuple[str, str]] = frozenset()
    pythons: tuple[Version, Version] | None = ((3, 10), (3, 14))


_DESKTOPS = frozenset({("macos", "aarch64"), ("windows", "x86_64")})

WHEELS = {
    "onnxruntime": Wheels(
        "edgeinfer[onnxruntime]",
        "onnxruntime 1.32",
        {"x86_64": (2, 28), "aarch64": (2, 28)},
        _DESKTOPS,
    ),
    "openvino": Wheels(
        "edgeinfer[openvino]",
        "openvino 2026.4",
        {"x86_64": (2, 28), "aarch64": (2, 35)},
        _DESKTOPS,
    ),
    "litert": Wheels(
        "edgeinfer[litert]",
        "ai-edge-litert 2.3",
        {"x86_64": (2, 27), "aarch64": (2, 27)},
        _DESKTOPS,
    ),
    "tvm": Wheels(
        "edgeinfer[tvm]",
        "apache-tvm 0.27",
        {"x86_64": (2, 28), "aarch64": (2, 28)},
        _DESKTOPS,
        None,
    ),
    "coreml": Wheels("edgeinfer[coreml]", "coremltools 9", {}, frozenset({("macos", "aarch64")})),
    "reference": Wheels("onnx", "onnx 1.23", {"x86_64": (2, 28), "aarch64": (2, 28)}, _DESKTOPS),
}
"""Looked up with pip, tag by tag, in November 2026; for Python 3.10 pip takes onnxruntime 1.23."""

GPU = "onnxruntime-gpu"
TENSORRT = "tensorrt"
PROVIDER = "onnxruntime-tensorrt"
COMPILERS = (TENSORRT, PROVIDER)
"""Backends that compile for NVIDIA's GPUs: by TensorRT's own package, and by ONNX Runtime."""

_GPU_VERSION = "onnxruntime-gpu 1.31"
_GPU_LIBC: dict[str, Version] = {"x86_64": (2, 28), "aarch64": (2, 34)}

_JETSON_BUILD = (
    "./build.sh --config Release --parallel --build_wheel --use_cuda --use_tensorrt "
    "--cuda_home /usr/local/cuda --cudnn_home /usr/lib/aarch64-linux-gnu "
    "--tensorrt_home /usr/lib/aarch64-linux-gnu"
)
"""https://onnxruntime.ai/docs/build/eps.html, for NVIDIA Jetson."""


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do about a missing engine.

    Attributes:
        line: for a shell; empty where none works here.
        why: what is special here, or why there is no line.
    """

    line: str
    why: str = ""

    def __str__(self) -> str:
        return "; ".join(filter(None, [self.line, self.why]))


def this_python() -> Python:
    """Describe the interpreter that runs."""
    import platform

    name, version = platform.libc_ver()
    managed = Path(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED").exists()
    return Python(
        sys.version_info[:2],
        sys.executable,
        _numbers(version) if name == "glibc" else (),
        musl=sys.platform == "linux" and name != "glibc" and _is_musl(),
        managed=managed and sys.prefix == sys.base_prefix,
    )


def _is_musl() -> bool:
    return any(Path("/lib").glob("ld-musl-*"))


def _numbers(text: str) -> Version:
    return tuple(int(part) for part in text.split(".") if part.isdecimal())


def advise(engine: str, facts: Facts, python: Python) -> Advice:
    """Say how to get an engine onto a device; a function of its arguments alone.

    Args:
        engine: name of a backend, or ``onnxruntime-gpu``.
        facts: Facts of the device.
        python: that edgeinfer runs in there.
    """
    if engine == GPU:
        return _advise_gpu(facts, python)
    if engine in COMPILERS:
        return _advise_tensorrt(engine, facts, python)
    wheels = WHEELS.get(engine)
    if wheels is None:
        return Advice("", f"nothing is known of how to install {engine!r}")
    if problem := _problem(wheels, facts, python):
        return Advice("", problem)
    return Advice(install_line(python, wheels.package), _managed(python))


def install_line(python: Python, *packages: str) -> str:
    """Return the line that gets packages into this Python, or into a new environment next to it."""
    here = anew() if python.managed else package()
    ours = [p.replace("edgeinfer[", f"{here}[") for p in packages]
    named = " ".join(f'"{p}"' if "[" in p else p for p in ours)
    command = shlex.quote(python.command)
    if python.managed:
        home = "~/edgeinfer"
        more = "" if any(p.startswith("edgeinfer") for p in packages) else f" {here}"
        return f"{command} -m venv {home} && {home}/bin/pip install {named}{more}"
    return f"{command} -m pip install {named}"


def _managed(python: Python) -> str:
    if not python.managed:
        return ""
    return "the system's Python takes no packages from pip (PEP 668), so it goes into a venv"


def _problem(wheels: Wheels, facts: Facts, python: Python) -> str:
    """Say why there is no wheel for a device; empty where there is one."""
    place = f"{facts.os} on {facts.arch}"
    if facts.os == "android":
        return f"there are no wheels of {wheels.version} for Android; build it in Termux"
    if facts.os != "linux":
        known = (facts.os, facts.arch) in wheels.others
        return "" if known else f"there is no wheel of {wheels.version} for {place}"
    if python.musl:
        return f"there is no wheel of {wheels.version} for musl; use a system with glibc"
    least = wheels.linux.get(facts.arch)
    if least is None:
        bits = "; install a 64-bit system" if facts.arch in ("armv7l", "armv6l", "i686") else ""
        return f"there is no wheel of {wheels.version} for {place}{bits}"
    if python.libc and python.libc < least:
        return (
            f"the wheel of {wheels.version} for {facts.arch} needs glibc {_spelt(least)}, here is "
            f"{_spelt(python.libc)}; use a newer system"
        )
    if wheels.pythons and not wheels.pythons[0] <= python.version <= wheels.pythons[1]:
        return (
            f"{wheels.version} has wheels for Python {_spelt(wheels.pythons[0])} to "
            f"{_spelt(wheels.pythons[1])}, this is {_spelt(python.version)}"
        )
    return ""


def _advise_gpu(facts: Facts, python: Python) -> Advice:
    jetpack, gpu = facts.board.jetpack, next(iter(facts.gpus), None)
    if gpu is None:
        return Advice("", "no NVIDIA GPU is here")
    if facts.board.family == "jetson":
        if not jetpack.isdecimal() or int(jetpack) < 7:
            named = f"JetPack {jetpack}" if jetpack else "this Jetson Linux"
            why = (
                f"{_GPU_VERSION} needs CUDA 13, {named} has CUDA {gpu.cuda or 'of another version'}"
                ": build ONNX Runtime on the device, in a checkout of it, and install the wheel"
            )
            return Advice(_JETSON_BUILD, f"{why}; or move to JetPack 7 (not tried on a Jetson)")
        note = f"CUDA {gpu.cuda or '13'} is JetPack's own (not tried on a Jetson)"
        return _gpu_line(facts, python, (), note)
    return _gpu_line(facts, python, ("[cuda,cudnn]",), "")


def _advise_tensorrt(engine: str, facts: Facts, python: Python) -> Advice:
    if facts.board.family == "jetson":
        why = (
            "it brings TensorRT and its package for the system's Python; a virtual environment of "
            "that Python sees it if made with `python3 -m venv --system-site-packages`"
        )
        if engine == PROVIDER:
            why = (
                "it brings TensorRT's libraries; onnxruntime-gpu 1.31 for 64-bit Arm has no "
                "provider for them, so build ONNX Runtime in a checkout of it and install the "
                f"wheel: {_JETSON_BUILD}"
            )
        return Advice("sudo apt-get install -y nvidia-jetpack", f"{why} (not tried on a Jetson)")
    if (facts.os, facts.arch) not in (("linux", "x86_64"), ("windows", "x86_64")):
        return Advice("", f"TensorRT has no packages for {facts.os} on {facts.arch}")
    packages = [f"{GPU}[cuda,cudnn]"] if engine == PROVIDER else []
    line = install_line(python, *packages, "tensorrt-cu13")
    return Advice(line, "the libraries come from NVIDIA's own index (not tried here)")


def _gpu_line(facts: Facts, python: Python, extras: tuple[str, ...], note: str) -> Advice:
    wheels = Wheels(GPU, _GPU_VERSION, _GPU_LIBC, frozenset({("windows", "x86_64")}))
    if problem := _problem(wheels, facts, python):
        return Advice("", problem)
    line = install_line(python, GPU + "".join(extras))
    if not python.managed:
        # Both packages are the module onnxruntime; the one without CUDA would stay in front.
        line = f"{shlex.quote(python.command)} -m pip uninstall -y onnxruntime && {line}"
    return Advice(line, "; ".join(filter(None, [note, _managed(python)])))


def _spelt(version: Version) -> str:
    return ".".join(map(str, version))
