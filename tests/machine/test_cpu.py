"""A processor's facts cost few files, also where it has hundreds of CPUs."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.machine import cpu, sysfs
from edgeinfer.machine.cpu import Cache, read_cpu, usual_name

CPUS, TOGETHER = 64, 16


def server(root: Path, big: int = CPUS) -> None:
    """Write what Linux shows of CPUs that share their last cache in groups."""
    blocks = [
        f"processor\t: {n}\nmodel name\t: EPYC: a server\nflags\t\t: avx2 fma sse\n"
        for n in range(CPUS)
    ]
    (root / "proc").mkdir(parents=True)
    (root / "proc/cpuinfo").write_text("\n".join(blocks))
    folder = root / "sys/devices/system/cpu"
    folder.mkdir(parents=True)
    (folder / "online").write_text(f"0-{CPUS - 1}\n")
    for n in range(CPUS):
        first = n - n % TOGETHER
        # The last group has a larger cache, as processors with stacked memory do.
        last = "98304K" if first == CPUS - TOGETHER else "32768K"
        l2 = "1024K" if n < big else "512K"
        for index, (kind, level, size, shared) in enumerate(
            [
                ("Data", 1, "32K", str(n)),
                ("Instruction", 1, "32K", str(n)),
                ("Unified", 2, l2, str(n)),
                ("Unified", 3, last, f"{first}-{first + TOGETHER - 1}"),
            ]
        ):
            place = folder / f"cpu{n}/cache/index{index}"
            place.mkdir(parents=True)
            (place / "type").write_text(f"{kind}\n")
            (place / "level").write_text(f"{level}\n")
            (place / "size").write_text(f"{size}\n")
            (place / "shared_cpu_list").write_text(f"{shared}\n")
        if n >= big:
            (folder / f"cpu{n}/cpu_capacity").write_text("512\n")


def test_caches_that_cpus_share_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server(tmp_path)
    read: list[Path] = []

    def watched(reads: Callable[[Path], Any]) -> Callable[[Path], Any]:
        def reading(path: Path) -> Any:
            read.append(path)
            return reads(path)

        return reading

    monkeypatch.setattr(cpu, "text", watched(sysfs.text))
    monkeypatch.setattr(cpu, "number", watched(sysfs.number))
    found = read_cpu(tmp_path, "")
    assert found.caches == (
        Cache(1, "data", 32, 1),
        Cache(2, "unified", 1024, 1),
        Cache(3, "unified", 98304, TOGETHER),
        Cache(3, "unified", 32768, TOGETHER),
    )
    assert (found.name, found.features) == ("EPYC: a server", ("avx2", "fma"))
    of_caches = [path for path in read if "cache" in path.parts]
    assert len(of_caches) == 4 * 4 * (CPUS // TOGETHER)


def test_cores_of_another_kind_keep_their_own_caches(tmp_path: Path) -> None:
    """Also where they share the last one with others."""
    server(tmp_path, big=8)
    assert [c.size_kb for c in read_cpu(tmp_path, "").caches if c.level == 2] == [1024, 512]


def test_the_name_where_no_file_has_one_starts_no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.name", "posix")
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    monkeypatch.setattr(subprocess, "Popen", None)
    assert usual_name() == "riscv64"
