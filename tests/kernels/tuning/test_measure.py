"""Measurements on a GPU that one process at a time makes."""

import os
from pathlib import Path

import pytest

pytest.importorskip("tvm")

from edgeinfer.kernels.tuning import measure

pytestmark = pytest.mark.skipif(os.name != "posix", reason="locks of POSIX")


def test_nothing_that_others_put_among_temporary_files_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link in place of the lock emptied what it led to; a pipe was waited for without end."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("EDGEINFER_CACHE", str(tmp_path / "cache"))
    (tmp_path / "tmp").mkdir()
    (tmp_path / "mine").write_text("kept")
    (tmp_path / "tmp" / f"edgeinfer-gpu-{os.getuid()}.lock").symlink_to(tmp_path / "mine")
    with measure._alone():
        assert (tmp_path / "mine").read_text() == "kept"
        (lock,) = (tmp_path / "cache").rglob("gpu")
        assert lock.stat().st_mode & 0o777 == 0o600
