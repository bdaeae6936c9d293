"""Where edgeinfer keeps what it can make again."""

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
