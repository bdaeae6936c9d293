"""What the user names is read whole only while it is as small as such files are."""

from pathlib import Path

import pytest

from edgeinfer.bounded import absence, read_bounded
from edgeinfer.bundle.signing import _pem
from edgeinfer.errors import UsageError
from edgeinfer.media.preprocessing import read_labels


def test_files_are_read_up_to_their_bound(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 2048)
    assert len(read_bounded(tmp_path / "f", 2048)) == 2048
    with pytest.raises(OSError, match="it has more than 1 KiB"):
        read_bounded(tmp_path / "f", 1024)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs a device that never ends")
def test_devices_that_never_end_are_refused() -> None:
    with pytest.raises(UsageError, match="/dev/zero: cannot be read: it has more than 64 KiB"):
        _pem(Path("/dev/zero"))
    with pytest.raises(UsageError, match="/dev/zero: cannot be read: it has more than 64 MiB"):
        read_labels("/dev/zero")


def test_it_is_said_why_a_path_is_no_file(tmp_path: Path) -> None:
    assert absence(tmp_path) == "is a folder; name the files in it"
    assert absence(tmp_path / "x") == "no such file"
    assert absence(Path("/dev/null")) == "is a device or a pipe; give a file"
