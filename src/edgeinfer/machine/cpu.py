"""The processor: its name, what it can do, its clusters and its caches."""

from __future__ import annotations

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

_HEX = re.compile("0x[0-9a-fA-F]+")
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


def read_cpu(root: Path, default: str) -> Cpu:
    """Read a Linux system.

    Args:
        root: Root of the file system.
        default: name where the system tells none.
    """
    info = text(root / "proc/cpuinfo")
    cores = dict(_cores(info))
    clusters = _clusters(root / "sys/devices/system/cpu", cores)
    named = next((value for key, value in _pairs(info) if key == "model name"), "")
    kinds = dict.fromkeys(c.name for c in clusters if c.name) or dict.fromkeys(
        filter(None, cores.values())
    )
    # Old kernels put a name of the whole family into each Arm core's "model name".
    name = " + ".join(kinds) if kinds and "Processor rev" in named else named
    return Cpu(
        name or " + ".join(kinds) or default,
        _features(info),
        clusters,
        tuple(_caches(root / "sys/devices/system/cpu")),
    )


def _pairs(info: str) -> list[tuple[str, str]]:
    return re.findall(r"(?m)^([^\t:\n]+?)\s*:[ \t]*(.*)$", info)


def _features(info: str) -> tuple[str, ...]:
    """Features that every core has: a thread may be moved to any of them."""
    lists = [set(value.split()) for key, value in _pairs(info) if key in ("flags", "Features")]
    return tuple(sorted(DECISIVE.intersection(*lists))) if lists else ()


def _cores(info: str) -> Iterator[tuple[int, str]]:
    """Each CPU's number and the name of its core."""
    for block in re.split(r"\n\s*\n", info):
        keys = dict(_pairs(block))
        if not keys.get("processor", "").isdigit():
            continue
        implementer, part = keys.get("CPU implementer", ""), keys.get("CPU part", "")
        unknown = f"{implementer} {part}".strip()
        known = _CORES.get((implementer, int(part, 16))) if _HEX.fullmatch(part) else None
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


def _caches(folder: Path) -> Iterator[Cache]:
    """The caches that the first CPU of each kind reaches, each kind once."""
    seen = set()
    cpus = sorted(folder.glob("cpu[0-9]*"), key=lambda p: int(p.name[3:]))
    for place in (p for cpu in cpus for p in sorted(cpu.glob("cache/index[0-9]*"))):
        kind = text(place / "type").lower()
        level, size = number(place / "level"), re.fullmatch(r"(\d+)([KM])", text(place / "size"))
        if kind not in ("data", "unified") or level is None or size is None:
            continue
        kb = int(size[1]) * (1024 if size[2] == "M" else 1)
        shared = len(indices(text(place / "shared_cpu_list"))) or 1
        seen.add(Cache(level, kind, kb, shared))
    yield from sorted(seen, key=lambda c: (c.level, -c.size_kb))
