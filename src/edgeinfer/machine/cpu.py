"""The processor: its name, what it can do, its clusters and its caches."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path

from edgeinfer.machine.sysfs import indices, number, text
from edgeinfer.records import dataclass

DECISIVE = frozenset(
    {
        *("f16c", "fma", "avx", "avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
        *("avx_vnni", "amx_int8", "amx_bf16", "amx_fp16"),
        *("asimd", "asimdhp", "asimddp", "bf16", "i8mm", "sve", "sve2", "sme", "neon", "vfpv4"),
    }
)
"""Features that kernels are chosen by; the rest of the list differs between systems on one CPU."""

_HEX = "0x[0-9a-fA-F]+"
_ARM = "0x41"
_CORES = {
    (_ARM, 0xD03): "Cortex-A53",
    (_ARM, 0xD04): "Cortex-A35",
    (_ARM, 0xD05): "Cortex-A55",
    (_ARM, 0xD07): "Cortex-A57",
    (_ARM, 0xD08): "Cortex-A72",
    (_ARM, 0xD09): "Cortex-A73",
    (_ARM, 0xD0A): "Cortex-A75",
    (_ARM, 0xD0B): "Cortex-A76",
    (_ARM, 0xD0C): "Neoverse-N1",
    (_ARM, 0xD0D): "Cortex-A77",
    (_ARM, 0xD0E): "Cortex-A76AE",
    (_ARM, 0xD40): "Neoverse-V1",
    (_ARM, 0xD41): "Cortex-A78",
    (_ARM, 0xD42): "Cortex-A78AE",
    (_ARM, 0xD44): "Cortex-X1",
    (_ARM, 0xD46): "Cortex-A510",
    (_ARM, 0xD47): "Cortex-A710",
    (_ARM, 0xD48): "Cortex-X2",
    (_ARM, 0xD49): "Neoverse-N2",
    (_ARM, 0xD4B): "Cortex-A78C",
    (_ARM, 0xD4D): "Cortex-A715",
    (_ARM, 0xD4E): "Cortex-X3",
    (_ARM, 0xD4F): "Neoverse-V2",
    (_ARM, 0xD80): "Cortex-A520",
    (_ARM, 0xD81): "Cortex-A720",
    (_ARM, 0xD82): "Cortex-X4",
    (_ARM, 0xD83): "Neoverse-V3AE",
    (_ARM, 0xD84): "Neoverse-V3",
    (_ARM, 0xD85): "Cortex-X925",
    (_ARM, 0xD87): "Cortex-A725",
    ("0x4e", 0x003): "Denver 2",
    ("0x4e", 0x004): "Carmel",
    ("0x51", 0x001): "Oryon",
}
"""Main ID register, implementer and part: Arm's technical reference manuals, and the lists of
``arch/arm64/include/asm/cputype.h`` in Linux."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Cores of one kind.

    Attributes:
        name: Name of the core; empty when unknown.
        cpus: their numbers.
        max_mhz: highest clock; None when the kernel does not tell.
        capacity: relative speed, 1024 for the fastest core of the system; None when unknown.
    """

    name: str
    cpus: tuple[int, ...]
    max_mhz: int | None = None
    capacity: int | None = None


@dataclass(frozen=True, slots=True)
class Cache:
    """One kind of cache.

    Attributes:
        level: 1, 2, 3.
        kind: ``data`` or ``unified``.
        size_kb: Kilobytes of one of them.
        shared_by: CPUs that share one.
    """

    level: int
    kind: str
    size_kb: int
    shared_by: int


@dataclass(frozen=True, slots=True)
class Cpu:
    """A processor.

    Attributes:
        name: its own name, or its cores' names, the biggest first.
        features: instruction sets that kernels are chosen by, sorted.
        clusters: the fastest first.
        caches: by level.
    """

    name: str
    features: tuple[str, ...]
    clusters: tuple[Cluster, ...] = ()
    caches: tuple[Cache, ...] = ()

    @property
    def big(self) -> tuple[int, ...]:
        """The CPUs of the fastest cluster; where all are alike, all of them."""
        return self.clusters[0].cpus if self.clusters else ()


def usual_name() -> str:
    """Return what the processor is called where no file has its name.

    On POSIX systems ``platform.processor`` starts a program, which tells no more.
    """
    return (platform.processor() if os.name == "nt" else "") or platform.machine()


def read_cpu(root: Path, default: str, *, caches: bool = True) -> Cpu:
    """Read a Linux system.

    Args:
        root: Root of the file system.
        default: name where the system tells none.
        caches: look at them too: each has four files.
    """
    info = text(root / "proc/cpuinfo")
    blocks = [_pairs(block) for block in info.split("\n\n")]
    cores = dict(_cores(blocks))
    clusters = _clusters(root / "sys/devices/system/cpu", cores)
    named = next((block["model name"] for block in blocks if "model name" in block), "")
    kinds = dict.fromkeys(c.name for c in clusters if c.name) or dict.fromkeys(
        filter(None, cores.values())
    )
    # Old kernels put a name of the whole family into each Arm core's "model name".
    name = " + ".join(kinds) if kinds and "Processor rev" in named else named
    return Cpu(
        name or " + ".join(kinds) or default,
        _features(blocks),
        clusters,
        tuple(_caches(root / "sys/devices/system/cpu", clusters)) if caches else (),
    )


def _pairs(block: str) -> dict[str, str]:
    halves = (line.partition(":") for line in block.split("\n") if ":" in line)
    return {key.strip(): value.strip() for key, _, value in halves}


def _features(blocks: list[dict[str, str]]) -> tuple[str, ...]:
    """Features that every core has: a thread may be moved to any of them."""
    lists = {block[key] for block in blocks for key in ("flags", "Features") if key in block}
    return tuple(sorted(DECISIVE.intersection(*(each.split() for each in lists)))) if lists else ()


def _cores(blocks: list[dict[str, str]]) -> Iterator[tuple[int, str]]:
    """Each CPU's number and the name of its core."""
    for keys in blocks:
        if not keys.get("processor", "").isdigit():
            continue
        implementer, part = keys.get("CPU implementer", ""), keys.get("CPU part", "")
        unknown = f"{implementer} {part}".strip()
        known = _CORES.get((implementer, int(part, 16))) if re.fullmatch(_HEX, part) else None
        yield int(keys["processor"]), known or unknown


