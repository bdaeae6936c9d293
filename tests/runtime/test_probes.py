"""Engines that do not run a model are not imported to ask them again."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

import edgeinfer
from edgeinfer import profiles
from edgeinfer.backends.base import Device, Probe
from edgeinfer.machine.fingerprint import fingerprint
from edgeinfer.runtime import chips, probes
from edgeinfer.runtime.profiledb import ProfileDB

NET = """<ir_version: 10, opset_import: ["": 21]> net (float[1,4] x) => (float[1,4] y)
{ a = Relu(x) y = Tanh(a) }"""

REMEMBERED = """
import sys, edgeinfer
with edgeinfer.load(sys.argv[1], threads=1) as session:
    session.run({"x": [[1.0, 2.0, 3.0, 4.0]]})
    backend = session.report().backend
names = ("bench", "profiles", "email", "statistics", "numpy.ma", "tomllib", "importlib.metadata")
print(backend, *(n for n in names if n in sys.modules or f"edgeinfer.runtime.{n}" in sys.modules))
engines = ("onnxruntime", "openvino", "litert", "tvm")
print(*(n for n in engines if f"edgeinfer.backends.{n}.backend" in sys.modules))
"""

LOAD = """
import sys, edgeinfer
with edgeinfer.load(sys.argv[1], measure=False, **eval(sys.argv[2])) as session:
    print(session.report().backend, "openvino" in sys.modules, "onnxruntime" in sys.modules)
"""


class Engine:
    """A backend that counts how often it is asked."""

    name = "acme"

    def __init__(self, *devices: Device) -> None:
        self.devices, self.asked = devices, 0

    def probe(self) -> Probe:
        self.asked += 1
        return Probe(self.name, "1.0", self.devices, "" if self.devices else "broken")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that the engine's probe is said to import."""
    folder = tmp_path / "site" / "acme_engine"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(folder.parent))
    monkeypatch.setattr(probes, "PACKAGES", {"acme": "acme_engine"})
    return folder / "__init__.py"


@pytest.fixture
def history(tmp_path: Path) -> Any:
    with ProfileDB(tmp_path / "history.sqlite") as opened:
        yield opened


HERE = (Device("gpu", "a card", 1), Device("cpu", "a processor"))


def test_an_engine_is_asked_once(package: Path, history: ProfileDB) -> None:
    engine: Any = Engine(*HERE)
    first = probes.probe(engine, fingerprint(), history)
    assert probes.probe(engine, fingerprint(), history) == first == engine.probe()
    assert engine.asked == 2


def _installed(package: Path, patch: pytest.MonkeyPatch) -> None:
    new = package.with_name("new")
    new.write_text("")
    stat = package.stat()
    os.utime(new, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    new.replace(package)


def _variable(package: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("CUDA_VISIBLE_DEVICES", "7")


def _devices(package: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(probes, "_listed", lambda folder: ["nvidia7"])


@pytest.mark.parametrize("change", [_installed, _variable, _devices])
def test_it_is_asked_again_after_a_change(
    change: Any, package: Path, history: ProfileDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine: Any = Engine(*HERE)
    probes.probe(engine, fingerprint(), history)
    change(package, monkeypatch)
    probes.probe(engine, fingerprint(), history)
    assert engine.asked == 2
    probes.probe(engine, fingerprint(), history)
    assert engine.asked == 2


def test_another_machine_and_a_cleared_history_ask_again(package: Path, history: ProfileDB) -> None:
    engine: Any = Engine(*HERE)
    probes.probe(engine, fingerprint(), history)
    probes.probe(engine, replace(fingerprint(), cpu="another"), history)
    assert engine.asked == 2
    history.clear()
    probes.probe(engine, replace(fingerprint(), cpu="another"), history)
    assert engine.asked == 3


def test_one_that_cannot_be_used_is_always_asked(package: Path, history: ProfileDB) -> None:
    engine: Any = Engine()
    for times in (1, 2):
        assert probes.probe(engine, fingerprint(), history).reason == "broken"
        assert engine.asked == times


def test_a_load_imports_the_engine_that_runs_and_no_other(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    ir.save(ir.from_onnx_text(NET), tmp_path / "net.onnx")
    edgeinfer.export(tmp_path / "net.onnx", tmp_path / "net.edge", targets=["cpu"])

    def load(options: str = "{}") -> str:
        command = [sys.executable, "-c", LOAD, str(tmp_path / "net.edge"), options]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    load()
    backend, openvino, onnxruntime = load().split()
    assert (openvino == "True", onnxruntime == "True") == (
        backend == "openvino",
        backend == "onnxruntime",
    )
    assert load("dict(backend='openvino')").split() == ["openvino", "True", "False"]


def test_a_load_whose_choice_is_remembered_imports_no_other_backend_and_nothing_that_measures(
    tmp_path: Path,
) -> None:
    for engine in ("openvino", "ai_edge_litert"):
        pytest.importorskip(engine)
    ir.save(ir.from_onnx_text(NET), tmp_path / "net.onnx")
    edgeinfer.export(tmp_path / "net.onnx", tmp_path / "net.edge", targets=["openvino", "rpi5"])

    def load() -> list[str]:
        command = [sys.executable, "-c", REMEMBERED, str(tmp_path / "net.edge")]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return told.splitlines()

    load()
    first, engines = load()
    backend, *imported = first.split()
    # What an engine's own package imports is not ours to choose.
    assert [n for n in imported if backend == "litert" or n in ("bench", "profiles")] == []
    assert engines == backend


def test_systems_whose_profile_tells_chips_apart_are_known() -> None:
    known = {
        p.name for p in profiles.targets() if p.chips and p.name in ("macos", "linux", "windows")
    }
    assert known == chips.WITH_CHIPS
