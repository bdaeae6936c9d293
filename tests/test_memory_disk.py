"""Temporary files of a test run go to memory, and away with it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import memory_disk

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is a disk on Linux")

ENDS = "from pathlib import Path; from tests import memory_disk; import os; print({}); {}"


@pytest.fixture
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", "")


def ended(memory: Path, how: str) -> Path:
    """A process that used the folder ``memory`` and ended."""
    code = ENDS.format(f"memory_disk.use(Path({str(memory)!r}), 0)", how)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "TMPDIR": ""},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    return Path(done.stdout.strip())


def test_the_folder_goes_with_its_process(tmp_path: Path) -> None:
    folder = ended(tmp_path, "Path(os.environ['TMPDIR'], 'a').touch()")
    assert folder.parent == tmp_path
    assert not folder.exists()


def test_a_forked_process_leaves_it(tmp_path: Path) -> None:
    how = "pid = os.fork(); pid and os.waitpid(pid, 0); print(Path(os.environ['TMPDIR']).is_dir())"
    code = ENDS.format("''", f"memory_disk.use(Path({str(tmp_path)!r}), 0); {how}")
    env = {**os.environ, "TMPDIR": ""}
    said = subprocess.run([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, check=True)
    assert said.stdout.split() == [b"True", b"True"]


@pytest.mark.usefixtures("unset")
def test_what_a_killed_run_left_goes_with_the_next(tmp_path: Path) -> None:
    left = ended(tmp_path, "import sys; sys.stdout.flush(); os._exit(1)")
    assert left.is_dir()
    running = tmp_path / f"{memory_disk.PREFIX}{os.getppid()}"
    running.mkdir()
    ended(tmp_path, "pass")
    assert not left.exists()
    assert running.is_dir()


@pytest.mark.usefixtures("unset")
def test_without_room_nothing_changes(tmp_path: Path) -> None:
    assert memory_disk.use(tmp_path, 1 << 60) is None
    assert memory_disk.use(tmp_path / "none", 0) is None
    assert os.environ["TMPDIR"] == ""


@pytest.mark.usefixtures("unset")
def test_where_no_code_is_mapped_nothing_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flagged = SimpleNamespace(f_flag=os.ST_NOEXEC)
    monkeypatch.setattr(os, "statvfs", lambda path: flagged)
    assert memory_disk.use(tmp_path, 0) is None


def test_a_place_that_was_given_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert memory_disk.use(tmp_path, 0) is None


def test_it_is_where_this_run_writes(tmp_path: Path) -> None:
    given = os.environ.get("TMPDIR", "")
    if not given.startswith(f"{memory_disk.MEMORY}/{memory_disk.PREFIX}"):
        pytest.skip("this run was given another place, or there is too little room")
    assert tmp_path.is_relative_to(given)
    assert Path(given).is_dir()
