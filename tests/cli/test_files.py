"""Result files replace earlier results and nothing else."""

import os
from pathlib import Path

import pytest

from edgeinfer.cli.files import check_output, write_bytes
from edgeinfer.errors import OutputError, UsageError


def test_a_new_an_empty_and_an_earlier_file_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "out.npz"
    for content in (None, b"", b"PK\3\4rest"):
        if content is not None:
            path.write_bytes(content)
        check_output(path, ".npz", b"PK", overwrite=False)


def test_another_kind_of_file_needs_overwrite(tmp_path: Path) -> None:
    path = tmp_path / "thesis.npz"
    path.write_text("years of work")
    with pytest.raises(UsageError, match=r"exists and is no npz file; add --overwrite"):
        check_output(path, ".npz", b"PK", overwrite=False)
    check_output(path, ".npz", b"PK", overwrite=True)


def test_the_name_says_the_kind(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"expected a name that ends with \.npz"):
        check_output(tmp_path / "model.edge", ".npz", b"PK", overwrite=True)


def test_a_folder_or_no_folder(tmp_path: Path) -> None:
    (tmp_path / "d.npz").mkdir()
    with pytest.raises(UsageError, match="is a folder"):
        check_output(tmp_path / "d.npz", ".npz", b"PK", overwrite=True)
    with pytest.raises(OutputError, match="does not exist"):
        check_output(tmp_path / "none" / "out.npz", ".npz", b"PK", overwrite=True)


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    with pytest.raises(OutputError, match="cannot be written"):
        check_output(tmp_path / "out.npz", ".npz", b"PK", overwrite=True)


def test_written_whole_with_ordinary_permissions(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_bytes(path, b"{}", overwrite=False)
    assert path.read_bytes() == b"{}"
    mask = os.umask(0)
    os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask
    with pytest.raises(UsageError, match="exists; add --overwrite"):
        write_bytes(path, b"[]", overwrite=False)
    write_bytes(path, b"[]", overwrite=True)
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_nothing_is_left_of_a_failed_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OutputError, match="No space left on device"):
        write_bytes(tmp_path / "a.json", b"{}", overwrite=False)
    assert list(tmp_path.iterdir()) == []
