"""What is left of a temporary folder is told from what a process has in use by its lock."""

import os
from pathlib import Path

import pytest

from edgeinfer.bundle.held import LOCK, hold, remove, remove_if_abandoned
from tests.forked import in_fork

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")


def test_what_cannot_be_removed_keeps_its_lock_for_the_next_process(tmp_path: Path) -> None:
    import resource

    folder = tmp_path / "folder"
    (folder / "a/b/c").mkdir(parents=True)
    folder.chmod(0o700)
    (folder / "a/b/c/file").touch()

    def remove_with_few_files_open() -> list[str]:
        lock = hold(folder)
        lock.close()
        free = os.dup(0)
        os.close(free)
        # The levels of a tree are open at once while it is removed.
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + 3, hard))
        remove(folder)
        return os.listdir(folder)

    assert sorted(in_fork(remove_with_few_files_open)) == [LOCK, "a"]
    assert remove_if_abandoned(folder)
    assert not folder.exists()
