from __future__ import annotations

import gc
import mmap
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.machine import largepages
from edgeinfer.machine.largepages import LARGE, map_large

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="large pages are asked of Linux")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file that is on its storage and of which the system keeps nothing."""
    path = tmp_path / "weights.bin"
    path.write_bytes(np.random.default_rng(0).bytes(5 * LARGE + 4097))
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return path


def mapped(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        return map_large(file)


def test_what_is_mapped_is_what_the_file_has(path: Path) -> None:
    assert mapped(path)[:] == path.read_bytes()


def test_small_files_are_mapped_too(tmp_path: Path) -> None:
    place = tmp_path / "small"
    place.write_bytes(b"few")
    assert mapped(place)[:] == b"few"


def test_pages_are_large_where_the_system_can_whatever_was_read_before(path: Path) -> None:
    first = mapped(path)
    if not largepages.large_bytes(first):
        pytest.skip("this file system keeps files in small pages")
    del first
    gc.collect()
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        # Read like this a file is kept in small pages.
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        while file.read(4096):
            pass
    assert largepages.large_bytes(mapped(path)) >= 4 * LARGE


def test_storage_that_is_slow_is_not_read_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces: list[tuple[int, int]] = []
    monkeypatch.setattr(largepages, "_PIECE", LARGE)
    monkeypatch.setattr(largepages, "_LEAST_SPEED", 1e18)
    monkeypatch.setattr(largepages, "large_bytes", lambda _: 0)
    monkeypatch.setattr(os, "posix_fadvise", lambda _, *piece: pieces.append(piece[:2]))
    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", mmap.MADV_NORMAL)
    assert mapped(path)[:] == path.read_bytes()
    assert pieces in ([], [(0, 3 * LARGE)])


def test_a_system_without_the_advice_maps_all_the_same(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(largepages, "_POPULATE_READ", 9999)
    assert mapped(path)[:] == path.read_bytes()
