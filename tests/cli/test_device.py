"""``--device``: the same command elsewhere; what it prints, writes and exits with comes back."""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.remote import board, ssh
from edgeinfer.remote.board import CommandResult
from tests.cli.conftest import write_bundle
from tests.remote import stand_in_ssh


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """This machine, behind a program that plays ssh."""
    place = tmp_path / "ssh"
    place.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "{stand_in_ssh.__file__}" "$@"\n')
    place.chmod(0o755)
    monkeypatch.setenv(ssh.CLIENT, str(place))
    return f"ssh://pi@board{sys.executable}"


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What would be sent, on a device that answers nothing."""
    seen: list[Any] = []

    def run(device: str, words: Any, files: Any, **more: Any) -> CommandResult:
        seen[:] = [device, words, files, more]
        return CommandResult(0, "", b"{}" if more["output"] else None)

    monkeypatch.setattr(board, "run", run)
    return seen


def test_verify_says_there_what_it_says_here(cli: Any, tmp_path: Path, device: str) -> None:
    right = write_bundle(tmp_path / "m.edge", vectors=3)
    wrong = write_bundle(tmp_path / "w.edge", wrong_by=0.25)
    for bundle, code in ((right, 0), (wrong, 1)):
        here = cli("verify", bundle, "-b", "onnxruntime")
        there = cli("verify", bundle, "-b", "onnxruntime", "--device", device)
        assert (there.code, there.out) == (here.code, here.out)
        assert here.code == code


@pytest.mark.sweep
def test_bench_brings_its_figures_back(cli: Any, tmp_path: Path, device: str) -> None:
    bundle = write_bundle(tmp_path / "m.edge")
    np.savez(tmp_path / "x.npz", image=np.ones((5, 2, 2, 3), np.float32))
    words = ("-b", "onnxruntime", "--runs", 3, "--seconds", 1, "-o", tmp_path / "f.json")
    result = cli("bench", bundle, tmp_path / "x.npz", *words, "--device", device)
    assert result.code == 0, result.err
    assert "cpu-onnx-fp32  onnxruntime" in result.out
    figures = json.loads((tmp_path / "f.json").read_text())
    assert figures["input"] == {"image": [5, 2, 2, 3]}
    assert {"celsius_before", "celsius_highest", "watts", "seconds"} <= set(figures["taken"])


def test_every_option_travels_and_every_file(cli: Any, tmp_path: Path, sent: list[Any]) -> None:
    bundle = write_bundle(tmp_path / "m.edge")
    key, signature, data = tmp_path / "k.pem", tmp_path / "m.edge.sig", tmp_path / "x.npz"
    for file in (key, signature, data):
        file.write_text("{}")
    words = ("--trusted", key, "--allow-native", "--threads", "1,2", "--json", "--ops")
    done = cli("bench", bundle, f"image={data}", *words, "--device", "ssh://pi@board")
    assert done.code == 0, done.err
    device, typed, files, _ = sent
    assert device == "ssh://pi@board"
    assert typed[0] == "bench"
    assert sorted(typed[1:-2]) == sorted(
        ["--trusted", "0/k.pem", "--allow-native", "--threads", "1,2", "--json", "--ops"]
    )
    assert typed[-2:] == ["1/m.edge", "image=3/x.npz"]
    assert files == {
        "0/k.pem": key,
        "1/m.edge": bundle,
        "1/m.edge.sig": signature,
        "3/x.npz": data,
    }


def test_what_is_demanded_here_is_demanded_there(
    cli: Any, tmp_path: Path, sent: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, key = write_bundle(tmp_path / "m.edge"), tmp_path / "k.pem"
    key.touch()
    monkeypatch.setenv("EDGEINFER_TRUSTED_KEYS", str(key))
    monkeypatch.setenv("EDGEINFER_NATIVE", "deny")
    monkeypatch.setenv("EDGEINFER_BUNDLE_KEY", "secret")
    assert cli("verify", bundle, "--device", "ssh://pi@board").code == 0
    environment = sent[3]["environment"]
    assert environment["EDGEINFER_TRUSTED_KEYS"] == "1/k.pem"
    assert environment["EDGEINFER_NATIVE"] == "deny"
    assert "secret" not in str(sent)


def test_what_cannot_travel_is_refused_before_anything_runs(
    cli: Any, tmp_path: Path, sent: list[Any]
) -> None:
    bundle = write_bundle(tmp_path / "m.edge")
    (tmp_path / "m.onnx").write_text("x")
    (tmp_path / "f.json").write_text("mine")
    device = ("--device", "ssh://pi@board")
    cases = [
        (("bench", tmp_path / "m.onnx", *device), "a device runs bundles"),
        (("verify", tmp_path / "none.edge", *device), "none.edge: no such file"),
        (("bench", bundle, tmp_path / "none.npz", *device), "none.npz: no such file"),
        (("bench", bundle, "-o", tmp_path / "f.json", *device), "no json file; add --overwrite"),
        (("bench", bundle, "-o", tmp_path / "f.txt", *device), "a name that ends with .json"),
    ]
    for words, said in cases:
        result = cli(*words)
        assert result.code == 2, result
        assert said in result.err
    assert sent == []


def test_links_of_a_strangers_folder_lead_nowhere(
    cli: Any, tmp_path: Path, sent: list[Any]
) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("mine")
    write_bundle(tmp_path / "m.edge")
    with zipfile.ZipFile(tmp_path / "m.edge") as archive:
        archive.extractall(tmp_path / "f.edge")
    device = ("--device", "ssh://pi@board")
    assert cli("verify", tmp_path / "f.edge", *device).code == 0
    names = {name.removeprefix("0/f.edge/") for name in sent[2]}
    assert "manifest.json" in names
    for link, to in (("x", "secret"), ("loop", "."), ("none", "nowhere")):
        sent.clear()
        (tmp_path / "f.edge" / link).symlink_to(tmp_path / to)
        done = cli("verify", tmp_path / "f.edge", *device)
        assert (done.code, sent) == (1, []), done.err
        assert f"'{link}' is a link or a special file" in done.err
        (tmp_path / "f.edge" / link).unlink()
    (tmp_path / "m.edge.sig").symlink_to(tmp_path / "secret" / "key")
    assert cli("verify", tmp_path / "m.edge", *device).code == 0
    assert [*sent[2]] == ["0/m.edge"]
    done = cli("bench", tmp_path / "m.edge", tmp_path / "secret", *device)
    assert done.code == 2
    assert "with --device name files" in done.err
