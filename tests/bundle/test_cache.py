"""Where edgeinfer keeps what it can make again."""

import os
import stat
from pathlib import Path

import pytest

from edgeinfer.bundle import cache


@pytest.mark.parametrize(
    ("system", "variables", "expected"),
    [
        ("linux", {}, "home/.cache"),
        ("linux", {"XDG_CACHE_HOME": "  "}, "home/.cache"),
        ("linux", {"XDG_CACHE_HOME": "/var/x"}, "/var/x"),
        ("darwin", {}, "home/Library/Caches"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local"),
        ("win32", {}, "home/AppData/Local"),
    ],
)
def test_the_user_s_cache(
    system: str,
    variables: dict[str, str],
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.platform", system)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in (cache.ENV, "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cache.cache_root() == tmp_path / expected / "edgeinfer"


def test_it_is_where_other_programs_have_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    platformdirs = pytest.importorskip("platformdirs")
    monkeypatch.delenv(cache.ENV)
    assert cache.cache_root() == Path(platformdirs.user_cache_dir("edgeinfer", appauthor=False))


posix = pytest.mark.skipif(os.name != "posix", reason="modes of POSIX")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGEINFER_CACHE", str(tmp_path / "new" / "cache"))
    return tmp_path / "new" / "cache"


@posix
def test_every_level_is_made_for_this_user_alone(root: Path) -> None:
    before = os.umask(0)
    try:
        made = cache.writable_folder("bundles", "1")
    finally:
        os.umask(before)
    for level in (root.parent, root, root / "bundles", made):
        assert stat.S_IMODE(level.stat().st_mode) == 0o700


@posix
@pytest.mark.parametrize("mode", [0o777, 0o770, 0o720, 0o702])
@pytest.mark.parametrize("level", [".", "bundles"])
def test_a_level_that_others_may_write_is_refused(root: Path, level: str, mode: int) -> None:
    cache.writable_folder("bundles", "1")
    (root / level).chmod(mode)
    with pytest.raises(PermissionError, match="can be written by others: chmod go-w"):
        cache.writable_folder("bundles", "1")
    assert cache.readable_folder("bundles", "1") is None
    (root / level).chmod(0o755)
    assert cache.writable_folder("bundles", "1") == cache.readable_folder("bundles", "1")


@posix
@pytest.mark.parametrize("level", [".", "bundles"])
def test_a_link_is_refused(root: Path, level: str) -> None:
    cache.writable_folder("bundles", "1")
    (root / level).rename(root.parent / "real")
    (root / level).symlink_to(root.parent / "real", target_is_directory=True)
    with pytest.raises(PermissionError, match="is a link"):
        cache.writable_folder("bundles", "1")
    assert cache.readable_folder("bundles", "1") is None


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="gives folders away")
def test_a_folder_of_somebody_else_is_refused(root: Path) -> None:
    cache.writable_folder("bundles", "1")
    os.chown(root, 65534, 65534)
    with pytest.raises(PermissionError, match="belongs to another user"):
        cache.writable_folder("bundles", "1")
    assert cache.readable_folder("bundles", "1") is None


@posix
def test_a_folder_whose_parent_everybody_may_write_is_refused(root: Path) -> None:
    cache.writable_folder()
    root.parent.chmod(0o777)
    with pytest.raises(PermissionError, match="everybody may rename what is in"):
        cache.writable_folder()
    root.parent.chmod(0o1777)
    assert cache.writable_folder() == root


@posix
def test_in_a_folder_of_all_users_each_has_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o1777)
    monkeypatch.setenv("EDGEINFER_CACHE", str(tmp_path))
    assert cache.writable_folder() == tmp_path / f"edgeinfer-{os.geteuid()}"
    assert stat.S_IMODE(cache.cache_root().stat().st_mode) == 0o700
