"""A Mac, as its ``sysctl`` and ``pmset`` tell."""

from __future__ import annotations

import re

from edgeinfer.machine.cpu import Cache, Cluster, Cpu
from edgeinfer.machine.power import Power
from edgeinfer.machine.sysfs import printed

_FEATURES = {
    "AdvSIMD": "asimd",
    "FEAT_FP16": "asimdhp",
    "FEAT_DotProd": "asimddp",
    "FEAT_BF16": "bf16",
    "FEAT_I8MM": "i8mm",
    "FEAT_SME": "sme",
}
"""Apple's names as Linux has them: https://developer.apple.com/documentation/kernel."""


_KEYS = ("hw", "machdep.cpu", "machdep.xcpm", "kern.osproductversion", "kern.memorystatus_level")


def sysctl() -> str:
    """Return what the system tells of itself and of its power; empty where it does not."""
    # Those of these keys that a Mac has not are left out by itself.
    return printed("/usr/sbin/sysctl", *_KEYS) + printed("/usr/bin/pmset", "-g")


def parse_power(output: str) -> Power:
    """Return the power mode, where the power comes from, and what heat does.

    Args:
        output: Output of ``pmset -g`` and ``sysctl machdep.xcpm``, which Intel Macs have.
    """
    saving = re.search(r"(?m)^\s*lowpowermode\s+1\b", output)
    fast = re.search(r"(?m)^\s*(?:highpowermode\s+1|powermode\s+2)\b", output)
    source = re.search(r"drawing from '(\w+)", output)
    heat = re.search(r"(?m)^machdep\.xcpm\.cpu_thermal_level: (\d+)", output)
    return Power(
        "low power mode" if saving else "high power mode" if fast else "",
        source[1] == "Battery" if source else None,
        complaints=("heat slows the processor down",) if heat and int(heat[1]) else (),
    )


def parse_free_mb(output: str) -> int | None:
    """Return the memory that the kernel counts as available, in MiB; None when it does not say.

    Args:
        output: Output of ``sysctl hw.memsize kern.memorystatus_level``, a percentage.
    """
    keys = dict(re.findall(r"(?m)^([\w.]+): (.*)$", output))
    level, memory = keys.get("kern.memorystatus_level", ""), _number(keys, "hw.memsize")
    return (memory >> 20) * int(level) // 100 if level.isdigit() and memory else None


def parse_sysctl(output: str) -> tuple[Cpu, str, str, int]:
    """Return the processor, the model, the system and the memory in MiB.

    Args:
        output: Output of ``sysctl hw machdep.cpu kern.osproductversion``.
    """
    keys = dict(re.findall(r"(?m)^([\w.]+): (.*)$", output))
    name = keys.get("machdep.cpu.brand_string", "")
    arm = {
        linux for apple, linux in _FEATURES.items() if keys.get(f"hw.optional.arm.{apple}") == "1"
    }
    intel = {
        flag.lower().replace(".", "_")
        for key in ("machdep.cpu.features", "machdep.cpu.leaf7_features")
        for flag in keys.get(key, "").split()
    }
    from_intel = {"avx1_0": "avx", "avx2": "avx2", "fma": "fma", "f16c": "f16c"}
    features = arm | {linux for apple, linux in from_intel.items() if apple in intel}
    version = keys.get("kern.osproductversion", "")
    return (
        Cpu(name, tuple(sorted(features)), _clusters(keys), _caches(keys)),
        keys.get("hw.model", ""),
        f"macOS {version}".strip(),
        _number(keys, "hw.memsize") >> 20,
    )


def _clusters(keys: dict[str, str]) -> tuple[Cluster, ...]:
    """Performance levels, 0 being the fastest; efficiency cores have the lower CPU numbers."""
    counts = [_number(keys, f"hw.perflevel{i}.logicalcpu") for i in range(2)]
    if not counts[0]:
        total = _number(keys, "hw.logicalcpu")
        return (Cluster("", tuple(range(total))),) if total else ()
    fast, slow = counts
    found = [Cluster(keys.get("hw.perflevel0.name", ""), tuple(range(slow, slow + fast)))]
    if slow:
        found.append(Cluster(keys.get("hw.perflevel1.name", ""), tuple(range(slow))))
    return tuple(found)


def _caches(keys: dict[str, str]) -> tuple[Cache, ...]:
    found = []
    for prefix in ("hw.perflevel0.", "hw."):
        for key, level, kind in (("l1dcachesize", 1, "data"), ("l2cachesize", 2, "unified")):
            size = _number(keys, prefix + key)
            if size:
                shared = _number(keys, prefix + "cpusperl2") if level > 1 else 1
                found.append(Cache(level, kind, size >> 10, shared or 1))
        if found:
            break
    return tuple(found)


def _number(keys: dict[str, str], key: str) -> int:
    value = keys.get(key, "")
    return int(value) if value.isdigit() else 0