def _clusters(folder: Path, cores: dict[int, str]) -> tuple[Cluster, ...]:
    """CPUs by kind of core, clock and capacity, the fastest first."""
    numbers = indices(text(folder / "online")) or tuple(cores)
    groups: dict[tuple[str, int | None, int | None], list[int]] = {}
    for cpu in numbers:
        here = folder / f"cpu{cpu}"
        khz = number(here / "cpufreq/cpuinfo_max_freq")
        kind = cores.get(cpu, ""), khz and khz // 1000, number(here / "cpu_capacity")
        groups.setdefault(kind, []).append(cpu)
    found = [Cluster(name, tuple(cpus), mhz, cap) for (name, mhz, cap), cpus in groups.items()]
    return tuple(sorted(found, key=lambda c: (-(c.capacity or 0), -(c.max_mhz or 0), c.cpus)))


def _caches(folder: Path, clusters: tuple[Cluster, ...]) -> Iterator[Cache]:
    """The caches that CPUs reach, each kind once.

    CPUs of one cluster that share a cache have the same ones: a server has hundreds of CPUs, and
    each of their caches has four files.
    """
    seen: set[Cache] = set()
    for cluster in clusters:
        left = list(cluster.cpus)
        while left:
            first, together = left[0], {left[0]}
            for place in sorted((folder / f"cpu{first}/cache").glob("index[0-9]*")):
                shared = indices(text(place / "shared_cpu_list"))
                together.update(shared)
                if cache := _cache(place, len(shared) or 1):
                    seen.add(cache)
            left = [cpu for cpu in left if cpu not in together]
    yield from sorted(seen, key=lambda c: (c.level, -c.size_kb))


def _cache(place: Path, shared_by: int) -> Cache | None:
    """Describe a cache; None for one of instructions, and where a file is not there."""
    kind, level = text(place / "type").lower(), number(place / "level")
    size = text(place / "size")
    if kind not in ("data", "unified") or level is None or not size[:-1].isdecimal():
        return None
    if size[-1] not in "KM":
        return None
    return Cache(level, kind, int(size[:-1]) * (1024 if size[-1] == "M" else 1), shared_by)
