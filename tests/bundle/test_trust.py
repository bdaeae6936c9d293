"""Whose machine code may run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgeinfer.bundle import made, trust
from edgeinfer.bundle.made import is_made_here, remember_made
from edgeinfer.bundle.manifest import EngineRequirement, FileRecord, Variant
from edgeinfer.errors import UsageError

DIGEST = "ab" * 32


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGEINFER_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


def test_the_caller_decides_then_the_signature_then_the_list() -> None:
    assert trust.judge("deny", "key", DIGEST) == trust.Verdict(False, "the caller runs none")
    assert trust.judge("allow", "", DIGEST).allowed
    assert trust.judge("auto", "0123", DIGEST).why == "signed by trusted key 0123"
    assert not trust.judge("auto", "", DIGEST).allowed
    assert not remember_made(DIGEST)
    assert trust.judge("auto", "", DIGEST).why == "made on this machine"


def test_the_environment_speaks_where_the_caller_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert trust.policy_of(None) == "auto"
    monkeypatch.setenv("EDGEINFER_NATIVE", "deny")
    assert trust.policy_of(None) == "deny"
    assert trust.policy_of("allow") == "allow"
    monkeypatch.setenv("EDGEINFER_NATIVE", "yes")
    with pytest.raises(UsageError, match="EDGEINFER_NATIVE: expected one of auto, allow, deny"):
        trust.policy_of(None)


def test_the_list_is_private(state: Path) -> None:
    assert not remember_made(DIGEST)
    assert [p.stat().st_mode & 0o777 for p in (state, state / "made-here")] == [0o700, 0o700]


@pytest.mark.skipif(os.name != "posix", reason="modes of POSIX")
@pytest.mark.parametrize("mode", [0o777, 0o770, 0o720])
@pytest.mark.parametrize("what", [".", "made-here"])
def test_a_list_that_others_could_write_counts_for_nothing(
    state: Path, mode: int, what: str
) -> None:
    assert not remember_made(DIGEST)
    (state / what).chmod(mode)
    assert not is_made_here(DIGEST)
    assert "can be written by others: chmod go-w" in remember_made(DIGEST)
    assert not is_made_here(DIGEST)


def test_a_list_in_a_cache_that_came_from_elsewhere_counts_for_nothing(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As in a cache that a build restores: it belongs to this user, and others chose what is in it.
    planted = Path(os.environ["EDGEINFER_CACHE"]) / "made-here"
    planted.mkdir(mode=0o700)
    (planted / DIGEST).touch(mode=0o600)
    assert not is_made_here(DIGEST)
    state.mkdir(mode=0o700)
    assert not is_made_here(DIGEST)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="gives a folder away")
def test_a_list_of_somebody_else_counts_for_nothing(state: Path) -> None:
    assert not remember_made(DIGEST)
    os.chown(state / "made-here", 65534, 65534)
    assert not is_made_here(DIGEST)


def test_the_list_belongs_to_the_account_whatever_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EDGEINFER_STATE")
    here = made.state_root()
    asked = "from edgeinfer.bundle.made import state_root; print(state_root())"
    moved = {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path), "EDGEINFER_CACHE": "x"}
    done = subprocess.run(
        [sys.executable, "-c", asked],
        env={**os.environ, **moved},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == str(here)


def test_an_account_without_a_folder_keeps_it_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("EDGEINFER_STATE", str(tmp_path / "file" / "state"))
    assert not remember_made(DIGEST)
    assert is_made_here(DIGEST)
    monkeypatch.setenv("EDGEINFER_CACHE", str(tmp_path / "file" / "cache"))
    assert "Not a directory" in remember_made(DIGEST)
    assert not is_made_here(DIGEST)


@pytest.mark.parametrize(
    ("form", "file", "level"),
    [
        ("onnx", "model.onnx", "data"),
        ("tvm", "model.bin", "native"),
        ("llm", "llm.json", "native"),
        ("acme", "model.acme", "data"),
        ("acme", "lib/Model.SO", "native"),
        ("onnx", "x.dylib", "native"),
        ("tflite", "x.dll", "native"),
        ("onnx", "lib.so.1", "native"),
        ("onnx", "lib.so.1.26", "native"),
        ("onnx", "k.PTX", "native"),
        ("onnx", "k.sm_90.cubin", "native"),
        ("onnx", "k.fatbin", "native"),
        ("onnx", "e.plan", "native"),
        ("onnx", "e.engine", "native"),
        ("onnx", "layer.so.weight", "data"),
        ("onnx", "engine", "data"),
    ],
)
def test_a_library_makes_any_variant_native(form: str, file: str, level: str) -> None:
    record = FileRecord(f"variants/v/{file}", "0" * 64, 1)
    made = Variant("v", "cpu", form, "fp32", (record,), (EngineRequirement("acme"),))
    assert trust.level_of(made) == level
