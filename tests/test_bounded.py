"""What the user names is read whole only while it is as small as such files are."""

import os
from pathlib import Path

import pytest

from edgeinfer.bounded import absence, open_file, read_bounded
from edgeinfer.bundle.sealing import key_from
from edgeinfer.bundle.signing import _pem
from edgeinfer.errors import UsageError
from edgeinfer.media.preprocessing import read_labels
from edgeinfer.runtime.serve.options import keys_of


def test_files_are_read_up_to_their_bound(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 2048)
    assert len(read_bounded(tmp_path / "f", 2048)) == 2048
    with pytest.raises(OSError, match="it has more than 1 KiB"):
        read_bounded(tmp_path / "f", 1024)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs a device that never ends")
def test_devices_that_never_end_are_refused() -> None:
    for read in (lambda p: _pem(Path(p)), read_labels, key_from, keys_of):
        with pytest.raises(UsageError, match=r"/dev/zero: .*is a device or a pipe; give a file"):
            read("/dev/zero")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes that have names")
def test_pipes_are_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="is a device or a pipe") as error:
        open_file(tmp_path / "pipe")
    assert error.value.filename == str(tmp_path / "pipe")


def test_folders_and_what_is_missing_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        open_file(tmp_path)
    with pytest.raises(FileNotFoundError):
        open_file(tmp_path / "x")


def test_it_is_said_why_a_path_is_no_file(tmp_path: Path) -> None:
    assert absence(tmp_path) == "is a folder; name the files in it"
    assert absence(tmp_path / "x") == "no such file"
    assert absence(Path("/dev/null")) == "is a device or a pipe; give a file"
