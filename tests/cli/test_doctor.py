"""``edgeinfer doctor``: what is missing, and the line that gets it."""

import json
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.backends import registry
from edgeinfer.backends.base import Device, Probe
from edgeinfer.cli import doctor


def probes(monkeypatch: pytest.MonkeyPatch, *found: Probe) -> None:
    monkeypatch.setattr(registry, "probe_all", lambda: found)


CPU = (Device("cpu", "a CPU"),)
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


def write(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MEMINFO = "MemTotal: 8000 kB\nMemAvailable:    4000 kB\n"


def test_memory_of_the_machine(tmp_path: Path) -> None:
    assert doctor.available_memory(write(tmp_path, proc__meminfo=MEMINFO)) == 4000 << 10


@pytest.mark.parametrize(
    ("limit", "expected"), [("1000000", 400_000), ("max", 4000 << 10), ("500000", 0)]
)
def test_memory_of_a_container(tmp_path: Path, limit: str, expected: int) -> None:
    files = {
        "proc__meminfo": MEMINFO,
        "sys__fs__cgroup__memory_dot_max": limit,
        "sys__fs__cgroup__memory_dot_current": "600000",
    }
    assert doctor.available_memory(write(tmp_path, **files)) == expected
