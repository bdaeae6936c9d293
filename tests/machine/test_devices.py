"""Facts of recorded devices and of this one."""

from dataclasses import replace
from pathlib import Path

import pytest

from edgeinfer.machine.board import Board, Gpu, idle_nvidia
from edgeinfer.machine.cgroup import Limits, available_cpus
from edgeinfer.machine.cpu import Cache, Cluster
from edgeinfer.machine.fingerprint import Facts, fingerprint, read_facts
from edgeinfer.machine.power import Power
from tests.machine.recorded import DEVICES, GETPROP, INTEL_MAC, MAC, record

A76 = ("asimd", "asimddp", "asimdhp")


def facts(name: str, folder: Path) -> Facts:
    machine = "x86_64" if name in ("x86-server", "old-docker") else "aarch64"
    return read_facts(record(name, folder), system="Linux", machine=machine)


def test_a_pi_4_that_was_too_hot(tmp_path: Path) -> None:
    found = facts("pi4", tmp_path)
    assert (found.os, found.arch) == ("linux", "aarch64")
    assert (found.cpu.name, found.cpu.features) == ("Cortex-A72", ("asimd",))
    assert found.cpu.clusters == (Cluster("Cortex-A72", (0, 1, 2, 3), 1800),)
    assert found.board == Board(
        "Raspberry Pi 4 Model B Rev 1.4", "raspberry-pi", "Debian GNU/Linux 12 (bookworm)"
    )
    assert found.power.celsius == {"cpu-thermal": 81.788}
    assert found.power.mode == "ondemand"
    assert found.power.complaints == (
        "the soft temperature limit is reached",
        "the soft temperature limit was reached",
    )
    assert (found.memory_mb, found.free_mb) == (3795, 3320)
    assert found.gpus == ()


def test_a_pi_5_in_order(tmp_path: Path) -> None:
    found = facts("pi5", tmp_path)
    assert (found.cpu.name, found.cpu.features) == ("Cortex-A76", A76)
    assert found.cpu.caches == (
        Cache(1, "data", 64, 1),
        Cache(2, "unified", 512, 1),
        Cache(3, "unified", 2048, 4),
    )
    assert found.power.complaints == ()


@pytest.mark.parametrize(
    ("name", "cpus", "core", "board", "gpu", "mode"),
    [
        (
            "orin-nano",
            6,
            "Cortex-A78AE",
            ("6", "36.4.3"),
            ("tegra234 (integrated)", "8.7", "12.6.68", "10.3.0"),
            "nvpmodel 1 (25W)",
        ),
        (
            "agx-orin",
            12,
            "Cortex-A78AE",
            ("5", "35.5.0"),
            ("tegra234 (integrated)", "8.7", "11.4.19", "8.5.2"),
            "nvpmodel 0",
        ),
        (
            "thor",
            14,
            "Neoverse-V3AE",
            ("7", "38.2.0"),
            ("tegra264 (integrated)", "11.0", "13.0.0", "10.13.3"),
            "",
        ),
    ],
)
def test_a_jetson(
    name: str,
    cpus: int,
    core: str,
    board: tuple[str, str],
    gpu: tuple[str, str, str, str],
    mode: str,
    tmp_path: Path,
) -> None:
    found = facts(name, tmp_path)
    assert found.board.family == "jetson"
    assert (found.board.jetpack, found.board.l4t) == board
    assert found.board.model == DEVICES[name]["proc/device-tree/model"].strip("\0")
    assert found.cpu.name == core
    assert found.cpu.big == tuple(range(cpus))
    title, sm, cuda, tensorrt = gpu
    assert found.gpus == (Gpu(title, sm, "", cuda, tensorrt),)
    assert found.power.mode == mode


def test_a_phone_has_its_big_core_first(tmp_path: Path) -> None:
    found = facts("phone", tmp_path)
    assert found.os == "android"
    assert found.board == Board("Google Pixel 8", "android", "Android 15")
    assert found.cpu.clusters == (
        Cluster("Cortex-X3", (7,), 2914, 1024),
        Cluster("Cortex-A715", (4, 5, 6), 2367, 700),
        Cluster("Cortex-A510", (0, 1, 2, 3), 1704, 250),
    )
    assert found.cpu.big == (7,)
    assert found.power.battery is True


def test_termux_asks_where_it_may_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = record("phone", tmp_path)
    (root / "system/build.prop").unlink()
    monkeypatch.setenv("ANDROID_ROOT", "/system")
    found = read_facts(root, machine="aarch64", properties=GETPROP)
    assert (found.os, found.board) == ("android", Board("Google Pixel 8", "android", "Android 15"))
    assert found.cpu.big == (7,)
    # Nobody answers: it is an Android all the same.
    silent = read_facts(root, machine="aarch64", properties="")
    assert (silent.os, silent.board) == ("android", Board("", "android", "Android"))


def test_a_server_in_a_limited_service(tmp_path: Path) -> None:
    found = facts("x86-server", tmp_path)
    assert found.cpu.name == "INTEL(R) XEON(R) PLATINUM 8570"
    assert {"amx_int8", "amx_bf16", "avx512_vnni"} <= set(found.cpu.features)
    assert found.gpus == (Gpu("NVIDIA H100 80GB HBM3", "", "580.65.06"),)
    assert found.limits == Limits(2.5, (0, 1, 2, 3), 4 << 30, 1 << 30)
    assert found.free_mb == 3 << 10
    assert found.board == Board("Supermicro SYS-821GE")


