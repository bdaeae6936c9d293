"""Where an artifact is run: here, under an emulator, or nowhere."""

from __future__ import annotations

import platform
import shutil
from pathlib import Path

import pytest

import edgeinfer
from benchmarks.tiny import MLP, save
from edgeinfer.backends.litert import trial
from edgeinfer.backends.process import emulator
from edgeinfer.bundle.archive import Bundle
from edgeinfer.convert.pipeline import engines
from edgeinfer.convert.pipeline.engines import EnginePlace, Wanted, place_for
from edgeinfer.convert.pipeline.plan import plan
from edgeinfer.convert.pipeline.request import resolve_profiles
from edgeinfer.errors import NotAvailableError, VerifyError

pytest.importorskip("tvm_ffi", reason="TVM is not installed")

ONLY_X86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="Arm needs no emulator there")


@pytest.fixture
def no_emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(emulator.QEMU, "/nowhere/qemu-aarch64")


@ONLY_X86
def test_without_an_emulator_the_install_line_is_told(no_emulator: None) -> None:
    assert place_for("") == place_for("x86-64-v3") == EnginePlace()
    found = place_for("cortex-a76")
    assert found.emulator is None
    assert found.missing.startswith(
        "code for aarch64 needs an emulator to be tried here: EDGEINFER_QEMU"
    )
    assert "apt-get install qemu-user" in found.missing
    assert "python -m edgeinfer.convert.arm_userland" in found.missing


@ONLY_X86
def test_an_old_emulator_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "qemu"
    fake.write_text("#!/bin/sh\necho qemu-aarch64 version 7.2.1\n")
    fake.chmod(0o755)
    monkeypatch.setenv(emulator.QEMU, str(fake))
    assert f"{fake} is 7.2.1; " in place_for("cortex-a72").missing
    fake.write_text("#!/bin/sh\necho qemu-aarch64 version 10.0.2\n")
    emulator._qemu.cache_clear()
    monkeypatch.setenv(emulator.FOLDER, str(tmp_path))
    assert f"needs {tmp_path}/root/usr/bin/python3.11" in place_for("cortex-a72").missing


def test_a_gpu_that_is_not_here_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "cuda_devices", tuple)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    assert place_for("sm_90") == EnginePlace(
        "gpu", missing="sm_90 needs an NVIDIA GPU and its driver"
    )
    assert "nor emulated" in place_for("sm_87").missing


def test_a_backend_without_its_place_gives_the_reason() -> None:
    turns = engines.in_turn([Wanted(["tvm"], EnginePlace(missing="it rains")), Wanted([])])
    (backend,) = next(turns)
    assert backend.probe().reason == "it rains"
    assert not backend.probe().available
    assert next(turns) == []
    assert list(turns) == []


@ONLY_X86
def test_what_nobody_ran_is_refused_or_marked_for_ever(
    no_emulator: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    # Code for this machine stands for code that a cross compiler would make.
    away = place_for("cortex-a76")
    real = engines.place_for
    monkeypatch.setattr(engines, "place_for", lambda name: away if name else real(name))
    save(MLP, tmp_path / "net.onnx")
    targets = ["onnxruntime", "tvm-x86-64-v3"]
    with pytest.raises(
        VerifyError, match=r"needs an emulator.*; --unverified writes it all the same"
    ):
        edgeinfer.export(tmp_path / "net.onnx", tmp_path / "net.edge", targets=targets)
    assert not (tmp_path / "net.edge").exists()
    made = edgeinfer.export(
        tmp_path / "net.onnx", tmp_path / "net.edge", targets=targets, unverified=True
    )
    with Bundle.open(made.path) as bundle:
        sure, unsure = bundle.manifest.variants
    assert sure.unverified == ""
    assert "needs an emulator to be tried here" in unsure.unverified
    assert unsure.accuracy == {}
    assert unsure.latency_ms is None


def test_code_for_two_instruction_sets_is_two_artifacts() -> None:
    import onnx_ir as ir

    model = ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["": 24]> g (float[2] x) => (float[2] y) { y = Relu(x) }'
    )
    from edgeinfer.convert.lower import LowerOptions

    chosen = resolve_profiles(["tvm-x86-64-v3", "tvm-cortex-a72", "tvm-cortex-a76"])
    jobs = plan(model, chosen, LowerOptions()).jobs
    assert [j.targets for j in jobs] == [(p.name,) for p in chosen]


@pytest.mark.parametrize(
    ("node", "precision", "count"),
    [
        ("y = Attention(x, x, x)", "fp32", 2),
        ("y = Relu(x)", "fp32", 1),
        # CUDA computes more operators in halves than CPUs do.
        ("y = Relu(x)", "fp16", 2),
    ],
)
def test_targets_share_what_is_written_alike(node: str, precision: str, count: int) -> None:
    import onnx_ir as ir

    from edgeinfer.convert.lower import LowerOptions

    model = ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["": 24]> g (float[1,2,3,4] x) => (float[1,2,3,4] y) '
        f"{{ {node} }}"
    )
    chosen = resolve_profiles(["onnxruntime", "cuda"])
    assert len(plan(model, chosen, LowerOptions(precision)).jobs) == count


def test_an_emulator_for_another_kind_of_cpu_is_not_looked_for() -> None:
    with pytest.raises(NotAvailableError, match="no emulator for it"):
        emulator.emulator("riscv64", "any")


def test_what_is_written_has_no_trial_where_all_is_done_in_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ai_edge_litert")
    tried: list[str] = []
    monkeypatch.setattr(trial.TRIALS, "remembered", {})

    def attempt(path: str, request: object) -> str:
        tried.append(path)
        return "ok"

    monkeypatch.setattr(trial.TRIALS, "attempt", attempt)
    net, bundle = tmp_path / "m.onnx", tmp_path / "m.edge"
    save(MLP, net)
    edgeinfer.export(net, bundle, targets=["rpi5"])
    assert not tried
    # What is loaded later may be anything.
    edgeinfer.load(bundle, device="cpu", backend="litert").close()
    assert len(tried) == 1
