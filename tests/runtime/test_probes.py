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
from edgeinfer.backends import registry
from edgeinfer.backends.base import Device, Probe
from edgeinfer.backends.process import trial
from edgeinfer.machine.fingerprint import fingerprint
from edgeinfer.runtime import chips, probes
from edgeinfer.runtime.profiledb import ProfileDB

NET = """<ir_version: 10, opset_import: ["": 21]> net (float[1,4] x) => (float[1,4] y)
{ a = Relu(x) y = Tanh(a) }"""

REMEMBERED = """
import sys
import numpy
its_own = set(sys.modules)
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
import edgeinfer
with edgeinfer.load(sys.argv[1], threads=1, backend=sys.argv[2]) as session:
    session.run({"x": [[1.0, 2.0, 3.0, 4.0]]})
print(*(set(sys.modules) - its_own))
from edgeinfer.bundle.cache import cache_root
print(*(p for p in opened if p.startswith((sys.argv[1], str(cache_root())))))
print(*(p for p in opened if p.startswith(("/proc/cpuinfo", "/sys/devices"))))
"""

MEASURING = ("edgeinfer.runtime.bench", "edgeinfer.profiles", "openvino.tools.ovc", "numpy.ma")
"""What no remembered load imports, whatever its engine."""

OTHERS = (
    *("email", "statistics", "tomllib", "importlib.metadata", "numpy.typing", "difflib"),
    *("socket", "subprocess", "logging", "concurrent.futures", "tempfile", "random"),
    *("edgeinfer.bundle.signing", "edgeinfer.heads", "edgeinfer.runtime.report"),
    *("edgeinfer.bundle.sealing", "edgeinfer.metrics", "edgeinfer.backends.onnxruntime.cuda"),
    *("edgeinfer.bundle.reported", "edgeinfer.backends.operators"),
)
"""What none of our modules imports for it; packages of engines do."""

MOST_OF_OURS = 85
"""Modules of ours that it may import: each takes a third of a millisecond on a slow core."""

MOST_OPENED = 20
"""Times that it may open the bundle and files of the cache."""

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


@pytest.mark.parametrize(
    ("engine", "target"),
    [("onnxruntime", "onnxruntime"), ("openvino", "openvino"), ("litert", "rpi5")],
)
def test_a_load_whose_choice_is_remembered_imports_no_other_backend_and_nothing_that_measures(
    tmp_path: Path, engine: str, target: str
) -> None:
    pytest.importorskip("ai_edge_litert" if engine == "litert" else engine)
    ir.save(ir.from_onnx_text(NET), tmp_path / "net.onnx")
    edgeinfer.export(tmp_path / "net.onnx", tmp_path / "net.edge", targets=[target])

    def load() -> tuple[set[str], list[str], list[str]]:
        command = [sys.executable, "-c", REMEMBERED, str(tmp_path / "net.edge"), engine]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        modules, files, system = done.stdout.splitlines()
        return set(modules.split()), files.split(), system.split()

    load()
    imported, opened, system = load()
    assert imported & set(MEASURING) == set()
    if engine != "openvino":
        assert imported & set(OTHERS) == set()
    assert [n for n in registry.BUILT_IN if f"edgeinfer.backends.{n}.backend" in imported] == [
        engine
    ]
    assert len([n for n in imported if n.startswith("edgeinfer")]) <= MOST_OF_OURS
    assert len(opened) <= MOST_OPENED, opened
    # A trial of LiteRT's reads it for itself.
    assert system.count("/proc/cpuinfo") == 1 + (engine == "litert")
    assert not [p for p in system if "/cache/" in p]


def test_a_file_that_was_hashed_when_it_was_opened_is_not_hashed_for_its_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ai_edge_litert")
    ir.save(ir.from_onnx_text(NET), tmp_path / "net.onnx")
    edgeinfer.export(tmp_path / "net.onnx", tmp_path / "net.edge", targets=["rpi5"])
    edgeinfer.load(tmp_path / "net.edge", backend="litert").close()
    monkeypatch.setattr(trial, "_sha256", None)
    edgeinfer.load(tmp_path / "net.edge", backend="litert").close()


def test_systems_whose_profile_tells_chips_apart_are_known() -> None:
    known = {
        p.name for p in profiles.targets() if p.chips and p.name in ("macos", "linux", "windows")
    }
    assert known == chips.WITH_CHIPS
