"""``edgeinfer devices`` and ``edgeinfer targets``."""

import json
from typing import Any

import pytest

from edgeinfer import profiles
from edgeinfer.backends import registry
from edgeinfer.backends.base import Device, Probe
from edgeinfer.runtime import devices
from edgeinfer.runtime.devices import Fingerprint

MACHINE = Fingerprint("linux", "aarch64", "Cortex-A76", ("asimd", "asimddp"), 4, 8000)


def test_devices(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = (
        Probe("onnxruntime", "1.30.0", (Device("cpu", "Cortex-A76"), Device("gpu", "Mali", 1))),
        Probe("openvino", None, reason="not installed"),
    )
    monkeypatch.setattr(registry, "probe_all", lambda: found)
    monkeypatch.setattr(devices, "fingerprint", lambda: MACHINE)
    assert cli("devices").out == (
        "Cortex-A76 (aarch64, linux), 4 CPUs, 8.39 GB memory\n"
        "features: asimd asimddp\n"
        "\n"
        "backend      version  device  name\n"
        "onnxruntime  1.30.0   cpu:0   Cortex-A76\n"
        "onnxruntime  1.30.0   gpu:1   Mali\n"
        "openvino     -        none    not installed\n"
    )
    data = json.loads(cli("devices", "--json").out)
    assert data["machine"]["cpu"] == "Cortex-A76"
    assert [p["backend"] for p in data["backends"]] == ["onnxruntime", "openvino"]


def test_targets_are_the_profiles(cli: Any) -> None:
    result = cli("targets")
    assert result.code == 0
    head, *lines = result.out.splitlines()
    assert head.split()[0] == "target"
    named = [line.split()[0].rstrip(",") for line in lines if line[0] != " "]
    assert named == list(profiles.names())
    data = json.loads(cli("targets", "--json").out)
    assert [t["name"] for t in data["targets"]] == list(profiles.names())
    assert "quirks" in data["targets"][0]
