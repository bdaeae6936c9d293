"""Libraries for Apple's CPUs: what is written, and where it is refused. No Mac ran them."""

from __future__ import annotations

import platform
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm", reason="apache-tvm is not installed")

from edgeinfer.backends.testing.cases import graph
from edgeinfer.backends.tvm.library import append, check_machine, map_weights, read
from edgeinfer.convert.lower.tvm.apple import check_linker
from edgeinfer.convert.lower.tvm.machines import machine
from edgeinfer.convert.pipeline.engines import place_for
from edgeinfer.errors import LoadError, NotAvailableError
from tests.convert.lower.tvm.run import lower, outputs

WEIGHTS = np.arange(6, dtype=np.float32).reshape(2, 3)
MODEL = graph(
    "(float[1,24] x) => (float[1,10] y) { a = MatMul(x, w) b = Tanh(a) y = Softmax<axis=1>(b) }",
    w=np.random.default_rng(0).standard_normal((24, 10)).astype(np.float32),
)
MACH = struct.pack("<IIII", 0xFEEDFACF, 0x0100000C, 0, 6) + bytes(16)


def _about(**changed: Any) -> dict[str, Any]:
    about: dict[str, Any] = {
        "kind": "direct",
        "machine": "apple-m",
        "features": [],
        "device": "cpu",
        "parallel": False,
        "inputs": [],
        "outputs": [],
        "tvm": "0",
    }
    return about | changed


def test_a_signed_library_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "model.dylib"
    path.write_bytes(MACH)
    files = append(path, _about(), [WEIGHTS])
    assert [f.name for f in files] == ["model.dylib", "model.weights"]
    assert path.read_bytes() == MACH
    about = read(path)
    assert (about.arch, about.system) == ("aarch64", "macos")
    np.testing.assert_array_equal(map_weights(path, about)[0], WEIGHTS)


def test_without_its_weights_it_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "model.dylib"
    path.write_bytes(MACH)
    append(path, _about(), [WEIGHTS])[1].unlink()
    with pytest.raises(LoadError, match="damaged"):
        read(path)


def test_other_systems_refuse_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.dylib"
    path.write_bytes(MACH)
    append(path, _about(), [])
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(sys, "platform", "linux")
    with pytest.raises(LoadError, match="code for aarch64 and macos, this is aarch64 and linux"):
        check_machine(path, read(path))
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    monkeypatch.setattr(sys, "platform", "darwin")
    check_machine(path, read(path))


def test_the_gate_has_no_place_for_it() -> None:
    if sys.platform == "darwin":
        pytest.skip("this is a Mac")
    assert place_for("apple-m").missing == "libraries for apple-m are loaded by macos only"


def test_without_a_linker_it_says_what_to_install(without: Any) -> None:
    without("ziglang")
    with pytest.raises(NotAvailableError, match=r"need a linker for macOS.*tvm-apple"):
        check_linker("apple-m")


@pytest.mark.slow
def test_a_library_is_linked_and_signed(tmp_path: Path) -> None:
    pytest.importorskip("ziglang", reason="pip install 'edgeinfer[tvm-apple]'")
    made = lower(MODEL, tmp_path, "apple-m")
    data = made.files[0].read_bytes()
    assert made.constraints["os"] == "macos"
    count, commands, at = struct.unpack_from("<I", data, 16)[0], {}, 32
    for _ in range(count):
        kind, size = struct.unpack_from("<II", data, at)
        commands[kind] = data[at : at + size]
        at += size
    signature_at, length = struct.unpack_from("<II", commands[0x1D], 8)
    # Apple's magic of a signature, which ends the file.
    assert data[signature_at : signature_at + 4] == b"\xfa\xde\x0c\xc0"
    assert signature_at + length == len(data)
    system, oldest = struct.unpack_from("<II", commands[0x32], 8)
    assert (system, oldest >> 16) == (1, 12)
    assert commands[0xD][24:].startswith(b"@rpath/model.dylib\0")
    assert b"edgeinfer_run" in data


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_same_code_for_linux_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code for the same CPU under another system; says nothing of the file for macOS."""
    from dataclasses import replace

    from edgeinfer.backends.base import Artifact, LoadOptions
    from edgeinfer.backends.process.emulator import emulator
    from edgeinfer.backends.process.isolated import IsolatedBackend
    from edgeinfer.convert.lower.tvm import machines

    arm = machine("cortex-a76")
    twin = replace(machine("apple-m"), triple=arm.triple, linker=arm.linker, system="linux")
    monkeypatch.setitem(machines.MACHINES, "apple-m", twin)
    made = lower(MODEL, tmp_path, "apple-m")
    x = np.random.default_rng(1).standard_normal((1, 24)).astype(np.float32)
    about = read(made.files[0])
    artifact = Artifact("tvm", made.files[0], about.inputs, about.outputs)
    with IsolatedBackend("tvm", emulator=emulator("aarch64", "max")) as backend:
        executable = backend.load(artifact, LoadOptions())
        got = executable.run({"x": x})
        executable.close()
    np.testing.assert_allclose(got["y"], outputs(MODEL, {"x": x})["y"], rtol=1e-5)
