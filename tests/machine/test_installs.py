"""The line that gets an engine onto each recorded device."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from edgeinfer.machine.fingerprint import Facts, read_facts
from edgeinfer.machine.installs import (
    COMPILERS,
    GPU,
    WHEELS,
    Python,
    advise,
    install_line,
    this_python,
)
from tests.machine import recorded

BOOKWORM = Python((3, 11), "python3", (2, 36), managed=True)
VENV = Python((3, 12), "/opt/v/bin/python", (2, 39))
DeviceFacts = Callable[[str], Facts]


@pytest.fixture
def facts(tmp_path: Path) -> DeviceFacts:
    def read(name: str) -> Facts:
        machine = "x86_64" if name in ("x86-server", "old-docker") else "aarch64"
        return read_facts(recorded.record(name, tmp_path / name), system="Linux", machine=machine)

    return read


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino", "litert", "tvm"])
def test_debian_s_own_python_gets_a_venv(facts: DeviceFacts, engine: str) -> None:
    advice = advise(engine, facts("pi5"), BOOKWORM)
    assert advice.line == (
        f'python3 -m venv ~/edgeinfer && ~/edgeinfer/bin/pip install ".[{engine}]"'
    )
    assert "PEP 668" in advice.why


def test_a_venv_of_its_own_uses_its_pip(facts: DeviceFacts) -> None:
    advice = advise("litert", facts("pi4"), VENV)
    assert str(advice) == '/opt/v/bin/python -m pip install "edgeinfer[litert]"'


def test_c_library_that_is_too_old_is_told_by_number(facts: DeviceFacts) -> None:
    bullseye = replace(BOOKWORM, libc=(2, 31))
    advice = advise("openvino", facts("pi4"), bullseye)
    assert advice.line == ""
    assert "for aarch64 needs glibc 2.35, here is 2.31" in advice.why
    assert advise("litert", facts("pi4"), bullseye).line


def test_systems_without_wheels_get_a_reason_and_no_line(facts: DeviceFacts) -> None:
    pi = facts("pi4")
    assert "install a 64-bit system" in advise("litert", replace(pi, arch="armv7l"), VENV).why
    assert "musl" in advise("litert", pi, replace(VENV, musl=True)).why
    assert (
        "Python 3.10 to 3.14, this is 3.15"
        in advise("litert", pi, replace(VENV, version=(3, 15))).why
    )
    assert "Android" in advise("litert", facts("phone"), VENV).why
    assert "linux on aarch64" in advise("coreml", pi, VENV).why
    mac = Facts("macos", "aarch64", pi.cpu)
    assert advise("coreml", mac, VENV).line.endswith('"edgeinfer[coreml]"')
    assert not any(advise(e, replace(pi, arch="riscv64"), VENV).line for e in WHEELS)
    assert "nothing is known" in advise("acme", pi, VENV).why


class TestGpu:
    def test_jetpack_6_has_to_build(self, facts: DeviceFacts) -> None:
        advice = advise(GPU, facts("orin-nano"), VENV)
        assert advice.line.startswith("./build.sh --config Release")
        assert "needs CUDA 13, JetPack 6 has CUDA 12.6" in advice.why

    def test_jetpack_7_has_a_wheel(self, facts: DeviceFacts) -> None:
        advice = advise(GPU, facts("thor"), VENV)
        assert advice.line == (
            "/opt/v/bin/python -m pip uninstall -y onnxruntime && "
            "/opt/v/bin/python -m pip install onnxruntime-gpu"
        )
        assert "not tried on a Jetson" in advice.why

    def test_a_server_takes_cuda_with_it(self, facts: DeviceFacts) -> None:
        line = advise(GPU, facts("x86-server"), VENV).line
        assert line.endswith('pip install "onnxruntime-gpu[cuda,cudnn]"')

    def test_without_one_there_is_none(self, facts: DeviceFacts) -> None:
        assert advise(GPU, facts("pi5"), VENV).line == ""

    @pytest.mark.parametrize("engine", COMPILERS)
    def test_tensorrt(self, facts: DeviceFacts, engine: str) -> None:
        assert advise(engine, facts("thor"), VENV).line == (
            "sudo apt-get install -y nvidia-jetpack"
        )
        assert "tensorrt-cu13" in advise(engine, facts("x86-server"), VENV).line
        assert advise(engine, facts("pi5"), VENV).line == ""


def test_lines_survive_a_shell() -> None:
    python = Python((3, 12), "/home/a b/v/bin/python")
    assert install_line(python, "edgeinfer[tvm]", "numpy") == (
        "'/home/a b/v/bin/python' -m pip install \"edgeinfer[tvm]\" numpy"
    )


def test_this_python_is_this_one() -> None:
    here = this_python()
    assert here.command == sys.executable
    assert here.version == sys.version_info[:2]


def test_every_extra_that_is_named_exists() -> None:
    import tomllib

    project = tomllib.loads(Path("pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    for wheels in WHEELS.values():
        if wheels.package.startswith("edgeinfer["):
            assert wheels.package.removeprefix("edgeinfer[").removesuffix("]") in extras
