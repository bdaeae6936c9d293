"""``edgeinfer devices`` and ``edgeinfer targets``."""

import json
from typing import Any

import pytest

from edgeinfer import profiles
from edgeinfer.backends import registry
from edgeinfer.backends.base import Device, Probe
from edgeinfer.machine import fingerprint
from edgeinfer.machine.board import Board, Gpu
from edgeinfer.machine.cgroup import available_cpus
from edgeinfer.machine.cpu import Cache, Cpu
from edgeinfer.machine.fingerprint import Facts
from edgeinfer.machine.power import Power

CPUS = available_cpus()

ORIN = Facts(
    "linux",
    "aarch64",
    Cpu("Cortex-A78AE", ("asimd", "asimddp"), (), (Cache(2, "unified", 256, 1),)),
    Board("Jetson Orin Nano", "jetson", "Ubuntu 22.04", "6", "36.4.3"),
    (Gpu("tegra234 (integrated)", "8.7", "", "12.6.68", "10.3.0"),),
    power=Power("nvpmodel 1 (25W)", None, {"cpu": 61.5, "gpu": 70.2}, ("it is throttled",)),
    memory_mb=7619,
)


def test_devices(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = (
        Probe("onnxruntime", "1.30.0", (Device("cpu", "Cortex-A76"), Device("gpu", "Mali", 1))),
        Probe("openvino", None, reason="not installed"),
    )
    monkeypatch.setattr(registry, "probe_all", lambda: found)
    monkeypatch.setattr(fingerprint, "read_facts", lambda: ORIN)
    cpus = f"{CPUS} CPU" + ("s" if CPUS > 1 else "")
    assert cli("devices").out == (
        f"Cortex-A78AE (aarch64, linux), {cpus}, 7.99 GB memory\n"
        "features: asimd asimddp\n"
        "board: Jetson Orin Nano, Ubuntu 22.04, JetPack 6 (L4T 36.4.3)\n"
        "caches: L2 256 KiB\n"
        "gpu: tegra234 (integrated), compute capability 8.7, CUDA 12.6.68, TensorRT 10.3.0\n"
        "power: nvpmodel 1 (25W)\n"
        "temperature: 70 °C (gpu)\n"
        "!! it is throttled\n"
        "\n"
        "backend      version  device  name\n"
        "onnxruntime  1.30.0   cpu:0   Cortex-A76\n"
        "onnxruntime  1.30.0   gpu:1   Mali\n"
        "openvino     -        none    not installed\n"
    )
    data = json.loads(cli("devices", "--json").out)
    assert data["machine"]["cpu"] == "Cortex-A78AE"
    assert data["facts"]["board"]["l4t"] == "36.4.3"
    assert [p["backend"] for p in data["backends"]] == ["onnxruntime", "openvino"]


def test_targets_are_the_profiles(cli: Any) -> None:
    result = cli("targets")
    assert result.code == 0
    head, *lines, last = result.out.splitlines()
    assert (head.split()[0], last) == (
        "target",
        "precisions and other names of one: edgeinfer targets NAME",
    )
    named = [line.split()[0] for line in lines if line[0] != " "]
    assert named == list(profiles.names())
    data = json.loads(cli("targets", "--json").out)
    assert [t["name"] for t in data["targets"]] == list(profiles.names())
    assert "quirks" in data["targets"][0]


def test_a_target_by_name_tells_all_that_is_known_of_it(cli: Any) -> None:
    told = cli("targets", "raspberrypi5").out
    for word in ("rpi5", "Raspberry Pi 5", "pi5", "tflite, onnx (optional)", "dynamic_wi8_afp32"):
        assert word in told
    assert [t["name"] for t in json.loads(cli("targets", "pi5", "--json").out)["targets"]] == [
        "rpi5"
    ]
