"""Temporary folders of others next to an output are left alone."""

import os
import time
from pathlib import Path

import pytest

from edgeinfer.bundle import staging
from edgeinfer.bundle.held import LOCK
from edgeinfer.bundle.staging import Staging

pytestmark = pytest.mark.skipif(os.name != "posix", reason="modes of POSIX")


def _planted(output: Path, mode: int = 0o700) -> Path:
    """Make what a killed writer leaves: a free lock, and the folder that was being replaced."""
    folder = output.parent / f".{output.name}.tmp-x"
    (folder / "old").mkdir(parents=True)
    (folder / "old" / "manifest.json").write_text("planted")
    (folder / LOCK).write_bytes(b"1")
    (folder / LOCK).chmod(0o600)
    folder.chmod(mode)
    return folder


def test_what_our_killed_writer_left_is_put_back(tmp_path: Path) -> None:
    folder = _planted(tmp_path / "m.edge")
    Staging(tmp_path / "m.edge").remove()
    assert (tmp_path / "m.edge" / "manifest.json").read_text() == "planted"
    assert not folder.exists()


@pytest.mark.parametrize("mode", [0o777, 0o750, 0o707])
def test_a_folder_that_others_may_change_is_left_alone(tmp_path: Path, mode: int) -> None:
    folder = _planted(tmp_path / "m.edge", mode)
    Staging(tmp_path / "m.edge").remove()
    assert not (tmp_path / "m.edge").exists()
    assert (folder / "old").is_dir()


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="gives folders away")
@pytest.mark.parametrize("what", ["folder", LOCK])
def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path, what: str) -> None:
    folder = _planted(tmp_path / "m.edge")
    os.chown(folder if what == "folder" else folder / LOCK, 65534, 65534)
    Staging(tmp_path / "m.edge").remove()
    assert not (tmp_path / "m.edge").exists()
    assert (folder / "old").is_dir()


@pytest.mark.parametrize("what", ["folder", LOCK, "old"])
def test_links_are_not_followed(tmp_path: Path, what: str) -> None:
    folder = _planted(tmp_path / "m.edge")
    place = folder if what == "folder" else folder / what
    place.rename(tmp_path / "real")
    place.symlink_to(tmp_path / "real")
    Staging(tmp_path / "m.edge").remove()
    assert not (tmp_path / "m.edge").exists()
    assert (tmp_path / "real").exists()


def test_a_pipe_in_place_of_the_lock_holds_nobody_up(tmp_path: Path) -> None:
    folder = _planted(tmp_path / "m.edge")
    (folder / LOCK).unlink()
    os.mkfifo(folder / LOCK, 0o600)
    Staging(tmp_path / "m.edge").remove()
    assert (folder / "old").is_dir()


def test_one_that_was_killed_while_it_began_or_ended_is_removed_later(tmp_path: Path) -> None:
    for name, files in (("begun", [".new"]), ("ended", []), ("held", ["kept"])):
        folder = tmp_path / f".{name}.edge.tmp-x"
        folder.mkdir(mode=0o700)
        for file in files:
            (folder / file).touch()
    Staging(tmp_path / "m.edge").remove()
    assert len(list(tmp_path.iterdir())) == 3
    for folder in tmp_path.iterdir():
        os.utime(folder, (0, 0))
    Staging(tmp_path / "m.edge").remove()
    # What has neither a lock nor the beginning of one was made by something else.
    assert [p.name for p in tmp_path.iterdir()] == [".held.edge.tmp-x"]


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o077])
def test_what_is_left_is_swept_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        killed = Staging(tmp_path / "m.edge")
    finally:
        os.umask(before)
    assert killed._lock is not None
    killed._lock.close()
    Staging(tmp_path / "other.edge").remove()
    assert list(tmp_path.iterdir()) == []


def test_who_holds_the_output_s_folder_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock on a folder asks for the right to read it only."""
    import fcntl

    monkeypatch.setattr(staging, "_PATIENCE_S", 0.2)
    held = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_SH)
        start = time.monotonic()
        Staging(tmp_path / "m.edge").remove()
        assert 0.2 <= time.monotonic() - start < 5
    finally:
        os.close(held)
