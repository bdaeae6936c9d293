"""Everything that is known of this device, for people and for choices."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from edgeinfer.machine.board import (
    Board,
    Gpu,
    android_board,
    free_bytes,
    getprop,
    memory_mb,
    read_board,
    read_gpus,
)
from edgeinfer.machine.cgroup import Limits, read_limits
from edgeinfer.machine.cpu import Cpu, read_cpu, usual_name
from edgeinfer.machine.power import Power, read_power
from edgeinfer.records import dataclass

_SYSTEMS = {"darwin": "macos"}
_ARCHES = {"amd64": "x86_64", "arm64": "aarch64"}


@dataclass(frozen=True, slots=True)
class Facts:
    """A device.

    Attributes:
        os: ``linux``, ``android``, ``macos`` or ``windows``.
        arch: ``x86_64``, ``aarch64`` or what the system calls it.
        cpu: the processor.
        board: the computer.
        gpus: NVIDIA GPUs that the driver or the system's files show, whether or not an engine can
            use them.
        limits: what this process's container allows.
        power: heat and power.
        memory_mb: Megabytes of memory of the machine; 0 when unknown.
        free_mb: what can be taken now without swapping, limits heeded; None when unknown.
    """

    os: str
    arch: str
    cpu: Cpu
    board: Board = field(default_factory=Board)
    gpus: tuple[Gpu, ...] = ()
    limits: Limits = field(default_factory=Limits)
    power: Power = field(default_factory=Power)
    memory_mb: int = 0
    free_mb: int | None = None


def read_facts(
    root: Path = Path("/"),
    *,
    ask_driver: bool = True,
    system: str | None = None,
    machine: str | None = None,
    controls: str | None = None,
    nvml: Any | None = None,
    properties: str | None = None,
    brief: bool = False,
) -> Facts:
    """Look at this device, or at a recorded one.

    Args:
        root: Root of the file system.
        ask_driver: NVIDIA's management library is asked, if ``root`` is this machine's. It takes 17
            MB for as long as the process lives, so who asks for no GPU goes by the system's files.
        system: as ``platform.system()`` has it; None asks this one.
        machine: as ``platform.machine()`` has it; None asks this one.
        controls: output of a Mac's ``sysctl`` and ``pmset``; None asks this one.
        properties: output of Android's ``getprop``; None asks this one.
        nvml: NVIDIA's management library; None takes this machine's.
        brief: leave out what passes (heat, power, free memory), limits and caches, for all of which
            a Linux system has many files.
    """
    found = (system or platform.system()).lower()
    name = (machine or platform.machine()).lower()
    arch, kind = _ARCHES.get(name, name), _SYSTEMS.get(found, found)
    if kind == "macos":
        from edgeinfer.machine.apple import parse_free_mb, parse_power, parse_sysctl, sysctl

        settings = sysctl() if controls is None else controls
        cpu, model, version, memory = parse_sysctl(settings)
        return Facts(
            kind,
            arch,
            cpu,
            Board(model, "apple", version),
            power=parse_power(settings),
            memory_mb=memory,
            free_mb=parse_free_mb(settings),
        )
    gpus = _reported(nvml, ask=ask_driver and nvml is None and root == Path("/"))
    board = read_board(root)
    android = board.family == "android" or (system is None and _is_android())
    if android and board.family != "android":
        # Termux may not read the system's own file.
        board = android_board(getprop() if properties is None else properties)
    limits = Limits() if brief else read_limits(root)
    return Facts(
        "android" if android else kind,
        arch,
        read_cpu(root, default=usual_name() if machine is None else name, caches=not brief),
        board,
        read_gpus(root, gpus),
        limits,
        Power() if brief else read_power(root),
        memory_mb(root),
        None if brief else free_mb(root, limits),
    )


def _reported(nvml: Any | None, *, ask: bool) -> Sequence[Gpu]:
    """Return what NVIDIA's management library knows: this machine's, where it is to be asked."""
    if nvml is None and not ask:
        return ()
    from edgeinfer.machine.nvml import library, read_nvml

    with library() if ask else contextlib.nullcontext(nvml) as asked:
        return read_nvml(asked)


def _is_android() -> bool:
    """Python 3.13 on names Termux; older ones say Linux there."""
    return sys.platform == "android" or "ANDROID_ROOT" in os.environ


def free_mb(root: Path, limits: Limits) -> int | None:
    """Return what can still be taken, of the machine and of this group; None when unknown."""
    left = [free_bytes(root)]
    if limits.memory_bytes is not None:
        left.append(limits.memory_bytes - (limits.memory_used_bytes or 0))
    known = [value for value in left if value is not None]
    return max(0, min(known)) >> 20 if known else None