def test_a_container_of_version_1(tmp_path: Path) -> None:
    found = facts("old-docker", tmp_path)
    assert found.limits == Limits(1.5, (), 512 << 20, 256 << 20)
    assert found.free_mb == 256


def test_macs() -> None:
    found = read_facts(Path("/nowhere"), system="Darwin", machine="arm64", controls=MAC)
    assert (found.os, found.arch, found.memory_mb) == ("macos", "aarch64", 24 << 10)
    assert found.board == Board("Mac16,1", "apple", "macOS 15.3")
    assert found.cpu.name == "Apple M4"
    assert found.cpu.features == (*A76[:1], "asimddp", "asimdhp", "bf16", "i8mm", "sme")
    fast, slow = found.cpu.clusters
    assert (fast.name, fast.cpus) == ("Performance", (6, 7, 8, 9))
    assert (slow.name, slow.cpus) == ("Efficiency", (0, 1, 2, 3, 4, 5))
    assert found.cpu.caches == (Cache(1, "data", 128, 1), Cache(2, "unified", 16384, 4))
    assert found.power == Power("low power mode", True)
    assert found.free_mb == (24 << 10) * 62 // 100
    old = read_facts(Path("/nowhere"), system="Darwin", machine="x86_64", controls=INTEL_MAC)
    assert old.cpu.features == ("avx", "avx2", "f16c", "fma")
    assert old.cpu.big == tuple(range(12))
    assert old.power == Power(complaints=("heat slows the processor down",))
    assert old.free_mb is None
    cool = MAC.replace("lowpowermode         1", "powermode            2")
    found = read_facts(Path("/nowhere"), system="Darwin", machine="arm64", controls=cool)
    assert found.power.mode == "high power mode"
    # A laptop that saves power is measured anew.
    assert fingerprint(found).key("cpu") != fingerprint(replace(found, power=Power())).key("cpu")
    nothing = read_facts(Path("/nowhere"), system="Darwin", machine="arm64", controls="")
    assert (nothing.power, nothing.free_mb, nothing.memory_mb) == (Power(), None, 0)


def test_nothing_readable_is_nothing_known(tmp_path: Path) -> None:
    found = read_facts(tmp_path, system="Linux", machine="riscv64")
    assert (found.os, found.arch, found.memory_mb, found.free_mb) == ("linux", "riscv64", 0, None)
    assert found.limits == Limits()
    assert (found.gpus, found.board, found.cpu.clusters) == ((), Board(), ())


@pytest.mark.parametrize("name", DEVICES)
def test_garbage_in_any_file_is_unknown_and_never_an_error(name: str, tmp_path: Path) -> None:
    root = record(name, tmp_path)
    for path in [p for p in root.rglob("*") if p.is_file()]:
        content = path.read_bytes()
        path.write_bytes(b"\xff\xfe\x00 : - , [{\n")
        read_facts(root, system="Linux", machine="aarch64")
        path.write_bytes(content)


def test_a_gpu_without_a_driver_is_seen_on_the_bus(tmp_path: Path) -> None:
    card = tmp_path / "sys/bus/pci/devices/0000:01:00.0"
    card.mkdir(parents=True)
    assert not idle_nvidia(tmp_path)
    (card / "vendor").write_text("0x10de\n")
    (card / "class").write_text("0x040300\n")  # its sound
    assert not idle_nvidia(tmp_path)
    (card / "class").write_text("0x030200\n")
    assert idle_nvidia(tmp_path)
    (tmp_path / "sys/module/nvidia").mkdir(parents=True)
    (tmp_path / "sys/module/nvidia/version").write_text("580.65.06\n")
    assert not idle_nvidia(tmp_path)
    (card / "vendor").write_text("0x1002\n")
    (tmp_path / "sys/module/nvidia/version").unlink()
    assert not idle_nvidia(tmp_path)


def test_this_machine_has_a_stable_key() -> None:
    here = fingerprint()
    assert here == fingerprint()
    assert here.cpus == available_cpus() >= 1
    assert len(here.key("cpu")) == 16


def test_the_key_changes_with_what_decides_speed(tmp_path: Path) -> None:
    here = fingerprint()
    assert replace(here, cpus=here.cpus + 1).key("cpu") != here.key("cpu")
    assert replace(here, features=("x",)).key("npu") != here.key("npu")
    card = replace(here, gpus=("NVIDIA H100, driver 580",))
    assert card.key("gpu") != here.key("gpu")
    assert card.key("cpu") == here.key("cpu")
    assert replace(here, memory_mb=1).key("gpu") == here.key("gpu")
    root = record("orin-nano", tmp_path)
    before = fingerprint(read_facts(root, system="Linux", machine="aarch64"))
    (root / "var/lib/nvpmodel/status").write_text("pmode:0000\n")
    after = fingerprint(read_facts(root, system="Linux", machine="aarch64"))
    assert before.key("cpu") != after.key("cpu")
