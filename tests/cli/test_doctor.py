"""``edgeinfer doctor``: what is missing, and the line that gets it."""

import importlib.util
import json
import re
import sys
import tomllib
from pathlib import Path
from shlex import quote
from typing import Any

import pytest

import edgeinfer
from edgeinfer.backends import registry
from edgeinfer.backends.base import Device, Probe
from edgeinfer.cli import doctor
from edgeinfer.machine import board, fingerprint, installs
from edgeinfer.machine.board import Gpu
from edgeinfer.machine.cpu import Cpu
from edgeinfer.machine.fingerprint import Facts
from edgeinfer.machine.power import Power
from tests.cli.conftest import write_bundle


def probes(monkeypatch: pytest.MonkeyPatch, *found: Probe) -> None:
    monkeypatch.setattr(registry, "probe_all", lambda: found)
    # Whatever this machine has beyond.
    monkeypatch.setattr(
        fingerprint, "read_facts", lambda: Facts("linux", "x86_64", CORE, free_mb=3000)
    )


CPU = (Device("cpu", "a CPU"),)
CORE = Cpu("a CPU", ())
HERE = Probe("onnxruntime", "1.30.0", CPU)
REFERENCE = Probe("reference", "1.20.0", CPU)
ABSENT = Probe("openvino", None, reason='not installed; pip install "edgeinfer[openvino]"')


