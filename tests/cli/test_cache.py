"""``edgeinfer cache``: shows and removes what edgeinfer put there, and nothing else."""

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("EDGEINFER_CACHE", str(folder))
    return folder


def fill(folder: Path) -> None:
    (folder / "bundles" / "abc" / "variants" / "cpu-onnx-fp32").mkdir(parents=True)
    (folder / "bundles" / "abc" / "variants" / "cpu-onnx-fp32" / "model.onnx").write_bytes(
        b"x" * 2000
    )
    (folder / "history-1.sqlite").write_bytes(b"x" * 500)
    (folder / "llm-kernels").mkdir()
    (folder / "llm-kernels" / "abc.o").write_bytes(b"x" * 700)
    (folder / "holiday.jpg").write_bytes(b"x")


def test_list(cli: Any, folder: Path) -> None:
    assert cli("cache", "list").out == f"{folder}: empty\n"
    fill(folder)
    assert cli("cache", "list").out == (
        f"{folder}:\n"
        "entry              size\n"
        "bundles            2 kB\n"
        "history-1.sqlite  500 B\n"
        "llm-kernels       700 B\n"
        "\n"
        "unpacked bundle  size  artifacts\n"
        "abc              2 kB  cpu-onnx-fp32\n"
    )  # fmt: skip


def test_clear_leaves_what_is_not_ours(cli: Any, folder: Path) -> None:
    fill(folder)
    assert cli("cache", "clear").out == f"{folder}: 3.2 kB freed\n"
    assert [p.name for p in folder.iterdir()] == ["holiday.jpg"]


def test_a_folder_that_another_process_fills_says_so(
    cli: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(folder)
    full = OSError(errno.ENOTEMPTY, "Directory not empty")
    monkeypatch.setattr(shutil, "rmtree", Mock(side_effect=full))
    result = cli("cache", "clear")
    assert result.code == 3
    assert "Directory not empty; another process writes there: try again" in result.err


def test_json(cli: Any, folder: Path) -> None:
    fill(folder)
    data = json.loads(cli("cache", "clear", "--json").out)
    assert data == {"folder": str(folder), "removed": 3, "freed_bytes": 3200}


def test_a_link_is_removed_but_not_what_it_points_to(
    cli: Any, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "kept").touch()
    folder.mkdir()
    (folder / "bundles").symlink_to(tmp_path / "elsewhere")
    assert cli("cache", "clear").code == 0
    assert list(folder.iterdir()) == []
    assert (tmp_path / "elsewhere" / "kept").exists()


def test_a_loaded_bundle_shows_up(cli: Any, folder: Path, bundle: Path) -> None:
    assert cli("verify", bundle, "-q").code == 0
    names = [e["name"] for e in json.loads(cli("cache", "list", "--json").out)["entries"]]
    assert "bundles" in names


@pytest.mark.skipif(os.name != "posix", reason="links and modes of POSIX")
@pytest.mark.parametrize("how", ["link", "mode"])
@pytest.mark.parametrize("command", ["clear", "list"])
def test_a_folder_that_others_could_have_put_there_is_left_alone(
    cli: Any, folder: Path, tmp_path: Path, how: str, command: str
) -> None:
    """A link in the cache's place had it remove folders of the user's own elsewhere."""
    fill(tmp_path / "elsewhere")
    if how == "link":
        folder.symlink_to(tmp_path / "elsewhere")
    else:
        (tmp_path / "elsewhere").rename(folder)
        folder.chmod(0o777)
    found = cli("cache", command)
    assert found.code == 3
    assert {"link": "is a link", "mode": "can be written by others"}[how] in found.err
    assert (folder / "bundles" / "abc").is_dir()
