"""``edgeinfer doctor``: what is missing, and the line that gets it."""

import json
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.backends import registry
from edgeinfer.backends.base import Device, Probe
from edgeinfer.cli import doctor
from edgeinfer.runtime import devices
from edgeinfer.runtime.devices import Facts
from edgeinfer.runtime.devices.cpu import Cpu


def probes(monkeypatch: pytest.MonkeyPatch, *found: Probe) -> None:
    monkeypatch.setattr(registry, "probe_all", lambda: found)


CPU = (Device("cpu", "a CPU"),)
CORE = Cpu("a CPU", ())
HERE = Probe("onnxruntime", "1.30.0", CPU)
REFERENCE = Probe("reference", "1.20.0", CPU)
ABSENT = Probe("openvino", None, reason='not installed; pip install "edgeinfer[openvino]"')


def test_a_machine_that_can_work(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    probes(monkeypatch, HERE, ABSENT)
    result = cli("doctor")
    assert result.code == 0
    lines = [line.split(maxsplit=3) for line in result.out.splitlines() if "engine" in line]
    assert lines[:2] == [
        ["ok", "engine", "onnxruntime", "1.30.0 on cpu"],
        ["-", "engine", "openvino", "not installed"],
    ]
    assert f"\nengine openvino: {ABSENT.reason}\n" in result.out
    assert result.out.endswith("\nready\n")


@pytest.mark.parametrize("found", [(ABSENT,), (ABSENT, REFERENCE)])
def test_a_machine_without_an_engine(
    cli: Any, monkeypatch: pytest.MonkeyPatch, found: tuple[Probe, ...]
) -> None:
    probes(monkeypatch, *found)
    result = cli("doctor")
    assert result.code == 3
    assert result.out.endswith('no engine can run here: pip install "edgeinfer[onnxruntime]"\n')


def test_json(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    probes(monkeypatch, HERE)
    data = json.loads(cli("doctor", "--json").out)
    assert data["usable"] is True
    found = {f["what"]: f for f in data["findings"]}
    assert found["engine onnxruntime"] == {
        "what": "engine onnxruntime",
        "ok": True,
        "found": "1.30.0 on cpu",
        "fix": "",
    }
    assert {"python", "system", "extra torch", "extra media", "cache", "memory"} <= set(found)


def test_a_missing_extra(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "EXTRAS", (("acme", ("no_such_module",), "acme models"),))
    assert "no no_such_module" in cli("doctor").out
    assert 'for acme models: pip install "edgeinfer[acme]"' in cli("doctor").out


def test_a_cache_that_cannot_be_written(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("EDGEINFER_CACHE", str(tmp_path / "file" / "cache"))
    out = cli("doctor").out
    assert "\n!!  cache " in out
    assert "\ncache: set EDGEINFER_CACHE to a folder that can be written\n" in out


@pytest.mark.parametrize(
    ("free", "line"),
    [
        (None, "-   memory"),
        (100, "!!  memory"),
        (4000, "ok  memory"),
    ],
)
def test_memory(cli: Any, monkeypatch: pytest.MonkeyPatch, free: int | None, line: str) -> None:
    monkeypatch.setattr(
        devices, "read_facts", lambda: Facts("linux", "riscv64", CORE, free_mb=free)
    )
    out = cli("doctor").out
    assert f"\n{line} " in out
    assert ("memory: conversion may run out of memory" in out) is (free == 100)
