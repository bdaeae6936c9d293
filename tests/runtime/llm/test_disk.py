"""Pages on disk are whole or not there."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.runtime.llm.disk import PageStore
from edgeinfer.runtime.llm.executor import Bytes

SIZE = 1000


def page(number: int) -> Bytes:
    return np.random.default_rng(number).integers(0, 256, SIZE).astype(np.uint8)


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


def filled(folder: Path, count: int, limit: int = 1 << 20) -> PageStore:
    store = PageStore(folder, "", SIZE, limit)
    for number in range(count):
        store.write(key(number), page(number))
    store.flush()
    return store


def test_pages_come_back_in_another_process(tmp_path: Path) -> None:
    filled(tmp_path, 3).close()
    store = PageStore(tmp_path, "", SIZE, 1 << 20)
    into = np.empty(SIZE, np.uint8)
    for number in range(3):
        assert key(number) in store
        assert store.read(key(number), into)
        assert (into == page(number)).all()
    assert not store.read(key(9), into)
    store.close()
    store.close()


@pytest.mark.parametrize("at", [0, 8, 30, 45, 60, 900])
def test_changed_byte_is_found(tmp_path: Path, at: int) -> None:
    store = filled(tmp_path, 1)
    (file,) = tmp_path.glob("*.kv")
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)
    assert not store.read(key(0), np.empty(SIZE, np.uint8))
    assert store.damaged == 1
    assert not file.exists()
    assert key(0) not in store
    store.close()


@pytest.mark.parametrize("length", [0, 10, 48, 500, 1047, 1049])
def test_file_of_another_length_is_no_page(tmp_path: Path, length: int) -> None:
    store = filled(tmp_path, 1)
    (file,) = tmp_path.glob("*.kv")
    file.write_bytes((file.read_bytes() + bytes(10))[:length])
    assert not store.read(key(0), np.empty(SIZE, np.uint8))
    store.close()


def test_page_under_another_name_is_no_page(tmp_path: Path) -> None:
    filled(tmp_path, 1).close()
    (file,) = tmp_path.glob("*.kv")
    file.rename(tmp_path / f"{key(1).hex()}.kv")
    store = PageStore(tmp_path, "", SIZE, 1 << 20)
    assert not store.read(key(1), np.empty(SIZE, np.uint8))
    store.close()


def test_longest_unused_go_when_there_is_no_room(tmp_path: Path) -> None:
    store = filled(tmp_path, 3, limit=3 * 1048)
    assert store.read(key(0), np.empty(SIZE, np.uint8))
    store.write(key(3), page(3))
    store.flush()
    assert [number for number in range(4) if key(number) in store] == [0, 2, 3]
    assert len(list(tmp_path.iterdir())) == 3
    store.close()


def test_order_of_use_outlives_a_restart(tmp_path: Path) -> None:
    filled(tmp_path, 3).close()
    for number in range(3):
        when = 1_000_000_000 + (10 if number == 0 else number)
        os.utime(tmp_path / f"{key(number).hex()}.kv", (when, when))
    store = PageStore(tmp_path, "", SIZE, 3 * 1048)
    store.write(key(3), page(3))
    store.flush()
    assert [number for number in range(4) if key(number) in store] == [0, 2, 3]
    store.close()


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    left = tmp_path / f"{key(1).hex()}.part-{child}-0"
    running = tmp_path / f"{key(2).hex()}.part-{os.getpid()}-0"
    left.touch()
    running.touch()
    PageStore(tmp_path, "", SIZE, 1 << 20).close()
    assert not left.exists()
    assert running.exists()


def test_file_that_another_process_deleted_is_not_there(tmp_path: Path) -> None:
    store = filled(tmp_path, 1)
    next(tmp_path.glob("*.kv")).unlink()
    assert not store.read(key(0), np.empty(SIZE, np.uint8))
    assert store.damaged == 0
    store.close()


def test_failed_write_stops_writing_and_says_why(tmp_path: Path) -> None:
    store = filled(tmp_path / "pages", 1)
    for file in (tmp_path / "pages").iterdir():
        file.unlink()
    (tmp_path / "pages").rmdir()
    store.write(key(1), page(1))
    store.flush()
    assert "No such file" in store.error
    store.write(key(2), page(2))
    assert store.skipped == 1
    store.close()


def test_without_room_nothing_is_written(tmp_path: Path) -> None:
    store = filled(tmp_path, 2, limit=10)
    assert not list(tmp_path.iterdir())
    store.close()


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
@pytest.mark.parametrize("level", ["", "pages"])
def test_folder_that_others_may_write_is_refused(tmp_path: Path, level: str) -> None:
    """A page has no secret, so whoever may write the folder could give a text another one's."""
    root = tmp_path / "disk"
    (root / "pages").mkdir(parents=True, mode=0o700)
    (root / level).chmod(0o777)
    with pytest.raises(PermissionError, match="can be written by others: chmod go-w"):
        PageStore(root, "pages", SIZE, 1 << 20)
    (root / level).chmod(0o755)
    PageStore(root, "pages", SIZE, 1 << 20).close()


@pytest.mark.skipif(os.name != "posix", reason="links and modes are POSIX's")
def test_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir(mode=0o700)
    (tmp_path / "root").mkdir(mode=0o700)
    (tmp_path / "root/pages").symlink_to(tmp_path / "there")
    with pytest.raises(PermissionError, match="is a link"):
        PageStore(tmp_path / "root", "pages", SIZE, 1 << 20)


@pytest.mark.skipif(os.name != "posix", reason="links and modes are POSIX's")
@pytest.mark.parametrize("how", ["mode", "link", "owner"])
def test_page_that_is_not_ours_is_none(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled(tmp_path, 1)
    (file,) = tmp_path.glob("*.kv")
    assert file.stat().st_mode & 0o777 == 0o600
    if how == "mode":
        file.chmod(0o666)
    elif how == "link":
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
    else:
        user = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    assert not store.read(key(0), np.empty(SIZE, np.uint8))
    assert store.damaged == 1
    assert not file.exists()
    assert store.error == ""
    store.close()