def test_a_device_is_not_told_of_extras_that_convert(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from edgeinfer import installed

    assert any(f.what == "extra convert" for f in doctor._extras())
    monkeypatch.setattr(installed, "extras", lambda: frozenset({"media", "sign"}))
    assert {f.what for f in doctor._extras()} == {"extra media", "extra sign"}


def test_a_machine_that_can_work(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = Probe("coreml", None, reason="Core ML runs on macOS")
    probes(monkeypatch, HERE, ABSENT, elsewhere)
    result = cli("doctor")
    assert result.code == 0
    lines = [line.split(maxsplit=3) for line in result.out.splitlines() if "engine" in line]
    assert lines[:3] == [
        ["ok", "engine", "onnxruntime", "1.30.0 on cpu"],
        ["-", "engine", "openvino", "not installed"],
        ["-", "engine", "coreml", "not usable here"],
    ]
    assert "\nengine openvino: not installed; " in result.out
    assert sys.executable in result.out
    assert 'pip install "edgeinfer[openvino]"\n' in result.out
    assert result.out.endswith("\nready\n")


def test_every_install_line_is_of_this_python(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    beta = Probe(
        "coreai", None, reason="coreai-core not installed; pip install 'edgeinfer[coreai]'"
    )
    probes(monkeypatch, HERE, ABSENT, beta)
    told = cli("doctor").out
    python = quote(sys.executable)
    assert f'coreai-core not installed; {python} -m pip install "edgeinfer[coreai]"' in told
    assert told.count("pip install") == told.count(f"{python} -m pip install")


@pytest.mark.parametrize("found", [(ABSENT,), (ABSENT, REFERENCE)])
def test_a_machine_without_an_engine(
    cli: Any, monkeypatch: pytest.MonkeyPatch, found: tuple[Probe, ...]
) -> None:
    probes(monkeypatch, *found)
    result = cli("doctor")
    assert result.code == 3
    last = result.out.splitlines()[-1]
    assert last.startswith("no engine can run here: ")
    assert 'pip install "edgeinfer[onnxruntime]"' in last


def test_an_engine_of_texts_needs_its_tokenizers(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = Probe("llm", "0.1.0", CPU)
    probes(monkeypatch, texts, ABSENT)
    result = cli("doctor")
    assert result.code == 0
    assert "\nready for language models alone; for others: " in result.out
    there = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "tokenizers" else there(name)
    )
    result = cli("doctor")
    assert result.code == 3
    assert "\nengine llm: " in result.out
    assert "no tokenizers" in result.out
    assert result.out.splitlines()[-1].startswith("no engine can run here: ")


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
    monkeypatch.setattr(doctor, "EXTRAS", (("media", ("no_such_module",), "some models"),))
    assert "no no_such_module" in cli("doctor").out
    line = f'for some models: {quote(sys.executable)} -m pip install "edgeinfer[media]"'
    assert line in cli("doctor").out
    debian = installs.Python((3, 13), "python3", managed=True)
    monkeypatch.setattr(installs, "this_python", lambda: debian)
    line = 'python3 -m venv ~/edgeinfer && ~/edgeinfer/bin/pip install ".[media]"'
    assert line in cli("doctor").out


def test_every_extra_exists_and_brings_what_is_looked_for() -> None:
    project = tomllib.loads(Path("pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    for extra, modules, _ in doctor.EXTRAS:
        named = " ".join(extras[extra]).lower()
        for module in modules:
            assert doctor.PACKAGES.get(module, module) in named, (extra, module)


def test_a_gpu_without_a_driver(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    probes(monkeypatch, HERE)
    monkeypatch.setattr(board, "idle_nvidia", lambda root: True)
    out = cli("doctor").out
    assert "an NVIDIA GPU without its driver" in out
    assert "\nGPU: install NVIDIA's driver" in out


def test_heat_and_power_that_slow_it_down(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    probes(monkeypatch, HERE)
    assert "speed" not in cli("doctor").out
    gpu = Gpu("NVIDIA H200", complaints=("the power limit caps the clock",))
    hot = Power(complaints=("the processor is throttled",))
    facts = Facts("linux", "aarch64", CORE, gpus=(gpu,), power=hot)
    monkeypatch.setattr(fingerprint, "read_facts", lambda: facts)
    out = cli("doctor").out
    assert re.search(
        "\n!!  speed +the processor is throttled; the power limit caps the clock\n", out
    )
    assert (
        "\nspeed: figures measured now are too slow: mind cooling and power supply first\n" in out
    )


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
        fingerprint, "read_facts", lambda: Facts("linux", "riscv64", CORE, free_mb=free)
    )
    out = cli("doctor").out
    assert f"\n{line} " in out
    assert ("memory: conversion may run out of memory" in out) is (free == 100)


def test_a_bundle_is_told_who_would_run_it_and_who_not(
    cli: Any, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGEINFER_CACHE", str(tmp_path / "cache"))
    data = json.loads(cli("doctor", bundle, "--json").out)
    found = {f["what"]: f for f in data["findings"]}
    ours = found["colours on onnxruntime"]
    assert ours["ok"] is True
    assert ours["found"].startswith("would run ")
    assert "the first load measures it" in found["colours on onnxruntime: why"]["found"]
    assert found["colours on litert"]["fix"] == "the bundle has onnx, it opens tflite"
    assert not (tmp_path / "cache" / "bundles").exists(), "nothing is loaded"
    assert cli("run", bundle, "--policy", "speed").code == 2
    assert "policy 'speed' is unknown" in cli("doctor", bundle, "--policy", "speed").err


def test_a_bundle_where_an_engine_of_ours_is_left_out(
    cli: Any, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a device, whose wheel is without the evaluator of Core ML packages."""
    gone = {"coreml-reference": "edgeinfer.backends.coreml_reference.gone:Backend"}
    monkeypatch.setattr(registry, "BUILT_IN", {**registry.BUILT_IN, **gone})
    said = cli("doctor", bundle)
    assert said.code == 0, said.err
    assert "engine coreml-reference: edgeinfer-runtime is without it" in said.out
    assert "would run" in said.out


def test_a_bundle_of_which_nothing_runs_here_is_not_ready(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGEINFER_CACHE", str(tmp_path / "cache"))
    bundle = write_bundle(tmp_path / "m.edge", constraints={"os": "ios"})
    result = cli("doctor", bundle)
    assert result.code == 3
    assert result.out.endswith(
        f"no engine here runs anything in {bundle}; the lines above say why\n"
    )
    assert json.loads(cli("doctor", bundle, "--json").out)["usable"] is False


def test_a_measured_bundle_is_told_with_figures(
    cli: Any, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGEINFER_CACHE", str(tmp_path / "cache"))
    with edgeinfer.load(bundle):
        pass
    data = json.loads(cli("doctor", bundle, "--json").out)
    why = {f["what"]: f["found"] for f in data["findings"]}["colours on onnxruntime: why"]
    assert "ms median" in why
    assert "first load" not in why


def test_a_gpu_that_is_not_used_gets_the_line(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    probes(monkeypatch, HERE)
    gpu = Gpu("NVIDIA H200", driver="580.1")
    facts = Facts("linux", "x86_64", CORE, gpus=(gpu,))
    monkeypatch.setattr(fingerprint, "read_facts", lambda: facts)
    out = cli("doctor").out
    assert "engine onnxruntime on the GPU: NVIDIA H200 is here and is not used; " in out
    assert 'pip install "onnxruntime-gpu[cuda,cudnn]"' in out
